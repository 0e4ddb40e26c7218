"""The index of a pattern on a GPU: computed by the host where that can read the indices, launched
kernel by kernel elsewhere, and the same."""

from __future__ import annotations

import contextlib
import threading

import cases
import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse import indexing, jit
from jitsparse.kernels.host_index import template
from jitsparse.kernels.registry import INDEX
from jitsparse.schedule import build_index

pytestmark = pytest.mark.gpu

LAYOUTS = [
    ((1024, 1536), (64, 64), 0.25),
    ((1000, 1500), (32, 32), 0.1),
    ((2048, 2048), (16, 16), 0.3),
    ((1024, 1024), (128, 128), 0.5),
    ((700, 512), (8, 64), 0.2),
]


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the indices that the compiled function has computed."""
    jit.load(template(), INDEX)
    assert indexing._function() is not None
    sizes: list[int] = []
    fill = indexing.fill

    def counted(*given: object) -> list[int]:
        sizes.append(given[-1].numel())
        return fill(*given)

    monkeypatch.setattr(indexing, "fill", counted)
    return sizes


def drawn(number: int) -> js.Pattern:
    """On the CPU."""
    shape, block, density = LAYOUTS[number % len(LAYOUTS)]
    generator = torch.Generator().manual_seed(number)
    return js.Pattern.random(shape, block, density, generator=generator)


def on_gpu(pattern: js.Pattern) -> tuple[Tensor, Tensor]:
    return pattern.crow_indices.cuda(), pattern.col_indices.cuda()


def expected(pattern: js.Pattern) -> Tensor:
    """By torch operations on the GPU."""
    return build_index(*on_gpu(pattern), pattern.grid[1], pattern.block_size)


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_it_is_the_one_of_the_torch_operations(number: int, built: list[int]) -> None:
    here = drawn(number)
    there = js.Pattern(here.shape, here.block_size, *on_gpu(here))
    assert torch.equal(there.index, expected(here))
    assert there.traits == here.traits
    long = js.Pattern(here.shape, here.block_size, *(each.long() for each in on_gpu(here)))
    assert torch.equal(long.index, there.index)
    assert built == [there.index.numel()] * 2


def test_a_transposition_never_waits_for_the_device(built: list[int]) -> None:
    """Nor does a move beyond copying the indices, as torch's own does."""
    here = drawn(0)
    there = here.to("cuda")
    with cases.never_waiting():
        transposed = there.T
    assert torch.equal(there.index, expected(here))
    assert torch.equal(transposed.index, expected(here.T))
    assert len(built) == 2


def test_streams_and_threads() -> None:
    patterns = [drawn(number) for number in range(24)]
    streams = [torch.cuda.Stream() for _ in range(4)]
    found: dict[int, Tensor] = {}

    def work(begin: int) -> None:
        with torch.cuda.stream(streams[begin]):
            for number in range(begin, len(patterns), 4):
                found[number] = patterns[number].to("cuda").index

    threads = [threading.Thread(target=work, args=(begin,)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for number, pattern in enumerate(patterns):
        assert torch.equal(found[number], expected(pattern))


@pytest.mark.parametrize("made", ["moved", "transposed"])
def test_it_is_there_for_every_stream(made: str) -> None:
    """The one that makes it is far behind."""
    here = drawn(3)
    there = here.to("cuda")
    busy, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        pattern = there.T if made == "transposed" else here.to("cuda")
    with torch.cuda.stream(other):
        seen = pattern.index.clone()
    torch.cuda.synchronize()
    assert torch.equal(seen, expected(here.T if made == "transposed" else here))


def test_a_capture_holds_the_kernels_themselves(built: list[int]) -> None:
    """Which walk whatever pattern the indices are of when it is replayed."""
    shape, block, _ = LAYOUTS[0]
    first = drawn(0)
    crow, col = on_gpu(first)
    expected(first)  # loads the kernels, which a capture cannot do
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pattern = js.Pattern._trusted(shape, block, crow, col, first.traits)
    assert not built
    for number in (5, 10):
        other = drawn(number)
        crow.copy_(other.crow_indices)
        col.copy_(other.col_indices)
        graph.replay()
        assert torch.equal(pattern.index, expected(other))


def test_under_a_transform_it_is_the_torch_operations(built: list[int]) -> None:
    dense = torch.randn(256, 256, device="cuda", dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return js.BlockSparse.from_dense(x, 32).values.square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(dense), 2 * dense)
    assert not built


def test_beyond_the_most_blocks_it_is_the_torch_operations(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = drawn(0)
    monkeypatch.setattr(indexing, "_max_blocks", lambda: here.nnz_blocks - 1)
    assert torch.equal(here.to("cuda").index, expected(here))
    assert not built


def test_a_huge_matrix_of_few_blocks_is_the_torch_operations(built: list[int]) -> None:
    here = js.Pattern.random((2 * 10**7, 2 * 10**7), 64, 1e-9)
    assert torch.equal(here.to("cuda").index, expected(here))
    assert not built


def test_while_torch_jit_traces_it_is_the_torch_operations(built: list[int]) -> None:
    """Or raises as these do: lengths are tensors there."""
    crow, col = on_gpu(drawn(0))
    shape, block, _ = LAYOUTS[0]

    def index(crow: Tensor, col: Tensor) -> Tensor:
        return js.Pattern._trusted(shape, block, crow, col).index

    with contextlib.suppress(RuntimeError):
        torch.jit.trace(index, (crow, col), check_trace=False)
    assert not built


def test_of_inference_mode(built: list[int]) -> None:
    here = drawn(1)
    with torch.inference_mode():
        there = js.Pattern(here.shape, here.block_size, *on_gpu(here))
    assert torch.equal(there.index, expected(here))
    assert torch.equal(there.T.index, expected(here.T))
    assert len(built) == 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one(built: list[int]) -> None:
    here = drawn(0)
    there = here.to("cuda:1")
    assert there.index.device == torch.device("cuda:1")
    assert torch.equal(there.index.cpu(), expected(here).cpu())
    assert torch.equal(there.to("cuda:0").index, expected(here))
    assert len(built) == 2
