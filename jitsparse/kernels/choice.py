"""The kernel for a key of :mod:`jitsparse.kernels.dispatch`: the cold path, once per key."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from jitsparse.errors import CacheMiss, CompilerNotFound
from jitsparse.jit import config, progress
from jitsparse.kernels import registry
from jitsparse.kernels.float32 import float32_dtype
from jitsparse.kernels.problem import LESS_PRECISE, Problem, dtype_on
from jitsparse.traits import profile_of, sizes_of, without_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitsparse.jit import Candidate, Choice, Kernel, Template, Variant

__all__ = [
    "REFERENCE",
    "Key",
    "choose",
    "key_on_device",
    "problem_of",
    "select",
    "selection_key",
    "tuned_name",
]

Key = tuple[Any, ...]
"""(op, device index or -1, dtype name, block rows, block cols, left and right letter, aligned, the
pattern's traits, and binary logarithms of extent and batch)"""

REFERENCE = object()
"""Marks the kernels of a CPU without a compiler, and a kernel that is being built."""

_loaded: set[tuple[int, str]] = set()
"""(device, variant) of kernels that this process has loaded outside a capture."""


def select(key: Key) -> Any:
    """The kernel for a key, or its build in the background, or the reference marker."""
    problem, device = problem_of(key), key[1]
    choice = choose(problem, registry.target_of(problem.device, device), device)
    variant = choice.candidate.variant
    known = device, variant.name
    command = registry.warmup_command(variant)
    if device >= 0 and known not in _loaded and torch.cuda.is_current_stream_capturing():
        raise CacheMiss(
            f"{variant.name} is needed for the first time while a CUDA graph is being captured, "
            f"when nothing can be compiled or loaded. Run the same call once before the capture; "
            f"`{command}` beforehand makes that call quick"
        )
    try:
        kernel = _load(choice.candidate.template, variant, command)
    except CompilerNotFound as error:
        if problem.device != "cpu":
            raise
        _warn_once(str(error))
        return REFERENCE
    if not isinstance(kernel, Future):
        _loaded.add(known)
    return kernel


def _load(template: Template, variant: Variant, command: str) -> Kernel | Future[Kernel]:
    """The kernel of a variant; with ``first_use("fallback")`` its build if that is not done."""
    from jitsparse import jit

    settings = config.get()
    if settings.first_use == "wait" or not settings.jit or jit.is_cached(template, variant):
        return jit.load(template, variant, hint=lambda: command)
    from jitsparse.jit import background

    build = background.start(template, variant, hint=lambda: command)
    if not build.done():
        _say_once()
        return build
    error = build.exception()
    if error is not None:
        background.forget(build)
        # Drops what earlier calls that raised it left in its traceback.
        raise error.with_traceback(None)
    return build.result()


@functools.cache
def _say_once() -> None:
    progress.say(
        "info",
        "plain torch operations answer calls whose kernels are being compiled in the background "
        "(first use: fallback)",
    )


def choose(
    problem: Problem,
    target: str,
    index: int = -1,
    gpu: str | None = None,
    machine: str | None = None,
) -> Choice:
    """The variant for a problem, by pin, tuned table or the families' preference.

    Args:
        problem: the facts of a call.
        target: the compilation target.
        index: index of the GPU that the call runs on; by default the current one.
        gpu: the GPU whose prices decide; by default the one that this GPU is taken for.
        machine: the machine whose tuned table is asked if the GPU is not here; by default none is.
    """
    from jitsparse import jit

    own = registry.priced_as(problem.device, index)
    prices = gpu or own
    offered = registry.candidates(problem, target, prices)
    name = tuned_name(problem, offered)
    if problem.device == "cuda" and (prices != own or not torch.cuda.is_available()):
        # Another machine's choice is asked for, to which this machine's table does not apply.
        return jit.choose(offered, problem=name if machine else None, machine=machine)
    here = registry.machine_of(problem.device, index)
    choice = jit.choose(offered, problem=name, machine=here)
    chosen = choice.candidate
    if choice.source == "tuned" and jit.obstacle(chosen.template, chosen.variant) is not None:
        # A preference must not fail where the families' choice, which warm-up compiles, is cached.
        why = "it is not cached and cannot be compiled here"
        return replace(jit.choose(offered), tuned=choice.tuned, not_tuned=why)
    return choice


def tuned_name(problem: Problem, offered: Sequence[Candidate]) -> str:
    """The name under which a tuned table has a problem.

    Where no legal candidate makes use of less precision, it is that of the same problem in float32:
    programs ask for less for the sake of a GPU, or of larger blocks.
    """
    if problem.dtype in LESS_PRECISE:
        legal = (each.variant for each in offered if each.refused is None)
        if all(variant.dtype == "f32" for variant in legal):
            return replace(problem, dtype="f32").name
    return problem.name


@functools.cache
def _warn_once(reason: str) -> None:
    progress.warn(
        f"jitsparse runs on plain torch operations, correct but slow, because it cannot compile "
        f"its kernels: {reason}",
        always=True,
    )


def problem_of(key: Key) -> Problem:
    """The facts of a key, with sizes rounded up."""
    facts = selection_key(key)
    op, device, dtype, block_rows, block_cols, left, right, aligned, traits, extent, batch = facts
    rows, cols, nnz = sizes_of(traits)
    return Problem(
        op=op,
        device="cpu" if device < 0 else "cuda",
        dtype=dtype,
        block=(block_rows, block_cols),
        layout=left + right,
        aligned=aligned,
        rows=rows,
        cols=cols,
        nnz=nnz,
        extent=1 << extent,
        batch=1 << batch,
        profile=profile_of(traits),
    )


def selection_key(key: Key) -> Key:
    """The part of a key that chooses a kernel.

    On a CPU, whose kernels have no panels, it does not include the pattern's profile.
    """
    return (*key[:8], without_profile(key[8]), *key[9:]) if key[1] < 0 else key


def key_on_device(key: Key, device: int, float32: str | None = None) -> Key:
    """The selection key of the same call with its operands on another device.

    Args:
        key: that of a call whose operands are laid out in memory as they would be there.
        device: index of the GPU; -1 for the CPU.
        float32: dtype of the problem if it is in float32, ``"f32"``, ``"tf32"`` or ``"bf32"``; by
            default what torch's float32 matmul precision asks for.
    """
    op, _, dtype, *others = key
    if dtype in ("f32", *LESS_PRECISE):
        asked = float32 or float32_dtype(device)
        dtype = dtype_on("cpu" if device < 0 else "cuda", asked)
    return selection_key((op, device, dtype, *others))
