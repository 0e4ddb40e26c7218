"""Computing the packed index of a pattern (:mod:`jitsparse.layout` says what its parts are).

Everything is computed with torch operations on the pattern's own device and without reading a value
back to the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitsparse.gathers import gather_tiles
from jitsparse.layout import FIRST_STEPS, PANEL_WORDS, IndexLayout, div_up
from jitsparse.pace import Steps, keep_pace
from jitsparse.pairs import pair_rows, triple_rows

__all__ = ["build_index"]


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
    rows, nnz = crow_indices.numel() - 1, col_indices.numel()
    if panels is None:
        panels = crow_indices.device.type == "cuda"
    index = _Index(IndexLayout(rows, cols, nnz, block_size, panels=panels), crow_indices.device)
    if index.packed.is_meta:
        return index.packed
    positions = torch.arange(nnz, device=index.packed.device)
    row_indices = torch.searchsorted(crow_indices, positions.to(torch.int32), right=True) - 1
    col64 = col_indices.to(torch.int64)
    perm = torch.argsort(col64 * max(rows, 1) + row_indices)
    index.put("crow_indices", crow_indices)
    index.put("col_indices", col_indices)
    index.put("row_indices", row_indices)
    ccol_indices = _pointers(col64[perm], cols)
    index.put("ccol_indices", ccol_indices)
    index.put("row_indices_t", row_indices[perm])
    index.put("perm", perm)
    if not index.layout.panels:
        return index.packed
    index.put("rows_sorted", _longest_first(crow_indices))
    index.put("cols_sorted", _longest_first(ccol_indices))
    sides = (
        _Side("row", rows, cols, row_indices, col64, block_size[0]),
        _Side("col", cols, rows, col64, row_indices, block_size[1]),
    )
    walked: dict[str, Steps] = {}  # to keep pace, by the part that holds their panels
    for side in sides:
        panelled = _put_panels(index, side)
        if not index.layout.hopper:
            continue
        if f"{side.name}_panels_sorted" in index.parts:
            steps = index.walk(side, f"{side.name}_steps", panelled.pointers, panelled.starts, 1)
            walked[f"{side.name}_panels_sorted"] = steps
        for kind in ("slab", "tall"):
            if side.name in index.layout.slabs(kind):
                walked[f"{side.name}_{kind}_panels"] = _put_slabs(index, side, kind, panelled)
        if side.name in index.layout.slabs("condensed"):
            _put_condensed(index, side, panelled)
        _put_gathered(index, side)
    keep_pace([*walked.values()])
    for part, each in walked.items():
        index.put(part, _rows_of_panels(each).flatten())
    return index.packed


class _Index:
    """The packed tensor while it is being filled."""

    def __init__(self, layout: IndexLayout, device: torch.device) -> None:
        self.layout = layout
        self.parts = layout.parts()
        self.packed = torch.zeros(layout.size, dtype=torch.int32, device=device)

    def put(self, part: str, data: Tensor) -> None:
        self.packed.narrow(0, *self.parts[part]).copy_(data)

    def put_prefix(self, part: str, steps: Tensor) -> None:
        """Put as much of an array of the upper-bound length Z as the part has room for."""
        self.put(part, steps.flatten()[: self.parts[part][1]])

    def walk(self, side: _Side, part: str, pointers: Tensor, starts: Tensor, across: int) -> Steps:
        """Steps that are already in the index, of panels that are not."""
        listed, order = self.layout.view(self.packed, part).view(-1, 4), _longest_first(pointers)
        nnz, minors, extent = side.major.numel(), side.minors, side.extent
        return Steps(listed, pointers, order, starts, nnz, minors, across, extent)


class _Side(NamedTuple):
    """The blocks as seen by panels along one side: of the rows, or of the columns.

    Attributes:
        name: ``"row"`` or ``"col"``.
        majors, minors: blocks along the side and across it.
        major, minor: ``(Z,)`` int64, the coordinates of each block.
        extent: size of a block along the side.
    """

    name: str
    majors: int
    minors: int
    major: Tensor
    minor: Tensor
    extent: int


class _Panelled(NamedTuple):
    """Panels whose steps are single block columns.

    Attributes:
        group: block rows of a panel.
        placed: ``(Z,)``: the place of each block's row in the order of the panels.
        starts: where each group of 64 rows of a panel begins.
        steps, pointers, blocks: as returned by :func:`_panels`.
    """

    group: int
    placed: Tensor
    starts: Tensor
    steps: Tensor
    pointers: Tensor
    blocks: Tensor


def _put_panels(index: _Index, side: _Side) -> _Panelled:
    group = index.layout.group(side.name)
    placed, starts = side.major, _starts(div_up(side.majors, group), side.major.device)
    if index.layout.pairs(side.name):
        paired = pair_rows(side.major, side.minor, side.majors, side.minors)
        placed, starts = torch.argsort(paired)[side.major], pad(paired.view(-1, 2), (0, 1))
    steps, pointers, blocks = _panels(placed, side.minor, side.majors, group, 1)
    index.put(f"{side.name}_panel_ptr", pointers)
    index.put(f"{side.name}_panel_blocks", blocks)
    index.put(f"{side.name}_steps", steps.flatten())
    return _Panelled(group, placed, starts, steps, pointers, blocks)


def _put_slabs(index: _Index, side: _Side, kind: str, panelled: _Panelled) -> Steps:
    """Panels whose steps are slabs; ``"tall"`` ones have any three block rows."""
    placed, starts = panelled.placed, panelled.starts
    if kind == "tall":
        tripled = triple_rows(side.major, side.minor, side.majors, side.minors)
        placed, starts = torch.argsort(tripled)[side.major], tripled.view(-1, 3)
    slabs = index.layout.slabs(kind)[side.name]
    steps, pointers, blocks = _panels(placed, side.minor, side.majors, slabs.down, slabs.across)
    index.put_prefix(f"{side.name}_{kind}_steps", steps)
    index.put(f"{side.name}_{kind}_blocks", blocks)
    return index.walk(side, f"{side.name}_{kind}_steps", pointers, starts, slabs.across)


def _put_condensed(index: _Index, side: _Side, panelled: _Panelled) -> None:
    """Panels whose steps are slabs of the next block columns that they store."""
    slabs = index.layout.slabs("condensed")[side.name]
    nnz, device = side.major.numel(), side.major.device
    panel = panelled.placed // panelled.group
    rank = _ranks_in_panels(panelled.steps, panelled.pointers, panelled.blocks, panel)
    placed = panelled.placed
    steps, pointers, blocks = _panels(placed, rank, side.majors, panelled.group, slabs.across)
    columns = torch.full((slabs.most * slabs.across,), -1, device=device)
    columns.index_put_((pointers[panel] * slabs.across + rank,), side.minor)
    index.put(f"{side.name}_condensed_columns", columns)
    steps[:, 0] = torch.arange(nnz, device=device)
    part = f"{side.name}_condensed_steps"
    index.put_prefix(part, steps)
    index.put(f"{side.name}_condensed_blocks", blocks)
    # In no common order: no two panels share a slab. (With the columns in an order that sets share:
    # 0.98 to 1.01 times as fast.)
    walked = index.walk(side, part, pointers, panelled.starts, slabs.across)
    index.put(f"{side.name}_condensed_panels", _rows_of_panels(walked).flatten())


def _put_gathered(index: _Index, side: _Side) -> None:
    """The tiles of an sdd that gathers blocks across panels of this side."""
    gather = index.layout.gathers()[side.name]
    device = side.major.device
    pieces = side.minor[:, None] * gather.pieces + torch.arange(gather.pieces, device=device)
    of_pieces = side.major.repeat_interleave(gather.pieces), pieces.flatten()
    steps, pointers, blocks = _panels(*of_pieces, side.majors, gather.down, 1)
    index.put(f"{side.name}_gather_blocks", blocks)
    gathered = gather_tiles(steps[:, 0], pointers, gather)
    index.put_prefix(f"{side.name}_gather_steps", steps[gathered.order])
    index.put(f"{side.name}_gather_tiles", gathered.tiles.flatten())
    index.put(f"{side.name}_wide_tiles", gathered.wide.flatten())


def _pointers(sorted_ids: Tensor, count: int) -> Tensor:
    """Where each of the ids 0 .. count begins in a sorted list."""
    return torch.searchsorted(sorted_ids, torch.arange(count + 1, device=sorted_ids.device))


def _panels(
    major: Tensor, minor: Tensor, majors: int, down: int, across: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps ``(Z, 4)``, panel pointers and block order for panels of ``down`` major indices.

    A step covers ``across`` minor indices; down * across is at most 32. The number of steps depends
    on the pattern's values, so the steps fill a prefix of an array of upper-bound length Z; the
    pointers say how long the prefix is, and nothing is read on the host.
    """
    nnz, device = major.numel(), major.device
    panel, slab = major // down, minor // across
    bit = major % down * across + minor % across
    order = torch.argsort((panel * (1 << 31) + slab) * (down * across) + bit)
    step_key = (panel * (1 << 31) + slab)[order]
    opens = torch.ones(nnz, dtype=torch.bool, device=device)
    opens[1:] = step_key[1:] != step_key[:-1]
    step = torch.cumsum(opens, 0) - 1  # the step each block belongs to
    position = torch.arange(nnz, device=device)
    steps = torch.zeros(nnz, 4, dtype=torch.int64, device=device)
    steps[:, 0].scatter_(0, step, slab[order])
    steps[:, 1].scatter_add_(0, step, torch.ones_like(bit) << bit[order])
    steps[:, 1].sub_(steps[:, 1] >> 31 << 32)  # the same 32 bits as a signed number
    steps[:, 2].fill_(nnz).scatter_reduce_(0, step, position, "amin")
    if nnz:
        steps[:, 3] = order[steps[:, 2].clamp(max=nnz - 1)]
    pointers_in_blocks = _pointers(panel[order], div_up(majors, down))
    # Step index of the first block of each panel; past the last block it is the number of steps.
    step_or_end = torch.cat([step, step[-1:] + 1]) if nnz else step.new_zeros(1)
    return steps, step_or_end[pointers_in_blocks], order


def _ranks_in_panels(steps: Tensor, pointers: Tensor, order: Tensor, panel: Tensor) -> Tensor:
    """``(Z,)``: which of its panel's steps a block belongs to, counting from 0.

    Args:
        steps, pointers, order: what :func:`_panels` returned.
        panel: ``(Z,)``: the panel of each block.
    """
    position = torch.arange(order.numel(), device=order.device)
    step = torch.searchsorted(steps[:, 2].contiguous(), position, right=True) - 1
    return torch.empty_like(order).scatter_(0, order, step) - pointers[panel]


def _longest_first(pointers: Tensor) -> Tensor:
    """The panels, those with the most steps first; or rows, by their blocks."""
    return torch.argsort(pointers[:-1] - pointers[1:], stable=True)


def _starts(panels: int, device: torch.device) -> Tensor:
    """``(panels, 3)``: where both groups of 64 rows of consecutive panels begin, in 64s, and 0."""
    return pad(torch.arange(2 * panels, device=device).view(-1, 2), (0, 1))


def _rows_of_panels(each: Steps) -> Tensor:
    """``(P, PANEL_WORDS)``: the words of each panel.

    They are (first step, end, 0, 0), where each group of 64 rows begins, 0, and a copy of its first
    steps, so that a CTA knows what to copy first with one read.
    """
    panel, steps = each.panels, each.steps
    begin, end = each.pointers[:-1][panel], each.pointers[1:][panel]
    ends = torch.stack([begin, end], 1)
    words = torch.cat([pad(ends, (0, 2)), pad(each.starts[panel], (0, 1))], 1)
    if not steps.shape[0]:
        return pad(words, (0, PANEL_WORDS - 8))
    step = begin[:, None] + torch.arange(FIRST_STEPS, device=panel.device)
    there = (step < end[:, None])[:, :, None]
    first = torch.where(there, steps[step.clamp(max=steps.shape[0] - 1)], 0)
    return torch.cat([words, first.flatten(1)], 1)
