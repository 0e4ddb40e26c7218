"""The operations on a GPU: the grid of the CPU tests, and what only a GPU has."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cases
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck

import jitsparse as js
from jitsparse.jit import background
from jitsparse.kernels import choice, dispatch
from jitsparse.layout import IndexLayout
from jitsparse.schedule import build_index

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def matrix(dtype: torch.dtype = torch.bfloat16, block: int = 64) -> js.BlockSparse:
    """(512, 384) on the GPU."""
    return js.random((512, 384), block, 0.3, dtype=dtype, device="cuda")


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> None:
    run = cases.selected(request, test_products_are_right)
    cases.compile_grid("cuda", (each["variant"] for each in run))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("variant", cases.VARIANTS, ids=str)
def test_products_are_right(variant: cases.Variant) -> None:
    for seed, situation in enumerate(cases.SITUATIONS):
        try:
            cases.run(variant, situation, "cuda", seed)
        except Exception as error:
            raise AssertionError(f"in situation {situation}") from error


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_tf32_where_torch_allows_it(op: str) -> None:
    a = matrix(torch.float32)
    x, y = randn(384, 200, dtype=torch.float32), randn(200, 512, dtype=torch.float32)

    def run() -> None:
        # Both factors of a product lose the last 13 of 23 bits.
        if op == "dsd":
            cases.check_product(js.dsd(a, x), a.to_dense(), x, products=2**-9)
        elif op == "dds":
            cases.check_product(js.dds(y, a), y, a.to_dense(), products=2**-9)
        else:
            cases.check_sdd(js.sdd(y.T, x.T, a.pattern), y.T, x.T, products=2**-9)

    operands = {"dsd": (a, x), "dds": (y, a), "sdd": (y.T, x.T, a.pattern)}[op]
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert js.explain(op, *operands).problem.dtype == "tf32"
        run()
        torch.set_float32_matmul_precision("highest")
        assert js.explain(op, *operands).problem.dtype == "f32"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("flip_dense", [False, True])
@pytest.mark.parametrize("flip_sparse", [False, True])
def test_first_and_second_derivatives(flip_sparse: bool, flip_dense: bool) -> None:
    a = js.random((20, 30), (8, 16), 0.6, dtype=torch.float64, device="cuda")

    def sparse(values: Tensor) -> js.BlockSparse:
        built = js.BlockSparse(values, a.pattern)
        return built.T if flip_sparse else built

    def dense(rows: int, cols: int) -> Tensor:
        shape = (2, cols, rows) if flip_dense else (2, rows, cols)
        return randn(*shape, dtype=torch.float64).requires_grad_()

    def read(x: Tensor) -> Tensor:
        return x.mT if flip_dense else x

    m, k = sparse(a.values).shape
    values = a.values.clone().requires_grad_()
    bias = randn(m, dtype=torch.float64).requires_grad_()
    for function, inputs in [
        (lambda v, x: js.dsd(sparse(v), read(x)), (values, dense(k, 3))),
        (lambda v, x: js.dds(read(x), sparse(v)), (values, dense(3, m))),
        (lambda v, x, b: js.linear(read(x), sparse(v), b, "relu"), (values, dense(3, k), bias)),
        (lambda v, x, b: js.linear(read(x), sparse(v), b, "gelu"), (values, dense(3, k), bias)),
        (
            lambda x, y: js.sdd(read(x), read(y), a.pattern).values,
            (dense(20, 3), dense(3, 30)),
        ),
    ]:
        assert gradcheck(function, inputs, fast_mode=True, nondet_tol=0.0)
        assert gradgradcheck(function, inputs, fast_mode=True, nondet_tol=0.0)


def test_the_index_is_the_one_that_the_cpu_builds() -> None:
    for shape, block in [
        ((300, 500), (16, 32)),
        ((128, 128), 128),
        ((40, 0), 8),
        ((3000, 2504), 32),
    ]:
        here = js.Pattern.random(shape, block, 0.3)
        there = here.to("cuda")
        crow, col = here.crow_indices, here.col_indices
        expected = build_index(crow, col, here.grid[1], here.block_size, panels=True)
        layout = IndexLayout(*here.grid, here.nnz_blocks, here.block_size, panels=True)
        assert there.index.shape == (layout.size,)
        assert torch.equal(there.index.cpu(), expected)
        assert torch.equal(there.T.index.cpu(), here.T.to("cuda").index.cpu())


# -- streams, graphs, synchronisation -----------------------------------------------------------


def step(a: js.BlockSparse, x: Tensor, bias: Tensor) -> None:
    """Every operation, forward and backward, and everything derived from a pattern."""
    hidden = js.linear(x, a, bias, "relu")
    back = js.dds(hidden, a)
    gram = js.sdd(hidden.mT, x, a.pattern)
    (js.dsd(gram.T, hidden.mT).mT + back).sum().backward()
    assert a.pattern.T.T.nnz_blocks == a.pattern.nnz_blocks
    a.to_dense()


def test_the_steady_state_never_waits_for_the_device() -> None:
    a, x, bias = matrix().requires_grad_(), randn(256, 384).requires_grad_(), randn(512)
    step(a, x, bias)
    with cases.never_waiting():
        step(a, x, bias)


def test_work_is_queued_on_the_current_stream() -> None:
    a = matrix()
    x = torch.zeros(384, 256, dtype=torch.bfloat16, device="cuda")
    fresh = randn(384, 256)
    expected = js.dsd(a, fresh)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(fresh)
        out = js.dsd(a, x)
    side.synchronize()
    assert torch.equal(out, expected)


def test_a_thread_that_has_not_used_the_gpu_yet() -> None:
    """As autograd's may: kernels that use TMA need a context to describe operands."""
    a, x = matrix(), randn(384, 256)
    expected = js.dsd(a, x)
    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(js.dsd, a, x).result(), expected)


def test_gradients_of_a_layer_with_many_tokens() -> None:
    """Forward and backward through the kernels for many columns, in autograd's own threads."""
    weight = matrix()
    values = weight.values.detach().requires_grad_()
    x, grad = randn(256, 384).requires_grad_(), randn(256, 512)
    out = js.linear(x, js.BlockSparse(values, weight.pattern))
    got_x, got_values = torch.autograd.grad(out, (x, values), grad)
    cases.check_product(got_x, grad, weight.to_dense())
    cases.check_sdd(js.BlockSparse(got_values, weight.pattern), grad.mT, x.detach())


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_replay_in_a_graph(dtype: torch.dtype) -> None:
    a, x, y = matrix(dtype), randn(384, 256, dtype=dtype), randn(256, 512, dtype=dtype)
    bias = randn(384, dtype=dtype)

    def run() -> list[Tensor]:
        return [
            js.dsd(a, x),
            js.linear(y, a.T, bias, "gelu"),
            js.sdd(y.T, x.T, a.pattern).values,
        ]

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for _ in range(2):
        x.normal_()
        y.normal_()
        graph.replay()
        for got, expected in zip(captured, run(), strict=True):
            assert torch.equal(got, expected)


@pytest.fixture
def freed() -> Iterator[None]:
    """A graphed module holds itself: freed by chance, its graph would end a later capture."""
    yield
    gc.collect()


@pytest.mark.usefixtures("freed")
def test_a_layer_trains_in_a_graph() -> None:
    layer = js.nn.BlockSparseLinear(384, 512, 64, density=0.3, device="cuda", dtype=torch.bfloat16)
    plain = copy.deepcopy(layer)
    x = randn(256, 384).requires_grad_()
    graphed = torch.cuda.make_graphed_callables(layer, (x,))
    for _ in range(2):
        inputs = randn(256, 384)
        here, there = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
        graphed(here).square().sum().backward()
        plain(there).square().sum().backward()
        assert torch.equal(here.grad, there.grad)
        assert torch.equal(layer.values.grad, plain.values.grad)
        layer.zero_grad()
        plain.zero_grad()


def test_a_miss_during_capture_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = matrix(block=32), randn(384, 256)
    monkeypatch.setattr(dispatch, "_kernels", {})
    monkeypatch.setattr(choice, "_loaded", set())
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the graph: it is empty
        with pytest.raises(
            js.CacheMiss, match="Run the same call once before the capture"
        ) as caught:
            with torch.cuda.graph(graph):
                js.dsd(a, x)
    wanted = js.explain("dsd", a, x).variant
    assert f"`jitsparse warmup --variant {wanted}`" in str(caught.value)
    # Nothing is left broken: the same call outside, then inside.
    expected = js.dsd(a, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = js.dsd(a, x)
    graph.replay()
    assert torch.equal(out, expected)


def test_the_fallback_neither_synchronises_nor_is_captured(
    cache_dir: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the kernel that follows it, before it has run once."""
    monkeypatch.setattr(choice, "_loaded", set())
    a, x = matrix(block=32), randn(384, 256)

    def refused() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the graph: it is empty
            with pytest.raises(js.CacheMiss), torch.cuda.graph(torch.cuda.CUDAGraph()):
                js.dsd(a, x)

    with js.first_use("fallback"):
        with cases.never_waiting():
            answer = js.dsd(a, x)
        refused()
        for thread in list(background._builds.threads):
            thread.join()
        refused()
        cases.check_product(answer, a.to_dense(), x)
        expected = js.dsd(a, x)
        cases.check_product(expected, a.to_dense(), x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = js.dsd(a, x)
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [16, 64, 128])
def test_results_repeat_bit_for_bit(dtype: torch.dtype, block: int) -> None:
    a, x = matrix(dtype, block), randn(384, 256, dtype=dtype)
    y = randn(256, 512, dtype=dtype)

    def run() -> tuple[Tensor, ...]:
        return js.dsd(a, x), js.dds(y, a), js.sdd(y.T, x.T, a.pattern).values

    first = run()
    for _ in range(5):
        assert all(map(torch.equal, first, run()))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_the_operands_need_not_be_the_current_one() -> None:
    a, x = matrix(), randn(384, 256)
    expected = js.dsd(a, x)
    there = js.dsd(a.to("cuda:1"), x.to("cuda:1"))
    assert there.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    assert torch.equal(there.to("cuda:0"), expected)
    with pytest.raises(js.ArgumentError, match="a on cuda:0 and b on cuda:1"):
        js.dsd(a, x.to("cuda:1"))


# -- formats, layer, compilation ----------------------------------------------------------------


def test_formats_on_the_device() -> None:
    a = js.random((192, 256), (32, 64), 0.4, device="cuda")
    assert torch.equal(js.BlockSparse.from_bsr(a.to_bsr()).values, a.values)
    assert a.to_bsr().values().data_ptr() == a.values.data_ptr()
    again = js.BlockSparse.from_dense(a.to_dense(), (32, 64))
    assert again.pattern == a.pattern
    assert torch.equal(a.T.to_dense(), a.to_dense().T)
    assert str(a.to("cpu").pattern.to_string()) == a.pattern.to_string()
    with pytest.raises(js.PatternError, match="not sorted"):
        js.Pattern(
            (8, 16), 8, torch.tensor([0, 2], device="cuda"), torch.tensor([1, 0], device="cuda")
        )


def test_operands_on_two_devices_are_refused() -> None:
    a, x = matrix(), randn(384, 8)
    for call in (
        lambda: js.dsd(a, x.cpu()),
        lambda: js.dds(x.T.cpu(), a.T),
        lambda: js.sdd(randn(512, 8).cpu(), x.T, a.pattern),
        lambda: js.BlockSparse(a.values, a.pattern.to("cpu")),
    ):
        with pytest.raises(js.ArgumentError, match=r"on cpu|on cuda"):
            call()


def test_a_layer_moves_with_its_pattern() -> None:
    here = js.nn.BlockSparseLinear(200, 300, 16, density=0.3)
    there = copy.deepcopy(here).cuda()
    x = torch.randn(5, 200)
    assert there.pattern.index.device.type == "cuda"
    assert torch.equal(there.crow_indices, there.pattern.crow_indices)
    torch.testing.assert_close(there(x.cuda()).cpu(), here(x))
    back = copy.deepcopy(there).cpu()
    assert torch.equal(back(x), here(x))
    other = js.nn.BlockSparseLinear(200, 300, 16, density=0.5, device="cuda")
    other.load_state_dict(here.state_dict())
    assert torch.equal(other(x.cuda()), there(x.cuda()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_follows_the_users_dtype(dtype: torch.dtype) -> None:
    layer = js.nn.BlockSparseLinear(384, 512, 64, density=0.3, device="cuda")
    x = randn(64, 384, dtype=torch.float32)
    with torch.autocast("cuda", dtype=dtype):
        out = layer(x)
    assert out.dtype == dtype
    assert torch.equal(out, copy.deepcopy(layer).to(dtype)(x.to(dtype)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_training_step(backend: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    layer = js.nn.BlockSparseLinear(96, 64, 32, density=0.5, device="cuda", dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for batch in (4, 5, 70):
        x = randn(batch, 96, dtype=torch.float64)
        compiled(x).square().sum().backward()
        got = layer.values.grad.clone()
        layer.zero_grad()
        layer(x).square().sum().backward()
        torch.testing.assert_close(got, layer.values.grad)
        layer.zero_grad()
    assert counter.frame_count == 1
