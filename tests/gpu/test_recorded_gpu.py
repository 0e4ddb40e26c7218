"""An index that is replayed is, bit for bit, the one that would have been built."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import Any

import cases
import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse import recorded
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
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program of one thread; test runners have more."""
    monkeypatch.setattr(recorded, "_devices", {})
    monkeypatch.setattr(recorded.threading, "active_count", lambda: 1)


def recordings() -> int:
    return len(recorded._device(torch.cuda.current_device()).recordings)


def arguments(number: int, which: int = 0) -> tuple[Tensor, Tensor, int, tuple[int, int]]:
    """What an index is built from: the number-th pattern of a layout."""
    shape, block, density = LAYOUTS[which]
    generator = torch.Generator().manual_seed(number)
    pattern = js.Pattern.random(shape, block, density, generator=generator)
    indices = (each.to("cuda") for each in (pattern.crow_indices, pattern.col_indices))
    return (*indices, pattern.grid[1], block)


@pytest.mark.parametrize("which", range(len(LAYOUTS)))
def test_it_is_the_same_from_the_first_to_the_last(which: int) -> None:
    for number in range(5):
        given = arguments(number, which)
        assert torch.equal(recorded.index_of(*given), build_index(*given))
        assert recordings() == (number > 0)


def test_layouts_by_turns_share_their_memory() -> None:
    kept = []
    for number in range(4):
        for which in range(len(LAYOUTS)):
            given = arguments(number, which)
            kept.append((recorded.index_of(*given), given))
    for index, given in kept:
        assert torch.equal(index, build_index(*given))


def test_streams_take_turns() -> None:
    """Each replay follows on the one before, whichever stream that was on: of another layout, too,
    whose graph uses the same memory."""
    given = [arguments(number, number % 2) for number in range(12)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    for each in given[:4]:
        recorded.index_of(*each)
    assert recordings() == 2
    torch.cuda.synchronize()
    found = []
    for number, each in enumerate(given):
        with torch.cuda.stream(streams[number % 3]):
            found.append(recorded.index_of(*each))
    torch.cuda.synchronize()
    for index, each in zip(found, given, strict=True):
        assert torch.equal(index, build_index(*each))


def test_threads_take_turns() -> None:
    given = [arguments(number, number % 2) for number in range(16)]
    for each in given[:4]:
        recorded.index_of(*each)
    assert recordings() == 2
    found: dict[int, Tensor] = {}

    def work(begin: int) -> None:
        for number in range(begin, len(given), 4):
            found[number] = recorded.index_of(*given[number])

    threads = [threading.Thread(target=work, args=(begin,)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for number, each in enumerate(given):
        assert torch.equal(found[number], build_index(*each))


def test_a_replay_never_waits_for_the_device() -> None:
    for number in range(2):
        recorded.index_of(*arguments(number))
    given = arguments(2)
    torch.cuda.synchronize()
    with cases.never_waiting():
        index = recorded.index_of(*given)
    assert torch.equal(index, build_index(*given))


def test_a_users_capture_holds_the_kernels_themselves() -> None:
    for number in range(2):
        recorded.index_of(*arguments(number))
    crow, col, cols, block = arguments(2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        index = recorded.index_of(crow, col, cols, block)
    for number in (3, 4):
        other = arguments(number)
        crow.copy_(other[0])
        col.copy_(other[1])
        graph.replay()
        assert torch.equal(index, build_index(*other))


def test_a_capture_that_runs_out_of_memory_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(*given: Any) -> Tensor:
        index = build_index(*given)
        if torch.cuda.is_current_stream_capturing():
            tried.append(given)
            raise torch.OutOfMemoryError("no memory")
        return index

    monkeypatch.setattr(recorded, "build_index", fail)
    for number in range(4):
        for which in (0, 1):
            given = arguments(number, which)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                index = recorded.index_of(*given)
            assert torch.equal(index, build_index(*given))
            assert bool(said) == (number == 1 and which == 0)
    assert len(tried) == 1
    assert recordings() == 0
    torch.nn.functional.dropout(torch.ones(8, device="cuda"))  # the generator is in no capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.randn(8, device="cuda")


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("threading.active_count", lambda: 2),
        ("torch.cuda.get_allocator_backend", lambda: "cudaMallocAsync"),
        ("torch.cuda.mem_get_info", lambda: (1 << 20, 1 << 36)),
    ],
)
def test_where_a_capture_might_do_harm_all_is_built(
    what: str, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what, how)
    for number in range(3):
        given = arguments(number)
        assert torch.equal(recorded.index_of(*given), build_index(*given))
    assert recordings() == 0


def test_under_a_transform_all_is_built() -> None:
    """Which wraps what is written to."""
    dense = torch.randn(256, 256, device="cuda", dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return js.BlockSparse.from_dense(x, 32).values.square().sum()

    for _ in range(4):
        torch.testing.assert_close(torch.func.grad(loss)(dense), 2 * dense)


def test_a_program_of_one_thread_records() -> None:
    """And leaves no context on a GPU that it does not use."""
    script = """if True:
        import torch, jitsparse as js
        from jitsparse import recorded
        device = torch.cuda.device_count() - 1
        for _ in range(3):
            js.Pattern.random((1024, 1024), 64, 0.25, device=f"cuda:{device}")
        assert len(recorded._devices[device].recordings) == 1
        assert device == 0 or not torch._C._cuda_hasPrimaryContext(0)
    """
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one() -> None:
    crow, col, *others = arguments(0)
    for _ in range(3):
        there = recorded.index_of(crow.to("cuda:1"), col.to("cuda:1"), *others)
        assert torch.equal(there.cpu(), build_index(crow, col, *others).cpu())
    assert recordings() == 0
    assert len(recorded._device(1).recordings) == 1


def test_beyond_the_most_layouts_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_MAX_RECORDINGS", 1)
    for which in (0, 1):
        for number in range(3):
            given = arguments(number, which)
            assert torch.equal(recorded.index_of(*given), build_index(*given))
    assert recordings() == 1
