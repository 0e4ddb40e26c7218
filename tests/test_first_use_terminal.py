"""A first use in a pseudo-terminal: one live line while it lasts, one line that stays.

The child's terminal is a real one, and pyte, a terminal emulator, tells what a person would see.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import terminal
import toykernel

VARIANT = "axpy.omp.generic.f32.s2"
LIVE = rf"\S jitsparse: compiling {re.escape(VARIANT)}, (\d+\.\d) s"

SCRIPT = """\
import sys, threading, time
sys.path.insert(0, {tests!r})
import toykernel
from jitsparse.jit import load, config
template = toykernel.template({folder!r})
{prologue}
print(toykernel.run(load(template, toykernel.variant(2))))
"""


class Session(terminal.Terminal):
    """A first use whose compiler runs until it is released."""

    def __init__(
        self,
        folder: Path,
        *,
        columns: int = 100,
        prologue: str = "",
        stdout: int | None = None,
        **environment: str,
    ) -> None:
        self._held = folder / "go"
        script = SCRIPT.format(
            tests=str(Path(__file__).parent), folder=str(folder), prologue=prologue
        )
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        super().__init__(
            [sys.executable, "-c", script],
            {
                **inherited,
                "TERM": "xterm-256color",
                "HOME": str(folder),
                "JITSPARSE_CACHE_DIR": str(folder / ".cache" / "jitsparse"),
                "JITSPARSE_LOG": "info",
                **environment,
            },
            columns=columns,
            stdout=stdout,
        )

    def finish(self) -> list[str]:
        self._held.touch()
        return super().finish()

    def close(self) -> None:
        self._held.touch()
        super().close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Starts a session whose compiler runs until it is released."""
    toykernel.write(tmp_path)
    before = f'until [ -e "{tmp_path / "go"}" ]; do sleep 0.05; done'
    held, _ = toykernel.compiler(tmp_path / "held", before=before)
    sessions: list[Session] = []

    def started(**about: object) -> Session:
        about = {"CXX": str(held), **about}
        sessions.append(Session(tmp_path, **about))  # type: ignore[arg-type]
        return sessions[-1]

    yield started
    for session in sessions:
        session.close()


def seconds(lines: list[str]) -> float:
    """The seconds of the live line, 0 before there is one."""
    match = re.match(LIVE, lines[-1]) if lines else None
    return float(match[1]) if match else 0.0


def test_one_live_line_then_one_that_stays(start: Callable[..., Session]) -> None:
    session = start()
    session.read_until(lambda lines: seconds(lines) > 0)
    shown = seconds(session.lines)
    assert shown >= 1.0  # counted from the beginning, not from when it appeared
    assert len(session.lines) == 1
    assert session.lines[0].endswith(" s (kept in ~/.cache/jitsparse)")
    session.read_until(lambda lines: seconds(lines) > shown + 0.5)
    assert len(session.lines) == 1
    stays, answer = session.finish()
    assert re.fullmatch(
        rf"jitsparse: compiled {re.escape(VARIANT)} in \d+\.\d s \(kept in ~/\.cache/jitsparse\)",
        stays,
    )
    assert answer == "True"
    assert not session.screen.cursor.hidden


def test_it_says_how_long_it_took_last_time(tmp_path: Path, start: Callable[..., Session]) -> None:
    remembered = tmp_path / ".cache" / "jitsparse" / "v1" / "seconds"
    remembered.mkdir(parents=True, mode=0o700)
    (remembered / VARIANT).write_text("2.841")
    session = start()
    session.read_until(lambda lines: seconds(lines) > 0)
    about = "(2.8 s last time; kept in ~/.cache/jitsparse)"
    assert session.lines[0].endswith(about)
    assert session.finish()[0].endswith(about)


@pytest.mark.parametrize("columns", [30, 79])
def test_it_fits_into_one_line(columns: int, start: Callable[..., Session]) -> None:
    session = start(columns=columns, NO_COLOR="1")
    session.read_until(lambda lines: any("compiling" in line for line in lines))
    shown = session.raw.count(b"compiling")
    session.read_until(lambda lines: session.raw.count(b"compiling") > shown + 3)
    assert len(session.lines) == 1
    left = session.finish()
    assert "".join(left).startswith("jitsparse: compiled")
    assert left[-1] == "True"
    assert not any("compiling" in line for line in left)
    assert not re.search(rb"\x1b\[[0-9;]*3\d", session.raw)  # no colour


TALK = """\
from jitsparse.jit import live
def talk():
    while not live._board.works: time.sleep(0.05)
    time.sleep(0.5)
    print("meanwhile", flush=True)
    print("shown", file=sys.stderr)
threading.Thread(target=talk, daemon=True).start()
"""


def test_what_is_printed_meanwhile_appears_above(start: Callable[..., Session]) -> None:
    session = start(prologue=TALK)
    session.read_until(lambda lines: "shown" in lines and seconds(lines) > 0)
    assert session.lines[:-1] == ["meanwhile", "shown"]
    assert [line.split()[0] for line in session.finish()] == [
        "meanwhile",
        "shown",
        "jitsparse:",
        "True",
    ]


def test_a_redirected_stdout_gets_all_that_is_printed(
    tmp_path: Path, start: Callable[..., Session]
) -> None:
    """The live line takes over the terminal, not the file that stdout is."""
    with (tmp_path / "out").open("wb") as out:
        session = start(prologue=TALK, stdout=out.fileno())
        session.read_until(lambda lines: "shown" in lines)
        left = session.finish()
    assert (tmp_path / "out").read_text() == "meanwhile\nTrue\n"
    assert [line.split()[0] for line in left] == ["shown", "jitsparse:"]


def test_a_waiter_counts_the_seconds(tmp_path: Path, start: Callable[..., Session]) -> None:
    holder = start()
    holder.read_until(lambda lines: seconds(lines) > 0)
    waiter = start()
    who = rf"pid {holder.process.pid} on \S+"
    waiter.read_until(
        lambda lines: (
            lines
            and re.fullmatch(
                rf"\S jitsparse: waiting for {who}, which is compiling {VARIANT}, \d+\.\d s",
                lines[0],
            )
        )
    )
    assert len(waiter.lines) == 1
    stays, answer = waiter.finish()
    assert re.fullmatch(rf"jitsparse: waited for {who} to compile {VARIANT}, \d+\.\d s", stays)
    assert answer == "True"
    holder.finish()


RELEASE = """\
from jitsparse.jit import progress
from pathlib import Path
announced = progress._announced
def later(*about, **more):
    go = Path(template.source.parent, "go")
    threading.Timer(1.5 * progress.PATIENCE, go.touch).start()
    return announced(*about, **more)
progress._announced = later
"""


@pytest.mark.parametrize(
    "environment", [{"JITSPARSE_LOG": "quiet"}, {"RANK": "1"}], ids=["quiet", "rank 1"]
)
def test_nothing(environment: dict[str, str], start: Callable[..., Session]) -> None:
    """It is released when the announcement would have been made."""
    session = start(prologue=RELEASE, **environment)
    session.read_until(lambda lines: lines)
    assert session.finish() == ["True"]
    assert session.raw == b"True\r\n"


def test_an_interrupt_gives_the_terminal_back(start: Callable[..., Session]) -> None:
    session = start(prologue=toykernel.HEARS_CTRL_C)
    session.read_until(lambda lines: seconds(lines) > 0)
    assert session.screen.cursor.hidden
    session.process.send_signal(signal.SIGINT)
    session.read_until(lambda lines: "KeyboardInterrupt" in lines)
    assert not session.screen.cursor.hidden
    assert b"jitsparse: interrupted" in session.raw
    assert session.process.wait(60) != 0


def test_a_dumb_terminal_gets_plain_lines(start: Callable[..., Session]) -> None:
    session = start(TERM="dumb")
    session.read_until(lambda lines: any("compiling" in line for line in lines))
    session.finish()
    assert b"\x1b" not in session.raw
    opening, closing, answer = session.raw.decode().splitlines()
    assert opening == f"jitsparse: compiling {VARIANT} (first use; kept in ~/.cache/jitsparse)"
    assert closing.startswith(f"jitsparse: compiled {VARIANT} in ")
    assert answer == "True"
