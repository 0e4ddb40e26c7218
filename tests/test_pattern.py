"""Patterns: what is accepted, what is refused and in which words, what is derived and shown."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jitsparse as js
from jitsparse.checks import check_range
from jitsparse.errors import PatternError

CROW = torch.tensor([0, 2, 2, 3])
COL = torch.tensor([0, 3, 1])


def example() -> js.Pattern:
    """3 x 4 blocks of 8 x 16; one row is empty, and the matrix ends inside the last blocks."""
    return js.Pattern((20, 60), (8, 16), CROW, COL)


def test_more_blocks_than_indices_can_name() -> None:
    with pytest.raises(PatternError, match="block indices are 32-bit: 125000000000 x 1 blocks"):
        js.Pattern.random((10**12, 8), 8, 1e-9)
    for dtype in (torch.int32, torch.int64):
        none = torch.zeros(1, dtype=dtype)
        for extent in (2**34, 2**70):
            with pytest.raises(PatternError, match="block indices are 32-bit: 1 x"):
                js.Pattern.from_indices(none, none, 8, (8, extent))


def test_facts() -> None:
    pattern = example()
    assert pattern.shape == (20, 60)
    assert pattern.block_size == (8, 16)
    assert pattern.grid == (3, 4)
    assert pattern.nnz_blocks == 3
    assert pattern.density == 0.25
    assert pattern.has_edge
    assert pattern.row_indices.tolist() == [0, 0, 2]
    assert pattern.crow_indices.dtype == pattern.col_indices.dtype == torch.int32
    assert pattern.to_mask().tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]


def test_int32_indices_are_not_copied() -> None:
    crow, col = CROW.int(), COL.int()
    pattern = js.Pattern((24, 64), (8, 16), crow, col)
    assert pattern.crow_indices.data_ptr() == crow.data_ptr()
    assert pattern.col_indices.data_ptr() == col.data_ptr()


@pytest.mark.parametrize(
    ("crow", "col", "says"),
    [
        ([0, 2, 2, 3], [3, 0, 1], "is not sorted: 3 is followed by 0 (entries 0 and 1)"),
        ([0, 2, 2, 3], [3, 3, 1], "has a duplicate: 3 is followed by 3"),
        ([0, 2, 2, 3], [0, 4, 1], "out of range: entry 1 is 4, the matrix has 4 block columns"),
        ([0, 2, 2, 3], [-1, 3, 1], "out of range: entry 0 is -1"),
        ([0, 2, 1, 3], [0, 3, 1], "must not decrease; entry 2 is 1 after 2"),
        ([1, 2, 2, 3], [0, 3, 1], "begin with 0 and end with the number of blocks, 3; got 1"),
        ([0, 2, 2, 4], [0, 3, 1], "begin with 0 and end with the number of blocks, 3; got 0 and 4"),
        ([0, 2, 3], [0, 3, 1], "crow_indices has 4 entries; got 3"),
        ([0, 9, 9, 3], [0, 3, 1], "must not decrease; entry 3 is 3 after 9"),
    ],
)
def test_invalid_indices_are_named(crow: list[int], col: list[int], says: str) -> None:
    for dtype in (torch.int32, torch.int64):
        with pytest.raises(PatternError, match=re.escape(says)):
            js.Pattern(
                (24, 64), (8, 16), torch.tensor(crow, dtype=dtype), torch.tensor(col, dtype=dtype)
            )


def test_the_row_of_a_disorder_is_named() -> None:
    with pytest.raises(PatternError, match="block row 2 is not sorted: 2 is followed by 1"):
        js.Pattern((24, 64), (8, 16), torch.tensor([0, 1, 1, 3]), torch.tensor([3, 2, 1]))


def test_a_column_may_fall_between_rows() -> None:
    pattern = js.Pattern((16, 16), 8, torch.tensor([0, 1, 2]), torch.tensor([1, 0]))
    assert pattern.to_mask().tolist() == [[0, 1], [1, 0]]


def test_indices_past_32_bits_are_refused_not_wrapped() -> None:
    with pytest.raises(PatternError, match="out of range: entry 1 is 4294967296"):
        js.Pattern((8, 64), (8, 16), torch.tensor([0, 2]), torch.tensor([0, 2**32]))


@pytest.mark.parametrize(
    ("crow", "col", "says"),
    [
        (CROW.double(), COL, "crow_indices must be int32 or int64, got torch.float64"),
        (CROW, COL.short(), "col_indices must be int32 or int64, got torch.int16"),
        (CROW, COL.int(), "must agree in dtype and device, got torch.int64"),
        (CROW, COL.to("meta"), "must agree in dtype and device"),
        (CROW[None], COL, "crow_indices must be 1-d, got shape (1, 4)"),
        (CROW.tolist(), COL, "crow_indices is a tensor, got list"),
    ],
)
def test_wrong_index_tensors(crow: torch.Tensor, col: torch.Tensor, says: str) -> None:
    with pytest.raises(PatternError, match=re.escape(says)):
        js.Pattern((24, 64), (8, 16), crow, col)


@pytest.mark.parametrize("block", [0, 7, 24, 256, (8, 9), (8,), (8, 8, 8), "32", 8.0, True, None])
def test_other_block_sizes_list_the_legal_ones(block: object) -> None:
    with pytest.raises(PatternError, match=re.escape("8, 16, 32, 64, 128")):
        js.Pattern.random((64, 64), block, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3), (-1, 8), (8.5, 8), 8, "ab"])
def test_wrong_shapes(shape: object) -> None:
    with pytest.raises(PatternError, match="shape"):
        js.Pattern.random(shape, 8, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", js.checks.BLOCK_SIZES)
@pytest.mark.parametrize("cols", js.checks.BLOCK_SIZES)
def test_every_pair_of_block_sizes(rows: int, cols: int) -> None:
    pattern = js.Pattern.random((200, 300), (rows, cols), 0.5)
    assert pattern.block_size == (rows, cols)
    assert pattern.grid == (-(-200 // rows), -(-300 // cols))


@given(
    rows=st.integers(0, 9),
    cols=st.integers(0, 9),
    cut=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_masks_round_trip(rows: int, cols: int, cut: tuple[int, int], seed: int) -> None:
    mask = torch.rand((rows, cols), generator=torch.Generator().manual_seed(seed)) < 0.4
    shape = max(0, rows * 8 - cut[0]), max(0, cols * 8 - cut[1])
    pattern = js.Pattern.from_mask(mask, 8, shape)
    assert torch.equal(pattern.to_mask(), mask)
    # What from_mask builds without looking also passes the constructor's checks.
    assert js.Pattern(shape, 8, pattern.crow_indices, pattern.col_indices) == pattern
    assert torch.equal(pattern.T.to_mask(), mask.T)
    assert pattern.T.T == pattern


def test_masks_are_checked() -> None:
    with pytest.raises(PatternError, match="2-d bool tensor"):
        js.Pattern.from_mask(torch.ones(3, 3), 8)
    with pytest.raises(PatternError, match="2-d bool tensor"):
        js.Pattern.from_mask(torch.ones(3, dtype=torch.bool), 8)
    with pytest.raises(PatternError, match=re.escape("has 3 x 4 blocks of size (8, 16)")):
        js.Pattern.from_mask(torch.ones(3, 3, dtype=torch.bool), (8, 16), (20, 60))
    assert js.Pattern.from_mask(torch.ones(3, 3, dtype=torch.bool), (8, 16)).shape == (24, 48)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 0.37, 0.5, 0.999, 1.0])
def test_random_has_exactly_the_density(density: float) -> None:
    pattern = js.Pattern.random((300, 500), (16, 32), density)
    assert pattern.nnz_blocks == round(density * 19 * 16)
    assert js.Pattern(pattern.shape, (16, 32), pattern.crow_indices, pattern.col_indices) == pattern


@pytest.mark.parametrize("shuffled", [16, 0], ids=["shuffled", "drawn"])
def test_random_follows_its_generator_and_is_uniform(
    shuffled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jitsparse.drawing._SHUFFLED", shuffled)

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return js.Pattern.random((32, 32), 8, 0.25, generator=generator).to_mask()

    assert torch.equal(draw(1), draw(1))
    assert draw(1).sum() == 4
    counts = sum(draw(seed).long() for seed in range(400))
    # 400 draws at 1/4: mean 100, standard deviation 8.7; six of them.
    assert (counts - 100).abs().max() < 52


def test_few_of_very_many_blocks_are_drawn_without_shuffling_all() -> None:
    """The grid has 2^32 blocks, of which a list would take 32 GB."""
    pattern = js.Pattern.random((2**20, 2**20), 16, 1e-6)
    assert pattern.nnz_blocks == 4295
    again = js.Pattern(pattern.shape, 16, pattern.crow_indices, pattern.col_indices)
    assert again == pattern


@pytest.mark.parametrize("density", [-0.1, 1.1, float("nan")])
def test_density_is_a_fraction(density: float) -> None:
    with pytest.raises(PatternError, match="density is a fraction between 0 and 1"):
        js.Pattern.random((64, 64), 8, density)


@pytest.mark.parametrize("shape", [(0, 0), (0, 40), (40, 0), (1, 1)])
def test_empty_and_tiny_matrices(shape: tuple[int, int]) -> None:
    pattern = js.Pattern.random(shape, 32, 1.0)
    assert pattern.nnz_blocks == pattern.grid[0] * pattern.grid[1]
    assert pattern.T.shape == shape[::-1]
    assert str(pattern)


def test_a_pattern_is_a_value() -> None:
    pattern, same = example(), example()
    other = js.Pattern((20, 60), (8, 16), CROW, torch.tensor([0, 2, 1]))
    assert pattern == same
    assert hash(pattern) == hash(same)
    assert pattern != other
    assert pattern != js.Pattern((24, 64), (8, 16), CROW, COL)
    assert pattern != "pattern"
    nowhere = pattern.to("meta")
    assert nowhere == nowhere
    assert nowhere != pattern.to("meta"), "where there is no data, nothing is known to be equal"
    assert len({pattern, same, other}) == 2
    assert copy.deepcopy(pattern) is pattern
    loaded = pickle.loads(pickle.dumps(pattern))
    assert loaded == pattern
    assert torch.equal(loaded.index, pattern.index)


def test_a_pattern_is_immutable() -> None:
    pattern = example()
    with pytest.raises(AttributeError, match="immutable"):
        pattern.shape = (1, 1)
    with pytest.raises(AttributeError, match="immutable"):
        del pattern.index


def test_to_the_same_device_is_the_same_pattern() -> None:
    pattern = example()
    assert pattern.to("cpu") is pattern
    assert pattern.to("meta").index.shape == pattern.index.shape


def test_print_shows_the_facts_and_the_map() -> None:
    assert str(example()) == (
        "Pattern(shape=(20, 60), block_size=(8, 16), nnz_blocks=3, density=25.0%, device=cpu)\n"
        "#..#\n"
        "....\n"
        ".#.."
    )


def test_the_map_of_a_large_pattern_is_small() -> None:
    mask = torch.zeros(240, 1200, dtype=torch.bool)
    mask[:10, :20] = True  # one character: full
    mask[10:20, 20:40][:5] = True  # one character: half
    mask[20, 40] = True  # one character: a single block
    lines = js.Pattern.from_mask(mask, 8).to_string().splitlines()
    assert len(lines) == 24
    assert {len(line) for line in lines} == {60}
    assert [lines[i][i] for i in range(3)] == ["#", "+", "-"]
    assert sum(line.count(".") for line in lines) == 24 * 60 - 3


@pytest.mark.parametrize("most", [(0, 5), (5, -1), ("x", 5)])
def test_a_map_has_a_line_and_a_character(most: tuple[Any, Any]) -> None:
    with pytest.raises(js.ArgumentError, match="ints above 0"):
        example().to_string(*most)


def test_what_is_no_generator() -> None:
    with pytest.raises(js.ArgumentError, match=r"Generator or None, got 'x'"):
        js.Pattern.random((64, 64), 32, 0.5, generator="x")  # type: ignore[arg-type]


def test_spy_draws_one_cell_a_block() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = example().spy()
    image = axes.get_images()[0]
    assert image.get_array().tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert tuple(image.get_extent()) == (0, 64, 24, 0)
    assert "25.0%" in axes.get_title()
    assert example().spy(axes) is axes
    matplotlib.pyplot.close("all")


def test_a_copy_is_the_pattern_itself_whatever_mode_is_active() -> None:
    pattern = js.Pattern.random((64, 64), 16, 0.5)
    assert copy.deepcopy(pattern) is pattern
    with torch.device("cpu"):
        assert copy.deepcopy([pattern])[0] is pattern


def test_a_density_may_be_any_number() -> None:
    for half in (0.5, np.float32(0.5), torch.tensor(0.5)):
        assert js.Pattern.random((64, 64), 16, half).nnz_blocks == 8  # type: ignore[arg-type]


def test_drawing_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"jitsparse\[viz\]"):
        js.Pattern.random((32, 32), 16, 0.5).spy()


def test_indices_and_masks_of_sparse_layouts_are_refused() -> None:
    pattern = js.Pattern.random((64, 64), 32, 0.5)
    with pytest.raises(js.PatternError, match="sparse_coo"):
        js.Pattern.from_mask(pattern.to_mask().to_sparse(), 32)
    with pytest.raises(js.PatternError, match=r"crow_indices is a tensor, got .*sparse_coo"):
        js.Pattern((64, 64), 32, pattern.crow_indices.to_sparse(), pattern.col_indices)


@given(rows=st.integers(0, 5), cols=st.integers(0, 5), seed=st.integers(0, 99))
def test_coordinates_in_any_order(rows: int, cols: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, cols, generator=generator) < 0.5
    places = mask.nonzero()
    places = places[torch.randperm(len(places), generator=generator)]
    size = (rows * 8, cols * 16)
    made = js.Pattern.from_indices(places[:, 0], places[:, 1].int(), (8, 16), size)
    assert made == js.Pattern.from_mask(mask, (8, 16), size)
    assert torch.equal(made.row_indices, mask.nonzero()[:, 0].int())


@pytest.mark.parametrize(
    ("rows", "cols", "says"),
    [
        ([0, 3], [0, 0], r"block 1 is at \(3, 0\), and the matrix has 3 x 4 blocks"),
        ([0], [-1], r"block 0 is at \(0, -1\)"),
        ([1, 0, 1], [2, 0, 2], "block row 1 has a duplicate: 2 is followed by 2"),
        ([0, 1], [0], "2 on cpu and 1 on cpu"),
        ([[0]], [[0]], "row_indices is 1-d"),
        ([0.0], [0], "row_indices is 1-d and int32 or int64"),
        ("none", [0], "row_indices is a tensor, got str"),
    ],
)
def test_coordinates_are_checked(rows: Any, cols: Any, says: str) -> None:
    given_rows = rows if isinstance(rows, str) else torch.tensor(rows)
    with pytest.raises(PatternError, match=says):
        js.Pattern.from_indices(given_rows, torch.tensor(cols), (8, 16), (20, 60))


def test_coordinates_without_data() -> None:
    nowhere = torch.zeros(1, dtype=torch.int64, device="meta")
    with pytest.raises(PatternError, match="row_indices has no data"):
        js.Pattern.from_indices(nowhere, nowhere, 8, (8, 8))


@given(seed=st.integers(0, 99), densities=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_patterns_are_sets_of_blocks(seed: int, densities: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (js.Pattern.random((20, 60), (8, 16), d, generator=generator) for d in densities)
    for combined, mask in (
        (a | b, a.to_mask() | b.to_mask()),
        (a & b, a.to_mask() & b.to_mask()),
        (a - b, a.to_mask() & ~b.to_mask()),
    ):
        assert combined == js.Pattern.from_mask(mask, (8, 16), (20, 60))
        assert combined.traits == js.Pattern.from_mask(mask, (8, 16), (20, 60)).traits


def test_sets_are_of_one_matrix() -> None:
    """What is wrong is how the operands fit, not either pattern."""
    asked = "a | b takes operands of one shape, block size and device; a is (20, 60) in blocks of"
    for other, says in (
        (example().T, "b is (60, 20) in blocks of (16, 8) on cpu"),
        (example().to("meta"), "b is (20, 60) in blocks of (8, 16) on meta; move one of them"),
        (js.Pattern.random((20, 61), (8, 16), 0.5), "b is (20, 61) in blocks of (8, 16) on cpu"),
        (js.Pattern.random((20, 60), 8, 0.5), "in blocks of (8, 8) on cpu; build one of them"),
    ):
        with pytest.raises(js.ArgumentError, match=re.escape(says)) as caught:
            example() | other
        assert str(caught.value).startswith(asked)
    with pytest.raises(TypeError):
        example() & 1  # type: ignore[operator]


def test_the_transposed_pattern_is_made_once() -> None:
    pattern = example()
    assert pattern.T is pattern.T
    assert pattern.T.T is pattern
    assert copy.copy(pattern) is pattern
    assert pickle.loads(pickle.dumps(pattern)) == pattern


def test_row_indices_are_a_copy() -> None:
    a = js.BlockSparse(torch.ones(3, 8, 16), example())
    before = a.to_dense()
    a.pattern.row_indices.mul_(100)
    assert torch.equal(a.to_dense(), before)


def test_moves_by_name() -> None:
    assert example().cpu() == example()
    assert example().to("meta").device.type == "meta"


def test_transposing_on_and_on_keeps_two_patterns_at_most() -> None:
    turned = pattern = example()
    made = []
    for _ in range(4):
        turned = turned.T
        made.append(weakref.ref(turned))
    assert len({id(each()) for each in made}) == 2
    del pattern  # whose transposed one goes on alone
    turned = turned.T
    for _ in range(4):
        turned = turned.T
        made.append(weakref.ref(turned))
    gc.collect()
    assert len({id(each()) for each in made if each() is not None}) <= 2


def test_as_many_rows_as_an_index_can_count() -> None:
    check_range(2**31 - 2, 1, 0)
    with pytest.raises(PatternError, match="32-bit"):
        check_range(2**31 - 1, 1, 0)


def test_the_blocks_that_are_not_stored() -> None:
    pattern = js.Pattern.random((60, 50), 16, 0.4)
    others = ~pattern
    assert torch.equal(others.to_mask(), ~pattern.to_mask())
    assert others.shape == pattern.shape
    assert ~others == pattern
    assert (others & pattern).nnz_blocks == 0


def test_some_of_the_blocks() -> None:
    pattern = js.Pattern.random((64, 64), 8, 0.5)
    numbers = torch.tensor([9, 0, 4])
    some = pattern.take(numbers)
    assert some == pattern.take(torch.isin(torch.arange(pattern.nnz_blocks), numbers))
    assert sorted(zip(some.row_indices.tolist(), some.col_indices.tolist(), strict=True)) == sorted(
        zip(
            pattern.row_indices[numbers].tolist(),
            pattern.col_indices[numbers].tolist(),
            strict=True,
        )
    )
    assert pattern.take(numbers[:0]).nnz_blocks == 0
    assert pattern.take(numbers.int()) == some


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (torch.tensor([1, 1]), "twice|duplicate"),
        (torch.tensor([-1]), "block -1 is none of 32 blocks"),
        (torch.tensor([0, 32]), "block 32 is none of 32 blocks"),
        (torch.ones(3, dtype=torch.bool), r"\(32,\) bool, got 3 of torch.bool"),
        (torch.ones(3, dtype=torch.uint8), "got 3 of torch.uint8"),
        (torch.ones(3), "got 3 of torch.float32"),
        (torch.zeros(1, 1, dtype=torch.int64), r"of shape \(1, 1\)"),
        ([0, 1], "got list"),
    ],
    ids=str,
)
def test_what_names_no_blocks(blocks: Any, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        js.Pattern.random((64, 64), 8, 0.5).take(blocks)


def test_what_needs_to_know_the_places_says_so_on_the_meta_device() -> None:
    a, b = (js.Pattern.random((64, 64), 16, 0.5, device="meta") for _ in range(2))
    for combine in (lambda: a | b, lambda: a & b, lambda: a - b, lambda: a.take(torch.tensor([0]))):
        with pytest.raises(js.PatternError, match="needs to know where the blocks are"):
            combine()


def test_coordinates_of_any_class_of_tensor() -> None:
    here = torch.nn.Parameter(torch.tensor([0, 1]), requires_grad=False)
    assert js.Pattern.from_indices(here, here, 16, (32, 32)).nnz_blocks == 2


def test_some_of_the_blocks_in_a_compiled_function() -> None:
    """Outside of its graph."""
    a = js.random((64, 64), 16, 0.5)

    def mask(a: js.BlockSparse) -> torch.Tensor:
        return a.pattern.take(a.block_norms().topk(2).indices).to_mask()

    assert torch.equal(torch.compile(mask, backend="eager")(a), mask(a))
