"""One line that is redrawn while this process waits for a compiler, and where it is drawn.

On a terminal it is the last line, and what is printed meanwhile appears above it. In a notebook it
is an output of the cell, updated in place by messages that every front end supports; it needs no
widgets. Elsewhere nothing is live.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from jitsparse.jit import config, forks

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Work", "finish", "show"]

REDRAWS = 8
"""Per second, on a terminal."""
UPDATE_INTERVAL = 0.5
"""Seconds between two messages to a notebook, each of which goes over the network."""


@dataclass(frozen=True)
class Work:
    """Something that the program waits for.

    Attributes:
        doing: what, as in ``compiling <variant> [2/3]``.
        details: more about it, most important first.
        started: when, on the clock of ``time.perf_counter``.
    """

    doing: str
    details: tuple[str, ...]
    started: float

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.perf_counter() - self.started


class _Surface(Protocol):
    def finish(self, line: str, say: Callable[[str], None], last: bool) -> None:
        """Print a line that stays; the live one disappears with the last work."""

    def abandon(self) -> None:
        """Forget the line in a forked child, which has no thread that draws it."""


class _Board:
    """What is under way in this process, and the surface that shows it."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.works: list[Work] = []
        self.surface: _Surface | None = None

    def text(self, width: int | None = None) -> str:
        """The live line: the longest-running work, with as many details as there is room for."""
        # Without the guard: its holder may be waiting for the thread that draws.
        works = list(self.works)
        if not works:
            return ""
        more = f" and {len(works) - 1} more" if len(works) > 1 else ""
        head = f"jitsparse: {works[0].doing}{more}, {works[0].seconds:.1f} s"
        return _fitted(head, works[0].details, width)


def _fitted(head: str, details: Sequence[str], width: int | None) -> str:
    for count in range(len(details), 0, -1):
        text = f"{head} ({'; '.join(details[:count])})"
        if width is None or len(text) <= width:
            return text
    return head


_board = _Board()


def _after_fork() -> None:
    global _board
    if _board.surface is not None:
        _board.surface.abandon()
    _board = _Board()


os.register_at_fork(after_in_child=_after_fork)


def show(work: Work) -> bool:
    """Put work on the live line.

    Returns:
        Whether there is one; if not, the work has to be announced in another way.
    """
    with _board.guard:
        # A surface draws as soon as it exists.
        _board.works.append(work)
        if _board.surface is None:
            # A program may have closed its streams, or replaced them by what can only write.
            with contextlib.suppress(Exception):
                _board.surface = _surface()
        if _board.surface is None:
            _board.works.remove(work)
            return False
        return True


def finish(work: Work, line: str, say: Callable[[str], None]) -> None:
    """Take work off the live line.

    Args:
        work: what :func:`show` put there.
        line: the line that stays.
        say: writes a plain line.
    """
    with _board.guard:
        _board.works.remove(work)
        surface, last = _board.surface, not _board.works
        if last:
            _board.surface = None
        if surface is not None:
            try:
                surface.finish(line, say, last)
            except Exception:  # the terminal is gone, or the front end
                say(line)


def _surface() -> _Surface | None:
    if not config.get().live:
        return None
    shell = _notebook()
    if shell is not None:
        return _Notebook(_board.text, shell)
    if sys.stderr is not None and sys.stderr.isatty():
        return _Terminal(_board.text)
    return None


def _notebook() -> Any:
    """The shell of a Jupyter kernel, if this is one; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


class _Terminal:
    """The last line of a terminal, drawn by rich."""

    def __init__(self, text: Callable[[int], str]) -> None:
        forks.ready("rich.console", "rich.live", "rich.spinner", "rich.text")
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self._text = text
        self._streams = sys.stdout, sys.stderr
        console = Console(stderr=True, no_color=not config.get().color)
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
        self._live = Live(
            self,
            console=console,
            refresh_per_second=REDRAWS,
            transient=True,
            # rich sends it to stderr, which is correct only where both streams are the terminal.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._live.start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        frame = self._spinner.render(console.get_time())
        # The frame, a blank, and no character in the last column, where some terminals wrap.
        text = self._text(options.max_width - 3)
        yield Text.assemble(frame, " ", text, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]

    def finish(self, line: str, say: Callable[[str], None], last: bool) -> None:
        if last:
            self._live.stop()
        say(line)

    def abandon(self) -> None:
        sys.stdout, sys.stderr = self._streams


class _Notebook:
    """An output of the cell that is updated in place, and finally holds the lines that stay."""

    def __init__(self, text: Callable[[], str], shell: Any) -> None:
        self._text = text
        self._shell = shell
        self._name = f"jitsparse-{uuid.uuid4().hex}"
        self._kept: list[str] = []
        self._done = threading.Event()
        self._publish(update=False)
        self._thread = threading.Thread(target=self._update, name="jitsparse-line", daemon=True)
        self._thread.start()

    def _publish(self, *, update: bool = True) -> None:
        lines = [*self._kept, *filter(None, [self._text()])]
        self._shell.display_pub.publish(
            {"text/plain": "\n".join(lines)},
            transient={"display_id": self._name},
            update=update,
        )

    def _update(self) -> None:
        while not self._done.wait(UPDATE_INTERVAL):
            self._publish()

    def finish(self, line: str, say: Callable[[str], None], last: bool) -> None:
        self._kept.append(f"jitsparse: {line}")
        if last:
            # No update may come after the final message.
            self._done.set()
            self._thread.join()
        self._publish()

    def abandon(self) -> None:
        pass
