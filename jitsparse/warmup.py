"""Compiling kernels before they are needed: for an image, or a machine without a compiler."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor, nn

from jitsparse import tracing
from jitsparse.compilation import (
    BackgroundWarmup,
    Outcome,
    compile_variants,
    raise_failures,
    require_cuda,
)
from jitsparse.errors import ArgumentError, PinError
from jitsparse.kernels import dispatch, price_table, registry
from jitsparse.kernels.choice import choose, problem_of
from jitsparse.kernels.problem import LESS_PRECISE, Problem

if TYPE_CHECKING:
    from jitsparse.jit import Variant

__all__ = ["InputShape", "plan", "problems_of", "recorded", "warmup"]

_SHORT = {str(dtype).removeprefix("torch."): name for dtype, (name, _) in dispatch.DTYPES.items()}

OneOrMore = Sequence[str] | str | None
BlockSizes = int | tuple[int, int] | Sequence[int | str | tuple[int, int]] | str | None
InputShape = Sequence[int] | Tensor | Sequence[Sequence[int] | Tensor]


@overload
def warmup(
    model: nn.Module | None = ...,
    input_shape: InputShape | None = ...,
    *,
    background: Literal[False] = ...,
    jobs: int | None = ...,
    on_outcome: Callable[[Outcome], None] | None = ...,
    op: OneOrMore = ...,
    dtype: OneOrMore | torch.dtype = ...,
    block_size: BlockSizes = ...,
    device: str | None = ...,
    arch: str | Sequence[str] | None = ...,
    backward: bool = ...,
) -> list[Outcome]: ...


@overload
def warmup(
    model: nn.Module | None = ...,
    input_shape: InputShape | None = ...,
    *,
    background: Literal[True],
    jobs: int | None = ...,
    on_outcome: Callable[[Outcome], None] | None = ...,
    op: OneOrMore = ...,
    dtype: OneOrMore | torch.dtype = ...,
    block_size: BlockSizes = ...,
    device: str | None = ...,
    arch: str | Sequence[str] | None = ...,
    backward: bool = ...,
) -> BackgroundWarmup: ...


def warmup(
    model: nn.Module | None = None,
    input_shape: InputShape | None = None,
    *,
    op: OneOrMore = None,
    dtype: OneOrMore | torch.dtype = None,
    block_size: BlockSizes = None,
    device: str | None = None,
    arch: str | Sequence[str] | None = None,
    backward: bool = True,
    background: bool = False,
    jobs: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome] | BackgroundWarmup:
    """Compile the kernels that calls will choose, in parallel; those in the cache are left alone.

    With a model: exactly those that its forward and backward pass choose for inputs of a given
    shape, in layers, functions and modules of your own alike. A copy without data is run, which
    takes about as long as one step takes the host; the model is neither changed nor computed with.
    The gradients of its outputs are assumed to have the memory layout of the outputs. Few losses
    violate this, ``y.sum()`` among them: if yours does, give a model that returns its loss. Calls
    of nearly the same sizes share their kernels. For a GPU, the function that computes the indices
    of patterns is included.

    Without a model: those that calls of some operations, dtypes and block sizes choose. Each filter
    is one value or a list of values. Without block sizes, the kernels are those of a default table
    of the most used square blocks; ``jitsparse list --known`` shows it.

    Args:
        model: whose calls to find. It has to run without reading its data. Under
            ``torch.autocast``, its calls are those that it makes there.
        input_shape: shape of its input, which is then floating-point and requires a gradient; or an
            example tensor, of which only shape, strides, dtype and ``requires_grad`` count; or a
            list with one of these for each positional argument.
        op: ``"dsd"``, ``"dds"``, ``"sdd"``. Not with a model.
        dtype: a torch dtype or its name, long or short (``"bf16"``); ``"tf32"`` and
            ``"bf32"`` for float32 where torch's float32 matmul precision is ``"high"`` and
            ``"medium"``. With a model, the one that it will be converted to; by default it keeps
            its own.
        block_size: ``32``, ``"32x64"`` or ``(32, 64)``. Not with a model.
        device: ``"cpu"`` or ``"cuda"``; by default where the model is; without a model the GPU, if
            there is one.
        arch: CUDA or CPU targets as in ``JITSPARSE_ARCH``; by default this machine's. A GPU is not
            needed for a named one.
        backward: whether a model's gradients will be computed.
        background: whether to return at once and compile in the background.
        jobs: compilers at a time; by default ``MAX_JOBS``, else as many as the CPUs and the memory
            available to this process allow, control groups included.
        on_outcome: called as each variant is done, in this thread; with ``background`` in others.

    Returns:
        One outcome per variant. With ``background``, a handle that has ``wait(timeout=None)``,
        ``done()`` and ``outcomes()``.

    Raises:
        ArgumentError: a filter names something that does not exist, or nothing is left; or the
            model does not run on such inputs, or runs no kernel.
        CacheMiss: ``JITSPARSE_JIT=off``, and not all of the kernels are cached.
        CompileError: some variants failed; all others were compiled.
        ToolchainError: there is no compiler for the device, or torch was built without CUDA.

    Example:
        >>> import jitsparse as js
        >>> done = js.warmup(op="dsd", dtype="f32", block_size=32, device="cpu")
        >>> {outcome.status for outcome in done} <= {"compiled", "cached"}
        True
        >>> model = js.nn.BlockSparseLinear(64, 128, 32, density=0.5)
        >>> warming = js.warmup(model, (8, 64), background=True)
        >>> sorted(outcome.variant.op for outcome in warming.wait())
        ['dds', 'dds', 'sdd']
    """
    variants = plan(
        model,
        input_shape,
        op=op,
        dtype=dtype,
        block_size=block_size,
        device=device,
        arch=arch,
        backward=backward,
    )
    require_cuda(variants)
    if background:
        return BackgroundWarmup(variants, jobs=jobs, on_outcome=on_outcome)
    outcomes = compile_variants(variants, jobs=jobs, on_outcome=on_outcome)
    raise_failures(outcomes)
    return outcomes


def plan(
    model: nn.Module | None = None,
    input_shape: InputShape | None = None,
    *,
    op: OneOrMore = None,
    dtype: OneOrMore | torch.dtype = None,
    block_size: BlockSizes = None,
    device: str | None = None,
    arch: str | Sequence[str] | None = None,
    backward: bool = True,
) -> list[Variant]:
    """The variants that :func:`warmup` compiles for the same arguments.

    Raises:
        ArgumentError: a filter names something that does not exist, or nothing is left; or the
            model does not run on such inputs, or runs no kernel.
    """
    if model is not None:
        if op is not None or block_size is not None:
            raise ArgumentError("a model names its kernels: it takes no op and no block_size")
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is a torch.nn.Module, got {type(model).__name__}")
        if input_shape is None:
            raise ArgumentError("a model needs the shape of its input, as input_shape=(8, 512)")
        return _with_index(_of_model(model, input_shape, dtype, device, arch, backward))
    if input_shape is not None:
        raise ArgumentError("input_shape is for a model, and there is none")
    dtypes = [dtype] if isinstance(dtype, (str, torch.dtype)) else list(dtype or ())
    ops = [op] if isinstance(op, str) else list(op or ())
    names = [_dtype_name(each) for each in dtypes]
    blocks = [registry.parse_block_size(each) for each in _block_sizes(block_size)]
    targets = _targets(device, arch)
    variants = registry.select_variants(targets, ops=ops, dtypes=names, block_sizes=blocks)
    return _with_index([*variants, *_tuned(targets, ops, names, blocks)])


def _with_index(variants: list[Variant]) -> list[Variant]:
    """Each variant once, and what patterns on a GPU need if one is for a GPU."""
    on_gpu = any(registry.device_of(each.target) == "cuda" for each in variants)
    return list(dict.fromkeys([*variants, *([registry.INDEX] if on_gpu else [])]))


def recorded(path: str | os.PathLike[str]) -> list[Variant]:
    """The variants that processes wrote to a file of ``JITSPARSE_RECORD``.

    Raises:
        ArgumentError: the file cannot be read, is not such a file, or names no kernel of ours.

    Warns:
        RuntimeWarning: it names kernels of other templates, which their own program can compile.
    """
    import json

    from jitsparse.jit import Variant, progress

    try:
        # Reading a device may never end; a pipe ends.
        kind = os.stat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise ArgumentError(f"{path} is not a record of variants: it is no file")
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from error
    variants: dict[Variant, None] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                variants[Variant.parse(json.loads(line)["variant"])] = None
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise ArgumentError(
                    f"{path} is not a record of variants: line {number} is not of the form "
                    '{"variant": "..."}'
                ) from None
    ops = {*registry.OPS, registry.INDEX.op}
    ours = [variant for variant in variants if variant.op in ops]
    others = [variant.name for variant in variants if variant.op not in ops]
    if not ours:
        raise ArgumentError(
            f"{path} names no kernel of jitsparse's operations"
            + (
                f", but of other templates, which only their own program can compile: "
                f"{', '.join(others)}"
                if others
                else ""
            )
        )
    if others:
        progress.warn(
            f"jitsparse: {path} names kernels of other templates, which only their own program can "
            f"compile: {', '.join(others)}"
        )
    return ours


def _of_model(
    model: nn.Module,
    input_shape: InputShape,
    dtype: OneOrMore | torch.dtype,
    device: str | None,
    arch: str | Sequence[str] | None,
    backward: bool,
) -> list[Variant]:
    """What dispatch would choose for the calls of a model, on each target.

    Where no GPU known to the cost model is present, on each one it knows, with and without the
    tuned table for it.
    """
    device_of_model = tracing.device_of(model)
    targets = _targets(device or (None if arch else device_of_model.type), arch)
    variants: dict[Variant, None] = {}
    for where in dict.fromkeys(registry.device_of(target) for target in targets):
        index = device_of_model.index if where == device_of_model.type == "cuda" else -1
        problems = problems_of(model, input_shape, where, dtype=dtype, backward=backward)
        here = [target for target in targets if registry.device_of(target) == where]
        gpus = registry.prices_for(where, index)
        for target, problem, gpu in product(here, problems, gpus):
            # For this machine there is one choice.
            elsewhere = price_table.machines_of(gpu) if len(gpus) > 1 else ()
            for machine in (None, *elsewhere):
                choice = choose(problem, target, index, gpu, machine)
                variants[choice.candidate.variant] = None
    return list(variants)


def problems_of(
    model: nn.Module,
    input_shape: InputShape,
    device: str,
    *,
    dtype: OneOrMore | torch.dtype = None,
    backward: bool = True,
) -> list[Problem]:
    """The problems of the calls of a model, each once; arguments as for :func:`warmup`.

    Raises:
        ArgumentError: the model does not run on such inputs, or runs no kernel.
    """
    converted, float32 = _model_dtype(dtype)
    keys = tracing.keys_of_model(
        model,
        tracing.inputs_of(input_shape),
        device=device,
        dtype=converted,
        float32=float32,
        backward=backward,
    )
    return list(dict.fromkeys(problem_of(key) for key in keys))


def _model_dtype(dtype: OneOrMore | torch.dtype) -> tuple[torch.dtype | None, str | None]:
    """What a model is to be converted to, and the arithmetic of float32 if it is named.

    Raises:
        ArgumentError: it is not a dtype, or several.
    """
    if dtype is None:
        return None, None
    if not isinstance(dtype, (str, torch.dtype)):
        raise ArgumentError(f"a model has one dtype, got {dtype!r}")
    name = _dtype_name(dtype)
    if name not in dispatch.DTYPE_OF:
        raise ArgumentError(f"dtype {name!r} is not one of {', '.join(registry.DTYPES)}")
    return dispatch.DTYPE_OF[name], name if name in LESS_PRECISE else None


def _tuned(
    targets: Sequence[str],
    ops: Sequence[str],
    dtypes: Sequence[str],
    block_sizes: Sequence[tuple[int, int]],
) -> list[Variant]:
    """What calls choose for the requested problems that were tuned on this machine."""
    from jitsparse.jit import tuned

    found = []
    for device in dict.fromkeys(registry.device_of(target) for target in targets):
        if device == "cuda" and not torch.cuda.is_available():
            continue  # the request is for another machine, whose table is not here
        for name in tuned.records(registry.machine_of(device)):
            problem = Problem.parse(name, device)
            if (
                problem is not None
                and (not ops or problem.op in ops)
                and (not dtypes or problem.dtype in dtypes)
                and (not block_sizes or problem.block in block_sizes)
            ):
                for target in (each for each in targets if registry.device_of(each) == device):
                    # Calls that a pin forbids have no kernel.
                    with contextlib.suppress(PinError):
                        choice = choose(problem, target)
                        if choice.source == "tuned":
                            found.append(choice.candidate.variant)
    return found


def _targets(device: str | None, arch: str | Sequence[str] | None) -> list[str]:
    """Targets of a request: those named that run on the device, else this machine's."""
    from jitsparse.jit import config
    from jitsparse.jit.environment import parse_arch

    if device not in (None, "cpu", "cuda"):
        raise ArgumentError(f"device {device!r} is not one of cpu, cuda")
    if arch is not None:
        named = parse_arch(arch if isinstance(arch, str) else ";".join(arch), "arch")
        if not named:
            raise ArgumentError(
                f"arch is {arch!r}, which names no target: name one, or leave it out"
            )
        targets = [t for t in named if device in (None, registry.device_of(t))]
        if not targets:
            raise ArgumentError(f"none of the targets {', '.join(named)} is for {device}")
        return targets
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    named = tuple(t for t in config.get().arch if registry.device_of(t) == where)
    return list(named) or [registry.target_of(where)]


def _dtype_name(dtype: str | torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _SHORT.get(name, name)


def _block_sizes(
    block_size: BlockSizes,
) -> Sequence[int | str | tuple[int, int]]:
    """A list of block sizes; a tuple of two ints is one pair, a list of ints several squares."""
    if block_size is None:
        return []
    if isinstance(block_size, (int, str)):
        return [block_size]
    if isinstance(block_size, tuple) and all(isinstance(side, int) for side in block_size):
        return [block_size]
    return block_size
