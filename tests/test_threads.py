"""Sixteen threads of a process that miss together: each kernel is compiled once, all are right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toykernel
from zygote import Zygote

from jitsparse.jit import Cache, Kernel, config, load
from jitsparse.jit.inventory import verify

THREADS = 16


def together(folder: str, cache: str, scales: list[int]) -> dict[str, Any]:
    """Load kernels in as many threads, at once, each twice.

    Returns:
        ``right`` and ``fresh`` for each, and how many ``kernels`` there are.
    """
    template = toykernel.template(folder)
    barrier = threading.Barrier(len(scales))
    kernels: list[Kernel] = []
    right: list[bool] = []

    def work(scale: int) -> None:
        barrier.wait()
        kernel = load(template, toykernel.variant(scale))
        kernels.append(kernel)
        right.append(toykernel.run(kernel) and load(template, kernel.variant) is kernel)

    with config.override(cache_dir=cache):
        threads = [threading.Thread(target=work, args=(scale,)) for scale in scales]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {
        "right": right,
        "fresh": [kernel.entry.fresh for kernel in kernels],
        "kernels": len({id(kernel) for kernel in kernels}),
    }


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    counting, _ = toykernel.compiler(tmp_path / "counting")
    with Zygote(CXX=str(counting)) as zygote:
        yield zygote


@pytest.mark.parametrize(
    "scales", [[2] * THREADS, [*range(2, 2 + THREADS)]], ids=["one kernel", "sixteen kernels"]
)
def test_missing_together(zygote: Zygote, tmp_path: Path, scales: list[int]) -> None:
    toykernel.write(tmp_path)
    cache, different = tmp_path / "cache", len(set(scales))
    outcome = zygote.run(together, folder=tmp_path, cache=cache, scales=scales)
    assert outcome.status == 0, outcome
    assert outcome.stderr == ""
    assert outcome.value == {
        "right": [True] * THREADS,
        "fresh": [True] * THREADS,
        "kernels": different,
    }
    assert toykernel.compilations(tmp_path / "counting" / "compilations") == different
    assert [each.defect for each in verify(Cache(cache))] == [""] * different
    assert toykernel.staged(cache) == []


def test_the_next_process_finds_what_the_threads_compiled(zygote: Zygote, tmp_path: Path) -> None:
    toykernel.write(tmp_path)
    cache, scales = tmp_path / "cache", [*range(2, 2 + THREADS)]
    for fresh in (True, False):
        value = zygote.run(together, folder=tmp_path, cache=cache, scales=scales).value
        assert value["fresh"] == [fresh] * THREADS
        assert value["right"] == [True] * THREADS
