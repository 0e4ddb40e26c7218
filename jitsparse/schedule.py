"""Computing the packed index of a pattern (:mod:`jitsparse.layout` says what its parts are).

Everything is computed with torch operations on the pattern's own device and without reading a value
back to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitsparse.gathers import gather_tiles
from jitsparse.layout import FIRST_STEPS, PANEL_WORDS, IndexLayout, div_up
from jitsparse.pace import Steps, keep_pace
from jitsparse.pairs import pair_rows, triple_rows
from jitsparse.panels import PAIRED, PANEL

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
    device = crow_indices.device
    rows, nnz = crow_indices.numel() - 1, col_indices.numel()
    if panels is None:
        panels = device.type == "cuda"
    layout = IndexLayout(rows, cols, nnz, block_size, panels=panels)
    if device.type == "meta":
        return torch.empty(layout.size, dtype=torch.int32, device=device)
    index = torch.zeros(layout.size, dtype=torch.int32, device=device)
    parts = layout.parts()

    def put(part: str, data: Tensor) -> None:
        index.narrow(0, *parts[part]).copy_(data)

    def put_prefix(part: str, steps: Tensor) -> None:
        """Of an array whose length is the upper bound Z, as much as the part has room for."""
        put(part, steps.flatten()[: parts[part][1]])

    positions = torch.arange(nnz, device=device)
    row_indices = torch.searchsorted(crow_indices, positions.to(torch.int32), right=True) - 1
    col64 = col_indices.to(torch.int64)
    perm = torch.argsort(col64 * max(rows, 1) + row_indices)
    put("crow_indices", crow_indices)
    put("col_indices", col_indices)
    put("row_indices", row_indices)
    ccol_indices = _pointers(col64[perm], cols)
    put("ccol_indices", ccol_indices)
    put("row_indices_t", row_indices[perm])
    put("perm", perm)
    if not layout.panels:
        return index
    put("rows_sorted", _longest_first(crow_indices))
    put("cols_sorted", _longest_first(ccol_indices))
    walked: dict[str, Steps] = {}  # at one pace, by the part that holds the panels

    def walk(
        steps: str, pointers: Tensor, starts: Tensor, minors: int, across: int, extent: int
    ) -> Steps:
        """Steps that are in the index, of panels that are not yet."""
        listed = layout.view(index, steps).view(-1, 4)
        order = _longest_first(pointers)
        return Steps(listed, pointers, order, starts, nnz, minors, across, extent)

    for side, majors, minors, major, minor, extent in (
        ("row", rows, cols, row_indices, col64, block_size[0]),
        ("col", cols, rows, col64, row_indices, block_size[1]),
    ):
        group = max(1, PANEL // extent)
        placed, starts = major, _starts(div_up(majors, group), device)
        if layout.hopper and extent == PAIRED:
            paired = pair_rows(major, minor, majors, minors)
            placed, starts = torch.argsort(paired)[major], pad(paired.view(-1, 2), (0, 1))
        by_column = _panels(placed, minor, majors, group, 1)
        steps, pointers, blocks = by_column
        put(f"{side}_panel_ptr", pointers)
        put(f"{side}_panel_blocks", blocks)
        put(f"{side}_steps", steps.flatten())
        if not layout.hopper:
            continue
        if f"{side}_panels_sorted" in parts:
            part = f"{side}_panels_sorted"
            walked[part] = walk(f"{side}_steps", pointers, starts, minors, 1, extent)
        kinds = {kind: layout.slabs(kind).get(side) for kind in ("slab", "tall")}
        for kind, slabs in kinds.items():
            if slabs is None:
                continue
            row, starting = placed, starts
            if kind == "tall":
                tripled = triple_rows(major, minor, majors, minors)
                row, starting = torch.argsort(tripled)[major], tripled.view(-1, 3)
            steps, pointers, blocks = _panels(row, minor, majors, slabs.down, slabs.across)
            put_prefix(f"{side}_{kind}_steps", steps)
            put(f"{side}_{kind}_blocks", blocks)
            name, facts = f"{side}_{kind}", (starting, minors, slabs.across, extent)
            walked[f"{name}_panels"] = walk(f"{name}_steps", pointers, *facts)
        condensed = layout.slabs("condensed").get(side)
        if condensed is not None:
            rank = _ranks_in_panels(*by_column, placed // group)
            steps, pointers, blocks = _panels(placed, rank, majors, group, condensed.across)
            column = (pointers[placed // group] * condensed.across + rank,)
            columns = torch.full((condensed.most * condensed.across,), -1, device=device)
            put(f"{side}_condensed_columns", columns.index_put_(column, minor))
            steps[:, 0] = torch.arange(nnz, device=device)
            put_prefix(f"{side}_condensed_steps", steps)
            put(f"{side}_condensed_blocks", blocks)
            # In no common order: no two panels have a slab. (With the columns in an order that sets
            # share: 0.98 to 1.01 times as fast.)
            facts = starts, minors, condensed.across, extent
            found = walk(f"{side}_condensed_steps", pointers, *facts)
            put(f"{side}_condensed_panels", _rows_of_panels(found).flatten())
        gather = layout.gathers()[side]
        pieces = minor[:, None] * gather.pieces + torch.arange(gather.pieces, device=device)
        of_pieces = major.repeat_interleave(gather.pieces), pieces.flatten()
        steps, pointers, blocks = _panels(*of_pieces, majors, gather.down, 1)
        put(f"{side}_gather_blocks", blocks)
        # Blocks 64 high and more are gathered along rows in TF32 alone: too seldom to compare
        # panels for it in every pattern.
        may_share = gather.height == 64 and (side == "row" or block_size[0] < 64)
        gathered = gather_tiles(steps[:, 0], pointers, gather, may_share=may_share)
        put_prefix(f"{side}_gather_steps", steps[gathered.order])
        put(f"{side}_gather_tiles", gathered.tiles.flatten())
        put(f"{side}_wide_tiles", gathered.wide.flatten())
    keep_pace([*walked.values()])
    for part, each in walked.items():
        put(part, _rows_of_panels(each).flatten())
    return index


def _pointers(sorted_ids: Tensor, count: int) -> Tensor:
    """Where each of the ids 0 .. count begins in a sorted list."""
    return torch.searchsorted(sorted_ids, torch.arange(count + 1, device=sorted_ids.device))


def _panels(
    major: Tensor, minor: Tensor, majors: int, down: int, across: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps ``(Z, 4)``, panel pointers and block order for panels of ``down`` major indices.

    A step covers ``across`` minor indices; down * across is 32 at most. The number of steps depends
    on the pattern's values, so the steps fill a prefix of an array of the upper bound Z; the
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
    """``(Z,)``: which of its panel's steps a block belongs to, the first being 0.

    Args:
        steps, pointers, order: what :func:`_panels` returned.
        panel: ``(Z,)``: the panel of each block.
    """
    position = torch.arange(order.numel(), device=order.device)
    step = torch.searchsorted(steps[:, 2].contiguous(), position, right=True) - 1
    return torch.empty_like(order).scatter_(0, order, step) - pointers[panel]


def _longest_first(pointers: Tensor) -> Tensor:
    """The panels, those with most steps first; or rows, by their blocks."""
    return torch.argsort(pointers[:-1] - pointers[1:], stable=True)


def _starts(panels: int, device: torch.device) -> Tensor:
    """``(panels, 3)``: where the two 64 rows begin of panels that follow one another, in units of
    64, and 0."""
    return pad(torch.arange(2 * panels, device=device).view(-1, 2), (0, 1))


def _rows_of_panels(each: Steps) -> Tensor:
    """``(P, PANEL_WORDS)``: of a panel (first step, end, 0, 0), where each 64 of its rows begin, 0,
    and its first steps.

    These are there once more, so that a CTA knows what to copy first with one read.
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
