"""Which block rows of 64 share a panel: pairs of those that store most of the same columns.

On Hopper a panel of 128 rows is two of them, a warpgroup each, and loads every slab of the dense
operand that either needs. Pairs that share more load less: random patterns of 64 x 64 blocks 14, 12
and 9 % less at densities of 0.1, 0.25 and 0.5, patterns whose rows are of very different lengths a
fifth (docs/performance.md). Rows are paired with others of the same 128, so that all windows are
paired at once.

The matching is the greedy one: of all pairs that are left the best comes next. Two rows that are
each other's best are what it would match sooner or later, so all of those are matched at once
(Preis, "Linear Time 1/2-Approximation Algorithm for Maximum Weighted Matching in General Graphs",
1999). The best is what shares most above what it would by chance: long rows share much with
everybody, and as the choice of all of them, would be matched one by one. :mod:`jitsparse.sharing`
matches the panels of an sdd so, too, in windows of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitsparse.layout import div_up
from jitsparse.panels import PAIRED_AMONG

__all__ = ["NO_PAIR", "in_no_order", "match", "pair_rows"]

_ROUNDS = 8
"""Of a matching."""

_MOST_COMPARISONS = 1 << 27
"""Patterns that ask for more, a byte each, keep their order of rows."""

_NOBODY, NO_PAIR = -(1 << 42), -(1 << 60)
"""Weights of pairs with rows that are none, and of those that are no pairs."""


def pair_rows(major: Tensor, minor: Tensor, majors: int, minors: int) -> Tensor:
    """The rows of panels: panel p has rows ``2 p`` and ``2 p + 1`` of the result.

    Everything is decided by torch operations that read nothing back to the host. While a graph is
    compiled rows keep their order: it would hold every round as an operation.

    Args:
        major: ``(Z,)``: the row of each block.
        minor: ``(Z,)``: its column.
        majors: rows.
        minors: columns.

    Returns:
        ``(2 * div_up(majors, 2),)``: each row once, and ``majors``, which is none, beside one of
        them if their number is odd.
    """
    windows = div_up(majors, PAIRED_AMONG)
    few = windows * PAIRED_AMONG**2 * minors <= _MOST_COMPARISONS
    if majors <= 2 or not few or torch.compiler.is_compiling():
        return torch.arange(2 * div_up(majors, 2), device=major.device)
    stored = torch.zeros(windows * PAIRED_AMONG * minors, dtype=torch.bool, device=major.device)
    stored.scatter_(0, major * minors + minor, True)
    stored = stored.view(windows, PAIRED_AMONG, minors)
    shared = (stored.unsqueeze(2) & stored.unsqueeze(1)).sum(3)
    partner = match(_weights(shared, majors, major.numel(), majors * minors), _ROUNDS)
    row = torch.arange(PAIRED_AMONG, device=major.device)
    # A pair is where the first of its rows was, so rows that are none come last.
    order = torch.argsort(torch.minimum(row, partner) * PAIRED_AMONG + row, dim=1)
    order += PAIRED_AMONG * torch.arange(windows, device=major.device).unsqueeze(1)
    return order.flatten()[: 2 * div_up(majors, 2)].clamp(max=majors)


def _weights(shared: Tensor, majors: int, nnz: int, blocks: int) -> Tensor:
    """By which pairs are preferred, ``(windows, 128, 128)``: whole numbers, of which no two of a
    window are equal. Pairs with rows that are none come last, and nobody is a pair with itself.

    By chance rows of a and b blocks share d (a + b - d C), about, in a pattern of density d. All
    matchings have the same sum of that, so the best one stays the best.
    """
    windows, device = shared.shape[0], shared.device
    stored = shared.diagonal(dim1=1, dim2=2)
    more = shared * blocks - nnz * (stored.unsqueeze(2) + stored.unsqueeze(1))
    real = (torch.arange(windows * PAIRED_AMONG, device=device) < majors).view(
        windows, PAIRED_AMONG
    )
    both = real.unsqueeze(2) & real.unsqueeze(1)
    weights = torch.where(both, more, _NOBODY) * PAIRED_AMONG**2
    weights += in_no_order(PAIRED_AMONG, device)
    weights.diagonal(dim1=1, dim2=2).fill_(NO_PAIR)
    return weights


def in_no_order(rows: int, device: torch.device) -> Tensor:
    """``(rows, rows)``: below ``rows`` squared, symmetric, for pairs of equal weight. By the order
    of the rows each would prefer the same one."""
    row = torch.arange(rows, device=device)
    number = torch.minimum(row, row.unsqueeze(1)) * rows + torch.maximum(row, row.unsqueeze(1))
    return number * 2654435769 % rows**2


def match(weights: Tensor, rounds: int) -> Tensor:
    """The partner of each row, ``(windows, rows)``; what is left after the rounds is paired as it
    comes.

    Args:
        weights: ``(windows, rows, rows)``, symmetric, the diagonal :data:`NO_PAIR`. They are used
            up.
        rounds: each usually matches about half of the rows that are left.
    """
    windows, rows, _ = weights.shape
    row = torch.arange(rows, device=weights.device).expand(windows, rows)
    partner = torch.full_like(row, -1)
    for _ in range(rounds):
        best = weights.argmax(2)
        mutual = (best.gather(1, best) == row) & (partner < 0)
        partner = torch.where(mutual, best, partner)
        weights.masked_fill_(mutual.unsqueeze(2) | mutual.unsqueeze(1), NO_PAIR)
    left = partner < 0
    rank = left.cumsum(1) - 1
    in_order = torch.argsort(left.logical_not().long(), dim=1, stable=True)
    beside = in_order.gather(1, rank.clamp(min=0) ^ 1)
    return torch.where(left, beside, partner)
