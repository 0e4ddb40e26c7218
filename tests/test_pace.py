"""Panels that are computed side by side share an order of slabs in which they keep pace."""

from __future__ import annotations

import pytest
import torch

import jitsparse as js
from jitsparse import pace, schedule
from jitsparse.layout import PANEL_WORDS, IndexLayout
from jitsparse.schedule import build_index

BLOCK = 64
PANELS, SLABS = 32, 64


@pytest.fixture(autouse=True)
def rows_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that panels are random, and not made of rows that share most (tests/test_pairs.py)."""

    def in_order(
        major: torch.Tensor, minor: torch.Tensor, majors: int, minors: int
    ) -> torch.Tensor:
        return torch.arange(majors + majors % 2)

    monkeypatch.setattr(schedule, "pair_rows", in_order)


def random_mask(
    seed: int, density: float, panels: int = PANELS, slabs: int = SLABS
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((2 * panels, slabs), generator=generator) < density


def built(mask: torch.Tensor, block: int = BLOCK) -> tuple[IndexLayout, torch.Tensor]:
    """The index of a mask, as it is on a GPU."""
    pattern = js.Pattern.from_mask(mask, block)
    crow, col = pattern.crow_indices, pattern.col_indices
    layout = IndexLayout(*pattern.grid, pattern.nnz_blocks, pattern.block_size, panels=True)
    return layout, build_index(crow, col, pattern.grid[1], pattern.block_size, panels=True)


def walked(mask: torch.Tensor) -> list[list[list[tuple[int, int]]]]:
    """(slab, cost in blocks) of every step, by set of sixteen panels and panel, longest first."""
    layout, index = built(mask)
    steps = layout.view(index, "row_steps").view(-1, 4).tolist()
    panels = layout.view(index, "row_panels_sorted").view(-1, PANEL_WORDS).tolist()
    found = [
        [(slab, 4 + mask.bit_count()) for slab, mask, *_ in steps[begin:end]]
        for begin, end, *_ in panels
    ]
    return [found[at : at + 16] for at in range(0, len(found), 16)]


def herded(panels: list[list[tuple[int, int]]]) -> list[list[int]]:
    """The order of the slabs of every panel by the rule, four slabs at a time, in whole numbers."""
    costs = [[0] * len(panels) for _ in range(SLABS // 4)]
    for p, panel in enumerate(panels):
        for slab, cost in panel:
            costs[slab // 4][p] += cost
    centred = [[len(each) * cost - sum(each) for cost in each] for each in costs]
    balance, order, left = [0] * len(panels), [], [*range(len(costs))]
    while left:
        sums = {u: [b + c for b, c in zip(balance, centred[u], strict=True)] for u in left}
        best = min(left, key=lambda u: sum(each**2 for each in sums[u]))
        balance = sums[best]
        order.append(best)
        left.remove(best)
    return [sorted((s for s, _ in p), key=lambda s: (order.index(s // 4), s)) for p in panels]


@pytest.mark.parametrize("density", [0.05, 0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("count", [2, 3, 7, 16, 27, PANELS])
def test_the_order_is_that_of_the_rule(count: int, density: float) -> None:
    """In full sets and in others, whose means are no whole numbers."""
    for panels in walked(random_mask(count, density, count)):
        assert [[slab for slab, _ in panel] for panel in panels] == herded(panels)


def spread(panels: list[list[tuple[int, int]]], order: list[int]) -> float:
    """Mean difference, in blocks, between what panels have copied when they come to a slab."""
    total = torch.zeros(len(panels), SLABS, dtype=torch.float64)
    for p, panel in enumerate(panels):
        for slab, cost in panel:
            total[p, slab] = cost
    return float(total[:, order].cumsum(1).std(0).mean())


@pytest.mark.parametrize("density", [0.1, 0.25, 0.5])
def test_panels_keep_pace(density: float) -> None:
    """Better than in the order of k by a factor, which a shared order alone would not give."""
    for panels in walked(random_mask(1, density)):
        turns: dict[int, float] = {}
        for panel in panels:
            for turn, (slab, _) in enumerate(panel):
                turns.setdefault(slab, turn / len(panel))
        shared = sorted(range(SLABS), key=lambda slab: turns.get(slab, 0.0))
        assert spread(panels, shared) < 0.6 * spread(panels, [*range(SLABS)])


@pytest.mark.parametrize("slabs", [4 * pace.MAX_DECISIONS, 4 * pace.MAX_DECISIONS + 1])
def test_patterns_that_would_take_long_keep_the_order_of_k(slabs: int) -> None:
    sets = walked(random_mask(0, 0.02, 16, slabs))
    natural = all(panel == sorted(panel) for panels in sets for panel in panels)
    assert natural == (slabs > 4 * pace.MAX_DECISIONS)


@pytest.mark.parametrize("missing", [0, 1])
def test_patterns_that_would_compare_too_many_slabs_keep_the_order_of_k(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sets of sixteen panels, in which each four slabs are compared with each."""
    monkeypatch.setattr(pace, "MAX_PAIRS", 2 * (SLABS // 4) ** 2 - missing)
    sets = walked(random_mask(0, 0.1))
    assert all(panel == sorted(panel) for panels in sets for panel in panels) == bool(missing)


def test_blocks_that_gain_nothing_keep_the_order_of_k() -> None:
    mask = random_mask(0, 0.1)
    layout, index = built(mask, 128)
    steps = layout.view(index, "row_steps").view(-1, 4)
    assert torch.equal(steps[:, 0], mask.nonzero()[:, 1].to(torch.int32))
