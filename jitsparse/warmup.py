"""Compiling kernels before they are needed: for an image, or a machine without a compiler."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jitsparse.errors import ArgumentError, CompileError, JitsparseError
from jitsparse.kernels import dispatch, registry

if TYPE_CHECKING:
    from jitsparse.jit import Variant

__all__ = ["Outcome", "compile_variants", "plan", "recorded", "warmup"]

_DTYPE_NAMES = {
    str(dtype).removeprefix("torch."): name for dtype, (name, _) in dispatch.DTYPES.items()
}

OneOrMore = Sequence[str] | str | None


@dataclass(frozen=True)
class Outcome:
    """What became of one variant.

    Attributes:
        variant: which one.
        status: ``"compiled"``, ``"cached"`` (it was there already) or ``"failed"``.
        seconds: that compiling it took, now or when it was compiled.
        path: directory of its entry, None if it failed.
        error: what failed, else None.
    """

    variant: Variant
    status: str
    seconds: float | None
    path: Path | None
    error: JitsparseError | None = None


def warmup(
    *,
    op: OneOrMore = None,
    dtype: OneOrMore | torch.dtype = None,
    block_size: int | tuple[int, int] | Sequence[int | str | tuple[int, int]] | str | None = None,
    device: str | None = None,
    arch: str | Sequence[str] | None = None,
    jobs: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Compile the kernels that calls will choose, in parallel; those in the cache are left alone.

    Each filter is one value or a list of values; without it everything is admitted.

    Args:
        op: ``"dsd"``, ``"dds"``, ``"sdd"``.
        dtype: a torch dtype or its name, long or short (``"bf16"``); ``"tf32"`` for float32 with
            TF32 allowed.
        block_size: ``32``, ``"32x64"`` or ``(32, 64)``.
        device: ``"cpu"`` or ``"cuda"``; by default the GPU if there is one.
        arch: CUDA or CPU targets as in ``JITSPARSE_ARCH``; by default this machine's. A GPU is not
            needed for a named one.
        jobs: compilers at a time; by default ``MAX_JOBS``, else the number of processors.
        on_outcome: called in this thread as each variant is done.

    Returns:
        One outcome a variant, in the order of the default tables.

    Raises:
        ArgumentError: a filter names something that does not exist, or nothing is left.
        CompileError: some variants failed; all others were compiled.
        ToolchainError: there is no compiler for the device.

    Example:
        >>> import jitsparse as js
        >>> done = js.warmup(op="dsd", dtype="f32", block_size=32, device="cpu")
        >>> {outcome.status for outcome in done} <= {"compiled", "cached"}
        True
    """
    variants = plan(op=op, dtype=dtype, block_size=block_size, device=device, arch=arch)
    outcomes = compile_variants(variants, jobs=jobs, on_outcome=on_outcome)
    failed = [(outcome, outcome.error) for outcome in outcomes if outcome.error is not None]
    if failed:
        first, error = failed[0]
        if not isinstance(error, CompileError):
            raise error
        raise CompileError(
            f"{len(failed)} of {len(outcomes)} variants did not compile: "
            f"{', '.join(outcome.variant.name for outcome, _ in failed)}.\n"
            f"The first one: {error}",
            variant=first.variant.name,
            log_path=error.log_path,
            source_path=error.source_path,
            command=error.command,
        ) from error
    return outcomes


def plan(
    *,
    op: OneOrMore = None,
    dtype: OneOrMore | torch.dtype = None,
    block_size: int | tuple[int, int] | Sequence[int | str | tuple[int, int]] | str | None = None,
    device: str | None = None,
    arch: str | Sequence[str] | None = None,
) -> list[Variant]:
    """The variants that :func:`warmup` compiles for the same arguments.

    Raises:
        ArgumentError: a filter names something that does not exist, or nothing is left.
    """
    dtypes = [dtype] if isinstance(dtype, (str, torch.dtype)) else list(dtype or ())
    return registry.select_variants(
        _targets(device, arch),
        ops=[op] if isinstance(op, str) else list(op or ()),
        dtypes=[_dtype_name(each) for each in dtypes],
        block_sizes=[registry.parse_block_size(each) for each in _block_sizes(block_size)],
    )


def recorded(path: str | os.PathLike[str]) -> list[Variant]:
    """The variants that processes wrote to a file of ``JITSPARSE_RECORD``.

    Raises:
        ArgumentError: the file cannot be read, or is not such a file.
    """
    import json

    from jitsparse.jit import Variant

    try:
        # A device may never end; a pipe does.
        kind = os.stat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise ArgumentError(f"{path} is not a record of variants: it is no file")
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        names = [str(json.loads(line)["variant"]) for line in lines if line.strip()]
    except ArgumentError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArgumentError(f"{path} is not a record of variants: {error!r}") from error
    variants = (Variant.parse(name) for name in dict.fromkeys(names))
    return [variant for variant in variants if variant.op in registry.OPS]


def compile_variants(
    variants: Iterable[Variant],
    *,
    jobs: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Compile variants in parallel. A failure is an outcome and stops none of the others.

    Args:
        variants: what to compile.
        jobs: compilers at a time; by default ``MAX_JOBS``, else the number of processors.
        on_outcome: called in this thread as each variant is done.

    Returns:
        One outcome a variant, in their order.
    """
    from jitsparse.jit import config

    everything = list(variants)
    workers = jobs or config.get().jobs
    outcomes: dict[Variant, Outcome] = {}
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(everything) or 1))) as pool:
        try:
            for future in as_completed([pool.submit(_compile, each) for each in everything]):
                outcome = future.result()
                outcomes[outcome.variant] = outcome
                if on_outcome is not None:
                    on_outcome(outcome)
        except BaseException:
            # Interrupted: what has not begun need not.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [outcomes[variant] for variant in everything]


def _compile(variant: Variant) -> Outcome:
    from jitsparse import jit

    try:
        entry = jit.compile_only(registry.template_of(variant), variant, show_progress=False)
    except JitsparseError as error:
        return Outcome(variant, "failed", None, None, error)
    status = "compiled" if entry.fresh else "cached"
    return Outcome(variant, status, entry.compile_seconds, entry.path)


def _targets(device: str | None, arch: str | Sequence[str] | None) -> list[str]:
    """Targets of a request: those named, as far as they run on the device, else this machine's."""
    from jitsparse.jit import config

    if device not in (None, "cpu", "cuda"):
        raise ArgumentError(f"device {device!r} is not one of cpu, cuda")
    if arch is not None:
        named = config.parse_arch(arch if isinstance(arch, str) else ";".join(arch), "arch")
        targets = [t for t in named if device in (None, registry.device_of(t))]
        if not targets:
            asked = ", ".join(named) or repr(arch)
            raise ArgumentError(f"none of the targets {asked} is for {device}")
        return targets
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    named = tuple(t for t in config.get().arch if registry.device_of(t) == where)
    return list(named) or [registry.target_of(where)]


def _dtype_name(dtype: str | torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _DTYPE_NAMES.get(name, name)


def _block_sizes(
    block_size: int | tuple[int, int] | Sequence[int | str | tuple[int, int]] | str | None,
) -> Sequence[int | str | tuple[int, int]]:
    """A list of block sizes; a tuple of two ints is one pair, a list of ints several squares."""
    if block_size is None:
        return []
    if isinstance(block_size, (int, str)):
        return [block_size]
    if isinstance(block_size, tuple) and all(isinstance(side, int) for side in block_size):
        return [block_size]
    return block_size
