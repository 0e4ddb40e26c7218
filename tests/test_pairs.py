"""Block rows of 64 share a panel with the one, or the two, with which they share most columns."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import jitsparse as js
from jitsparse import pairs
from jitsparse.pairs import pair_rows, triple_rows
from jitsparse.panels import PAIRED_AMONG, TRIPLED_AMONG
from jitsparse.schedule import build_index


def random_mask(seed: int, rows: int, cols: int, density: float) -> Tensor:
    return torch.rand((rows, cols), generator=torch.Generator().manual_seed(seed)) < density


def paired(mask: Tensor) -> list[tuple[int, int]]:
    """The pairs of a mask's rows, each sorted."""
    order = pair_rows(*mask.nonzero().unbind(1), *mask.shape)
    assert order.shape == (mask.shape[0] + mask.shape[0] % 2,)
    return [(min(pair), max(pair)) for pair in order.view(-1, 2).tolist()]


def tripled(mask: Tensor) -> list[list[int]]:
    """The threes of a mask's rows, each sorted; a number past the last row is none."""
    order = triple_rows(*mask.nonzero().unbind(1), *mask.shape)
    assert order.shape == (-(-mask.shape[0] // 3) * 3,)
    return [sorted(three) for three in order.view(-1, 3).tolist()]


@given(
    rows=st.integers(0, 300),
    cols=st.integers(0, 20),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_each_row_is_in_one_panel(rows: int, cols: int, density: float, seed: int) -> None:
    rows_of_pairs = itertools.chain(*paired(random_mask(seed, rows, cols, density)))
    assert sorted(rows_of_pairs) == [*range(rows + rows % 2)]
    rows_of_threes = [*itertools.chain(*tripled(random_mask(seed, rows, cols, density)))]
    assert sorted({*rows_of_threes} - {rows}) == [*range(rows)]
    assert rows_of_threes.count(rows) == -rows % 3


def shared(mask: Tensor, chosen: list[tuple[int, int]]) -> int:
    return sum(int((mask[a] & mask[b]).sum()) for a, b in chosen)


def greedy(mask: Tensor) -> list[tuple[int, int]]:
    """Again and again the pair that shares most."""
    by_shared = mask.float() @ mask.float().T
    chosen, left = [], {*range(len(mask))}
    while left:
        best = max(itertools.combinations(left, 2), key=lambda pair: float(by_shared[pair]))
        chosen.append(best)
        left -= {*best}
    return chosen


@pytest.mark.parametrize("width", [5, 9, 18, 40])
def test_rows_of_a_band_are_paired_with_their_neighbours(width: int) -> None:
    """A greedy matching leaves some rows to partners that are far away."""
    row = torch.arange(128)
    band = (row - row.unsqueeze(1)).abs() < width
    assert paired(band) == [(a, a + 1) for a in range(0, 128, 2)]
    both = torch.cat([band, random_mask(0, 128, 128, 0.3)])
    assert paired(both)[:64] == paired(band)
    assert paired(both)[64:] != [(a, a + 1) for a in range(128, 256, 2)], "each window for itself"


@pytest.mark.parametrize(
    ("density", "least"), [(0.05, 0.95), (0.1, 0.95), (0.25, 1.0), (0.5, 1.01), (0.9, 1.005)]
)
@pytest.mark.parametrize("rows", [64, 128])
def test_pairs_share_what_a_greedy_matching_does(rows: int, density: float, least: float) -> None:
    """Of one that does not ask what rows share by chance; more where that is much."""
    mask = random_mask(1, rows, 64, density)
    assert shared(mask, paired(mask)) >= least * shared(mask, greedy(mask))


def needed(mask: Tensor, panels: list[list[int]]) -> int:
    """Columns that any row of a panel stores, of all panels."""
    with_none = torch.cat([mask, torch.zeros_like(mask[:1])])
    return int(with_none[torch.tensor(panels)].any(1).sum())


def greedy_threes(mask: Tensor) -> list[list[int]]:
    """The pairs that share most, and again and again the row and the pair that do."""
    pairs_first = greedy(mask)[: -(-len(mask) // 3)]
    left = {*range(len(mask))} - {*itertools.chain(*pairs_first)}
    open_pairs = [*pairs_first]
    rows = mask.double()
    common = {pair: (mask[[*pair]].any(0).double() @ rows.T).tolist() for pair in open_pairs}
    threes = []
    while left:
        pair, row = max(
            itertools.product(open_pairs, left), key=lambda each: common[each[0]][each[1]]
        )
        threes.append([*pair, row])
        open_pairs.remove(pair)
        left.remove(row)
    return threes + [[*pair, len(mask)] for pair in open_pairs]


@pytest.mark.parametrize("density", [0.05, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("rows", [60, 62, 64, 126])
def test_threes_need_no_more_columns_than_a_greedy_choice(rows: int, density: float) -> None:
    """But for 1 %: this one does not ask what rows share by chance, and has its own luck."""
    mask = random_mask(1, rows, 64, density)
    assert needed(mask, tripled(mask)) <= 1.01 * needed(mask, greedy_threes(mask))


def test_all_is_whole_numbers() -> None:
    """The greatest pattern that is paired, full, does not overflow."""
    windows, cols = 8, pairs.MAX_COMPARISONS // (8 * PAIRED_AMONG**2)
    full = torch.full((windows, PAIRED_AMONG, PAIRED_AMONG), cols)
    majors, blocks = windows * PAIRED_AMONG, windows * PAIRED_AMONG * cols
    for nnz in (1, blocks):
        weights = pairs._weights(full, majors, nnz, blocks)
        exact = (cols * blocks - nnz * 2 * cols) * PAIRED_AMONG**2
        assert pairs.NO_PAIR < pairs._NOBODY * PAIRED_AMONG**2 < -abs(exact)
        assert int(weights[0, 0, 1]) // PAIRED_AMONG**2 == exact // PAIRED_AMONG**2


def test_rows_that_are_alike_find_each_other() -> None:
    """Every row has one like it, somewhere, which it is paired with."""
    half = random_mask(0, 64, 40, 0.3)
    place = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    mask = torch.cat([half, half])[place]
    for a, b in paired(mask):
        assert torch.equal(mask[a], mask[b])


def test_three_rows_that_are_alike_find_each_other() -> None:
    third = random_mask(0, 42, 40, 0.3)
    place = torch.randperm(126, generator=torch.Generator().manual_seed(1))
    mask = torch.cat([third, third, third])[place]
    for a, b, c in tripled(mask):
        assert torch.equal(mask[a], mask[b])
        assert torch.equal(mask[a], mask[c])


def test_rows_stay_within_their_window() -> None:
    window = PAIRED_AMONG
    for a, b in paired(random_mask(0, 3 * window + 5, 10, 0.3)):
        assert a // window == b // window
    window = TRIPLED_AMONG
    for a, b, c in tripled(random_mask(0, 3 * window + 6, 10, 0.3)):
        assert a // window == b // window == c // window


def test_rows_that_are_left_are_matched_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "ROUNDS", 0)
    mask = random_mask(0, 9, 10, 0.3)
    assert paired(mask) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert sorted(itertools.chain(*tripled(mask))) == [*range(9)]


def test_patterns_that_would_take_long_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = random_mask(0, 40, 20, 0.3)
    in_order = [(row, row + 1) for row in range(0, 40, 2)]
    monkeypatch.setattr(pairs, "MAX_COMPARISONS", 128**2 * 20)
    assert paired(mask) != in_order
    monkeypatch.setattr(pairs, "MAX_COMPARISONS", 128**2 * 20 - 1)
    assert paired(mask) == in_order
    in_order_too = [[row, row + 1, row + 2] for row in range(0, 39, 3)] + [[39, 40, 40]]
    assert tripled(mask) != in_order_too
    monkeypatch.setattr(pairs, "MAX_COMPARISONS", 126**2 * 20 - 1)
    assert tripled(mask) == in_order_too


@pytest.mark.parametrize("density", [0.1, 0.25, 0.5])
def test_panels_have_fewer_steps(density: float) -> None:
    """Of 64 x 64 blocks 14, 11 and 7 % fewer than rows in their order would make."""
    mask = random_mask(2, 64, 64, density)
    pattern = js.Pattern.from_mask(mask, 64)
    layout = js.layout.IndexLayout(64, 64, pattern.nnz_blocks, (64, 64), panels=True)
    index = build_index(pattern.crow_indices, pattern.col_indices, 64, (64, 64), panels=True)
    steps = int(layout.view(index, "row_panel_ptr")[-1])
    in_order = int((mask[::2] | mask[1::2]).sum())
    assert steps < in_order * {0.1: 0.88, 0.25: 0.91, 0.5: 0.94}[density]


@pytest.mark.parametrize("density", [0.1, 0.25, 0.5])
def test_panels_of_three_have_fewer_steps(density: float) -> None:
    """Of 64 x 64 blocks 21, 15 and 9 % fewer."""
    mask = random_mask(2, 64, 64, density)
    in_order = [[min(row + i, 64) for i in range(3)] for row in range(0, 64, 3)]
    fewer = {0.1: 0.84, 0.25: 0.88, 0.5: 0.93}[density]
    assert needed(mask, tripled(mask)) < needed(mask, in_order) * fewer
