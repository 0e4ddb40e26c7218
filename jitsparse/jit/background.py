"""Builds in background threads, for ``first_use("fallback")`` and for warm-ups in the background.

The threads are daemons: a program that ends does not wait for its compilers. It interrupts their
work as Ctrl-C would, so that no compiler keeps running for nobody and the cache holds no partial
build. A forked child has none of these threads, and starts its own.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from jitsparse.errors import CompileError, JitsparseError
from jitsparse.jit import build, config, extensions, progress
from jitsparse.jit.kernel import Kernel, load
from jitsparse.jit.resolve import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from jitsparse.jit.template import Template
    from jitsparse.jit.variant import Variant

__all__ = ["forget", "start", "submit"]

T = TypeVar("T")
Key = tuple[object, ...]
"""(cache key, number of arguments); (source, variant name) if the key cannot be computed."""

_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
EXIT_PATIENCE = 2.0
"""Seconds that a program's exit may take to clean up the builds that it interrupts."""


class _Builds:
    """Builds that are waiting, under way or failed, and the threads that run them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.guard = threading.Lock()
        self.known: dict[Key, Future[Kernel]] = {}
        self.waiting: deque[tuple[Future[Any], Callable[[tuple[int, int]], Any]]] = deque()
        self.asked = self.begun = 0
        self.threads: set[threading.Thread] = set()
        self.generation = config.generation


_builds = _Builds()

os.register_at_fork(after_in_child=_builds.reset)


def start(
    template: Template, variant: Variant, *, hint: Callable[[], str] | None = None
) -> Future[Kernel]:
    """The background build of a variant: the existing one, else a new one.

    As many builds run at a time as in a warm-up. A failed one is kept until the configuration
    changes, or :func:`forget` is told that its error was raised.

    Args:
        template: what it is rendered from.
        variant: the variant to build.
        hint: as for :func:`~jitsparse.jit.kernel.load`.

    Returns:
        A future of what :func:`~jitsparse.jit.kernel.load` returns or raises.
    """
    try:
        key: Key = Request(template, variant).key, template.arguments
    except Exception:  # load will raise it
        key = template.source, variant.name
    with _builds.guard:
        if _builds.generation != config.generation:
            _builds.generation = config.generation
            _builds.known = {k: each for k, each in _builds.known.items() if not each.done()}
        future = _builds.known.get(key)
        if future is None:
            future = _enter(
                lambda position: load(template, variant, hint=hint, position=position),
                config.get().jobs,
            )
            _builds.known[key] = future
    return future


def forget(future: Future[Kernel]) -> None:
    """Let the next call build again what failed for a reason that may pass.

    That is Ctrl-C, a lack of room, or whatever else the compiler did not say about the source.
    """
    error = future.exception()
    text = str(error)
    if isinstance(error, CompileError) and not any(each in text for each in _NO_ROOM):
        return
    with _builds.guard:
        _builds.known = {k: each for k, each in _builds.known.items() if each is not future}


def submit(job: Callable[[], T], jobs: int | None = None) -> Future[T]:
    """Run a job that builds something in the background, after those that are waiting.

    Args:
        job: what to do.
        jobs: how many of all submitted jobs may run at a time; by default as many as in a warm-up.

    Returns:
        A future of what the job returns or raises.
    """
    limit = jobs or config.get().jobs
    with _builds.guard:
        return _enter(lambda position: job(), limit)


def _enter(job: Callable[[tuple[int, int]], T], jobs: int) -> Future[T]:
    """Queue a job, which is called with its position, the i-th of n. The caller holds the guard."""
    # Here rather than in the thread that will need it, 0.05 to 0.1 s once: it imports setuptools,
    # which removes a finder from sys.meta_path in place, and an import by the program's own thread
    # at that moment would skip the next finder (seen as a ModuleNotFoundError of sympy's).
    extensions.ready()
    future: Future[T] = Future()
    if not _builds.threads:
        _builds.asked = _builds.begun = 0
    if len(_builds.threads) < jobs:
        thread = threading.Thread(target=_work, name="jitsparse-build", daemon=True)
        thread.start()
        _builds.threads.add(thread)
    _builds.asked += 1
    _builds.waiting.append((future, job))
    return future


def _work() -> None:
    """Build what is waiting, then end."""
    # The terminal belongs to the program, which goes on printing.
    progress.use_plain_lines()
    while True:
        with _builds.guard:
            if not _builds.waiting:
                _builds.threads.discard(threading.current_thread())
                return
            future, job = _builds.waiting.popleft()
            _builds.begun += 1
            position = _builds.begun, _builds.asked
        if not future.set_running_or_notify_cancel():
            continue
        try:
            answer = job(position)
        except BaseException as error:  # whatever it is, a call must raise it
            if build.is_interrupted():
                future.set_exception(_ended())
            elif isinstance(error, KeyboardInterrupt):  # raised by a call it would end the program
                future.set_exception(_stopped())
            else:
                future.set_exception(error)
        else:
            future.set_result(answer)


def _ended() -> JitsparseError:
    return JitsparseError("the program ended before this was compiled")


def _stopped() -> JitsparseError:
    return JitsparseError("Ctrl-C has reached the compiler, too: call once more to compile this")


@atexit.register
def _interrupt() -> None:
    """End the builds of a program that exits, and fail those that have not begun."""
    with _builds.guard:
        for future, _ in _builds.waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(_ended())
        _builds.waiting.clear()
        threads = list(_builds.threads)
    interrupted = [thread for thread in threads if build.interrupt(thread)]
    deadline = time.monotonic() + EXIT_PATIENCE
    for thread in interrupted:
        thread.join(max(0.0, deadline - time.monotonic()))
