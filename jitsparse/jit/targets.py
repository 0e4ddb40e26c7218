"""What kernels are compiled for: the targets of this machine, and the compiler flags of each.

The flags are part of the cache key, so they are a pure function of language and target: neither the
log level nor anything else that a user switches for diagnosis may change what is built.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
from typing import Literal

from jitsparse.errors import ConfigError, ToolchainError, UnsupportedProblem
from jitsparse.jit import config

__all__ = [
    "compile_flags",
    "cpu_name",
    "cpu_target",
    "cuda_driver",
    "cuda_name",
    "cuda_target",
    "link_flags",
    "processor",
]

_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
_CPU_FLAGS: dict[str, tuple[str, ...]] = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": _AVX512,
    "avx512bf16": (*_AVX512, "-mavx512bf16"),
    "amx": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
# What /proc/cpuinfo must list for a target, best target first.
_CPU_FEATURES: dict[str, frozenset[str]] = {
    "amx": frozenset("avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16".split()),
    "avx512bf16": frozenset("avx512f avx512bw avx512dq avx512vl avx512_bf16 fma f16c".split()),
    "avx512": frozenset("avx512f avx512bw avx512dq avx512vl fma f16c".split()),
    "avx2": frozenset("avx2 fma f16c".split()),
    "generic": frozenset(),
}
# errno and traps are never inspected, and an expression a * b + c may become one fma: the products
# are compared with a reference by norm. Reassociation stays off: results must be repeatable.
_MATH = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_CUDA_TARGET = re.compile(r"sm(\d+)(\d)([af]?)")
# torch disables these for the sake of its own types.
_HALF_OPERATORS = tuple(
    f"-U__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
)


def compile_flags(language: Literal["c++", "cuda"], target: str) -> tuple[str, ...]:
    """Flags for the compiler, after those that ``cpp_extension.load`` adds by itself.

    Raises:
        UnsupportedProblem: the language has no such target.
    """
    if language == "cuda":
        match = _CUDA_TARGET.fullmatch(target)
        if not match:
            raise UnsupportedProblem(
                f"{target!r} is not a CUDA target; write sm80, sm90a, sm100a and the like."
            )
        arch = "".join(match.groups())
        gencode = f"-gencode=arch=compute_{arch},code=sm_{arch}"
        # torch adds architectures of its own unless one of these flags contains "arch".
        return ("-std=c++17", "-O3", gencode, "-Xcompiler=-fvisibility=hidden", *_HALF_OPERATORS)
    if target not in _CPU_FLAGS:
        raise UnsupportedProblem(
            f"{target!r} is not a CPU target; there are {', '.join(_CPU_FLAGS)}."
        )
    # The kernels vectorise and unroll themselves: -O3 makes none of them measurably faster, and
    # takes a fifth to four fifths longer to compile (docs/performance.md).
    return ("-std=c++17", "-O2", *_MATH, "-fopenmp", "-fvisibility=hidden", *_CPU_FLAGS[target])


def link_flags(language: Literal["c++", "cuda"]) -> tuple[str, ...]:
    """Flags for the linker, ahead of the libraries that ``cpp_extension.load`` names.

    ``--as-needed`` drops every torch library, since no kernel uses one: the entry then fits any
    torch version. ``-z defs`` turns a missing symbol into a link error, which has a message,
    instead of a library that cannot be mapped.
    """
    common = ("-Wl,--as-needed", "-Wl,-z,defs", "-Wl,-Bsymbolic")
    # dlopen is in a library of its own before glibc 2.34.
    return (*common, "-fopenmp") if language == "c++" else (*common, "-ldl")


@functools.cache
def processor() -> dict[str, str]:
    """What /proc/cpuinfo says about the first CPU; empty where there is no such file.

    Only that part is read: on a machine with hundreds of CPUs the kernel needs longer to write all
    of it than a warm first use may take.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = list(itertools.takewhile(str.strip, file))
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def cpu_name() -> str:
    """Model and number of the CPUs: times are comparable between machines where both agree."""
    return f"{processor().get('model name', os.uname().machine)} x{os.cpu_count()}"


def cuda_name(device: int | None = None) -> str:
    """Model of a GPU, the current one by default; there must be one."""
    import torch

    return torch.cuda.get_device_name(device)


def cuda_driver() -> str:
    """The CUDA version of the driver, as ``CUDA 12.8``; there must be a driver."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _cpu_features() -> frozenset[str]:
    return frozenset(processor().get("flags", "").split())


def cpu_target() -> str:
    """The best CPU target that this CPU runs, or the best of ``JITSPARSE_ARCH`` that it runs.

    Raises:
        ConfigError: ``JITSPARSE_ARCH`` names CPU targets and this CPU runs none of them.
    """
    features = _cpu_features()
    runnable = [target for target, needed in _CPU_FEATURES.items() if needed <= features]
    asked = [target for target in config.get().arch if target in _CPU_FEATURES]
    if not asked:
        return runnable[0]
    for target in runnable:
        if target in asked:
            return target
    raise ConfigError(
        f"JITSPARSE_ARCH asks for {', '.join(asked)}; this processor runs {', '.join(runnable)}."
    )


def without_cuda() -> str:
    """That this torch cannot compile for a GPU, and what to do; empty if it can."""
    import torch

    if torch.version.cuda is not None:
        return ""
    return (
        f"this torch ({torch.__version__}) was built without CUDA: it can neither compile nor "
        "launch a CUDA kernel. Install a CUDA build of torch, from the index that "
        "https://pytorch.org/get-started/locally names for your driver"
    )


def cuda_target(device: int | None = None) -> str:
    """Target of a GPU, or the best of ``JITSPARSE_ARCH`` that the GPU runs.

    Args:
        device: index of the GPU; the current one by default.

    Raises:
        ToolchainError: there is no GPU and ``JITSPARSE_ARCH`` names no CUDA target.
        ConfigError: ``JITSPARSE_ARCH`` names CUDA targets and the GPU runs none of them.
    """
    import torch

    asked = [target for target in config.get().arch if _CUDA_TARGET.fullmatch(target)]
    if not torch.cuda.is_available():
        if asked:
            return asked[0]
        unable = without_cuda()
        if unable:
            raise ToolchainError(
                f"there is no GPU to take the target from, and {unable}. What compiles nothing, "
                "such as jitsparse explain and warmup --check, takes a named target: "
                'JITSPARSE_ARCH="9.0a", or --arch 9.0a.'
            )
        raise ToolchainError(
            "no CUDA GPU is visible to torch, so there is no target to build for. "
            'Name one: JITSPARSE_ARCH="9.0a", or --arch 9.0a on the command line.'
        )
    capability = torch.cuda.get_device_capability(device)
    if not asked:
        # Hopper's tensor cores are reached only through the architecture-specific target.
        return "sm90a" if capability == (9, 0) else f"sm{capability[0]}{capability[1]}"
    runnable = [target for target in asked if _runs_on(target, capability)]
    if not runnable:
        raise ConfigError(
            f"JITSPARSE_ARCH asks for {', '.join(asked)}; none of these runs on this GPU, whose "
            f"compute capability is {capability[0]}.{capability[1]}."
        )
    return max(runnable, key=_rank)


def _runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on later minor versions too, architecture-specific code on its own only."""
    major, minor, specific = _rank(target)
    if specific:
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]


def _rank(target: str) -> tuple[int, int, bool]:
    match = _CUDA_TARGET.fullmatch(target)
    if match is None:
        raise UnsupportedProblem(f"{target!r} is not a CUDA target.")
    return int(match[1]), int(match[2]), match[3] == "a"
