"""The order in which panels take their steps: those that CTAs compute side by side keep pace.

On Hopper sixteen panels of a column tile are computed side by side, and L2 answers those CTAs that
want the same slab of the dense operand at the same time with one read. In the order of k they do so
at the beginning only: one panel passes over more slabs than another. So the sixteen share an order
of the slabs, chosen so that after every few slabs all have copied about as many bytes: the next
slabs are those that leave the smallest differences. Products are up to 1.1 times as fast
(docs/performance.md).

That greedy rule is known as herding (Welling, "Herding Dynamical Weights to Learn", 2009; for
orders of vectors Lu, Guo and De Sa, "GraB: Finding Provably Better Data Permutations than Random
Reshuffling", 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitsparse.layout import div_up

__all__ = ["Steps", "keep_pace"]

NEIGHBOURS = 16
"""Panels that are computed side by side, see csrc/cuda/kernels/spmm_order.cuh."""

TOGETHER = 4
"""Slabs that stay side by side. One and two gain no more, and ask for more decisions."""

MAX_DECISIONS = 256
"""Deeper patterns keep the order of k: every decision is three launches."""

MAX_PAIRS = 1 << 23
"""Likewise those that would have to compare more pairs of slabs in all sets, 8 bytes each."""

TILE_COLUMNS = 256
"""Of the dense operand, in the widest tile."""


class Steps(NamedTuple):
    """Panels and their steps, as :mod:`jitsparse.schedule` lists them.

    Attributes:
        steps: ``(capacity, 4)``: (slab, mask, first position, position of the first block), of
            which those before ``pointers[-1]`` are steps.
        pointers: ``(P + 1,)``: where the steps of each panel begin.
        panels: ``(P,)``: the panels in the order in which CTAs take them.
        starts: ``(P, 3)``: where each 64 rows of a panel begin, in units of 64.
        blocks: of all panels.
        minors: blocks along k.
        across: of these in a slab.
        extent: of a block in the panel, in elements.
    """

    steps: Tensor
    pointers: Tensor
    panels: Tensor
    starts: Tensor
    blocks: int
    minors: int
    across: int
    extent: int

    @property
    def decisions(self) -> int:
        """What has to be ordered: :data:`TOGETHER` slabs each."""
        return div_up(self.minors, self.across * TOGETHER)

    @property
    def sets(self) -> int:
        """Of panels that are computed side by side."""
        return div_up(self.panels.numel(), NEIGHBOURS)


def keep_pace(everything: list[Steps]) -> None:
    """Bring the steps of each, in place, into an order that sets share; a panel's stay its own.

    Everything is decided at once, by torch operations that read nothing back to the host. While a
    graph is compiled the order of k stays: it would hold every decision as an operation.
    """
    chosen = [each for each in everything if _worth_ordering(each)]
    if not chosen or torch.compiler.is_compiling():
        return
    most = max(each.decisions for each in chosen)
    panels = [_panels(each) for each in chosen]
    ranks = [_ranks(each, panel) for each, panel in zip(chosen, panels, strict=True)]
    costs = [_costs(each, rank, most) for each, rank in zip(chosen, ranks, strict=True)]
    turns = _herd(torch.cat(costs)).split([each.sets for each in chosen])
    for each, panel, rank, turn in zip(chosen, panels, ranks, turns, strict=True):
        each.steps.copy_(_sorted(each.steps, panel, rank, turn))


def _worth_ordering(each: Steps) -> bool:
    """Blocks of 128 gain nothing: a panel of one block row needs too few slabs."""
    few = each.decisions <= MAX_DECISIONS and each.sets * each.decisions**2 <= MAX_PAIRS
    return few and each.extent < 128 and each.decisions > 1 and each.panels.numel() > 1


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
    """``(sets, 16, decisions)``: by how much more each panel copies of each few slabs than the mean
    of its set does, times the panels of the set.

    In blocks: whole numbers, so that no sum here or of their products depends on its order.
    """
    steps, count, sets = each.steps, each.panels.numel(), each.sets
    ends = torch.cat([steps[1:, 2], steps.new_full((1,), each.blocks)])
    cost = (ends - steps[:, 2]).double() + each.across * TILE_COLUMNS // each.extent
    # What is no step adds to a panel that is not there.
    costs = cost.new_zeros((sets + 1) * NEIGHBOURS * decisions)
    costs.scatter_add_(0, rank * decisions + steps[:, 0] // TOGETHER, cost)
    costs = costs.view(sets + 1, NEIGHBOURS, decisions)[:sets]
    places = torch.arange(sets * NEIGHBOURS, device=costs.device)
    there = (places < count).view(sets, NEIGHBOURS, 1)
    costs = torch.where(there, costs, 0.0)
    whole = costs * there.sum(1, keepdim=True) - costs.sum(1, keepdim=True)
    return torch.where(there, whole, 0.0)


def _herd(costs: Tensor) -> Tensor:
    """``(sets, decisions)``: the turn of each in the order of its set.

    With b the sum of the costs so far, the next is the c for which |b + c|^2 is least: for which
    |c|^2 + 2 b c is.
    """
    sets, _, decisions = costs.shape
    products = costs.new_zeros(sets, decisions, decisions)
    for each in costs.unbind(1):  # no bmm: cuBLAS may refuse where determinism is asked for
        products.addcmul_(each.unsqueeze(2), each.unsqueeze(1))
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
    turn = turns[(rank // NEIGHBOURS).clamp(max=last), slab // TOGETHER]
    key = (panel * turns.shape[1] + turn) * TOGETHER + slab % TOGETHER
    return steps[torch.argsort(key)]
