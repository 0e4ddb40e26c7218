"""What surrounds the kernel: first use, import, and the host time of a call, each beside its peer.

First use and import are timed in fresh processes, the host time of calls in this one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import jitsparse as js
from jitsparse.bench.report import Table
from jitsparse.bench.timing import interleave_host
from jitsparse.errors import JitsparseError

__all__ = ["overhead_table"]

PROCESSES = 7
"""Fresh processes behind a median."""

FIRST_USE = """
import json, sys, time, torch, jitsparse as js
device = sys.argv[1]
a = js.random((256, 256), 32, 0.25, dtype=getattr(torch, sys.argv[2]), device=device)
b = torch.ones(256, 256, dtype=a.dtype, device=device)
a.to_dense() @ b  # the context, the allocator and cuBLAS are not part of a first use
if device != "cpu": torch.cuda.synchronize()
start = time.perf_counter()
js.dsd(a, b)
if device != "cpu": torch.cuda.synchronize()
print(json.dumps(time.perf_counter() - start))
"""

IMPORT = """
import json, time, torch
start = time.perf_counter()
import jitsparse
print(json.dumps(time.perf_counter() - start))
"""

TORCH_HEADERS = """
import json, sys, tempfile, time
from pathlib import Path
import torch
from torch.utils import cpp_extension
folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))
cuda = sys.argv[1] != "cpu"
source = folder / ("scale.cu" if cuda else "scale.cpp")
source.write_text(
    '#include <torch/extension.h>\\n'
    'torch::Tensor scale(torch::Tensor x) { return x * 2; }\\n'
    + ('__global__ void touch(float* x) { x[threadIdx.x] *= 2; }\\n' if cuda else '')
    + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale); }\\n'
)
start = time.perf_counter()
cpp_extension.load(name="scale", sources=[str(source)], build_directory=str(folder))
print(json.dumps(time.perf_counter() - start))
"""


def overhead_table(
    device: torch.device,
    *,
    torch_headers: bool = False,
    on_step: Callable[[str], None] = lambda what: None,
) -> Table:
    """Measure everything around the kernel.

    Args:
        device: ``cpu`` or ``cuda``.
        torch_headers: also compile a trivial kernel that includes ``torch/extension.h``, the usual
            way, which takes up to a minute.
        on_step: called with what is measured next.
    """
    rows: list[dict[str, object]] = []
    notes: list[str] = []

    def add(
        what: str, seconds: float, unit: str, peer: str = "", peer_seconds: float | None = None
    ) -> None:
        scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
        rows.append(
            {
                "what": what,
                "unit": unit,
                "jitsparse": seconds * scale,
                "peer": peer or "-",
                "peer takes": None if peer_seconds is None else peer_seconds * scale,
            }
        )

    with tempfile.TemporaryDirectory() as scratch:
        dtype = "bfloat16" if device.type == "cuda" else "float32"
        first_use = [FIRST_USE, str(device), dtype]
        on_step("cold first use")
        caches = [str(Path(scratch, f"cache{i}")) for i in range(3)]
        cold = statistics.median(_fresh(first_use, cache) for cache in caches)
        if torch_headers:
            on_step("a kernel with torch headers")
            usual = _fresh([TORCH_HEADERS, str(device), scratch], caches[0])
            peer = "load() of a source that includes torch/extension.h"
            add("first use of one kernel, empty cache", cold, "s", peer, usual)
        else:
            notes.append("--torch-headers measures what a kernel with torch's headers takes.")
            add("first use of one kernel, empty cache", cold, "s")
        on_step("warm first use")
        warm = statistics.median(_fresh(first_use, caches[0]) for _ in range(PROCESSES))
        add("first use of one kernel, in the cache", warm, "ms")
        on_step("import")
        beyond = statistics.median(_fresh([IMPORT], caches[0]) for _ in range(PROCESSES))
        add("import jitsparse, beyond torch", beyond, "ms")
    on_step("host time of a call")
    for name, seconds, peer, peer_seconds in _host_times(device, notes):
        add(name, seconds, "us", peer, peer_seconds)
    return Table(
        f"around the kernel, {device.type}",
        ["what", "unit", "jitsparse", "peer", "peer takes"],
        rows,
        notes,
    )


def _fresh(arguments: list[str], cache: str) -> float:
    """Seconds that a script prints, run in a new process with a cache of its own."""
    # JITSPARSE_* settings of this process are not what is measured.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JITSPARSE_")}
    environment["JITSPARSE_CACHE_DIR"] = cache
    # An installed package has its bytecode; without this, a checkout would be compiled every time.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    package = str(Path(js.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package, environment.get("PYTHONPATH")])
    )
    run = subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, env=environment
    )
    if run.returncode:
        raise JitsparseError(f"a process of the overhead suite failed:\n{run.stderr}")
    return float(json.loads(run.stdout.splitlines()[-1]))


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
    """A Triton kernel that does nothing much, with as many arguments as dsd has operands."""
    from jitsparse.bench.triton_peer import touch

    out = torch.empty_like(x)
    return lambda: touch[(1,)](x, x, out, x.numel(), 1024)
