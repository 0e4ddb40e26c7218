"""The packed index of a pattern: every order in which kernels walk its blocks, in one int32 tensor.

A registered operation takes this one tensor instead of ten. With Z blocks stored in a grid of
R x C, it has these parts in this order (``csrc/abi.h: IndexView`` reads the same layout), and is
padded with zeros to a multiple of 4:

===================  ==========  ===========================================================
part                 length      meaning
===================  ==========  ===========================================================
crow_indices         R + 1       as in torch's BSR
col_indices          Z           block column of each stored block
row_indices          Z           block row of each stored block
ccol_indices         C + 1       the same pattern by block columns (BSC)
row_indices_t        Z           block row of each block, in column order
perm                 Z           position in ``values`` of each block, in column order
(padding to a multiple of 4)     so that the steps below are 16-byte aligned
row_steps            4 Z         steps of panels of rows: (block column, mask, first, position)
col_steps            4 Z         steps of panels of columns: (block row, mask, first, position)
row_panel_ptr        P + 1       steps of row panel p: row_panel_ptr[p] .. row_panel_ptr[p + 1]
col_panel_ptr        Q + 1
row_panel_blocks     Z           positions in ``values``, ordered by (panel, column, row)
col_panel_blocks     Z           ordered by (panel, row, column)
rows_sorted          R           block rows, those with the most blocks first
cols_sorted          C           block columns, those with the most blocks first
===================  ==========  ===========================================================

The parts below the padding exist on CUDA only. A *panel* is a group of 128 // block_rows block
rows (at least one): the tile height of the tensor-core kernels. A *step* is one block column that
any row of the panel stores: bit g of its mask says that row g does, ``first`` is where the step's
blocks begin in ``row_panel_blocks`` (one for each set bit, in rising order of g), and ``position``
is the entry there, the position of the step's first block in ``values``. Loading the dense operand
once per step instead of once per block is what makes small blocks fast (docs/performance.md). The
steps of a panel are in rising order of their columns, or in that of :mod:`jitsparse.pace`. Where
blocks are 64 high and 16 or more deep, a panel is any two block rows, chosen by
:mod:`jitsparse.pairs`.

Blocks of 16 and more also have parts for the Hopper kernels, 16-byte aligned except positions:

===================  ==========  ===========================================================
row_panels_sorted    24 P        panels, those with the most steps first, see below. Absent where
col_panels_sorted    24 Q        steps are less than 32 deep.
row_gather_steps     4 G         like row_steps, for panels of 64 rows (128 if blocks are so high)
                                 and each half of a block column of 128. A panel's steps that it
                                 shares with no other come first, then those of each pairing, see
                                 :mod:`jitsparse.sharing`
row_gather_tiles     8 + 8 T     the tiles of an sdd, see :mod:`jitsparse.gathers`
col_gather_steps                 the same for panels of columns
col_gather_tiles
row_slab_panels      24 P        like row_panels_sorted, where a step is a slab of 64 columns:
col_slab_panels      24 Q        bit g * s + c of its mask says that row g stores the c-th of
row_slab_steps       4 min(Z,.)  its s block columns. Absent, with the other slab parts, where
col_slab_steps       4 min(Z,.)  blocks are 64 or deeper: steps are slabs there.
row_gather_blocks    Z or 2 Z    positions in ``values``, ordered by (panel, column, row); where
col_gather_blocks    Z or 2 Z    block columns have two halves, 2 * position + half
row_slab_blocks      Z
col_slab_blocks      Z
(padding to a multiple of 4)
row_wide_tiles       8 + 8 T     like row_gather_tiles, of one panel each and as wide as possible
col_wide_tiles
row_tall_panels      24 U        like the slab parts, for panels of any three block rows. The tall
col_tall_panels      24 U        parts exist only for blocks 64 high, 16 to 64 deep.
row_tall_steps       4 min(Z,.)
col_tall_steps       4 min(Z,.)
row_tall_blocks      Z
col_tall_blocks      Z
(padding to a multiple of 4)
===================  ==========  ===========================================================

Where blocks are less than 32 deep, the condensed parts follow:

======================  ==========  ========================================================
row_condensed_panels    24 P        like the slab parts, where a step is the next s block
col_condensed_panels    24 Q        columns that any row of the panel stores, see below
row_condensed_steps     4 min(Z,.)
col_condensed_steps     4 min(Z,.)
row_condensed_columns   s min(Z,.)  the block columns of each step, -1 where there are no more
col_condensed_columns   s min(Z,.)
row_condensed_blocks    Z
col_condensed_blocks    Z
======================  ==========  ========================================================

A panel's 24 words are its first step, the end of its steps and two zeros; where each group of 64
rows begins, in units of 64, for at most three groups, and a zero; and a copy of its first four
steps.

Bit g * s + c of a condensed step's mask says that row g stores the c-th of the step's block
columns. In place of a slab the step has its own number, by which its columns are found.

:mod:`jitsparse.schedule` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from jitsparse.panels import (
    HOPPER_BLOCK,
    MIN_DEPTH,
    PAIRED,
    PANEL,
    SLAB,
    TALL_PANEL,
    has_condensed,
    has_tall,
)

__all__ = ["FIRST_STEPS", "PANEL_WORDS", "Gather", "IndexLayout", "Slabs", "div_up"]

FIRST_STEPS = 4
"""Steps stored beside their panel, enough for every warp that copies
(csrc/cuda/kernels/spmm_walk.cuh)."""

PANEL_WORDS = 8 + 4 * FIRST_STEPS
"""Words of a panel in a list of panels."""


def div_up(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Gather:
    """Shape of an sdd's tiles: a panel along one side, blocks gathered along the other.

    Gathered blocks of 128 are split in two pieces.

    Attributes:
        down: blocks of a panel.
        pieces: pieces of a block along the other side.
        panels, minors: number of panels, and of pieces along the other side.
        fewest, most: pieces that a tile may gather.
        block: size of a piece in elements.
        height: height of a panel in elements, 64 or 128.
        may_share: whether two panels may share a tile (:mod:`jitsparse.sharing`).
    """

    down: int
    pieces: int
    panels: int
    minors: int
    fewest: int
    most: int
    block: int
    height: int
    may_share: bool

    @staticmethod
    def of(
        majors: int, minors: int, major_block: int, minor_block: int, *, may_share: bool
    ) -> Gather:
        """The shape for a grid of ``majors`` x ``minors`` blocks, panels along the first.

        Panels of two warpgroups share no tile.
        """
        height = max(64, major_block)
        down, piece = height // major_block, min(64, minor_block)
        pieces, panels = minor_block // piece, div_up(majors, down)
        most = (256 if height > 64 else 512) // piece
        may_share = may_share and height == 64
        minors = minors * pieces
        return Gather(down, pieces, panels, minors, 128 // piece, most, piece, height, may_share)

    def tiles(self, steps: int, width: int) -> int:
        """Most tiles possible if all but one per panel have at least ``width`` steps."""
        return self.panels + steps // width


@dataclass(frozen=True)
class Slabs:
    """Panels whose steps are slabs of :data:`SLAB`.

    Attributes:
        down: block rows (or columns) of a panel.
        across: blocks along the other side that a slab covers.
        panels: number of panels.
        most: upper bound of the number of steps.
    """

    down: int
    across: int
    panels: int
    most: int


@dataclass(frozen=True)
class IndexLayout:
    """Offsets of the parts of a packed index.

    Args:
        rows: block rows, R.
        cols: block columns, C.
        nnz: stored blocks, Z.
        block_size: ``(block_rows, block_cols)`` in elements.
        panels: whether the panel parts are present (CUDA).
    """

    rows: int
    cols: int
    nnz: int
    block_size: tuple[int, int]
    panels: bool

    @property
    def hopper(self) -> bool:
        """Whether the parts for the Hopper kernels are present."""
        return self.panels and min(self.block_size) >= HOPPER_BLOCK

    def extent(self, side: str) -> int:
        """Size of a block along ``"row"`` or ``"col"``, in elements."""
        return self.block_size[0 if side == "row" else 1]

    def group(self, side: str) -> int:
        """Block rows (or columns) of a panel of :data:`PANEL` rows."""
        return max(1, PANEL // self.extent(side))

    def pairs(self, side: str) -> bool:
        """Whether a panel may be any two block rows or columns (:mod:`jitsparse.pairs`)."""
        return self.hopper and self.extent(side) == PAIRED

    def slabs(self, kind: str) -> dict[str, Slabs]:
        """Panels whose steps are slabs, by side.

        Kind ``"slab"`` is :data:`PANEL` rows high, for blocks less deep than a slab; so is
        ``"condensed"``, see :func:`has_condensed`; ``"tall"`` is :data:`TALL_PANEL` rows high, see
        :func:`has_tall`.
        """
        (rows, cols), height = self.block_size, TALL_PANEL if kind == "tall" else PANEL
        sides = {
            "row": (self.rows, rows, self.cols, cols),
            "col": (self.cols, cols, self.rows, rows),
        }
        found = {}
        for side, (majors, extent, minors, depth) in sides.items():
            has = {
                "slab": depth < SLAB,
                "condensed": has_condensed(depth),
                "tall": has_tall(extent, depth),
            }
            if has[kind]:
                down, across = max(1, height // extent), SLAB // depth
                panels = div_up(majors, down)
                most = min(self.nnz, panels * div_up(minors, across))
                found[side] = Slabs(down, across, panels, most)
        return found

    def gathers(self) -> dict[str, Gather]:
        """Shapes of an sdd's tiles with panels along either side."""
        rows, cols = self.block_size
        return {
            "row": Gather.of(self.rows, self.cols, rows, cols, may_share=True),
            # Only TF32 gathers blocks 64 high and more along rows: too rarely to compare panels for
            # it in every pattern.
            "col": Gather.of(self.cols, self.rows, cols, rows, may_share=rows < 64),
        }

    def parts(self) -> dict[str, tuple[int, int]]:
        """Name to ``(offset, length)``, in the order of the layout."""
        r, c, z = self.rows, self.cols, self.nnz
        lengths = {
            "crow_indices": r + 1,
            "col_indices": z,
            "row_indices": z,
            "ccol_indices": c + 1,
            "row_indices_t": z,
            "perm": z,
        }
        if self.panels:
            head = sum(lengths.values())
            lengths["padding"] = -head % 4
            lengths["row_steps"] = 4 * z
            lengths["col_steps"] = 4 * z
            lengths["row_panel_ptr"] = div_up(r, self.group("row")) + 1
            lengths["col_panel_ptr"] = div_up(c, self.group("col")) + 1
            lengths["row_panel_blocks"] = z
            lengths["col_panel_blocks"] = z
            lengths["rows_sorted"] = r
            lengths["cols_sorted"] = c
        if self.hopper:
            head = sum(lengths.values())
            lengths["hopper_padding"] = -head % 4
            for side, depth in (("row", self.block_size[1]), ("col", self.block_size[0])):
                if depth >= MIN_DEPTH:
                    panels = lengths[f"{side}_panel_ptr"] - 1
                    lengths[f"{side}_panels_sorted"] = PANEL_WORDS * panels
            gathers = self.gathers()
            most = {
                side: min(z * gather.pieces, gather.panels * gather.minors)
                for side, gather in gathers.items()
            }
            for side, gather in gathers.items():
                lengths[f"{side}_gather_steps"] = 4 * most[side]
                lengths[f"{side}_gather_tiles"] = 8 + 8 * gather.tiles(most[side], gather.fewest)
            lengths |= self._panels_and_steps("slab")
            lengths |= {f"{side}_gather_blocks": z * each.pieces for side, each in gathers.items()}
            lengths |= {f"{side}_slab_blocks": z for side in self.slabs("slab")}
            lengths["wide_padding"] = -sum(lengths.values()) % 4
            for side, gather in gathers.items():
                lengths[f"{side}_wide_tiles"] = 8 + 8 * gather.tiles(most[side], gather.most)
            lengths |= self._panels_and_steps("tall")
            lengths |= {f"{side}_tall_blocks": z for side in self.slabs("tall")}
            lengths["condensed_padding"] = -sum(lengths.values()) % 4
            lengths |= self._panels_and_steps("condensed")
            condensed = self.slabs("condensed")
            lengths |= {
                f"{side}_condensed_columns": s.across * s.most for side, s in condensed.items()
            }
            lengths |= {f"{side}_condensed_blocks": z for side in condensed}
        parts, offset = {}, 0
        for name, length in lengths.items():
            parts[name] = (offset, length)
            offset = offset + length  # not in place: lengths are tensors while tracing
        return parts

    def _panels_and_steps(self, kind: str) -> dict[str, int]:
        slabs = self.slabs(kind)
        panels = {f"{side}_{kind}_panels": PANEL_WORDS * s.panels for side, s in slabs.items()}
        return panels | {f"{side}_{kind}_steps": 4 * each.most for side, each in slabs.items()}

    @property
    def size(self) -> int:
        """Length of the packed tensor: a multiple of 4, so all of a stack are 16-byte aligned."""
        offset, length = list(self.parts().values())[-1]
        return 4 * div_up(offset + length, 4)

    def view(self, index: Tensor, part: str) -> Tensor:
        """The named part of a packed index, without a copy."""
        offset, length = self.parts()[part]
        return index.narrow(0, offset, length)
