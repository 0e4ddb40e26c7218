"""The tiles of an sdd on Hopper: for each of two warpgroups, a panel and some of its steps.

A list of tiles is ``(1 + capacity, 8)``. The first row is (number of tiles, most steps of a tile of
one panel, of a tile of two, what a wgmma's columns are a multiple of, 0, ...). Each other row is
(panel, first step, end, 0) for the first warpgroup, then for the second. Either both warpgroups
have the same panel of 64 rows, and half of a tile's steps each; or each has one of two panels that
store the same columns (:mod:`jitsparse.sharing`); or both have a panel of 128 rows and all of a
tile's steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitsparse.layout import Gather
from jitsparse.panels import SMS
from jitsparse.sharing import PAIRINGS, nothing_shared, share

__all__ = ["Gathered", "gather_tiles"]

MIN_LOADED = 300
FIXED = 60
FIXED_OF_TWO = 110
"""Tuned for Hopper, in rows and columns loaded: the load below which a tile gets no faster, and the
fixed cost of a tile of one panel and of two. 54 products at 132 SMs are 0.998 to 1.13 times as fast
as with rows and columns plus 100 or 160, 1.015 on average; without the 300, those whose CTAs have
two tiles each, a wide and a narrow one, are 0.95 times as fast."""

ROUNDS_OF_A_GROUP = 2
SORTED_ROUNDS = 4
"""Rounds of CTAs that compute a group of panels, and rounds within which tiles are sorted by load.
On average 48 products are 1.046 times as fast as with groups of 32 panels and all tiles sorted
where there are few; with groups of one round 1.025, of four 1.036 (docs/performance.md)."""

WIDE, NARROW = 128, 64
"""The columns of a wgmma are a multiple of this; if wide, up to 127 of them are padding."""

BUSY = 1.12
SPARED = 1.25
"""wgmmas are narrow if the busiest CTA, with wide ones, multiplies at least ``BUSY`` times as many
columns as it loads rows and columns, or ``SPARED`` times as many as with narrow ones. That holds
for 105 of 143 products, which become 0.935 to 1.24 times as fast, 1.048 on average
(docs/performance.md). The others wait for L2: a tile that finishes sooner falls out of pace with
its neighbours, which costs up to an eighth."""

TILES_OF_A_PANEL = 16
"""Average tiles per panel of 128 rows up to which the tiles of a panel run side by side."""

MAX_BALANCED = 1 << 14
"""Most tiles for which widths are compared; above, all are as wide as possible. Each width takes a
few lists of 8 bytes per tile."""

_LAST = torch.iinfo(torch.int64).max


class Gathered(NamedTuple):
    """What the index says of an sdd's tiles along one side.

    Attributes:
        order: ``(Z,)``: the steps in the order that the tiles refer to.
        tiles: a list of tiles as wide as suits the pattern.
        wide: a list of tiles as wide as possible, of one panel each.
    """

    order: Tensor
    tiles: Tensor
    wide: Tensor


class _Runs(NamedTuple):
    """Runs: the consecutive steps of a panel in one pairing.

    Each field is ``(..., P, 1 + PAIRINGS)``; entry 0 is for steps in no pairing.

    Attributes:
        first: the first step of a run.
        steps: number of steps.
        parts: tiles that the steps are split into evenly; 0 if the partner has them.
    """

    first: Tensor
    steps: Tensor
    parts: Tensor


def gather_tiles(
    column: Tensor,
    pointers: Tensor,
    gather: Gather,
) -> Gathered:
    """The tiles of all steps of a pattern.

    Args:
        column: ``(Z,)``: the column of each step; entries from ``pointers[-1]`` on are unused.
        pointers: ``(P + 1,)``: where the steps of each panel begin.
        gather: shape of a tile.
    """
    number = torch.arange(column.numel(), device=column.device)
    most_steps = min(column.numel(), gather.panels * gather.minors)
    capacity, wide_capacity = (
        gather.tiles(most_steps, width) for width in (gather.fewest, gather.most)
    )
    if not most_steps:
        return Gathered(
            number, column.new_zeros(1 + capacity, 8), column.new_zeros(1 + wide_capacity, 8)
        )
    panel = torch.searchsorted(pointers, number, right=True) - 1
    panel = torch.where(number < pointers[-1], panel, gather.panels)
    ways = [nothing_shared(panel, gather.panels)]
    # If all tiles of one panel run at once even at half the full width, none of two is as fast.
    if gather.may_share and gather.panels + column.numel() // (gather.most // 2) > SMS:
        ways.append(share(column, panel, gather))
    pairing, partner = map(torch.stack, zip(*ways, strict=True))
    key, orders = (panel * (1 + PAIRINGS) + pairing).sort(dim=1, stable=True)
    runs, way = _planned(key, partner, gather, capacity)
    order = orders.index_select(0, way)[0]
    tiles, width, two = _listed(runs, partner.index_select(0, way)[0], gather, capacity)
    count = runs.parts.sum()
    middle = _middle_columns(column[order], tiles)
    load = width + two * gather.height // gather.block
    place = _place(tiles[:, 0], middle, two, count, gather).masked_fill_(width == 0, _LAST)
    head = _head(count, width, two, _wgmma_step(tiles, width, two, gather))
    tiles = tiles[_order(place, load, count)]
    steps = pointers.diff()[:, None]
    runs = _Runs(pointers[:-1, None], steps, (steps + gather.most - 1) // gather.most)
    # Split-K is used where these tiles are few, and no order is better for it.
    wide, width, two = _listed(runs, partner[0, :, :1], gather, wide_capacity)
    head_of_wide = _head(runs.parts.sum(), width, two, torch.full_like(count, WIDE))
    return Gathered(order, torch.cat([head, tiles]), torch.cat([head_of_wide, wide]))


def _planned(key: Tensor, partner: Tensor, gather: Gather, capacity: int) -> tuple[_Runs, Tensor]:
    """The runs whose busiest CTA finishes first, and their way of sharing, ``(1,)``.

    Shared steps have tiles as wide as possible. Tiles of one panel have the width that suits the
    pattern; as a mean of tiles, it may end with half a step.

    Args:
        key: ``(ways, Z)``: the run of each step, ``panel * (1 + PAIRINGS) + pairing``, sorted.
        partner: ``(ways, P, 1 + PAIRINGS)``.
        gather: shape of a tile.
        capacity: upper bound of the number of tiles.
    """
    ways, device = key.shape[0], key.device
    run = torch.arange(partner[0].numel() + 1, device=device).expand(ways, -1).contiguous()
    ends = torch.searchsorted(key, run)
    first, steps = (each.view_as(partner) for each in (ends[:, :-1], ends.diff(dim=1)))
    most = gather.most // 2
    own = torch.arange(gather.panels, device=device)[:, None]
    parts = (steps + most - 1) // most * (partner > own)
    _, begin, end = _dealt_out(steps.flatten(1), parts.flatten(1), capacity)
    two = _cost(2 * gather.height, end - begin, gather, FIXED_OF_TWO)
    # Many tiles are balanced however wide they are.
    fewest = gather.fewest if capacity <= MAX_BALANCED else gather.most
    halves = torch.arange(2 * fewest, 2 * gather.most + 1, device=device)  # widths in half steps
    alone = steps[:, None, :, 0].expand(-1, halves.numel(), -1)
    parts_alone = (2 * alone + halves[:, None] - 1) // halves[:, None]
    _, begin, end = _dealt_out(alone.flatten(0, 1), parts_alone.flatten(0, 1), capacity)
    one = _cost(gather.height, end - begin, gather, FIXED)
    done = _busiest(torch.cat([one, two.repeat_interleave(halves.numel(), 0)], 1))
    best = done.argmin().view(1)
    way = best // halves.numel()
    first, steps, parts = (each.index_select(0, way)[0] for each in (first, steps, parts))
    parts[:, 0] = parts_alone.flatten(0, 1).index_select(0, best)[0]
    return _Runs(first, steps, parts), way


def _cost(rows: int, width: Tensor, gather: Gather, fixed: int) -> Tensor:
    """Cost of tiles of ``width`` steps each; 0 for no steps."""
    loaded = rows + width * gather.block
    return (loaded.clamp(min=MIN_LOADED) + fixed) * (width > 0)


def _dealt_out(steps: Tensor, parts: Tensor, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    """The run of each tile, and its first step and end within the run, ``(n, capacity)`` each.

    Entries past the last tile have no steps.

    Args:
        steps: ``(n, runs)``: steps of each run.
        parts: ``(n, runs)``: tiles that they are split into, evenly.
        capacity: upper bound of the number of tiles.
    """
    ends = torch.cumsum(parts, 1)
    tile = torch.arange(capacity, device=parts.device).expand(parts.shape[0], -1).contiguous()
    run = torch.searchsorted(ends, tile, right=True)
    there = run < parts.shape[1]
    run = run.clamp_(max=parts.shape[1] - 1)
    part = (tile - (ends - parts).gather(1, run)) * there
    many = parts.gather(1, run).clamp_(min=1)
    steps = steps.gather(1, run) * there
    return run, steps * part // many, steps * (part + 1) // many


def _busiest(costs: Tensor) -> Tensor:
    """``(n,)``: the cost of the busiest CTA, given the costs of tiles, ``(n, tiles)``.

    Tiles are dealt out longest first, every other round backwards, like tile_of_round of order.cuh.
    """
    sorted_costs = costs.sort(1, descending=True).values
    missing = -costs.shape[1] % (2 * SMS)
    rounds = torch.nn.functional.pad(sorted_costs, (0, missing)).view(costs.shape[0], -1, 2, SMS)
    return (rounds[:, :, 0] + rounds[:, :, 1].flip(2)).sum(1).amax(1)


def _listed(
    runs: _Runs, partner: Tensor, gather: Gather, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The tiles of runs, ``(capacity, 8)``; how many columns each has; whether it has two panels.

    Args:
        runs: ``(P, n)`` each.
        partner: ``(P, n)``.
        gather: shape of a tile.
        capacity: upper bound of the number of tiles.
    """
    first, steps, parts = (each.reshape(-1) for each in runs)
    each_panel = partner.shape[1]
    run, begin, end = (each[0] for each in _dealt_out(steps[None], parts[None], capacity))
    begin, end = first[run] + begin, first[run] + end
    panel, other = run // each_panel, partner.reshape(-1)[run]
    two, width = other != panel, end - begin
    if gather.height > 64:
        halves = ((panel, begin, end), (panel, begin, end))
    else:
        middle = (begin + end + 1) // 2
        # The partner's steps of the same columns have the same offsets in their run.
        ahead = first[other * each_panel + run % each_panel] - first[run]
        halves = (
            (panel, begin, torch.where(two, end, middle)),
            (other, torch.where(two, begin + ahead, middle), end + ahead),
        )
    nothing = torch.zeros_like(panel)
    words = [word for half in halves for word in (*half, nothing)]
    return torch.stack(words, 1), width, two


def _head(count: Tensor, width: Tensor, two: Tensor, step: Tensor) -> Tensor:
    """``(1, 8)``: the first row of a list of tiles."""
    facts = torch.stack([count, (width * ~two).amax(), (width * two).amax(), step])
    return torch.nn.functional.pad(facts, (0, 4))[None]


def _wgmma_step(tiles: Tensor, width: Tensor, two: Tensor, gather: Gather) -> Tensor:
    """What the columns of a wgmma are a multiple of, as a scalar.

    Args:
        tiles: ``(n, 8)``, in any order.
        width: ``(n,)``: steps of each tile, 0 past the last tile.
        two: ``(n,)``: whether it has two panels.
        gather: shape of a tile.
    """
    loaded = (gather.height * (1 + two.long()) + width * gather.block) * (width > 0)
    columns = (tiles[:, 2::4] - tiles[:, 1::4]) * gather.block  # of each warpgroup
    narrow, wide = ((columns + step - 1) // step * step for step in (NARROW, WIDE))
    busiest = _busiest(torch.stack([loaded, narrow.sum(1), wide.sum(1)]))
    loaded, narrow, wide = busiest.double()
    pays = (wide >= BUSY * loaded) | (wide >= SPARED * narrow)
    return torch.where(pays, NARROW, WIDE)


def _middle_columns(column: Tensor, tiles: Tensor) -> Tensor:
    """The sum of a tile's first and last column; a second panel has the same columns."""
    begin, end = tiles[:, 1], tiles[:, 6]
    last = column.numel() - 1
    return column[begin.clamp(max=last)] + column[(end - 1).clamp(max=last)]


def _place(panel: Tensor, middle: Tensor, two: Tensor, count: Tensor, gather: Gather) -> Tensor:
    """The sort key of an sdd's tiles.

    All tiles go through k at the same pace, and L2 serves neighbours that want the same data at the
    same time with one read. Tiles of two panels come first, those of the same two side by side: the
    panels are a third of what is loaded. (Mixed with others, which are longer or shorter, they fall
    out of pace: 0.81 to 1.0 times as fast.) Of the rest, tiles of a group of panels with the same
    columns are side by side; or the tiles of a panel of 128 rows, which is 1.01 to 1.3 times as
    fast if a panel is half or a third of what they load, and up to 1.1 times if all tiles run at
    once.

    Args:
        panel: ``(n,)``: the panel of each tile.
        middle: ``(n,)``: the sum of its first and last column.
        two: ``(n,)``: whether it has two panels.
        count: number of tiles.
    """
    side_by_side = SMS
    if gather.height > 64:
        side_by_side = max(SMS, TILES_OF_A_PANEL * gather.panels)
    tiles_of_group = ROUNDS_OF_A_GROUP * SMS
    group = (tiles_of_group * gather.panels + count // 2) // count.clamp(min=1)
    group = torch.where(count > side_by_side, group.clamp(min=1), 1)
    return torch.where(two, -1, panel // group * (2 * gather.minors) + middle)


def _order(place: Tensor, load: Tensor, count: Tensor) -> Tensor:
    """The order in which an sdd computes its ``count`` first tiles.

    They are sorted by place, but within a run of a few rounds by load, largest first, so that a CTA
    with a wide tile has a narrow one next (tile_of_round of order.cuh). Sorting all at once would
    separate tiles that share data.
    """
    number = torch.arange(place.numel(), device=place.device)
    order = torch.argsort(place, stable=True)
    most = int(torch.iinfo(torch.int32).max)
    narrowness = torch.where((number < count) & (count > SMS), most - load[order], most)
    # A remainder of less than half a run joins the last run: all should end with narrow tiles
    # (8192, blocks of 128, 0.25, 4.02 rounds: 382 -> 370 us).
    tiles_of_run = SORTED_ROUNDS * SMS
    runs = (count + tiles_of_run // 2) // tiles_of_run
    run = torch.minimum(number // tiles_of_run, (runs - 1).clamp(min=0))
    return order[torch.argsort(run * (most + 1) + narrowness, stable=True)]
