"""The order in which panels take their steps: those that CTAs compute side by side keep pace.

On Hopper sixteen panels of a column tile are computed side by side, and L2 serves CTAs that want
the same slab of the dense operand at the same time with one read. In k order they do so only at the
beginning: some panels skip more slabs than others. So the sixteen share an order of the slabs,
chosen so that after every few slabs all have copied about as many bytes: the next slabs are those
that leave the smallest differences. Products are up to 1.1 times as fast (docs/performance.md).

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
"""Slabs that stay together. One or two gain no more, and need more decisions."""

MAX_DECISIONS = 256
"""Deeper patterns keep k order: every decision is three launches."""

MAX_PAIRS = 1 << 23
"""Patterns with more pairs of slabs to compare in all sets, 8 bytes each, keep k order, too."""

TILE_COLUMNS = 256
"""Columns of the dense operand in the widest tile."""


class Steps(NamedTuple):
    """Panels and their steps, as :mod:`jitsparse.schedule` lists them.

    Attributes:
        steps: ``(capacity, 4)``: (slab, mask, first position, position of the first block);
            entries from ``pointers[-1]`` on are unused.
        pointers: ``(P + 1,)``: where the steps of each panel begin.
        panels: ``(P,)``: the panels in the order in which CTAs take them.
        starts: ``(P, 3)``: where each group of 64 rows of a panel begins, in units of 64.
        blocks: number of blocks of all panels.
        minors: blocks along k.
        across: blocks along k in a slab.
        extent: size of a block along the panel, in elements.
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
        """Number of items to order, of :data:`TOGETHER` slabs each."""
        return div_up(self.minors, self.across * TOGETHER)

    @property
    def sets(self) -> int:
        """Number of sets of panels computed side by side."""
        return div_up(self.panels.numel(), NEIGHBOURS)


def keep_pace(everything: list[Steps]) -> None:
    """Sort each panel's steps, in place, into an order of slabs that the panels of a set share.

    Everything is decided at once, by torch operations that read nothing back to the host. While a
    graph is compiled, k order stays: it would contain the operations of every decision.
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
    """Whether it pays. Blocks of 128 gain nothing: a panel of one block row needs too few slabs."""
    few = each.decisions <= MAX_DECISIONS and each.sets * each.decisions**2 <= MAX_PAIRS
    return few and each.extent < 128 and each.decisions > 1 and each.panels.numel() > 1


def _panels(each: Steps) -> Tensor:
    """The panel of each step; P past the last step."""
    step = torch.arange(each.steps.shape[0], device=each.steps.device)
    return torch.searchsorted(each.pointers, step, right=True) - 1


def _ranks(each: Steps, panel: Tensor) -> Tensor:
    """The place of each step's panel in the order of panels; P past the last step."""
    count = each.panels.numel()
    ranks = torch.full_like(each.pointers, count)
    ranks.scatter_(0, each.panels, torch.arange(count, device=ranks.device))
    return ranks[panel]


def _costs(each: Steps, rank: Tensor, decisions: int) -> Tensor:
    """``(sets, 16, decisions)``: what a panel copies of each few slabs, minus its set's mean.

    In blocks, times the number of panels in the set: integers, so that no sum of them or of their
    products depends on its order.
    """
    steps, count, sets = each.steps, each.panels.numel(), each.sets
    ends = torch.cat([steps[1:, 2], steps.new_full((1,), each.blocks)])
    cost = (ends - steps[:, 2]).double() + each.across * TILE_COLUMNS // each.extent
    # Entries past the last step add to a panel that does not exist.
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

    With b the sum of the costs so far, the next is the c that minimizes |b + c|^2, that is
    |c|^2 + 2 b c.
    """
    sets, _, decisions = costs.shape
    products = costs.new_zeros(sets, decisions, decisions)
    for each in costs.unbind(1):  # not bmm: cuBLAS may refuse where determinism is required
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
    """The steps of each panel, sorted by the turns of their slabs."""
    slab, last = steps[:, 0], turns.shape[0] - 1
    turn = turns[(rank // NEIGHBOURS).clamp(max=last), slab // TOGETHER]
    key = (panel * turns.shape[1] + turn) * TOGETHER + slab % TOGETHER
    return steps[torch.argsort(key)]
