"""What is printed on stderr while a kernel compiles, and only if it is worth a line.

A compilation that takes longer than a second is announced: what is compiled, which of how many, how
long that took last time, where it is kept. On a terminal and in a notebook the line is live and
leaves one line behind; elsewhere there are two plain ones. A process that waits for another says
for which. Of the ranks of torchrun only the first one prints.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from jitsparse.jit import config, live
from jitsparse.jit.environment import LOG_LEVELS
from jitsparse.jit.live import Work

__all__ = ["compiling", "say", "use_plain_lines", "waiting", "warn"]

# Anything quicker than this is not worth a line.
PATIENCE = 1.0

_INNER = (__name__.partition(".")[0], "torch")

_thread = threading.local()


def use_plain_lines() -> None:
    """Never draw a live line for what this thread compiles.

    A live line takes over the terminal, which is appropriate only while the program waits.
    """
    _thread.plain = True


def say(level: str, message: str) -> None:
    """Print one line on stderr, if ``JITSPARSE_LOG`` admits its level and this is rank 0.

    A daemon may have no stderr, or one that nobody reads any more, and a program may replace it by
    anything. Kernels compile all the same.
    """
    settings = config.get()
    if settings.rank == 0 and _admits(settings.log, level) and sys.stderr is not None:
        with contextlib.suppress(Exception):
            sys.stderr.write(f"jitsparse: {message}\n")
            sys.stderr.flush()


def warn(message: str, *, always: bool = False) -> None:
    """Warn at the line that called this package, unless ``JITSPARSE_LOG`` is ``quiet``.

    Args:
        message: what is wrong, and what to do.
        always: warn even if quiet, since results are not what was asked for.
    """
    if always or config.get().log != "quiet":
        warnings.warn(message, RuntimeWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """Level of the first frame that is neither ours nor torch's, seen from :func:`warn`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    return level


@contextlib.contextmanager
def compiling(
    variant: str,
    where: Path,
    *,
    last_seconds: float | None = None,
    position: tuple[int, int] | None = None,
    show: bool = True,
) -> Iterator[None]:
    """Announce a compilation that takes long.

    Args:
        variant: what is compiled.
        where: the cache in which it will be kept.
        last_seconds: how long it took last time, if known.
        position: ``(n, m)`` if this is the n-th of m.
        show: whether to say anything.
    """
    of = f" [{position[0]}/{position[1]}]" if position and position[1] > 1 else ""
    details = [] if last_seconds is None else [f"{last_seconds:.1f} s last time"]
    details.append(f"kept in {_short(where)}")
    work = Work(f"compiling {variant}{of}", tuple(details), time.perf_counter())
    ends = {end: f"{end} {variant}{of}" for end in ("compiled", "failed", "interrupted")}
    with _announced(work, PATIENCE, show, first="first use") as outcome:
        outcome.line = f"{ends['interrupted']} after"
        try:
            yield
        except Exception:
            outcome.line = f"{ends['failed']} after"
            raise
        outcome.line = f"{ends['compiled']} in"


@contextlib.contextmanager
def waiting(variant: str, holder: str, since: float, *, show: bool = True) -> Iterator[None]:
    """Say that another process is compiling the variant and that this one waits for it.

    Args:
        variant: what is waited for.
        holder: who compiles it.
        since: when the wait began, on the clock of ``time.perf_counter``.
        show: whether to say anything.
    """
    work = Work(f"waiting for {holder}, which is compiling {variant}", (), since)
    with _announced(work, 0.0, show) as outcome:
        outcome.line = f"waited for {holder} to compile {variant},"
        yield


@contextlib.contextmanager
def _announced(
    work: Work, patience: float, show: bool, *, first: str = ""
) -> Iterator[_Announcement]:
    """Announce work that lasts longer than the patience, and report its outcome at the end."""
    settings = config.get()
    silent = not show or settings.rank != 0 or not _admits(settings.log, "info")
    announcement = _Announcement(work, first)
    if silent:
        yield announcement
        return
    timer = threading.Timer(patience, announcement.open)
    timer.daemon = True
    if patience > 0:
        with contextlib.suppress(RuntimeError):  # no thread: at interpreter exit, or by a limit
            timer.start()
    else:
        announcement.open()
    try:
        yield announcement
    finally:
        timer.cancel()
        announcement.close()


class _Announcement:
    """Opened by the timer's thread, closed by the one that does the work.

    Attributes:
        line: what is printed at the end, before the seconds.
    """

    def __init__(self, work: Work, first: str) -> None:
        self.line = ""
        self._work = work
        self._first = first
        self._plain = getattr(_thread, "plain", False)
        self._guard = threading.Lock()
        self._state = "pending"

    def open(self) -> None:
        with self._guard:
            if self._state == "pending":
                self._state = "live" if not self._plain and live.show(self._work) else "plain"
            if self._state == "plain":
                about = "; ".join(filter(None, [self._first, *self._work.details]))
                say("info", f"{self._work.doing} ({about})" if about else self._work.doing)

    def close(self) -> None:
        with self._guard:
            state, self._state = self._state, "closed"
        line = f"{self.line} {self._work.seconds:.1f} s"
        if state == "plain":
            say("info", line)
        elif state == "live":
            # The live line disappears, so its details move to the line that stays.
            about = f" ({'; '.join(self._work.details)})" if self._work.details else ""
            live.finish(self._work, f"{line}{about}", lambda text: say("info", text))


def _admits(log: str, level: str) -> bool:
    order = LOG_LEVELS
    return order.index(level) >= order.index(log)


def _short(path: Path) -> str:
    # A user without a home has none to shorten; Path.home() would raise.
    home = os.path.expanduser("~")
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
