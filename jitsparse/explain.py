"""Which kernel a call runs, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jitsparse import functional, ops
from jitsparse.errors import ArgumentError
from jitsparse.kernels import dispatch, registry
from jitsparse.kernels.problem import Problem

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; ``print`` it.

    Attributes:
        problem: the facts of the call, sizes rounded up to their size class.
        target: what the kernel is compiled for.
        variant: name of the chosen variant.
        source: ``"context"``, ``"environment"``, ``"tuned"`` or ``"heuristic"``.
        reason: the same in words.
        refused: name and reason of each variant that is not legal for the problem.
        alternatives: names of the other legal variants, in order of preference.
        path: directory of its cache entry, present or not.
        cached: whether a valid entry is there.
        compile_seconds: how long it took to compile; None if it never was.
    """

    problem: Problem
    target: str
    variant: str
    source: str
    reason: str
    refused: tuple[tuple[str, str], ...]
    alternatives: tuple[str, ...]
    path: str
    cached: bool
    compile_seconds: float | None

    def __str__(self) -> str:
        problem = self.problem
        block = "x".join(map(str, problem.block))
        seconds = "" if self.compile_seconds is None else f" (took {self.compile_seconds:.1f} s)"
        sizes = (
            f"rows <= {problem.rows}, cols <= {problem.cols}, blocks <= {problem.nnz}, "
            f"{'k' if problem.op == 'sdd' else 'n'} <= {problem.extent}, batch <= {problem.batch}"
        )
        lines = [
            f"problem   {problem.op} on {problem.device}, {problem.dtype}, blocks of {block}, "
            f"layout {problem.layout}, {'' if problem.aligned else 'not '}16-byte aligned",
            f"          {sizes}",
            f"variant   {self.variant}",
            f"why       {self.source}: {self.reason}",
            f"compiled  {'yes' if self.cached else 'no'}{seconds}",
            f"cache     {self.path}",
        ]
        lines += [f"legal     {name}" for name in self.alternatives]
        lines += [f"refused   {name}: {reason}" for name, reason in self.refused]
        return "\n".join(lines)


def explain(
    op: str | Problem, *operands: Any, target: str | None = None, **options: Any
) -> Explanation:
    """Which kernel a call runs, why, and where it is kept. Compiles nothing, computes nothing.

    Args:
        op: ``"dsd"``, ``"dds"``, ``"sdd"`` or ``"linear"``; or a problem, without operands.
        operands: what the operation would be called with.
        target: what to compile for; by default what the operands' device has.
        options: further keyword arguments of the operation (bias and activation of linear).

    Raises:
        ArgumentError: the operation does not exist, the operands do not fit it, or there is nothing
            to run because the output or the pattern is empty.
        PinError: a pin that no legal variant satisfies.

    Example:
        >>> import jitsparse as js
        >>> a = js.random((256, 256), 32, 0.25)
        >>> js.explain("dsd", a, torch.randn(256, 64)).problem.layout
        'nn'
    """
    if isinstance(op, Problem):
        problem, device = op, -1
    else:
        if op not in (*registry.OPS, "linear"):
            raise ArgumentError(f"no operation {op!r}; there are {', '.join(registry.OPS)}, linear")
        with torch.no_grad(), _Watch() as watch:
            getattr(functional, op)(*operands, **options)
        if watch.key is None:
            raise ArgumentError(f"this {op} runs no kernel: its output or its pattern is empty")
        problem, device = dispatch.problem_of(watch.key), watch.key[1]
    where = registry.target_of(problem.device, device) if target is None else target
    return _explain(problem, where)


def _explain(problem: Problem, target: str) -> Explanation:
    from jitsparse import jit

    choice = dispatch.choose(problem, target)
    chosen = choice.candidate
    entry = jit.describe(chosen.template, chosen.variant)
    return Explanation(
        problem=problem,
        target=target,
        variant=chosen.variant.name,
        source=choice.source,
        reason=choice.reason,
        refused=tuple(
            (each.variant.name, each.refused)
            for each in choice.candidates
            if each.refused is not None
        ),
        alternatives=tuple(
            each.variant.name
            for each in choice.candidates
            if each.refused is None and each is not chosen
        ),
        path=str(entry.path),
        cached=entry.cached,
        compile_seconds=entry.compile_seconds,
    )


class _Watch(TorchDispatchMode):
    """Stands where a kernel would run: keeps the key of the call, computes nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key: dispatch.Key | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run = _RUN.get(func)
        if run is None:
            return func(*args, **(kwargs or {}))
        return run(*args, find=self._find)

    def _find(self, key: dispatch.Key) -> _NoKernel:
        self.key = key
        return _NoKernel()


class _NoKernel:
    """Does nothing, successfully."""

    def pack(self, *words: int) -> bytes:
        return b""

    def launch(self, words: bytes) -> int:
        return 0


_RUN: dict[Callable[..., Any], Callable[..., Any]] = {
    ops.dsd_op: dispatch.dsd,
    ops.dds_op: dispatch.dds,
    ops.sdd_op: dispatch.sdd,
}
