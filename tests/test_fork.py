"""Processes that are forked or spawned from one that has kernels, or is building some."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import toykernel
from zygote import Zygote, use

from jitsparse.jit import Cache, config, load
from jitsparse.jit.inventory import verify

TRIALS = int(os.environ.get("JITSPARSE_TEST_TRIALS", "6"))
SEED = int(os.environ.get("JITSPARSE_TEST_SEED", "20"))
PATIENCE = 60.0


def in_a_fork(function: Callable[[], bool]) -> bool | None:
    """What a function returns in a forked child, or None if the child hangs or dies."""
    return verdict(forked(function))


def forked(function: Callable[[], bool]) -> int:
    """A child that runs a function and tells its result by its exit status."""
    pid = os.fork()
    if pid == 0:
        # Whatever happens, the child must not go on with what its parent does.
        status = 1
        # What it waits for, if it hangs.
        faulthandler.dump_traceback_later(0.9 * PATIENCE)
        try:
            status = 0 if function() else 2
        finally:
            os._exit(status)
    return pid


def verdict(pid: int) -> bool | None:
    """What became of a child of :func:`forked`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return {0: True, 2: False}.get(os.waitstatus_to_exitcode(status))
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def fork_after_load(folder: str, cache: str) -> dict[str, Any]:
    """A child of a process that has a kernel uses it, and builds another."""
    template = toykernel.template(folder)
    with config.override(cache_dir=cache):
        kernel = load(template, toykernel.variant(2))
        used = in_a_fork(lambda: toykernel.run(kernel) and load(template, kernel.variant) is kernel)
        built = in_a_fork(lambda: toykernel.run(load(template, toykernel.variant(3))))
        found = load(template, toykernel.variant(3))
        return {
            "used": used,
            "built": built,
            "right": toykernel.run(kernel),
            "fresh": found.entry.fresh,
        }


def test_fork_after_load(tmp_path: Path) -> None:
    toykernel.write(tmp_path)
    with Zygote() as zygote:
        outcome = zygote.run(fork_after_load, folder=tmp_path, cache=tmp_path / "cache")
    expected = {"used": True, "built": True, "right": True, "fresh": False}
    assert outcome.value == expected, outcome
    assert toykernel.staged(tmp_path / "cache") == []


def fork_after_use(block_size: int) -> dict[str, Any]:
    """A child of a process whose kernels have run on several threads runs them too."""
    import torch

    import jitsparse as js

    torch.set_num_threads(2)
    a = js.random((512, 512), block_size, 0.5)
    x = torch.randn(512, 256)
    # Compared as bytes: torch's own operations wait for the pool, too.
    y = (a @ x).numpy().tobytes()
    threads = len(os.listdir("/proc/self/task"))
    child = in_a_fork(lambda: (a @ x).numpy().tobytes() == y)
    return {"child": child, "threads": threads, "again": (a @ x).numpy().tobytes() == y}


def test_fork_after_use() -> None:
    """The child of a process with a pool of OpenMP threads has none and must not wait for them."""
    with Zygote() as zygote:
        outcome = zygote.run(fork_after_use, block_size=32)
    assert outcome.value["threads"] > 1, outcome
    assert outcome.value["child"] is True
    assert outcome.value["again"]


def fork_while_building(folder: str, cache: str, delay: float) -> dict[str, Any]:
    """A child is forked while a thread builds; it needs the same kernel, and another."""
    template = toykernel.template(folder)
    right: list[bool] = []

    def build(scale: int) -> bool:
        return toykernel.run(load(template, toykernel.variant(scale)))

    with config.override(cache_dir=cache):
        thread = threading.Thread(target=lambda: right.append(build(2)))
        started = time.perf_counter()
        thread.start()
        time.sleep(delay)
        building = thread.is_alive()
        child = in_a_fork(lambda: build(2) and build(3))
        thread.join(PATIENCE)
        seconds = time.perf_counter() - started
    return {"child": child, "right": right, "building": building, "seconds": seconds}


def test_fork_while_another_thread_builds(tmp_path: Path) -> None:
    """At any moment. What the thread holds, locks and imports, the child can never be given."""
    toykernel.write(tmp_path)
    cache, chance, hits = tmp_path / "cache", random.Random(SEED), 0
    with Zygote() as zygote:
        for trial in range(10 * TRIALS):
            delay = chance.uniform(0, 0.3)
            outcome = zygote.run(
                fork_while_building, folder=tmp_path, cache=cache / str(trial), delay=delay
            )
            assert outcome.status == 0, outcome
            assert outcome.value["child"] is True, (delay, outcome)
            # Nor does the child keep from its parent what it inherited.
            assert outcome.value["seconds"] < PATIENCE / 2, (delay, outcome)
            assert outcome.value["right"] == [True], (delay, outcome)
            here = Cache(cache / str(trial))
            assert [each.defect for each in verify(here)] == ["", ""]
            assert toykernel.staged(here.root) == []
            hits += outcome.value["building"]
            if hits == TRIALS:
                break
    print(f"seed {SEED}: {trial + 1} forks, {hits} of them while a thread was building")
    assert hits == TRIALS


def test_fork_while_another_thread_imports_what_a_build_needs(tmp_path: Path) -> None:
    """The first build of a process: half-imported modules are locked by the importing thread.

    The compiler waits for the last fork, so that all of them meet the build, however quick it is.
    """
    toykernel.write(tmp_path)
    held, _ = toykernel.compiler(
        tmp_path / "held", before=f'until [ -e "{tmp_path}/go" ]; do sleep 0.05; done'
    )
    action = f"""
import pathlib, threading, time
import test_fork
thread = threading.Thread(target=lambda: toykernel.run(load(template, variant)))
thread.start()
children = []
for _ in range(6):
    children.append(test_fork.forked(lambda: toykernel.run(load(template, variant))))
    time.sleep(0.15)
alive = thread.is_alive()
pathlib.Path({str(tmp_path / "go")!r}).touch()
thread.join()
print(alive, {{test_fork.verdict(child) for child in children}})
"""
    child = toykernel.start(tmp_path, tmp_path / "cache", action=action, CXX=str(held))
    toykernel.release(child)
    out, err = child.communicate(timeout=240)
    assert out == "True {True}\n", err


def spawned(folder: str, cache: str, queue: Any) -> None:
    queue.put(use(folder, cache))


def test_spawn_after_load(tmp_path: Path, cache_dir: Path) -> None:
    """A spawned process shares nothing but the cache, and finds the kernel there."""
    template = toykernel.write(tmp_path)
    assert toykernel.run(load(template, toykernel.variant()))
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=spawned, args=(str(tmp_path), str(cache_dir), queue))
    child.start()
    value = queue.get()
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert value["right"]
    assert not value["fresh"]
