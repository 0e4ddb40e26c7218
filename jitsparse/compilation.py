"""Compiling a list of variants in parallel, past any failure, and reporting each outcome.

Three ways: now (:func:`compile_variants`), in the background (:class:`BackgroundWarmup`), and not
at all (:func:`survey`, which says what would be compiled).
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jitsparse.errors import ArgumentError, CompileError, JitsparseError, ToolchainError
from jitsparse.kernels import registry

if TYPE_CHECKING:
    from jitsparse.jit import Variant

__all__ = [
    "BackgroundWarmup",
    "Outcome",
    "compile_variants",
    "raise_failures",
    "require_cuda",
    "survey",
]


@dataclass(frozen=True)
class Outcome:
    """What became of one variant.

    Attributes:
        variant: which one.
        status: ``"compiled"``, ``"cached"`` (it was there already), ``"failed"``, or ``"missing"``
            (it would be compiled, but this was a survey).
        seconds: how long compiling it took, now or earlier; None if it never was compiled.
        path: directory of its entry, None if there is none.
        error: what failed, else None.
    """

    variant: Variant
    status: str
    seconds: float | None
    path: Path | None
    error: JitsparseError | None = None


def _workers(jobs: int | None) -> int:
    """How many compilers run at a time: ``jobs``, or by default the configured number."""
    from jitsparse.jit import config

    if jobs is not None and (not isinstance(jobs, int) or jobs < 0):
        raise ArgumentError(
            f"jobs={jobs!r} is no number of compilers; None or 0 stands for as many as the "
            "processors and the memory allow"
        )
    return jobs or config.get().jobs


def compile_variants(
    variants: Iterable[Variant],
    *,
    jobs: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Compile variants in parallel. A failure is an outcome and stops none of the others.

    Args:
        variants: what to compile.
        jobs: compilers at a time; by default ``MAX_JOBS``, else as many as the CPUs and the memory
            available to this process allow.
        on_outcome: called in this thread as each variant is done. Without it, long builds are
            reported as for a first use: which variant, of how many.

    Returns:
        One outcome per variant, in their order.

    Raises:
        ArgumentError: ``jobs`` is negative.
    """
    everything = list(variants)
    workers = _workers(jobs)
    outcomes: dict[Variant, Outcome] = {}
    threads: list[threading.Thread] = []
    futures: list[Future[Outcome]] = []
    with ThreadPoolExecutor(
        max_workers=max(1, min(workers, len(everything) or 1)),
        initializer=lambda: threads.append(threading.current_thread()),
    ) as pool:
        try:
            for number, each in enumerate(_longest_first(everything), 1):
                position, show = (number, len(everything)), on_outcome is None
                futures.append(pool.submit(_compile, each, position=position, show_progress=show))
            pending = set(futures)
            while pending:
                # A signal that comes just before this thread waits is handled after the timeout.
                done, pending = concurrent.futures.wait(pending, 0.5, FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    outcomes[outcome.variant] = outcome
                    if on_outcome is not None:
                        on_outcome(outcome)
        except BaseException:
            from jitsparse.jit import build

            # Interrupted: cancel what has not begun, and end what runs. A thread may be about to
            # start its compiler, so all are interrupted until they have ended.
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):
                for thread in tuple(threads):
                    build.interrupt(thread)
                time.sleep(0.02)
            raise
    return [outcomes[variant] for variant in everything]


def survey(variants: Iterable[Variant]) -> list[Outcome]:
    """Which variants are cached and which would be compiled. Compiles and maps nothing.

    Returns:
        One outcome per variant, in their order, ``"cached"`` or ``"missing"``.
    """
    from jitsparse import jit

    outcomes = []
    for variant in variants:
        found = jit.describe(registry.template_of(variant), variant, why=False)
        status, path = ("cached", found.path) if found.cached else ("missing", None)
        outcomes.append(Outcome(variant, status, found.compile_seconds, path))
    return outcomes


def require_cuda(variants: Sequence[Variant]) -> None:
    """Refuse a request that needs CUDA kernels compiled, if this torch cannot do that.

    Otherwise each of them would fail for itself, once everything else is compiled.

    Raises:
        ToolchainError: one is not cached, and torch was built without CUDA.
    """
    from jitsparse.jit import config
    from jitsparse.jit.targets import without_cuda

    unable = without_cuda()
    if not (unable and config.get().jit):  # with JITSPARSE_JIT=off, that is why nothing is compiled
        return
    for variant in variants:
        on_gpu = registry.device_of(variant.target) == "cuda"
        if on_gpu and any(each.status == "missing" for each in survey([variant])):
            raise ToolchainError(
                f"{variant.name}, one of the {len(variants)} kernels asked for, is a CUDA kernel "
                f"that is not in the cache, and {unable}. To list what is missing, use jitsparse "
                "warmup --check."
            )


def raise_failures(outcomes: Sequence[Outcome]) -> None:
    """Raise if a variant failed.

    Raises:
        CompileError: variants failed to compile; names them all and has the log of the first.
        JitsparseError: the first failure, if it is not a CompileError.
    """
    failed = [(outcome, outcome.error) for outcome in outcomes if outcome.error is not None]
    if not failed:
        return
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


class BackgroundWarmup:
    """Variants that are being compiled in the background: what ``js.warmup`` returns.

    A call that needs a kernel whose turn has not come compiles it itself; one whose kernel is being
    compiled waits for it. The program may end at any time, and ends the compilers. A failure is
    reported in a line on stderr at once, and raised by :meth:`wait`; the other variants go on. A
    forked child has none of the compiling threads, and submits what it waits for anew.

    Attributes:
        variants: what is compiled, in the order of the outcomes.

    Example:
        >>> import jitsparse as js
        >>> warming = js.warmup(op="dsd", dtype="f32", block_size=32, device="cpu", background=True)
        >>> outcomes = warming.wait()
        >>> warming.done(), len(outcomes) == len(warming.variants)
        (True, True)
    """

    def __init__(
        self,
        variants: Iterable[Variant],
        *,
        jobs: int | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.variants = tuple(variants)
        self._jobs = _workers(jobs)
        self._begin(on_outcome)

    def done(self) -> bool:
        """Whether every variant has been compiled, or has failed."""
        return all(future.done() for future in self._builds().values())

    def outcomes(self) -> list[Outcome]:
        """Outcomes of the variants that are done so far, including failed ones."""
        builds = self._builds()
        return [builds[each].result() for each in self.variants if builds[each].done()]

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Wait until every variant is done.

        Args:
            timeout: seconds to wait at most; by default without limit.

        Returns:
            One outcome per variant.

        Raises:
            CompileError: some variants failed; all others were compiled.
            ToolchainError: there is no compiler for the device.
            Exception: the first that ``on_outcome`` raised; :meth:`outcomes` still has every
                outcome.
            TimeoutError: some are not done after ``timeout`` seconds. They go on.
        """
        builds = self._builds()
        _, late = concurrent.futures.wait(builds.values(), timeout)
        if late:
            raise TimeoutError(
                f"{len(late)} of {len(builds)} kernels are not compiled after {timeout} s; they "
                "are going on, so wait again"
            )
        outcomes = self.outcomes()
        raise_failures(outcomes)
        if self._unheard:
            raise self._unheard[0]
        return outcomes

    def __repr__(self) -> str:
        done = sum(future.done() for future in self._builds().values())
        return f"{type(self).__name__}({done} of {len(self.variants)} kernels done)"

    def _begin(self, on_outcome: Callable[[Outcome], None] | None) -> None:
        from jitsparse.jit import background

        self._process = os.getpid()
        self._unheard: list[Exception] = []
        total = len(self.variants)
        self._futures: dict[Variant, Future[Outcome]] = {}
        for number, variant in enumerate(_longest_first(self.variants), 1):
            job = _Job(variant, (number, total), on_outcome, self._unheard)
            self._futures[variant] = background.submit(job, self._jobs)

    def _builds(self) -> dict[Variant, Future[Outcome]]:
        if self._process != os.getpid():
            self._begin(None)  # the parent calls on_outcome, its child does not
        return self._futures


@dataclass(frozen=True)
class _Job:
    """Compiles a variant in the background, and reports what went wrong.

    What ``on_outcome`` raises goes to ``unheard``.
    """

    variant: Variant
    position: tuple[int, int]
    on_outcome: Callable[[Outcome], None] | None
    unheard: list[Exception]

    def __call__(self) -> Outcome:
        from jitsparse.jit import build, progress

        outcome = _compile(self.variant, position=self.position, show_progress=True)
        if build.is_interrupted():
            return outcome  # a compiler that ended with the program is not worth a message
        if outcome.error is not None:
            text = str(outcome.error)
            named = text if self.variant.name in text else f"{self.variant.name}: {text}"
            progress.say("warning", f"in the background, {named}")
        if self.on_outcome is not None:
            try:
                self.on_outcome(outcome)
            except Exception as error:
                self.unheard.append(error)
        return outcome


def _compile(
    variant: Variant, *, position: tuple[int, int] | None = None, show_progress: bool = False
) -> Outcome:
    from jitsparse import jit

    try:
        template = registry.template_of(variant)
        entry = jit.compile_only(
            template,
            variant,
            hint=lambda: registry.warmup_command(variant),
            show_progress=show_progress,
            position=position,
        )
    except JitsparseError as error:
        return Outcome(variant, "failed", None, None, error)
    status = "compiled" if entry.fresh else "cached"
    return Outcome(variant, status, entry.compile_seconds, entry.path)


def _longest_first(variants: Sequence[Variant]) -> list[Variant]:
    """Variants in the order to begin them: unknown ones, then those that took longest last time.

    A long one that begins last would be waited for alone.
    """
    from jitsparse.jit import cache as caches

    last = caches.current().last_seconds
    return sorted(variants, key=lambda each: -(last(each.name) or float("inf")))
