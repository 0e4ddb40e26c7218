"""Which block rows of 64 share a panel: those with the most stored columns in common.

On Hopper a panel of 128 rows is two of them and one of 192 three, one per warpgroup, and loads
every slab of the dense operand that any of them needs. Rows that share more load less. In random
patterns of 128 x 128 blocks, pairs need 12, 9 and 7 % fewer slabs at densities of 0.1, 0.25 and
0.5, triples 15, 12 and 7 %; in those of 64 x 64 blocks, 15, 12 and 8 %, and 21, 15 and 9 %. Where
rows have very different lengths, pairs need a fifth fewer (docs/performance.md). Rows are matched
within windows of 128 or 126, so that all windows are matched at once.

The matching is greedy: the best remaining pair comes next. Two rows that are each other's best
would be matched sooner or later, so all such pairs are matched at once (Preis, "Linear Time
1/2-Approximation Algorithm for Maximum Weighted Matching in General Graphs", 1999). Where adjacent
rows share as much, as in banded or triangular patterns, they are paired. The best partner is the
one that shares most beyond chance: long rows share much with every row, so all rows would choose
them, and they would be matched one by one. :mod:`jitsparse.sharing` matches the panels of an sdd in
the same way, in windows of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jitsparse.layout import div_up
from jitsparse.panels import PAIRED_AMONG, TRIPLED_AMONG

__all__ = [
    "MAX_COMPARISONS",
    "NO_PAIR",
    "ROUNDS",
    "in_no_order",
    "match",
    "pair_rows",
    "triple_rows",
]

ROUNDS = 8
"""Rounds of a matching."""

MAX_COMPARISONS = 1 << 27
"""Patterns that need more, a byte each, keep their order of rows."""

_NOBODY, NO_PAIR = -(1 << 42), -(1 << 60)
"""Weights of pairs with padding rows, and of entries that are not pairs."""


def pair_rows(major: Tensor, minor: Tensor, majors: int, minors: int) -> Tensor:
    """The rows of panels: panel p has entries ``2 p`` and ``2 p + 1`` of the result.

    All decisions are made by torch operations that read nothing back to the host. While a graph is
    compiled, rows keep their order: it would contain the operations of every round.

    Args:
        major: ``(Z,)``: the row of each block.
        minor: ``(Z,)``: its column.
        majors: rows.
        minors: columns.

    Returns:
        ``(2 * div_up(majors, 2),)``: each row once, and ``majors`` (no row) beside one of them if
        their number is odd.
    """
    windows = div_up(majors, PAIRED_AMONG)
    few = windows * PAIRED_AMONG**2 * minors <= MAX_COMPARISONS
    if majors <= 2 or not few or torch.compiler.is_compiling():
        return torch.arange(2 * div_up(majors, 2), device=major.device)
    stored = _stored(major, minor, (windows, PAIRED_AMONG, minors))
    shared = _shared(stored, stored)
    partner = match(_weights(shared, majors, major.numel(), majors * minors), ROUNDS)
    row = torch.arange(PAIRED_AMONG, device=major.device)
    beside = row ^ 1
    partner = torch.where(_more(shared, partner, beside), partner, beside)
    # A pair takes the place of its first row, so padding rows come last.
    order = torch.argsort(torch.minimum(row, partner) * PAIRED_AMONG + row, dim=1)
    order += PAIRED_AMONG * torch.arange(windows, device=major.device).unsqueeze(1)
    return order.flatten()[: 2 * div_up(majors, 2)].clamp(max=majors)


def _more(shared: Tensor, some: Tensor, others: Tensor) -> Tensor:
    """Whether a window's rows share more with ``some`` than with ``others``, ``(windows, 1)``."""

    def together(partner: Tensor) -> Tensor:
        return shared.gather(2, partner.expand(shared.shape[:2]).unsqueeze(2)).sum(1)

    return together(some) > together(others)


def triple_rows(major: Tensor, minor: Tensor, majors: int, minors: int) -> Tensor:
    """The rows of panels of three: panel p has entries ``3 p`` to ``3 p + 2`` of the result.

    Every panel keeps one of the pairs that share most; the rows of the other pairs are matched to
    these pairs, one each.

    Args:
        major, minor, majors, minors: as for :func:`pair_rows`.

    Returns:
        ``(3 * div_up(majors, 3),)``: each row once, and ``majors`` in place of missing rows.
    """
    device, most = major.device, TRIPLED_AMONG // 3
    windows = div_up(majors, TRIPLED_AMONG)
    few = windows * TRIPLED_AMONG**2 * minors <= MAX_COMPARISONS
    if majors <= 3 or not few or torch.compiler.is_compiling():
        return torch.arange(3 * div_up(majors, 3), device=device).clamp(max=majors)
    stored = _stored(major, minor, (windows, TRIPLED_AMONG, minors))
    weights = _weights(_shared(stored, stored), majors, major.numel(), majors * minors)
    partner = match(weights.clone(), ROUNDS)
    # The best pairs first, side by side since both rows have the weight of their pair. A padding
    # row may be the partner of a real one, and still comes last.
    of_pair = weights.gather(2, partner.unsqueeze(2)).squeeze(2)
    order = torch.argsort(of_pair, dim=1, descending=True, stable=True)
    begin = TRIPLED_AMONG * torch.arange(windows, device=device).unsqueeze(1)
    order = order.gather(1, _first(begin + order < majors))
    rows = (majors - begin).clamp(max=TRIPLED_AMONG)
    panels = (rows + 2) // 3
    number = torch.arange(most, device=device).expand(windows, most)
    pairs = order[:, : 2 * most].view(windows, most, 2)
    place = 2 * panels + number
    others = order.gather(1, place.clamp(max=TRIPLED_AMONG - 1))
    there = number < panels, place < rows
    more = _shared_by_thirds(stored, pairs, others, major.numel(), majors * minors)
    third = _dealt(more, there)
    last = torch.where(third < 0, majors, begin + others.gather(1, third.clamp(min=0)))
    triples = torch.cat([begin.unsqueeze(2) + pairs, last.unsqueeze(2)], 2)
    return triples.flatten()[: 3 * div_up(majors, 3)].clamp(max=majors)


def _shared_by_thirds(
    stored: Tensor, pairs: Tensor, others: Tensor, nnz: int, blocks: int
) -> Tensor:
    """How much the others share with the pairs beyond chance, ``(windows, pairs, others)``."""

    def columns(rows: Tensor) -> Tensor:
        return stored.gather(1, rows.unsqueeze(2).expand(-1, -1, stored.shape[2]))

    paired, alone = columns(pairs[:, :, 0]) | columns(pairs[:, :, 1]), columns(others)
    return _above_chance(_shared(paired, alone), paired.sum(2), alone.sum(2), nnz, blocks)


def _dealt(more: Tensor, there: tuple[Tensor, Tensor]) -> Tensor:
    """The other row that each pair takes, ``(windows, pairs)``; negative if none is left for it.

    Rows left after the rounds are dealt out in order.

    Args:
        more: the score to maximize, ``(windows, pairs, others)``, as many pairs as others.
        there: which pairs, and which others, exist in each window; never more others than pairs.
    """
    windows, most, _ = more.shape
    weights = more * (2 * most) ** 2 + in_no_order(2 * most, more.device)[:most, most:]
    weights = torch.where(there[0].unsqueeze(2) & there[1].unsqueeze(1), weights, NO_PAIR)
    both = torch.full((windows, 2 * most, 2 * most), NO_PAIR, device=more.device)
    both[:, :most, most:] = weights
    both[:, most:, :most] = weights.transpose(1, 2)
    partner, taker = match_some(both, ROUNDS).split(most, 1)
    left = there[1] & (taker < 0)
    in_order = _first(left)
    waiting = partner < 0
    rank = waiting.cumsum(1) - 1
    dealt = torch.where(rank < left.sum(1, keepdim=True), in_order.gather(1, rank.clamp(min=0)), -1)
    return torch.where(waiting, dealt, partner - most)


def _stored(major: Tensor, minor: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Which blocks are stored, ``(windows, rows, minors)``."""
    stored = torch.zeros(math.prod(shape), dtype=torch.bool, device=major.device)
    return stored.scatter_(0, major * shape[2] + minor, True).view(shape)


def _shared(some: Tensor, others: Tensor) -> Tensor:
    """How many columns two rows share, ``(windows, rows of some, rows of others)``."""
    return (some.unsqueeze(2) & others.unsqueeze(1)).sum(3)


def _above_chance(shared: Tensor, some: Tensor, others: Tensor, nnz: int, blocks: int) -> Tensor:
    """How much rows share beyond what chance gives rows of their lengths, times ``blocks``.

    By chance, rows of a and b blocks share about d (a + b - d C) in a pattern of density d. That
    has the same sum in all matchings, so the best one stays the best.
    """
    return shared * blocks - nnz * (some.unsqueeze(2) + others.unsqueeze(1))


def _first(those: Tensor) -> Tensor:
    """Positions in each window, of true entries first, then of the others."""
    return torch.argsort(those.logical_not().long(), dim=1, stable=True)


def _weights(shared: Tensor, majors: int, nnz: int, blocks: int) -> Tensor:
    """The preference of pairs, ``(windows, rows, rows)``: integers, distinct within a window.

    Pairs with padding rows come last, and no row is paired with itself.
    """
    windows, rows, _ = shared.shape
    device = shared.device
    stored = shared.diagonal(dim1=1, dim2=2)
    more = _above_chance(shared, stored, stored, nnz, blocks)
    real = (torch.arange(windows * rows, device=device) < majors).view(windows, rows)
    both = real.unsqueeze(2) & real.unsqueeze(1)
    weights = torch.where(both, more, _NOBODY) * rows**2
    weights += in_no_order(rows, device)
    weights.diagonal(dim1=1, dim2=2).fill_(NO_PAIR)
    return weights


def in_no_order(rows: int, device: torch.device) -> Tensor:
    """``(rows, rows)``: symmetric tie-breakers below ``rows`` squared for pairs of equal weight.

    With ties broken in row order, all rows would prefer the same one.
    """
    row = torch.arange(rows, device=device)
    number = torch.minimum(row, row.unsqueeze(1)) * rows + torch.maximum(row, row.unsqueeze(1))
    return number * 2654435761 % rows**2


def match(weights: Tensor, rounds: int) -> Tensor:
    """The partner of each row, ``(windows, rows)``.

    Rows left after the rounds are paired in order.

    Args:
        weights: ``(windows, rows, rows)``, symmetric, the diagonal :data:`NO_PAIR`. Overwritten.
        rounds: each usually matches about half of the rows that are left.
    """
    partner = match_some(weights, rounds)
    left = partner < 0
    rank = left.cumsum(1) - 1
    in_order = _first(left)
    beside = in_order.gather(1, rank.clamp(min=0) ^ 1)
    return torch.where(left, beside, partner)


def match_some(weights: Tensor, rounds: int) -> Tensor:
    """Like :func:`match`, but rows left have -1; a weight of :data:`NO_PAIR` never matches."""
    windows, rows, _ = weights.shape
    row = torch.arange(rows, device=weights.device).expand(windows, rows)
    partner = torch.full_like(row, -1)
    for _ in range(rounds):
        most, best = weights.max(2)
        mutual = (best.gather(1, best) == row) & (most > NO_PAIR)
        partner = torch.where(mutual, best, partner)
        weights.masked_fill_(mutual.unsqueeze(2) | mutual.unsqueeze(1), NO_PAIR)
    return partner
