"""What is said on stderr while a kernel compiles, and nothing that is not worth a line.

A compilation that takes longer than a second announces itself: what is compiled, how long that took
last time, where it is kept. On a terminal the line is live, elsewhere (notebooks, logs) it is plain
text, and a second line closes it with the time taken.
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
from typing import Any

from jitsparse.jit import config, forks

__all__ = ["compiling", "say", "use_plain_lines", "waiting", "warn"]

# Anything quicker than this is not worth a line.
PATIENCE = 1.0

_live = threading.Lock()
"""Held by the one compilation that owns the terminal's live line."""


_thread = threading.local()


def use_plain_lines() -> None:
    """Never draw a live line for what this thread compiles.

    A live line takes over the terminal, stdout too, which is right only while the program waits.
    """
    _thread.plain = True


def _after_fork() -> None:
    global _live
    _live = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def say(level: str, message: str) -> None:
    """One line on stderr, if ``JITSPARSE_LOG`` admits its level and this is rank 0."""
    settings = config.get()
    if settings.rank == 0 and _admits(settings.log, level):
        sys.stderr.write(f"jitsparse: {message}\n")
        sys.stderr.flush()


def warn(message: str) -> None:
    """A warning, unless ``JITSPARSE_LOG`` is ``quiet``."""
    if config.get().log != "quiet":
        warnings.warn(message, RuntimeWarning, stacklevel=3)


@contextlib.contextmanager
def compiling(
    variant: str,
    where: Path,
    *,
    last_seconds: float | None = None,
    position: tuple[int, int] | None = None,
    show: bool = True,
) -> Iterator[None]:
    """Announce a compilation that lasts.

    Args:
        variant: what is compiled.
        where: the cache in which it will be kept.
        last_seconds: how long it took last time, if known.
        position: ``(n, m)`` if this is the n-th of m.
        show: whether to say anything.
    """
    settings = config.get()
    if not show or settings.rank != 0 or not _admits(settings.log, "info"):
        yield
        return
    of = f" [{position[0]}/{position[1]}]" if position else ""
    last = f", {last_seconds:.1f} s last time" if last_seconds is not None else ""
    text = f"compiling {variant}{of} (first use{last}; kept in {_short(where)})"
    line = _Line(text)
    timer = threading.Timer(PATIENCE, line.open)
    timer.daemon = True
    started = time.perf_counter()
    timer.start()
    outcome = f"interrupted {variant} after"
    try:
        yield
        outcome = f"compiled {variant} in"
    except Exception:
        outcome = f"failed {variant} after"
        raise
    finally:
        timer.cancel()
        line.close(f"{outcome} {time.perf_counter() - started:.1f} s")


def waiting(variant: str, holder: str) -> None:
    """Say that another process is compiling the variant and that this one waits for it."""
    say("info", f"waiting for {holder}, which is compiling {variant}")


class _Line:
    """The announcement: opened by the timer's thread, closed by the compiling one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._guard = threading.Lock()
        self._closed = False
        self._opened = False
        self._plain = getattr(_thread, "plain", False)
        self._status: Any = None

    def open(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._opened = True
            if not self._plain and _terminal() and _live.acquire(blocking=False):
                self._status = _start_status(self._text)
            else:
                say("info", self._text)

    def close(self, text: str) -> None:
        with self._guard:
            self._closed = True
            if self._status is not None:
                self._status.stop()
                _live.release()
            if self._opened:
                say("info", text)


def _start_status(text: str) -> Any:
    forks.ready("rich.console", "rich.progress")
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=not config.get().color)
    columns = (SpinnerColumn(), TextColumn("jitsparse: {task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True)
    progress.add_task(text, total=None)
    progress.start()
    return progress


def _terminal() -> bool:
    return sys.stderr.isatty() and config.get().live


def _admits(log: str, level: str) -> bool:
    order = config.LOG_LEVELS
    return order.index(level) >= order.index(log)


def _short(path: Path) -> str:
    # A user without a home has none to shorten; Path.home() would raise.
    home = os.path.expanduser("~")
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
