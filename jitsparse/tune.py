"""Timing the kernels of a problem, and keeping the fastest in the tuned table."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from jitsparse import calls, tracing
from jitsparse.errors import ArgumentError, CacheMiss, CompileError, JitsparseError, LaunchError
from jitsparse.jit import progress
from jitsparse.kernels import registry
from jitsparse.kernels.choice import choose, tuned_name
from jitsparse.kernels.problem import Problem
from jitsparse.warmup import InputShape, problems_of

if TYPE_CHECKING:
    from jitsparse.bench.timing import Timing
    from jitsparse.jit import Candidate, Kernel

__all__ = ["Tuning", "legal_candidates", "tune", "tune_call"]

TIE = 1.01
"""A variant that is faster by less than this factor does not replace the one that the tuned table,
or else the families, choose now: repeated runs then write the same table."""

HOPELESS = 4.0
"""A variant whose first calls take longer than the fastest one's by this factor is not timed any
further: the slowest would otherwise use up all the time. What calls use now always is, because the
winner has to beat it, and on a busy machine its first calls may be slow by chance."""


@dataclass(frozen=True)
class Tuning:
    """What :func:`tune` found; ``print`` it.

    Attributes:
        problem: the facts of the call, sizes rounded up.
        target: what the kernels are compiled for.
        machine: the CPU or GPU that was measured.
        winner: name of the variant that the tuned table now holds for the problem; None if nothing
            was recorded, because timings were disturbed.
        gain: how many times as fast as ``before`` the winner is, the median of the ratios within a
            turn; None if there is no winner, or ``before`` failed.
        before: name of the variant that calls used until now.
        source: why they did: ``"context"``, ``"environment"``, ``"tuned"`` or ``"heuristic"``. The
            first two are pins, which still decide.
        heuristic: name of the variant that calls use if nothing is tuned.
        seconds: time of every variant that gives correct results, by name, fastest first.
        failures: name and reason of each variant that does not compile, does not run or gives
            wrong results.
        path: file that holds the entry, or None without a winner.
        error: why there is no winner and what to do, or None.
    """

    problem: Problem
    target: str
    machine: str
    winner: str | None
    gain: float | None
    before: str
    source: str
    heuristic: str
    seconds: Mapping[str, float]
    failures: tuple[tuple[str, str], ...]
    path: str | None
    error: str | None

    def __str__(self) -> str:
        facts, sizes = self.problem.describe().splitlines()
        width = max(len(name) for name in self.seconds)
        lines = [
            f"problem   {facts}",
            f"          {sizes}",
            f"machine   {self.machine}",
            f"not tuned {self.error}" if self.error else f"table     {self.path}",
            f"{'variant':{width}}  {'us':>10}  {'ratio':>6}",
        ]
        for row in self.rows():
            line = f"{row['variant']:{width}}  {row['us']:10.1f}  {row['ratio']:6.2f}"
            lines.append(f"{line}  {row['remark']}".rstrip())
        if self.gain is not None:
            lines.append(f"gain      {self.gain:.2f} over before, median of ratios within a turn")
        lines += [f"failed    {name}: {reason}" for name, reason in self.failures]
        if self.source in ("context", "environment"):
            lines.append(f"pinned    a pin decides here: calls go on using {self.before}")
        return "\n".join(lines)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each variant with correct results: microseconds, and ratio to the fastest."""
        least = next(iter(self.seconds.values()))
        remarks: dict[str, str | None] = {
            "winner": self.winner,
            f"before ({self.source})": self.before,
            "heuristic": self.heuristic,
        }
        return [
            {
                "variant": name,
                "us": 1e6 * seconds,
                "ratio": seconds / least,
                "remark": ", ".join(what for what, whose in remarks.items() if whose == name),
            }
            for name, seconds in self.seconds.items()
        ]


@overload
def tune(
    op: str | Problem,
    *operands: Any,
    seconds: float = ...,
    jobs: int | None = ...,
    **options: Any,
) -> Tuning: ...


@overload
def tune(
    op: nn.Module,
    input_shape: InputShape,
    /,
    *,
    seconds: float = ...,
    jobs: int | None = ...,
    backward: bool = ...,
) -> list[Tuning]: ...


def tune(
    op: str | Problem | nn.Module,
    *operands: Any,
    seconds: float = 1.0,
    jobs: int | None = None,
    **options: Any,
) -> Tuning | list[Tuning]:
    """Time every variant that is legal for a call, and have such calls use the fastest.

    Variants that are not compiled yet are compiled first, in parallel. Each result is checked
    against plain torch in float64; a variant that is wrong is never timed. What calls use with and
    without tuning, and those whose first calls take at most 4 times as long as the fastest one's,
    then take turns; others keep that estimate. The operands have the memory layout of the call's;
    on a GPU they rotate through copies that together exceed its L2 cache, if 64 do. The outcome is
    written to the cache, for this kind of machine and for all calls of nearly the same sizes, on a
    GPU only for patterns that are as clustered and as skewed (:mod:`jitsparse.traits`). The variant
    that calls use now stays if the fastest leads by less than 1 %. If timings are disturbed by
    other work of the machine, nothing is recorded.

    Pins are neither needed nor changed: a pin outranks the tuned table, and has no say in what it
    holds.

    For a model, every call of its forward and backward pass is tuned, found as
    :func:`jitsparse.warmup` finds them, one after the other, on random data and a random pattern of
    as many blocks. On a GPU, calls on clustered or skewed patterns have to be tuned by themselves.

    Args:
        op: ``"dsd"``, ``"dds"``, ``"sdd"`` or ``"linear"``; or a problem, without operands, for
            which random data is made; or a model.
        operands: what the operation is called with; for a model the shape of its input, an example
            tensor, or a list with one of these for each positional argument.
        seconds: rough time to spend on timing; for a model, on each call.
        jobs: compilers at a time; by default ``MAX_JOBS``, else as CPUs and memory allow.
        options: further keyword arguments of the operation (bias and activation of linear); for a
            model ``backward=False``, if no gradients will be computed.

    Returns:
        What was found; for a model a list with an entry for each problem of its calls.

    Warns:
        RuntimeWarning: some variants do not compile, do not run or give wrong results; or a call
            was not tuned: timings were disturbed, or no random pattern is like that of a model.

    Raises:
        ArgumentError: the operation does not exist, the operands do not fit it, are on the meta
            device or are given with a problem, or there is nothing to run because the output or the
            pattern is empty; or the model does not run on such inputs, or runs no kernel.
        CacheMiss: ``JITSPARSE_JIT=off``, and not all of the variants are cached.
        ToolchainError: there is no compiler, and not all of the variants are cached.
        LaunchError: no variant is left, or one has made the GPU unusable.
        PinError: a pin that no legal variant satisfies.

    Example:
        >>> import torch, jitsparse as js
        >>> a = js.random((72, 40), 8, 0.5)
        >>> tuning = js.tune("dsd", a, torch.randn(40, 24), seconds=0.0)
        >>> js.explain("dsd", a, torch.randn(40, 24)).variant in tuning.seconds
        True
        >>> layer = js.nn.BlockSparseLinear(64, 32, 16, density=0.5)
        >>> (forward,) = js.tune(layer, (8, 64), seconds=0.0, backward=False)
        >>> forward.problem.op
        'dds'
    """
    if not (isinstance(seconds, (int, float)) and 0 <= seconds < math.inf):
        raise ArgumentError(f"seconds={seconds!r} is no time to spend: give 0 or more")
    if isinstance(op, nn.Module):
        return _tune_model(op, operands, options, seconds, jobs)
    if isinstance(op, Problem):
        calls.check_alone("tune", operands, options)
        call = calls.sample(op)
    else:
        call = calls.catch(op, *operands, **options)
        if not call.has_data:
            raise ArgumentError(
                "tuning runs kernels, and operands on the meta device have no data: give others, "
                f"or the problem alone, js.tune(js.explain({op!r}, ...).problem)"
            )
    return _told(tune_call(call, seconds=seconds, jobs=jobs))


def _tune_model(
    model: nn.Module,
    operands: Sequence[Any],
    options: Mapping[str, Any],
    seconds: float,
    jobs: int | None,
) -> list[Tuning]:
    if len(operands) != 1 or options.keys() - {"backward"}:
        raise ArgumentError(
            "a model is tuned for the shape of its input, as in js.tune(model, (8, 512)), and "
            f"backward=False without gradients; got {len(operands)} operands and options "
            f"{list(options) or 'none'}"
        )
    where = tracing.device_of(model)
    done = []
    for problem in problems_of(model, operands[0], where.type, **options):
        try:
            call = calls.sample(problem, where)
        except ArgumentError as error:
            progress.warn(f"jitsparse: not tuned: {error}", always=True)
        else:
            done.append(_told(tune_call(call, seconds=seconds, jobs=jobs)))
    return done


def _told(tuning: Tuning) -> Tuning:
    """The tuning, after warnings about its failures and about what kept it from a winner."""
    if tuning.failures:
        progress.warn(
            f"jitsparse: {len(tuning.failures)} variants of {tuning.problem.name} failed and were "
            f"left out: {'; '.join(': '.join(failure) for failure in tuning.failures)}",
            always=True,
        )
    if tuning.error:
        progress.warn(f"jitsparse: not tuned: {tuning.problem.name}: {tuning.error}", always=True)
    return tuning


def legal_candidates(problem: Problem, index: int = -1) -> list[Candidate]:
    """The variants that are legal for a problem, in order of preference.

    Args:
        problem: with rounded sizes, like those of calls.
        index: index of the GPU that it runs on; by default the current one.
    """
    target = registry.target_of(problem.device, index)
    gpu = registry.priced_as(problem.device, index)
    return [each for each in registry.candidates(problem, target, gpu) if each.refused is None]


@torch.no_grad()
def tune_call(call: calls.Call, *, seconds: float = 1.0, jobs: int | None = None) -> Tuning:
    """Like :func:`tune`, for a caught call; what went wrong is only in the result."""
    import jitsparse
    from jitsparse.jit import targets, tuned

    problem, index = call.problem, call.index
    target = registry.target_of(problem.device, index)
    machine = registry.machine_of(problem.device, index)
    choice = choose(problem, target, index)
    before = choice.candidate.variant.name
    legal = legal_candidates(problem, index)
    name = tuned_name(problem, legal)
    held = tuned.lookup(name, machine)
    kernels, failures = _compiled(legal, jobs)
    # Timers use the current GPU; an index of -1 changes nothing.
    with torch.cuda.device(index):
        kernels = _right(call, kernels, failures)
        if not kernels:
            reasons = "\n".join(f"  {name}: {reason}" for name, reason in failures.items())
            raise LaunchError(f"no variant of {problem.name} can be used:\n{reasons}")
        first = next(iter(kernels))
        # What calls use now, if none is pinned. Pins have no say in what the table holds.
        current = held.variant if held is not None and held.variant in kernels else first
        timings, estimates = _timed(call, kernels, seconds, always=(first, current, before))
    taken = estimates | {name: timing.median for name, timing in timings.items()}
    ordered = dict(sorted(taken.items(), key=lambda item: item[1]))
    winner, error = _winner(timings, current)
    gain, path = None, None
    if winner is not None:
        if before in timings:
            gain = timings[winner].times_faster_than(timings[before])
        entry = tuned.record(
            name,
            machine,
            winner,
            ordered,
            driver=targets.cuda_driver() if problem.device == "cuda" else None,
            version=jitsparse.__version__,
        )
        path = str(entry.path)
    return Tuning(
        problem=problem,
        target=target,
        machine=machine,
        winner=winner,
        gain=gain,
        before=before,
        source=choice.source,
        heuristic=legal[0].variant.name,
        seconds=ordered,
        failures=tuple(failures.items()),
        path=path,
        error=error,
    )


def _compiled(
    legal: Sequence[Candidate], jobs: int | None
) -> tuple[dict[str, Kernel], dict[str, str]]:
    """The kernels of variants, and why others have none.

    Raises:
        CacheMiss: some are not cached, and nothing may be compiled.
        ToolchainError: some are not cached, and nothing can be compiled.
    """
    from jitsparse import jit
    from jitsparse.compilation import compile_variants
    from jitsparse.jit import config

    kernels, failures, missing = {}, {}, []
    for each, outcome in zip(
        legal, compile_variants([each.variant for each in legal], jobs=jobs), strict=True
    ):
        name, error = each.variant.name, outcome.error
        if error is None:
            # Trying a variant is not using it, and JITSPARSE_RECORD records uses.
            with config.override(record=None):
                kernels[name] = jit.load(each.template, each.variant)
        elif isinstance(error, CompileError):
            failures[name] = str(error)
        elif isinstance(error, CacheMiss):
            missing.append(name)
        else:
            raise error
    if missing:
        raise CacheMiss(
            f"tuning compares all {len(legal)} legal variants, and {len(missing)} of them are not "
            f"cached and must not be compiled now (JITSPARSE_JIT=off): {', '.join(missing)}. Tune "
            "once with JITSPARSE_JIT=on, which leaves them in the cache"
        )
    return kernels, failures


def _right(
    call: calls.Call, kernels: Mapping[str, Kernel], failures: dict[str, str]
) -> dict[str, Kernel]:
    """The kernels with correct results; why the others fail is added to ``failures``."""
    expected, right = call.exact(), {}
    for name, kernel in kernels.items():
        try:
            answer = call.run(kernel)
            if call.device.type == "cuda":
                torch.cuda.synchronize(call.device)
        except JitsparseError as error:
            failures[name] = str(error)
            continue
        except RuntimeError as error:
            # An error on the GPU surfaces in the wait for the kernel, and in all later calls.
            raise LaunchError(f"{name} could not be tried: {error}") from error
        fault = call.fault(answer, expected)
        if fault is None:
            right[name] = kernel
        else:
            failures[name] = fault
    return right


def _timed(
    call: calls.Call, kernels: Mapping[str, Kernel], seconds: float, *, always: Container[str]
) -> tuple[dict[str, Timing], dict[str, float]]:
    """Timings of the kernels worth it and of some always, and estimates of all."""
    from jitsparse.bench.timing import copies_beyond_l2, estimate, interleave

    count = copies_beyond_l2(call.bytes, call.device)
    copies = [call] if count == 1 else [call.copy() for _ in range(count)]
    turns = {
        name: lambda i, kernel=kernel: copies[i % count].run(kernel)
        for name, kernel in kernels.items()
    }
    estimates = {name: estimate(turn, call.device) for name, turn in turns.items()}
    least = min(estimates.values())
    finalists = {
        name: turn
        for name, turn in turns.items()
        if name in always or estimates[name] <= HOPELESS * least
    }
    return interleave(finalists, call.device, seconds=seconds), estimates


def _winner(timings: Mapping[str, Timing], current: str) -> tuple[str | None, str | None]:
    """The fastest, unless the current variant is as fast except for noise; or why there is none."""
    from jitsparse.bench.disturbance import disturbed

    best = min(timings, key=lambda name: timings[name].median)
    worst_first = disturbed({name: timings[name] for name in (best, current)})
    if worst_first:
        name, times = next(iter(worst_first.items()))
        return None, (
            f"timings of {name} are disturbed, their median is {times:.1f} times the least, so "
            "nothing was recorded: tune again on a quiet machine, or for more seconds"
        )
    leads = timings[best].times_faster_than(timings[current]) >= TIE
    return (best if leads else current), None
