"""The order in which panels take their steps: those that CTAs compute side by side keep pace.

On Hopper sixteen neighbouring CTAs compute sixteen panels of one column tile, and L2 answers those
of them that want the same slab of the dense operand at the same time with one read. In the order of
k they do so at the beginning only: one panel passes over more slabs than another. So the sixteen
share an order of the slabs, chosen so that after every few slabs all have copied about as many
bytes: the next slabs are those that leave the smallest differences. Products are up to 1.1 times as
fast (docs/performance.md).

That greedy rule is known as herding (Welling, "Herding Dynamical Weights to Learn", 2009; for
orders of vectors Lu, Guo and De Sa, "GraB: Finding Provably Better Data Permutations than Random
Reshuffling", 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Steps", "in_step"]

_NEIGHBOURS = 16
"""CTAs that compute panels side by side, see csrc/cuda/kernels/spmm_stages.cuh."""

_TOGETHER = 4
"""Slabs that stay side by side. One and two gain no more, and ask for more decisions."""

_MOST_DECISIONS = 256
"""Deeper patterns keep the order of k: a decision takes some 30 us of a GPU's host."""

_MOST_PAIRS = 1 << 23
"""Likewise those where all sets have more pairs of slabs to compare, 8 bytes each."""

_TILE_COLUMNS = 256
"""Of the dense operand, in the widest tile."""


class Steps(NamedTuple):
    """Panels and their steps, as :mod:`jitsparse.schedule` lists them.

    Attributes:
        steps: ``(Z, 4)``: (slab, mask, first position, position of the first block), of which
            those before ``pointers[-1]`` are steps.
        pointers: ``(P + 1,)``: where the steps of each panel begin.
        panels: ``(P,)``: the panels in the order in which CTAs take them.
        minors: blocks along k.
        across: of these in a slab.
        extent: of a block in the panel, in elements.
    """

    steps: Tensor
    pointers: Tensor
    panels: Tensor
    minors: int
    across: int
    extent: int

    @property
    def decisions(self) -> int:
        """What has to be ordered: :data:`_TOGETHER` slabs each."""
        return -(-self.minors // (self.across * _TOGETHER))

    @property
    def sets(self) -> int:
        """Of panels that are computed side by side."""
        return -(-self.panels.numel() // _NEIGHBOURS)


def in_step(everything: list[Steps]) -> list[Steps]:
    """The same with steps in their new order; those of a panel stay where that panel's were.

    Everything is decided at once, by torch operations that read nothing back to the host.
    """
    chosen = [i for i, each in enumerate(everything) if _worth_ordering(each)]
    if not chosen:
        return everything
    most = max(everything[i].decisions for i in chosen)
    panels = [_panels(everything[i]) for i in chosen]
    ranks = [_ranks(everything[i], panel) for i, panel in zip(chosen, panels, strict=True)]
    costs = [_costs(everything[i], rank, most) for i, rank in zip(chosen, ranks, strict=True)]
    turns = _herd(torch.cat(costs)).split([everything[i].sets for i in chosen])
    ordered = list(everything)
    for i, panel, rank, turn in zip(chosen, panels, ranks, turns, strict=True):
        ordered[i] = everything[i]._replace(steps=_sorted(everything[i].steps, panel, rank, turn))
    return ordered


def _worth_ordering(each: Steps) -> bool:
    decisions, panels = each.decisions, each.panels.numel()
    few = decisions <= _MOST_DECISIONS and each.sets * decisions**2 <= _MOST_PAIRS
    return few and decisions > 1 and panels > 1


def _panels(each: Steps) -> Tensor:
    """The panel of each step; P for what is no step."""
    step = torch.arange(each.steps.shape[0], device=each.steps.device)
    return torch.searchsorted(each.pointers, step, right=True) - 1


def _ranks(each: Steps, panel: Tensor) -> Tensor:
    """The place of each step's panel in the order of panels; P for what is no step."""
    count = each.panels.numel()
    ranks = torch.full_like(each.pointers, count)
    ranks.scatter_(0, each.panels, torch.arange(count, device=ranks.device))
    return ranks[panel]


def _costs(each: Steps, rank: Tensor, decisions: int) -> Tensor:
    """``(sets, 16, decisions)``: what each panel copies of each few slabs, less the set's mean."""
    steps, count, sets = each.steps, each.panels.numel(), each.sets
    ends = torch.cat([steps[1:, 2], steps.new_full((1,), steps.shape[0])])
    # In blocks. Whole numbers and powers of two: sums do not depend on their order. What is no step
    # adds to a panel that is not there.
    cost = (ends - steps[:, 2]).double() + each.across * _TILE_COLUMNS / each.extent
    costs = cost.new_zeros((sets + 1) * _NEIGHBOURS * decisions)
    costs.scatter_add_(0, rank * decisions + steps[:, 0] // _TOGETHER, cost)
    costs = costs.view(sets + 1, _NEIGHBOURS, decisions)[:sets]
    places = torch.arange(sets * _NEIGHBOURS, device=costs.device)
    there = (places < count).view(sets, _NEIGHBOURS, 1)
    mean = torch.where(there, costs, 0.0).sum(1, keepdim=True) / there.sum(1, keepdim=True)
    return torch.where(there, costs - mean, 0.0)


def _herd(costs: Tensor) -> Tensor:
    """``(sets, decisions)``: the turn of each in the order of its set.

    With b the sum of the costs so far, the next is the c for which |b + c|^2 is least: for which
    |c|^2 + 2 b c is.
    """
    sets, _, decisions = costs.shape
    products = torch.bmm(costs.mT, costs)
    added = products.diagonal(dim1=1, dim2=2).unsqueeze(1).clone()
    products.mul_(2).diagonal(dim1=1, dim2=2).fill_(float("inf"))  # each has one turn
    order = []
    for _ in range(decisions):
        order.append(added.argmin(2, keepdim=True))
        added += products.gather(1, order[-1].expand(-1, 1, decisions))
    turns = torch.arange(decisions, device=costs.device).expand(sets, decisions)
    return torch.empty_like(turns).scatter_(1, torch.cat(order, 2)[:, 0], turns)


def _sorted(steps: Tensor, panel: Tensor, rank: Tensor, turns: Tensor) -> Tensor:
    """The steps of each panel by the turns of their slabs."""
    slab, last = steps[:, 0], turns.shape[0] - 1
    turn = turns[(rank // _NEIGHBOURS).clamp(max=last), slab // _TOGETHER]
    key = (panel * turns.shape[1] + turn) * _TOGETHER + slab % _TOGETHER
    return steps[torch.argsort(key)]
