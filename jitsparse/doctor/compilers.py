"""The C++ compiler, ninja and nvcc: which they are, and whether they compile anything at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jitsparse.doctor.finding import Finding, Status
from jitsparse.doctor.software import Torch
from jitsparse.errors import ToolchainError
from jitsparse.jit import toolchain
from jitsparse.jit.environment import Config
from jitsparse.jit.targets import link_flags

__all__ = ["check_cxx", "check_ninja", "check_nvcc", "toolkit_version"]

COMPILE_TIMEOUT = 120.0

# What kernels need from a compiler: the standard library's headers, OpenMP, a shared library.
_SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" double probe(double x) {
  double sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (std::int64_t i = 0; i < 8; ++i) sum += std::sqrt(x + static_cast<double>(i));
  return sum;
}
"""


def check_cxx(settings: Config) -> Iterator[Finding]:
    """The compiler of CPU kernels, which also links CUDA kernels."""
    try:
        compiler = toolchain.find("c++").cxx
        # gcc's copyright notice follows in further lines.
        version = compiler.ask().partition("\n")[0] or "which does not say its version"
    except ToolchainError as error:
        yield _missing("c++", str(error), settings)
        return
    text = f"{compiler.path}, {version}"
    with tempfile.TemporaryDirectory(prefix="jitsparse-doctor-") as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(_SOURCE, encoding="utf-8")
        flags = ["-std=c++17", "-fPIC", "-shared", "-fopenmp", *link_flags("c++")]
        command = [str(compiler.path), *flags, str(source), "-o", str(Path(folder) / "probe.so")]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT, errors="replace"
            )
            output = "" if done.returncode == 0 else done.stderr.strip() or "it printed nothing"
        except (OSError, subprocess.SubprocessError) as error:
            output = str(error)
    if output:
        first = output.replace(f"{source.parent}/", "").splitlines()[0]
        remedy = "Install a whole compiler (Debian, Ubuntu: apt install g++), or set CXX to one."
        text += f", does not compile a shared library with OpenMP: {first}"
        yield Finding("c++", "fail" if settings.jit else "warn", text, remedy)
    else:
        yield Finding("c++", "ok", text)


def check_ninja(settings: Config) -> Iterator[Finding]:
    """The program that runs the compilers."""
    try:
        directory = toolchain.ninja_directory()
    except ToolchainError as error:
        yield _missing("ninja", str(error), settings)
        return
    path = str(directory / "ninja") if directory else str(shutil.which("ninja"))
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        version = done.stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        version = ""
        path = f"{path}: {error}"
    if version:
        yield Finding("ninja", "ok", f"{path}, {version}")
    else:
        remedy = "pip install --force-reinstall ninja"
        yield Finding("ninja", "fail" if settings.jit else "warn", f"{path} does not run", remedy)


def check_nvcc(settings: Config, torch: Torch) -> Iterator[Finding]:
    """The CUDA toolkit, compared with the CUDA that torch was built with."""
    try:
        tools = toolchain.find("cuda")
    except ToolchainError as error:
        if not torch.cuda:
            yield Finding("nvcc", "ok", "not found, and this torch has no use for it")
        elif not settings.jit:
            yield Finding("nvcc", "ok", "not found; JITSPARSE_JIT=off needs none")
        else:
            # Without a GPU there is no CUDA tensor that would need a kernel.
            yield _lacking("nvcc", "fail" if torch.gpus else "warn", str(error))
        return
    home = tools.cuda_home
    release = toolkit_version()
    if home is None or release is None:
        remedy = "Reinstall the CUDA toolkit, or set CUDA_HOME to the root of another one."
        yield Finding("nvcc", "fail", f"nvcc of {home} does not say its release", remedy)
        return
    text = f"{home / 'bin' / 'nvcc'}, CUDA {release[0]}.{release[1]}"
    asked = settings.cuda_home
    if asked and os.path.realpath(home) not in map(os.path.realpath, asked):
        text += f"; CUDA_HOME or CUDA_PATH names {asked[0]}, which is no toolkit"
        remedy = "Set CUDA_HOME to a directory with bin/nvcc and include/cuda_runtime.h."
        yield Finding("nvcc", "warn", text, remedy)
    elif torch.cuda and int(torch.cuda.split(".")[0]) != release[0]:
        text += f"; torch was built with CUDA {torch.cuda}, so a process has two CUDA runtimes"
        remedy = f"Set CUDA_HOME to a toolkit of CUDA {torch.cuda.split('.')[0]}."
        yield Finding("nvcc", "warn", text, remedy)
    else:
        yield Finding("nvcc", "ok", text)


def toolkit_version() -> tuple[int, int] | None:
    """Release of the toolkit found, or None if there is none or it does not report one."""
    try:
        nvcc = toolchain.find("cuda").nvcc
        text = nvcc.ask() if nvcc else ""
    except ToolchainError:
        return None
    _, _, rest = text.partition("release ")
    parts = rest.split(",")[0].split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and "".join(parts).isdigit() else None


def _missing(name: str, message: str, settings: Config) -> Finding:
    if not settings.jit:
        return Finding(name, "ok", "not found; JITSPARSE_JIT=off needs none")
    return _lacking(name, "fail", message)


def _lacking(name: str, status: Status, message: str) -> Finding:
    """A finding from the toolchain's own message, whose last sentences are the remedy."""
    before, separator, after = message.partition(" Install")
    remedy = f"Install{after}" if separator else "Install it, or set CXX or CUDA_HOME to another."
    return Finding(name, status, before, remedy)
