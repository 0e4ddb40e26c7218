"""What surrounds the kernel: import, making a pattern, the host time of a call beside its peer's.

The first two are timed in fresh processes, the host time of calls in this one. First use is a suite
of its own, :mod:`~jitsparse.bench.first_use`.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import torch

import jitsparse as js
from jitsparse.bench import fresh
from jitsparse.bench.pattern_process import DENSITY, LAYOUTS
from jitsparse.bench.report import Table
from jitsparse.bench.timing import interleave_host

__all__ = ["overhead_table"]

PROCESSES = 7
"""Fresh processes per median."""

IMPORT = """
import json, time, torch
start = time.perf_counter()
import jitsparse
imported = time.perf_counter()
jitsparse.dsd
print(json.dumps([imported - start, time.perf_counter() - start]))
"""


def overhead_table(
    device: torch.device, *, on_step: Callable[[str], None] = lambda what: None
) -> Table:
    """Measure everything around the kernel except its first use.

    Args:
        device: ``cpu`` or ``cuda``.
        on_step: called with what is measured next.

    Raises:
        JitsparseError: a process that was to be measured failed.
    """
    rows: list[dict[str, object]] = []
    notes: list[str] = []

    def add(
        what: str, seconds: float, unit: str, peer: str = "", peer_seconds: float | None = None
    ) -> None:
        scale = {"ms": 1e3, "us": 1e6}[unit]
        rows.append(
            {
                "what": what,
                "unit": unit,
                "jitsparse": seconds * scale,
                "peer": peer or "-",
                "peer takes": None if peer_seconds is None else peer_seconds * scale,
            }
        )

    on_step("import")
    with tempfile.TemporaryDirectory(prefix="jitsparse-bench-") as scratch:
        beyond = [fresh.run(["-c", IMPORT], scratch) for _ in range(PROCESSES)]
        on_step("making a pattern")
        arguments = ["-m", "jitsparse.bench.pattern_process", str(device)]
        patterns = fresh.run(arguments, scratch)
    # Most of the package is imported when one of its names is first accessed.
    for number, what in enumerate(("", " and a first name")):
        median = statistics.median(each[number] for each in beyond)
        add(f"import jitsparse{what}, beyond torch", median, "ms")
    for (size, block), (whole, index_alone) in zip(LAYOUTS, patterns, strict=True):
        what = f"a pattern, {size} x {size} in blocks of {block}, density {DENSITY}"
        add(what, whole, "ms", "its index, torch operations", index_alone)
    on_step("host time of a call")
    for name, seconds, peer, peer_seconds in _host_times(device, notes):
        add(name, seconds, "us", peer, peer_seconds)
    return Table(
        f"around the kernel, {device.type}",
        ["what", "unit", "jitsparse", "peer", "peer takes"],
        rows,
        notes,
    )


def _host_times(
    device: torch.device, notes: list[str]
) -> list[tuple[str, float, str, float | None]]:
    """Host time of calls too small for the device to matter."""
    a = js.random((16, 16), 16, 1.0, dtype=torch.float32, device=device)
    with_gradient = js.BlockSparse(a.values.clone().requires_grad_(), a.pattern)
    b = torch.ones(16, 16, device=device)
    dense = a.to_dense()
    dense_with_gradient = dense.clone().requires_grad_()
    calls: dict[str, Callable[[], Any]] = {
        "dsd": lambda: js.dsd(a, b),
        "dsd, gradient recorded": lambda: js.dsd(with_gradient, b),
        "torch dense": lambda: dense @ b,
        "torch dense, gradient recorded": lambda: dense_with_gradient @ b,
    }
    if device.type == "cuda":
        try:
            calls["Triton launch"] = _triton_launch(b)
        except ImportError as error:
            notes.append(f"No Triton launch beside it: {error}.")
    took = interleave_host(calls, device)
    peer = "Triton launch" if "Triton launch" in calls else "torch dense"
    recorded = peer if peer == "Triton launch" else "torch dense, gradient recorded"
    return [
        ("host time of dsd, 16 x 16", took["dsd"], peer, took[peer]),
        (
            "host time of dsd, gradient recorded",
            took["dsd, gradient recorded"],
            recorded,
            took[recorded],
        ),
    ]


def _triton_launch(x: torch.Tensor) -> Callable[[], Any]:
    """A Triton kernel that does very little, with as many arguments as dsd has operands."""
    from jitsparse.bench.triton_peer import touch

    out = torch.empty_like(x)
    return lambda: touch[(1,)](x, x, out, x.numel(), 1024)
