"""Traits: what a pattern tells the choice of a kernel, and that no result depends on it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import jitsparse as js
from jitsparse import ops, tracing, traits
from jitsparse.bench.patterns import make_pattern
from jitsparse.kernels import dispatch
from jitsparse.kernels.choice import REFERENCE, Key, problem_of

BLOCKS = st.sampled_from([8, 16, 32, 64, 128])


def profile(pattern: js.Pattern) -> str:
    return f"{traits.profile_of(pattern.traits):04x}"


def made(name: str, shape: tuple[int, int], block: int, density: float = 0.1) -> js.Pattern:
    generator = torch.Generator().manual_seed(0)
    return make_pattern(name, shape, (block, block), density, generator)


@given(st.integers(1, 2**62))
def test_a_class_holds_sizes_within_a_quarter_of_each_other(size: int) -> None:
    largest = traits.of_class(traits.size_class(size))
    assert 4 * size <= 4 * largest < 5 * size + 4
    assert traits.size_class(largest) == traits.size_class(size) < 256
    assert traits.size_class(largest + 1) == traits.size_class(size) + 1


@pytest.mark.parametrize("bits", range(20))
def test_a_power_of_two_is_the_largest_of_its_class(bits: int) -> None:
    assert traits.of_class(traits.size_class(1 << bits)) == 1 << bits


@given(st.integers(1, 2**62))
def test_rows_that_begin_within_cache_lines_have_classes_of_their_own(size: int) -> None:
    largest = traits.of_side(traits.side_class(size))
    assert 4 * size <= 4 * largest < 5 * size + 16
    assert traits.of_side(traits.side_class(largest)) == largest
    assert traits.side_class(largest) == traits.side_class(size) < 512
    if size > 4 * traits.LINE:
        assert (largest % traits.LINE == 0) == (size % traits.LINE == 0)
        assert largest % 8 == 0


@given(st.integers(0, 2**31), st.integers(0, 2**31), st.integers(0, 2**31), st.integers(0, 0xFFFF))
def test_what_is_packed_is_found(rows: int, cols: int, nnz: int, digits: int) -> None:
    packed = traits.pack(rows, cols, nnz, digits)
    classes = [
        *(traits.of_side(traits.side_class(size)) for size in (rows, cols)),
        traits.of_class(traits.size_class(nnz)),
    ]
    assert [*traits.sizes_of(packed), traits.profile_of(packed)] == [*classes, digits]
    assert packed < 2**42
    assert traits.transposed(traits.transposed(packed)) == packed
    assert traits.sizes_of(traits.transposed(packed)) == (classes[1], classes[0], classes[2])
    sides = [
        traits.side_of(traits.profile_of(traits.transposed(packed)), s) for s in ("rows", "cols")
    ]
    assert sides == [traits.side_of(digits, s) for s in ("cols", "rows")]


@given(
    rows=st.integers(1, 600),
    cols=st.integers(1, 600),
    block=st.tuples(BLOCKS, BLOCKS),
    density=st.floats(0, 1),
)
def test_a_profile_is_what_the_mask_says(
    rows: int, cols: int, block: tuple[int, int], density: float
) -> None:
    pattern = js.Pattern.random((rows, cols), block, density)
    if not pattern.nnz_blocks:
        assert profile(pattern) == "0000"
        return
    digits = ""
    for mask, (height, depth), size in (
        (pattern.to_mask(), block, (rows, cols)),
        (pattern.to_mask().T, block[::-1], (cols, rows)),
    ):
        down, across = max(1, 128 // height), max(1, 64 // depth)
        panels = [panel.any(0) for panel in mask.split(down)]
        columns = torch.tensor([int(panel.sum()) for panel in panels])
        steps = sum(int(part.any()) for panel in panels for part in panel.split(across))
        expected = {
            wide: traits.random_steps(*size, pattern.nnz_blocks, (height, depth), across=wide)
            for wide in (1, across)
        }
        clustering = expected[across].mean / (steps / len(panels))
        skew = columns.max() / columns.double().mean() * expected[1].mean / expected[1].longest
        quarters = [quarter / 4 for quarter in range(2, 17)]
        eighths = [eighth / 8 for eighth in (*range(2, 9), *range(10, 17, 2), *range(20, 33, 4))]
        for ratio, steps in ((clustering, quarters), (float(skew), eighths)):
            digits += f"{sum(ratio >= 2**step for step in steps):x}"
    assert profile(pattern) == digits


@pytest.mark.parametrize("block", [16, 64, 128])
def test_patterns_that_programs_have(block: int) -> None:
    shape = (4096, 4096)
    assert profile(made("random", shape, block)) == "0000"
    clustering, skew, turned_clustering, turned_skew = profile(made("powerlaw", shape, block))
    assert skew > "0"
    assert clustering + turned_clustering + turned_skew == "000"
    clustering, skew, *transposed = profile(made("banded", shape, block))
    # A block of 128 is a panel: no others lie beside it.
    assert (clustering > "0") == (block < 128)
    assert skew == "0"
    assert transposed == [clustering, skew]


def test_they_go_where_the_pattern_goes() -> None:
    pattern = made("powerlaw", (2000, 1000), 64)
    assert profile(pattern) != "0000"
    assert pattern.T.traits == traits.transposed(pattern.traits)
    assert pattern.T.T.traits == pattern.traits
    for same in (pattern.to("meta"), copy.deepcopy(pattern), pickle.loads(pickle.dumps(pattern))):
        assert same.traits == pattern.traits
    read = js.Pattern(pattern.shape, 64, pattern.crow_indices, pattern.col_indices)
    assert read.traits == pattern.traits


def test_a_pattern_without_data_has_none() -> None:
    crow, col = torch.tensor([0, 8, 8, 8, 8]), torch.arange(8)
    assert js.Pattern((512, 1024), 128, crow, col).traits
    assert js.Pattern((512, 1024), 128, crow.to("meta"), col.to("meta")).traits == 0
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(crow), mode.from_tensor(col)
        assert js.Pattern._trusted((512, 1024), (128, 128), *fake).traits == 0


def test_a_pattern_may_be_made_in_a_graph() -> None:
    """Where even the number of its blocks is unknown."""

    class Model(torch.nn.Module):
        def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return js.sdd(x, x.mT, js.Pattern.from_mask(mask, 16)).values

    mask, x = torch.rand(4, 4) < 0.5, torch.randn(64, 8)
    expected = Model()(mask, x)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(Model(), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(mask, x), expected)
    program = torch.export.export(Model(), (mask, x)).module()
    torch.testing.assert_close(program(mask, x), expected)


@pytest.mark.parametrize("name", ["powerlaw", "banded", "causal"])
def test_large_patterns_are_sorted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = made(name, (1000, 3000), 32)
    monkeypatch.setattr(traits, "_MAX_TABLE_BYTES", 0)
    assert made(name, (1000, 3000), 32).traits == small.traits


def test_one_block_of_the_largest_matrix() -> None:
    steps = traits.random_steps(2**34, 2**34, 1, (8, 8), across=8)
    assert steps.mean == pytest.approx(2**-27)
    assert steps.longest >= steps.mean


def test_layers_measure_them_anew_when_indices_are_written_behind_their_back() -> None:
    layer = js.nn.BlockSparseLinear(512, 1024, 64, pattern=made("powerlaw", (1024, 512), 64))
    before = layer.pattern.traits
    layer.col_indices.copy_(layer.col_indices.clone())
    assert layer.pattern.traits == before
    layer.crow_indices = torch.zeros_like(layer.crow_indices)
    layer.col_indices = layer.col_indices[:0]
    assert layer.pattern.traits == js.Pattern.random((1024, 512), 64, 0.0).traits


def test_no_result_depends_on_them() -> None:
    a, x = js.random((100, 90), (16, 32), 0.5), torch.randn(90, 7)
    expected = js.dsd(a, x)
    for others in (0, traits.pack(1, 1, 1, 0xFFFF), traits.pack(2**31, 2**31, 2**31)):
        traits.attach_traits(a.pattern.index, others)
        assert torch.equal(js.dsd(a, x), expected)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Traits in the keys that kernels are looked up by."""
    found: list[int] = []

    def note(key: Key) -> object:
        found.append(key[8])
        return REFERENCE

    for name in ("dsd", "dds", "sdd"):
        run = getattr(dispatch, name)
        monkeypatch.setattr(run, "__defaults__", (note,))
    return found


def test_they_reach_the_kernels_of_every_pass(seen: list[int]) -> None:
    layer = js.nn.BlockSparseLinear(512, 1024, 64, pattern=made("powerlaw", (1024, 512), 64))
    x = torch.randn(8, 512, requires_grad=True)
    for call in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        call(x).square().sum().backward()
    torch.func.grad(lambda x: layer(x).sum())(x)
    # Three products of each training step, two of a gradient in x alone.
    assert seen == [layer.pattern.traits] * (3 + 3 + 2)


def test_an_index_that_comes_without_is_that_of_a_random_pattern(seen: list[int]) -> None:
    pattern = made("powerlaw", (2048, 2048), 64)
    values, x = torch.zeros(pattern.nnz_blocks, 64, 64), torch.randn(2048, 8)
    ops.dsd_op(values, pattern.index.clone(), x, 2048, 2048, False)
    ops.dsd_op(values, pattern.index, x, 2048, 2048, False)
    assert seen == [traits.pack(2048, 2048, pattern.nnz_blocks), pattern.traits]
    assert seen[0] != seen[1]


def test_layers_that_differ_in_nothing_else_share_a_compiled_graph() -> None:
    layers = [js.nn.BlockSparseLinear(256, 256, 32, density=0.5) for _ in range(3)]
    for number, layer in enumerate(layers):
        traits.attach_traits(layer.pattern.index, layer.pattern.traits + number)
        layer.pattern.__dict__["traits"] += number
    graphs = 0

    def backend(graph: torch.fx.GraphModule, example: object) -> object:
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(lambda layer, x: layer(x), backend=backend, fullgraph=True)
    x = torch.randn(4, 256)
    for layer in layers:
        torch.testing.assert_close(compiled(layer, x), layer(x))
    assert graphs == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_warm_up_sees_them(device: str) -> None:
    layer = js.nn.BlockSparseLinear(512, 1024, 64, pattern=made("powerlaw", (1024, 512), 64))
    found = tracing.keys_of_model(
        layer,
        tracing.inputs_of((8, 512)),
        device=device,
        dtype=torch.bfloat16,
        float32=None,
        backward=True,
    )
    here = layer.pattern.traits
    assert {key[8] for key in found} == {here if device == "cuda" else traits.without_profile(here)}


def test_on_a_cpu_patterns_of_all_kinds_share_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Key] = []

    def select(key: Key) -> object:
        asked.append(key)
        return object()

    monkeypatch.setattr(dispatch, "_kernels", {})
    monkeypatch.setattr(dispatch, "select", select)
    for device, choices in ((-1, 1), (0, 3)):
        asked.clear()
        rest = (device, "bf16", 32, 32, "n", "n", True)
        keys = [("dsd", *rest, traits.pack(64, 64, 4, p), 3, 0) for p in (0, 0x0300, 0x4400)]
        found = [dispatch.find(key) for key in keys for _ in range(2)]
        assert len(asked) == len(set(map(id, found))) == choices


def test_only_a_gpu_is_told_of_the_profile() -> None:
    packed = traits.pack(4096, 1000, 300, 0x0A10)
    for device, digits in ((-1, 0), (0, 0x0A10)):
        key = ("dsd", device, "bf16", 32, 32, "n", "n", True, packed, 12, 0)
        problem = problem_of(key)
        assert (problem.rows, problem.cols, problem.nnz) == (4096, 1016, 320)
        assert problem.profile == digits


def test_they_are_told_to_people() -> None:
    assert traits.describe(0) == ""
    assert traits.describe(0x3B00) == ", clustering of rows 2.2, skew of rows 4.8"
    assert traits.describe(0x0007) == ", skew of cols 2.2"


@pytest.mark.parametrize(
    "make",
    [
        lambda layer, x: torch.compile(layer, backend="eager")(x),
        lambda layer, x: torch.export.export(layer, (x,)),
    ],
    ids=["compile", "export"],
)
def test_what_is_no_pattern_is_refused_where_a_graph_is_made(make: Callable[..., object]) -> None:
    layer = js.nn.BlockSparseLinear(512, 1024, 64, pattern=made("powerlaw", (1024, 512), 64))
    layer.col_indices[3] = 77
    with pytest.raises(Exception, match="out of range: entry 3 is 77"):
        make(layer, torch.randn(4, 512))
