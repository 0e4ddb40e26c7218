"""Which panels of an sdd share tiles: those that store the same columns.

On Hopper a warpgroup multiplies 64 rows by up to 256 gathered columns. If both warpgroups of a tile
have the same panel, it loads 64 + 512 rows and columns; if they have two panels that store the same
columns, 128 + 256. So panels are paired by how many columns they share, the remaining columns of
each are paired again, and what is left after a few rounds goes into tiles of one panel. Random
patterns at 8192 load 1.2 to 1.45 times less (docs/performance.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitsparse.layout import Gather, div_up
from jitsparse.pairs import NO_PAIR, in_no_order, match

__all__ = ["PAIRINGS", "Shares", "nothing_shared", "share"]

PAIRINGS = 4
"""How often panels are paired. By a model, random patterns in blocks of 64 at 8192 and density
0.1/0.25/0.5 are 1.11/1.12/1.25 times as fast after one pairing, 1.11/1.22/1.34 after two,
1.14/1.35/1.42 after four."""

WINDOW = 64
"""Consecutive panels that may be paired. Those of a window are computed at about the same time, and
half as many are needed at once as in windows of 128: products are 0.95 to 1.05 times as fast, those
of skewed patterns up to 1.12 times."""

MAX_COMPARISONS = 1 << 28
"""Patterns that need more, a byte each, share nothing."""

ROUNDS = 4
"""Rounds of a matching; by the model, three lose 1 %."""


class Shares(NamedTuple):
    """How panels share their steps.

    Attributes:
        pairing: ``(Z,)``: for each step, 1 to :data:`PAIRINGS` if the partner of that pairing has
            the same column, else 0.
        partner: ``(P, 1 + PAIRINGS)``: the other panel of each pairing; the panel itself if none.
    """

    pairing: Tensor
    partner: Tensor


def nothing_shared(panel: Tensor, panels: int) -> Shares:
    """The result where no step is shared; ``panel`` has one entry per step."""
    alone = torch.arange(panels, device=panel.device)[:, None].expand(-1, 1 + PAIRINGS)
    return Shares(torch.zeros_like(panel), alone)


def share(column: Tensor, panel: Tensor, gather: Gather) -> Shares:
    """Pair the panels of an sdd, greedily, :data:`PAIRINGS` times.

    A pairing takes columns for whole tiles, or for one that is at least half as wide. All decisions
    are made by torch operations that read nothing back to the host.

    Args:
        column: ``(Z,)``: the column of each step.
        panel: ``(Z,)``: the panel of each step; ``gather.panels`` past the last step.
        gather: shape of a tile.
    """
    windows = div_up(gather.panels, WINDOW)
    cells = windows * WINDOW * gather.minors
    # Each pair of panels also has a few weights of 8 bytes, however few columns there are.
    many = windows * WINDOW**2 * max(gather.minors, 64) > MAX_COMPARISONS
    none = gather.panels < 2 or gather.minors < gather.fewest
    if none or many or torch.compiler.is_compiling():
        return nothing_shared(panel, gather.panels)
    cell = torch.where(panel < gather.panels, panel * gather.minors + column, cells)
    left = torch.zeros(cells + 1, dtype=torch.bool, device=panel.device).scatter_(0, cell, True)
    left = left[:cells].view(windows, WINDOW, gather.minors)
    pairing = torch.zeros(cells + 1, dtype=torch.int64, device=panel.device)
    pairings = pairing[:cells].view(left.shape)
    own = torch.arange(windows * WINDOW, device=panel.device).view(windows, WINDOW)
    partners = [own]
    order = in_no_order(WINDOW, panel.device)
    most, fewest = gather.most // 2, gather.fewest
    for number in range(1, 1 + PAIRINGS):
        shared = (left.unsqueeze(2) & left.unsqueeze(1)).sum(3)
        taken = torch.where(shared < most, shared * (shared >= fewest), shared // most * most)
        weights = taken * WINDOW**2 + order
        weights.diagonal(dim1=1, dim2=2).fill_(NO_PAIR)
        partner = match(weights, ROUNDS)[:, :, None]
        common = left & left.gather(1, partner.expand_as(left))
        here = taken.gather(2, partner)
        chosen = common & (common.cumsum(2) <= here)
        pairings.masked_fill_(chosen, number)
        left = left & ~chosen
        partners.append(torch.where(here[:, :, 0] > 0, own[:, :1] + partner[:, :, 0], own))
    of_panels = torch.stack(partners, 2).view(-1, 1 + PAIRINGS)[: gather.panels]
    return Shares(pairing[cell], of_panels)
