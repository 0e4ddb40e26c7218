"""Kernels built by threads that nobody waits for, which ``first_use("fallback")`` rests on.

The threads are daemons: a program that ends does not wait for its compilers. What they were doing
then is interrupted as Ctrl-C would, so that no compiler goes on for nobody and the cache holds no
half build. A forked child has none of these threads, and starts its own.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

from jitsparse.jit import build, config, progress
from jitsparse.jit.kernel import Kernel, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from jitsparse.jit.template import Template
    from jitsparse.jit.variant import Variant

__all__ = ["start"]

EXIT_PATIENCE = 2.0
"""Seconds that the end of a program may take to clear away the builds that it interrupts."""


class _Builds:
    """Builds that are waiting, under way or failed, and the threads that do them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.guard = threading.Lock()
        self.known: dict[tuple[str, str], Future[Kernel]] = {}
        self.waiting: deque[tuple[Future[Kernel], Callable[[], Kernel]]] = deque()
        self.threads: set[threading.Thread] = set()
        self.generation = config.generation


_builds = _Builds()

os.register_at_fork(after_in_child=_builds.reset)


def start(
    template: Template, variant: Variant, *, hint: Callable[[], str] | None = None
) -> Future[Kernel]:
    """The build of a variant in the background: the one that there is, else a new one.

    As many builds run at a time as in a warm-up. One that failed is kept, and is tried again when
    the configuration changes.

    Args:
        template: what it is rendered from.
        variant: which one.
        hint: as for :func:`~jitsparse.jit.kernel.load`.

    Returns:
        What :func:`~jitsparse.jit.kernel.load` will return or raise.
    """
    name = template.name, variant.name
    with _builds.guard:
        if _builds.generation != config.generation:
            _builds.generation = config.generation
            _builds.known = {n: each for n, each in _builds.known.items() if not each.done()}
        future = _builds.known.get(name)
        if future is None:
            if len(_builds.threads) < config.get().jobs:
                thread = threading.Thread(target=_work, name="jitsparse-build", daemon=True)
                thread.start()
                _builds.threads.add(thread)
            future = _builds.known[name] = Future()
            _builds.waiting.append((future, lambda: load(template, variant, hint=hint)))
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
        try:
            kernel = job()
        except BaseException as error:  # whatever it is, a call is to raise it
            future.set_exception(error)
        else:
            future.set_result(kernel)


@atexit.register
def _interrupt() -> None:
    """End the builds of a program that ends."""
    with _builds.guard:
        _builds.waiting.clear()
        threads = list(_builds.threads)
    interrupted = [thread for thread in threads if build.interrupt(thread)]
    deadline = time.monotonic() + EXIT_PATIENCE
    for thread in interrupted:
        thread.join(max(0.0, deadline - time.monotonic()))
