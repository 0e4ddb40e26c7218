"""Which kernel a call runs, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitsparse import calls
from jitsparse.errors import ArgumentError, CompilerNotFound
from jitsparse.kernels import cost, price_table, registry
from jitsparse.kernels.choice import choose
from jitsparse.kernels.problem import Problem

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found, which is shown as text, printed or not.

    Attributes:
        problem: the facts of the call, sizes rounded up.
        target: what the kernel is compiled for.
        variant: name of the chosen variant.
        source: ``"context"``, ``"environment"``, ``"tuned"`` or ``"heuristic"``.
        reason: what the source said, in words.
        refused: name and reason of each variant that is not legal for the problem.
        alternatives: names of the other legal variants, in order of preference.
        path: directory of its cache entry, present or not.
        cached: whether a valid entry is there.
        compile_seconds: how long it took to compile; None if it never was.
        obstacle: if it is neither cached nor can be compiled here, what a call does instead, and
            why: plain torch operations answer on a CPU without a compiler, others raise an error.
        tuned: variant that the tuned table names for the problem, if it has an entry and no pin
            decides.
        tuned_in: file that holds the entry.
        not_tuned: why that variant does not run, if it does not.
        tuned_seconds: what variants took when the problem was tuned; tables that come with
            jitsparse do not say.
        expected_seconds: what the cost model expects of the legal variants that it knows.
        expected_parts: the chosen variant's expected seconds by part, as
            :mod:`jitsparse.kernels.cost` names them.
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
    obstacle: str | None = None
    tuned: str | None = None
    tuned_in: str | None = None
    not_tuned: str | None = None
    tuned_seconds: Mapping[str, float] | None = None
    expected_seconds: Mapping[str, float] = field(default_factory=dict)
    expected_parts: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        # And so its str: a notebook shows the same as print.
        seconds = "" if self.compile_seconds is None else f" (took {self.compile_seconds:.1f} s)"
        facts, sizes = self.problem.describe().splitlines()
        lines = [
            f"problem   {facts}",
            f"          {sizes}",
            f"variant   {self.variant}{self._known(self.variant)}",
            f"why       {self.source}: {self.reason}",
        ]
        if self.expected_parts:
            parts = (f"{part} {1e6 * seconds:.1f}" for part, seconds in self.expected_parts.items())
            lines.append(f"expects   {' + '.join(parts)} us")
        if self.not_tuned is not None:
            lines.append(f"tuned     {self.tuned}, refused: {self.not_tuned}")
        if self.tuned_in is not None:
            lines.append(f"table     {self.tuned_in}")
        lines += [
            f"compiled  {'yes' if self.cached else 'no'}{seconds}",
            *([] if self.obstacle is None else [f"obstacle  {self.obstacle}"]),
            f"cache     {self.path}",
        ]
        lines += [f"legal     {name}{self._known(name)}" for name in self.alternatives]
        lines += [f"refused   {name}: {reason}" for name, reason in self.refused]
        return "\n".join(lines)

    def _known(self, variant: str) -> str:
        """What a variant took when the problem was tuned, and should take, as far as known."""
        tuned = (self.tuned_seconds or {}).get(variant)
        expected = self.expected_seconds.get(variant)
        said = [
            *([] if tuned is None else [f"{1e6 * tuned:.1f} us when tuned"]),
            *([] if expected is None else [f"{1e6 * expected:.1f} us expected"]),
        ]
        return f"  ({', '.join(said)})" if said else ""


def explain(
    op: str | Problem,
    *operands: Any,
    target: str | None = None,
    gpu: str | None = None,
    **options: Any,
) -> Explanation:
    """Which kernel a call runs, why, and where it is kept. Compiles nothing, computes nothing.

    Args:
        op: ``"dsd"``, ``"dds"``, ``"sdd"`` or ``"linear"``; or a problem, without operands.
        operands: what the operation would be called with.
        target: what to compile for; by default the target of the operands' device.
        gpu: ``"H200"`` or ``"H100"``, whose prices the cost model uses for a GPU target; by default
            the one that this machine's GPU is taken for.
        options: further keyword arguments of the operation (bias and activation of linear).

    Raises:
        ArgumentError: the operation does not exist, the operands do not fit it or are given with a
            problem, there is nothing to run because the output or the pattern is empty, or the cost
            model has no prices of the GPU.
        PinError: a pin that no legal variant satisfies.

    Example:
        >>> import torch, jitsparse as js
        >>> a = js.random((256, 256), 32, 0.25)
        >>> js.explain("dsd", a, torch.randn(256, 64)).problem.layout
        'nn'
    """
    if gpu is not None and gpu not in price_table.GPUS:
        raise ArgumentError(f"no prices of a GPU {gpu!r}; there are {', '.join(price_table.GPUS)}")
    if isinstance(op, Problem):
        calls.check_alone("explain", operands, options)
        problem, index = op.rounded(), -1
    else:
        call = calls.catch(op, *operands, **options)
        problem, index = call.problem, call.index
    if target is None:
        target = registry.target_of(problem.device, index)
    else:
        registry.check_target(problem.device, target)
    return _explain(problem, target, index, gpu or registry.priced_as(problem.device, index))


def _explain(problem: Problem, target: str, index: int, gpu: str) -> Explanation:
    from jitsparse import jit

    choice = choose(problem, target, index, gpu)
    chosen, tuned = choice.candidate, choice.tuned
    entry = jit.describe(chosen.template, chosen.variant)
    legal = [each.variant for each in choice.candidates if each.refused is None]
    expected = {each.name: cost.microseconds(problem, each, gpu) for each in legal}
    error = jit.obstacle(chosen.template, chosen.variant)
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
        obstacle=None if error is None else f"{_instead(problem, error)}: {error}",
        tuned=None if tuned is None else tuned.variant,
        tuned_in=None if tuned is None else str(tuned.path),
        not_tuned=choice.not_tuned,
        tuned_seconds=None if tuned is None else tuned.seconds,
        expected_seconds={name: 1e-6 * us for name, us in expected.items() if us is not None},
        expected_parts={
            part: 1e-6 * us for part, us in cost.breakdown(problem, chosen.variant, gpu).items()
        },
    )


def _instead(problem: Problem, error: Exception) -> str:
    """What a call does whose kernel cannot be had."""
    if problem.device == "cpu" and isinstance(error, CompilerNotFound):
        return "plain torch operations answer"
    return f"a call raises {type(error).__name__}"
