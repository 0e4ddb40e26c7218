"""A smoke compile: one kernel for the CPU and one for CUDA, in a cache that is then removed."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jitsparse.doctor.finding import Finding
from jitsparse.doctor.software import Torch
from jitsparse.errors import JitsparseError, ToolchainError
from jitsparse.jit import compile_only, config, targets, toolchain
from jitsparse.jit.diagnostics import first_error
from jitsparse.jit.template import render

if TYPE_CHECKING:
    from jitsparse.jit import Variant

__all__ = ["check_smoke_cpu", "check_smoke_cuda"]

CUDA_TARGET = "sm80"
"""For a machine that has no GPU and names no target."""

TIMEOUT = 300.0


def check_smoke_cpu(torch: Torch, *, allowed: bool) -> Iterator[Finding]:
    """Compile a kernel as a first use does: rendered, by cpp_extension.load, into an entry."""
    name = "smoke.cpu"
    reason = _not_tried(torch, allowed)
    if reason:
        yield Finding(name, "skip", reason)
        return
    from jitsparse.kernels import registry

    try:
        variant = _plain(targets.cpu_target())
        with _folder() as folder, config.override(cache_dir=folder, cache_path=[], jit=True):
            entry = compile_only(registry.template_of(variant), variant, show_progress=False)
            text = f"{variant.name} compiled in {entry.compile_seconds:.1f} s"
            text += f", {entry.library_bytes / 1e3:.0f} kB"
    except JitsparseError as error:
        # The rest of the message refers to files that are already gone.
        text = str(error).partition("\n  log:")[0]
        yield _refused(name, text, "Check the findings on c++, ninja and torch above, and CXX.")
    else:
        yield Finding(name, "ok", text)


def check_smoke_cuda(torch: Torch, *, allowed: bool) -> Iterator[Finding]:
    """Compile a CUDA kernel with nvcc alone, which shows whether it accepts its host compiler.

    A first use needs a torch built with CUDA; this works without one, too.
    """
    name = "smoke.cuda"
    try:
        tools = toolchain.find("cuda")
    except ToolchainError:
        yield Finding(name, "skip", "not tried: no nvcc, see above")
        return
    reason = _not_tried(torch, allowed)
    if reason:
        yield Finding(name, "skip", reason)
        return
    try:
        variant = _plain(_cuda_target(torch))
    except JitsparseError as error:
        yield Finding(name, "skip", f"not tried: {error}")
        return
    with _folder() as folder:
        started = time.perf_counter()
        output = _nvcc(variant, tools, folder)
        seconds = time.perf_counter() - started
    if output:
        remedy = (
            "Use a toolkit that knows the target and accepts the host compiler (CUDA_HOME), or "
            "another host compiler (CC)."
        )
        yield _refused(name, f"{variant.name} did not compile\n{output}", remedy)
    else:
        yield Finding(name, "ok", f"{variant.name} compiled by nvcc in {seconds:.1f} s")


def _nvcc(variant: Variant, tools: toolchain.Toolchain, folder: Path) -> str:
    """Compile to an object file; returns the first error, or an empty text."""
    from jitsparse.kernels import registry

    template = registry.template_of(variant)
    source = folder / f"kernel{template.suffix}"
    source.write_text(render(template, template.context(variant)), encoding="utf-8")
    includes = [f"-I{each}" for each in (template.source.parent, *template.include_dirs)]
    host = ["-ccbin", str(tools.ccbin.path)] if tools.ccbin else []
    nvcc = str(tools.nvcc.path) if tools.nvcc else "nvcc"
    flags = targets.compile_flags("cuda", variant.target)
    command = [nvcc, *host, *flags, "-Xcompiler=-fPIC", *includes, "-c", source.name]
    try:
        done = subprocess.run(
            [*command, "-o", "kernel.o"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            cwd=folder,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    output = done.stdout + done.stderr
    return first_error(output) or output.strip()[-500:] or f"nvcc ended with {done.returncode}"


def _plain(target: str) -> Variant:
    """The kernel of a basic product, which every target has."""
    from jitsparse.kernels import registry

    return registry.select_variants([target], ops=["dsd"], dtypes=["f32"], block_sizes=[(32, 32)])[
        0
    ]


def _cuda_target(torch: Torch) -> str:
    named = config.get().cuda_arch
    if torch.gpus:
        return targets.cuda_target()
    return named[0] if named else CUDA_TARGET


def _not_tried(torch: Torch, allowed: bool) -> str:
    if not allowed:
        return "not tried: --no-compile"
    return "" if torch.usable else "not tried: torch cannot be used, see above"


def _refused(name: str, text: str, remedy: str) -> Finding:
    return Finding(name, "fail" if config.get().jit else "warn", text, remedy)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="jitsparse-doctor-") as folder:
        yield Path(folder)
