"""A process of the suite ``first-use``: makes some first uses and prints what they took, as JSON.

    python -m jitsparse.bench.first_use_process <contestant> <device> <kernels> <jobs> <folder>

What a program has done long before its first use is done before the clock starts: imports,
operands, the context of a GPU. With a sixth argument, ``wait``, it says "ready" and waits for a
line, so that several processes begin together.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["CONTESTANTS", "PROBLEMS"]

SIZE = 256
"""Rows and columns of every operand: the products themselves take no time."""

PROBLEMS: tuple[tuple[str, str, int, str], ...] = (
    *((op, "f32", block, "nn") for block in (32, 16, 64) for op in ("dsd", "dds", "sdd")),
    *((op, "bf16", 32, "nn") for op in ("dsd", "dds", "sdd")),
    *((op, "f16", 64, "nn") for op in ("dsd", "dds", "sdd")),
    *((op, "f32", 32, layout) for op, layout in (("dsd", "tn"), ("dds", "nt"), ("sdd", "tn"))),
    ("dds", "bf16", 32, "nt"),
    ("dsd", "f64", 32, "nn"),
)
"""(operation, dtype, block, layout), one kernel each: all operations and dtypes, three block sizes,
and the layouts that a layer needs for its forward pass and both gradients."""

DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def ours(device: torch.device, count: int, folder: Path) -> Iterator[Callable[[], Any]]:
    """Products of jitsparse."""
    import torch

    import jitsparse as js

    problems = list(PROBLEMS)
    if device.type == "cuda":
        # Most calls there are for tensor cores.
        problems.sort(key=lambda problem: problem[1] != "bf16")
    calls: dict[str, Callable[..., Any]] = {"dsd": js.dsd, "dds": js.dds, "sdd": js.sdd}
    for op, dtype, block, layout in problems[:count]:
        sparse = js.random(
            (SIZE, SIZE), block, 0.25, dtype=getattr(torch, DTYPES[dtype]), device=device
        )
        # The context, the allocator and cuBLAS are not part of a first use.
        dense = torch.ones_like(sparse.to_dense())
        _ = dense @ dense
        operands: dict[str, tuple[Any, Any]] = {
            "dsd": (sparse, dense),
            "dds": (dense, sparse),
            "sdd": (dense, dense),
        }
        turned = [
            each if way == "n" else each.T for each, way in zip(operands[op], layout, strict=True)
        ]
        rest = [sparse.pattern] if op == "sdd" else []
        yield lambda call=calls[op], given=(*turned, *rest): call(*given)  # type: ignore[misc]


def torch_headers(device: torch.device, count: int, folder: Path) -> Iterator[Callable[[], Any]]:
    """Trivial extensions that include torch/extension.h, compiled as its tutorial says."""
    from torch.utils import cpp_extension

    cuda = device.type == "cuda"
    kernel = "__global__ void touch(float* x) { x[threadIdx.x] *= 2; }\n" if cuda else ""
    for number in range(count):
        name = f"scale{number}"
        place = folder / name
        place.mkdir(exist_ok=True)
        source = place / f"{name}.{'cu' if cuda else 'cpp'}"
        if not source.exists():
            source.write_text(
                "#include <torch/extension.h>\n"
                f"{kernel}"
                f"torch::Tensor {name}(torch::Tensor x) {{ return x * {number + 2}; }}\n"
                f'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("{name}", &{name}); }}\n'
            )
        yield lambda name=name, place=place, source=source: cpp_extension.load(  # type: ignore[misc]
            name=name, sources=[str(source)], build_directory=str(place)
        )


def triton(device: torch.device, count: int, folder: Path) -> Iterator[Callable[[], Any]]:
    """Dense products in Triton, each with a different tile."""
    import torch

    from jitsparse.bench.triton_peer import TILES, product

    left = torch.ones(SIZE, SIZE, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(left)
    for rows, cols, inner in TILES[:count]:
        grid = SIZE // rows, SIZE // cols
        yield lambda grid=grid, tile=(rows, cols, inner): product[grid](  # type: ignore[misc]
            left, left, out, SIZE, SIZE, *tile
        )


CONTESTANTS: dict[str, Callable[[torch.device, int, Path], Iterator[Callable[[], Any]]]] = {
    "ours": ours,
    "torch headers": torch_headers,
    "triton": triton,
}


def _processor_seconds() -> float:
    """CPU time of this process, and of its compilers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(contestant: str, device_name: str, count: str, jobs: str, folder: str, *wait: str) -> None:
    """Measure; the arguments are those of the command line."""
    import torch

    device = torch.device(device_name)
    calls = list(CONTESTANTS[contestant](device, int(count), Path(folder)))

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    synchronize()
    # Garbage of the imports may be collected at any moment, longer than a warm first use.
    gc.collect()
    if wait:
        print("ready", flush=True)
        sys.stdin.readline()
    processor = _processor_seconds()
    started = time.perf_counter()
    if jobs == "1":
        for call in calls:
            call()
    else:
        with ThreadPoolExecutor(int(jobs)) as pool:
            list(pool.map(lambda call: call(), calls))
    synchronize()
    took = {
        "wall": time.perf_counter() - started,
        "processor": _processor_seconds() - processor,
        # The same clock in all processes.
        "ended": time.monotonic(),
    }
    print(json.dumps(took))


if __name__ == "__main__":
    main(*sys.argv[1:])
