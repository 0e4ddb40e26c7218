"""First use of one kernel and of twenty, from an empty and from a full cache, beside the peers.

Eight processes that miss together are measured, too. Every figure is from a fresh process. The
contestants take turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from jitsparse.bench import fresh
from jitsparse.bench.first_use_process import PROBLEMS
from jitsparse.bench.report import Table
from jitsparse.errors import JitsparseError

__all__ = ["SECTIONS", "first_use_tables"]

CONTESTANTS = {
    "ours": "jitsparse",
    "torch headers": "load() with torch/extension.h",
    "triton": "Triton",
}
COUNTS = {"one": 1, "twenty": len(PROBLEMS)}
"""Kernels per process."""
SECTIONS = (*COUNTS, "together")
RANKS = 8
RUNS = 5
"""At most, for each contestant."""
PATIENCE = 60.0
"""Seconds of cold runs after which a contestant has no further run."""


def first_use_tables(
    device: torch.device,
    *,
    sections: Sequence[str] = (),
    on_step: Callable[[str], None] = lambda what: None,
) -> list[Table]:
    """Measure first uses.

    Args:
        device: ``cpu`` or ``cuda``.
        sections: which of :data:`SECTIONS`; by default all.
        on_step: called with what is measured next.

    Returns:
        The contestants' table, and that of the processes that miss together, as far as asked for.

    Raises:
        JitsparseError: a process that was to be measured failed.
    """
    from jitsparse.jit import config

    jobs = config.get().jobs
    notes = [
        f"Cold: every cache is empty, {jobs} compilers at a time (threads of one process, each "
        "making one first use after the other). Warm: one after the other in a process that finds "
        "all in its cache. Processor time includes the compilers'. Of the runs the one that took "
        "least processor time is shown."
    ]
    contestants = list(CONTESTANTS)
    absent = _no_triton(device)
    if absent:
        contestants.remove("triton")
        notes.append(f"Triton is absent: {absent}.")
    wanted = sections or SECTIONS
    tables = []
    with tempfile.TemporaryDirectory(prefix="jitsparse-bench-") as scratch:
        rows = [
            row
            for name, count in COUNTS.items()
            if name in wanted
            for row in _rows(Path(scratch), device, contestants, count, jobs, on_step)
        ]
        if rows:
            tables.append(Table(f"first use, {device.type}", list(rows[0]), rows, notes))
        if "together" in wanted:
            on_step(f"{RANKS} processes that miss together")
            tables.append(_together(Path(scratch), device))
    return tables


def _no_triton(device: torch.device) -> str:
    """Why Triton cannot be measured, or an empty text."""
    if device.type != "cuda":
        return "it compiles for GPUs"
    try:
        import jitsparse.bench.triton_peer  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def _rows(
    scratch: Path,
    device: torch.device,
    contestants: list[str],
    count: int,
    jobs: int,
    on_step: Callable[[str], None],
) -> Iterator[dict[str, object]]:
    """Cold runs in turns, each followed by warm ones on the cache that it filled."""
    cold: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    warm: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for turn in range(RUNS):
        for name in contestants:
            if sum(each["wall"] for each in cold[name]) > PATIENCE:
                continue
            on_step(f"{CONTESTANTS[name]}, {count} cold")
            folder = scratch / f"{name.replace(' ', '-')}-{count}-{turn}"
            folder.mkdir()
            cold[name].append(_process(name, device, count, jobs, folder))
            if name == "ours":
                _check_entries(folder, count)
            on_step(f"{CONTESTANTS[name]}, {count} warm")
            # The first process after the compilers finds bytecode, page cache and clocks disturbed.
            warm[name] += [_process(name, device, count, 1, folder) for _ in range(2)]
    for state, took in (("cold", cold), ("warm", warm)):
        for name in contestants:
            best = min(took[name], key=lambda each: each["processor"])
            yield {
                "kernels": count,
                "cache": state,
                "contestant": CONTESTANTS[name],
                "s": best["wall"],
                "processor s": best["processor"],
                "ms a kernel": 1e3 * best["wall"] / count,
                "runs": len(took[name]),
            }


def _arguments(name: str, device: torch.device, count: int, jobs: int, folder: Path) -> list[str]:
    module = ["-m", "jitsparse.bench.first_use_process"]
    return [*module, name, str(device), str(count), str(jobs), str(folder)]


def _process(
    name: str, device: torch.device, count: int, jobs: int, folder: Path
) -> dict[str, float]:
    took: dict[str, float] = fresh.run(
        _arguments(name, device, count, jobs, folder),
        folder,
        TRITON_CACHE_DIR=str(folder),
        # Threads waiting for work would count as busy, and the products are not what is measured.
        OMP_NUM_THREADS="1",
    )
    return took


def _check_entries(folder: Path, count: int) -> None:
    """Check that there were as many kernels as the table says."""
    from jitsparse.jit import Cache

    found = len(list(Cache(folder).entries()))
    if found != count:
        raise JitsparseError(f"{count} first uses made {found} kernels; they should make {count}")


def _together(scratch: Path, device: torch.device) -> Table:
    """Ranks of one host that need the same kernel at the same moment, with an empty cache."""
    from jitsparse.jit import Cache

    runs: list[dict[str, Any]] = []
    for run in range(RUNS):
        folder = scratch / f"together-{run}"
        arguments = _arguments("ours", device, 1, 1, folder)
        processes = [
            # As torchrun sets them.
            fresh.start([*arguments, "wait"], folder, RANK=str(rank), OMP_NUM_THREADS="1")
            for rank in range(RANKS)
        ]
        for process in processes:
            if process.stdout is not None:
                process.stdout.readline()
        released = time.monotonic()
        for process in processes:
            if process.stdin is not None:
                process.stdin.write("\n")
                process.stdin.flush()
        ended = sorted(fresh.answer(process)["ended"] - released for process in processes)
        (entry,) = Cache(folder).entries()
        runs.append(
            {
                "compile s": entry.compile_seconds,
                "first answer s": ended[0],
                "second answer s": ended[1],
                "last answer s": ended[-1],
                "last less first s": ended[-1] - ended[0],
                "last less compile s": ended[-1] - entry.compile_seconds,
            }
        )
    runs.sort(key=lambda each: each["last less compile s"])
    return Table(
        f"{RANKS} processes that miss together, {device.type}",
        list(runs[0]),
        runs,
        [
            "Seconds from the moment at which all were released, each having imported jitsparse. "
            "Compile: what cpp_extension.load took of it, in the one that compiled; that one also "
            "asks the compiler for its version, imports jinja2, renders and publishes. A run a "
            "row, the least disturbed first."
        ],
    )
