"""The packed index of a pattern: every order in which kernels walk its blocks, in one int32 tensor.

A registered operation takes this one tensor instead of ten. With R x C blocks of which Z are
stored, its parts are, in this order (``csrc/abi.h: IndexView`` reads the same layout):

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
row_steps            4 Z         panels of rows: (block column, mask, first, 0) a step
col_steps            4 Z         panels of columns, likewise (block row, mask, first, 0)
row_panel_ptr        P + 1       steps of row panel p: row_panel_ptr[p] .. row_panel_ptr[p + 1]
col_panel_ptr        Q + 1
row_panel_blocks     Z           positions in ``values``, ordered by (panel, column, row)
col_panel_blocks     Z           ordered by (panel, row, column)
===================  ==========  ===========================================================

The parts below the padding exist on CUDA only. A *panel* is a group of 128 // block_rows block
rows (at least one): the tile height of the tensor-core kernels. A *step* is one block column that
any row of the panel stores: bit g of its mask says that row g does, and ``first`` is where the
step's blocks begin in ``row_panel_blocks``, one for each set bit in rising order of g. Loading the
dense operand once a step instead of once a block is what makes small blocks fast
(docs/performance.md).

Everything is computed with torch operations on the pattern's own device and without reading a value
back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PANEL", "IndexLayout", "build_index"]

PANEL = 128
"""Rows (or columns) of a panel, in elements: the tile height of the tensor-core kernels."""


def div_up(a: int, b: int) -> int:
    return -(-a // b)


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
            lengths["row_panel_ptr"] = div_up(r, max(1, PANEL // self.block_size[0])) + 1
            lengths["col_panel_ptr"] = div_up(c, max(1, PANEL // self.block_size[1])) + 1
            lengths["row_panel_blocks"] = z
            lengths["col_panel_blocks"] = z
        parts, offset = {}, 0
        for name, length in lengths.items():
            parts[name] = (offset, length)
            offset += length
        return parts

    @property
    def size(self) -> int:
        """Length of the packed tensor."""
        offset, length = list(self.parts().values())[-1]
        return offset + length

    def view(self, index: Tensor, part: str) -> Tensor:
        """The named part of a packed index, without a copy."""
        offset, length = self.parts()[part]
        return index.narrow(0, offset, length)


def build_index(
    crow_indices: Tensor,
    col_indices: Tensor,
    cols: int,
    block_size: tuple[int, int],
    *,
    panels: bool | None = None,
) -> Tensor:
    """Packed index of a validated pattern, on the device of its indices.

    Args:
        crow_indices: ``(R + 1,)`` int32, as in torch's BSR.
        col_indices: ``(Z,)`` int32, strictly increasing within a row.
        cols: block columns, C.
        block_size: ``(block_rows, block_cols)``.
        panels: whether to add the panel parts; by default where kernels read them, on CUDA.

    Returns:
        int32 tensor of length :attr:`IndexLayout.size`.
    """
    device = crow_indices.device
    rows, nnz = crow_indices.numel() - 1, col_indices.numel()
    if panels is None:
        panels = device.type == "cuda"
    layout = IndexLayout(rows, cols, nnz, block_size, panels=panels)
    if device.type == "meta":
        return torch.empty(layout.size, dtype=torch.int32, device=device)
    index = torch.zeros(layout.size, dtype=torch.int32, device=device)

    def put(part: str, data: Tensor) -> None:
        layout.view(index, part).copy_(data)

    positions = torch.arange(nnz, device=device)
    row_indices = torch.searchsorted(crow_indices, positions.to(torch.int32), right=True) - 1
    col64 = col_indices.to(torch.int64)
    perm = torch.argsort(col64 * max(rows, 1) + row_indices)
    put("crow_indices", crow_indices)
    put("col_indices", col_indices)
    put("row_indices", row_indices)
    put("ccol_indices", _pointers(col64[perm], cols))
    put("row_indices_t", row_indices[perm])
    put("perm", perm)
    if layout.panels:
        for side, major, minor, majors, group in (
            ("row", row_indices, col64, rows, max(1, PANEL // block_size[0])),
            ("col", col64, row_indices, cols, max(1, PANEL // block_size[1])),
        ):
            steps, pointers, blocks = _panels(major, minor, majors, group)
            put(f"{side}_steps", steps)
            put(f"{side}_panel_ptr", pointers)
            put(f"{side}_panel_blocks", blocks)
    return index


def _pointers(sorted_ids: Tensor, count: int) -> Tensor:
    """Where each of the ids 0 .. count begins in a sorted list."""
    return torch.searchsorted(sorted_ids, torch.arange(count + 1, device=sorted_ids.device))


def _panels(major: Tensor, minor: Tensor, majors: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Steps ``(4 * Z,)``, panel pointers and block order for panels of ``group`` major indices.

    The number of steps depends on the pattern's values, so the steps fill a prefix of an array of
    the upper bound Z; the pointers say how long the prefix is, and nothing is read on the host.
    """
    nnz, device = major.numel(), major.device
    panel, lane = major // group, major % group
    minors = 1 << 31
    order = torch.argsort((panel * minors + minor) * group + lane)
    step_key = (panel * minors + minor)[order]
    opens = torch.ones(nnz, dtype=torch.bool, device=device)
    opens[1:] = step_key[1:] != step_key[:-1]
    step = torch.cumsum(opens, 0) - 1  # the step each block belongs to
    position = torch.arange(nnz, device=device)
    steps = torch.zeros(nnz, 4, dtype=torch.int64, device=device)
    steps[:, 0].scatter_(0, step, minor[order])
    steps[:, 1].scatter_add_(0, step, torch.ones_like(lane) << lane[order])
    steps[:, 2].fill_(nnz).scatter_reduce_(0, step, position, "amin")
    pointers_in_blocks = _pointers(panel[order], -(-majors // group))
    # Step index of the first block of each panel; past the last block it is the number of steps.
    step_or_end = torch.cat([step, step[-1:] + 1]) if nnz else step.new_zeros(1)
    return steps.flatten(), step_or_end[pointers_in_blocks], order
