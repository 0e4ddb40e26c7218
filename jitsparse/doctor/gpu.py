"""The driver, the GPUs that torch sees, and what kernels are compiled for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from jitsparse.doctor.compilers import toolkit_version
from jitsparse.doctor.finding import Finding
from jitsparse.doctor.software import Torch
from jitsparse.errors import JitsparseError
from jitsparse.jit import targets
from jitsparse.jit.environment import CPU_TARGETS, Config

__all__ = ["check_driver", "check_gpu", "check_targets", "driver_version"]

LEAST_CAPABILITY = (8, 0)
"""The least compute capability that CUDA kernels are written for."""

DEVICE_NODE = Path("/dev/nvidiactl")
"""Exists if the driver's kernel module is loaded and was passed into the container."""


def driver_version() -> tuple[int, int] | None:
    """CUDA version of the driver, or None if its library cannot be loaded."""
    try:
        major, _, minor = targets.cuda_driver().removeprefix("CUDA ").partition(".")
    except (OSError, AttributeError):
        return None
    # The toolkit's stub, for linking without a driver, answers nothing.
    return (int(major), int(minor)) if major != "0" else None


def check_driver(torch: Torch, driver: tuple[int, int] | None) -> Iterator[Finding]:
    """The driver, compared with torch and the toolkit: newer is never a problem, older may be."""
    if driver is None:
        if DEVICE_NODE.exists():
            text = f"{DEVICE_NODE} is there, and libcuda.so.1 cannot be loaded"
            remedy = (
                "Install the driver's user library; in a container, start it with --gpus all, "
                "which mounts it."
            )
            yield Finding("driver", "fail", text, remedy)
        else:
            yield Finding("driver", "ok", "no NVIDIA driver here")
        return
    text = f"supports CUDA {driver[0]}.{driver[1]}"
    toolkit = toolkit_version()
    older = []
    if torch.cuda and driver[0] < int(torch.cuda.split(".")[0]):
        older.append(f"torch was built with CUDA {torch.cuda}")
    if toolkit and driver[0] < toolkit[0]:
        older.append(f"nvcc is of CUDA {toolkit[0]}.{toolkit[1]}")
    if older:
        remedy = f"Update the driver, or install torch and a toolkit of CUDA {driver[0]}."
        yield Finding("driver", "fail", f"{text}; {' and '.join(older)}", remedy)
    else:
        yield Finding("driver", "ok", text)


def check_gpu(
    torch: Torch, driver: tuple[int, int] | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """The GPUs that torch sees, or why it sees none."""
    if torch.error:
        yield Finding("gpu", "skip", "not asked: torch cannot be imported")
        return
    if torch.gpus:
        listed = "; ".join(f"{name} ({major}.{minor})" for name, major, minor in torch.gpus)
        if any((major, minor) >= LEAST_CAPABILITY for _, major, minor in torch.gpus):
            yield Finding("gpu", "ok", listed)
        else:
            text = f"{listed}: CUDA kernels need compute capability 8.0"
            yield Finding("gpu", "warn", text, "Keep tensors on the CPU, or use a newer GPU.")
        return
    if driver is None:
        yield Finding("gpu", "ok", "none; kernels for the CPU are used")
    elif not torch.cuda:
        text = "there is a driver for one, and this torch was built without CUDA"
        remedy = (
            f"For the GPU, install a build of torch for CUDA {driver[0]} from the index that "
            "https://pytorch.org/get-started/locally names."
        )
        yield Finding("gpu", "warn", text, remedy)
    else:
        hidden = environment.get("CUDA_VISIBLE_DEVICES")
        text = "there is a driver, and torch sees no GPU"
        if hidden is not None:
            text += f" (CUDA_VISIBLE_DEVICES={hidden!r})"
        remedy = "Compare with nvidia-smi; check CUDA_VISIBLE_DEVICES and the driver's version."
        yield Finding("gpu", "warn", text, remedy)


def check_targets(settings: Config, torch: Torch) -> Iterator[Finding]:
    """What kernels for the CPU and for GPUs are compiled for."""
    asked = f"JITSPARSE_ARCH={';'.join(settings.arch)}" if settings.arch else ""
    try:
        target = targets.cpu_target()
    except JitsparseError as error:
        yield _unfit("target.cpu", error)
    else:
        origin = f"of {asked}" if set(settings.arch) & set(CPU_TARGETS) else "the best that runs"
        yield Finding("target.cpu", "ok", f"{target}, {origin} on {targets.cpu_name()}")
    named = settings.cuda_arch
    if not torch.gpus:
        if named:
            yield Finding("target.cuda", "ok", f"{', '.join(named)}, of {asked}")
        elif torch.error:
            yield Finding("target.cuda", "skip", "not known: torch cannot be imported")
        else:
            yield Finding("target.cuda", "ok", "none: no GPU, and JITSPARSE_ARCH names none")
        return
    for index, (name, _, _) in enumerate(torch.gpus):
        try:
            target = targets.cuda_target(index)
        except JitsparseError as error:
            yield _unfit("target.cuda", error)
        else:
            origin = f"of {asked}" if named else "its own"
            yield Finding("target.cuda", "ok", f"{target}, {origin}, for GPU {index} ({name})")


def _unfit(name: str, error: JitsparseError) -> Finding:
    remedy = "Unset JITSPARSE_ARCH, or name a target that this machine runs."
    return Finding(name, "fail", str(error), remedy)
