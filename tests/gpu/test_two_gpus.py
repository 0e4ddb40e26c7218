"""A second GPU, which is not the current one, gives what the first one gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import jitsparse as js

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

# Of every family, of tensor maps, of divided sums and of transposed copies, by the family that the
# layer runs: dtype, block, tokens, precision of float32.
CASES = {
    "wgmma": (torch.bfloat16, 64, 1024, "highest"),
    "wgmma, blocks of 16": (torch.float16, 16, 1024, "highest"),
    "wgmma, TF32": (torch.float32, 64, 1024, "high"),
    "thin": (torch.bfloat16, 32, 8, "highest"),
    "mma": (torch.float32, 16, 1024, "high"),
    "mma, few tokens": (torch.float32, 16, 16, "high"),
    "fma": (torch.float32, 32, 1024, "highest"),
    "fma, few tokens": (torch.float32, 64, 16, "highest"),
    "mma, float64": (torch.float64, 8, 64, "highest"),
    "simt": (torch.float64, 8, 64, "highest"),
}
# Rows that are not aligned are left to simt, since copies of so few take longer.
SHAPES = {"simt": (1024, 511)}


@pytest.fixture
def precision() -> Iterator[Callable[[str], None]]:
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


Given = tuple[js.BlockSparse, Tensor, Tensor]


def operands(case: str, shape: tuple[int, int] | None = None, block: int = 0) -> Given:
    shape = shape or SHAPES.get(case, (1024, 1536))
    dtype, usual, tokens, _ = CASES[case]
    generator = torch.Generator().manual_seed(0)
    a = js.random(shape, block or usual, 0.2, dtype=dtype, generator=generator)
    x = torch.randn(tokens, shape[1], dtype=dtype, generator=generator)
    return a, x, torch.randn(shape[0], dtype=dtype, generator=generator)


def step(a: js.BlockSparse, x: Tensor, bias: Tensor) -> list[Tensor]:
    """A layer forward and backward, and the other product."""
    a, x, bias = (each.detach().requires_grad_() for each in (a, x, bias))
    y = js.linear(x, a, bias, "gelu")
    y.backward(y.detach())
    with torch.no_grad():
        return [y.detach(), a.grad, x.grad, bias.grad, js.dsd(a, x.T)]


def there(given: Given, number: int) -> Given:
    a, x, bias = given
    return a.to(f"cuda:{number}"), x.to(f"cuda:{number}"), bias.to(f"cuda:{number}")


@pytest.mark.parametrize("case", CASES)
def test_it_gives_the_same(case: str, precision: Callable[[str], None]) -> None:
    precision(CASES[case][-1])
    given = operands(case)
    a, x, _ = there(given, 0)
    assert js.explain("dds", x, a.T).variant.split(".")[1] == case.split(",")[0]
    first, second = (step(*there(given, number)) for number in range(2))
    assert torch.cuda.current_device() == 0
    for mine, other in zip(first, second, strict=True):
        assert (mine.device.index, other.device.index) == (0, 1)
        assert torch.equal(mine.cpu(), other.cpu())


@pytest.mark.parametrize("case", ["wgmma", "fma"])
def test_the_second_may_be_the_first_that_is_used(case: str) -> None:
    """A kernel that is new to the process, launched on the second and then on the first."""
    given = operands(case, (640, 1664), block=128)
    second, first = (step(*there(given, number)) for number in (1, 0))
    for mine, other in zip(first, second, strict=True):
        assert torch.equal(mine.cpu(), other.cpu())


def test_threads_with_a_gpu_each() -> None:
    given = operands("wgmma")
    alone = [each.cpu() for each in step(*there(given, 0))]

    def work(number: int) -> bool:
        with torch.cuda.device(number):
            mine = there(given, number)
            return all(
                torch.equal(got.cpu(), expected)
                for _ in range(20)
                for got, expected in zip(step(*mine), alone, strict=True)
            )

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


def test_a_captured_step() -> None:
    a, x, bias = there(operands("wgmma"), 1)
    expected = js.linear(x, a, bias, "gelu")
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        # torch captures on one stream of its own in the whole process, on the GPU that was current
        # when it was made: later captures on another GPU would end on this one.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            y = js.linear(x, a, bias, "gelu")
        y.zero_()
        graph.replay()
    assert torch.equal(y, expected)


def test_pipelined_layers() -> None:
    """The output of a layer on one GPU goes to one on the other; gradients come back."""
    first, second = (
        js.nn.BlockSparseLinear(512, 512, 64, density=0.3, device=f"cuda:{number}")
        for number in range(2)
    )
    x = torch.randn(256, 512, device="cuda:0", requires_grad=True)
    y = second(first(x).to("cuda:1"))
    y.sum().backward()
    weights = [each.weight.to_dense().to("cuda:0") for each in (first, second)]
    biases = [each.bias.to("cuda:0") for each in (first, second)]
    expected = (x @ weights[0].T + biases[0]) @ weights[1].T + biases[1]
    torch.testing.assert_close(y.to("cuda:0"), expected, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(x.grad, gradient, rtol=1e-4, atol=1e-4)
