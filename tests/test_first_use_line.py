"""What a first use says on stderr: a line when it lasts, a line when it is done, or nothing.

Where it is written to is a matter of test_first_use_terminal.py and test_notebook.py.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel

from jitsparse.jit import background, compile_only, config, live, progress

VARIANT = "axpy.omp.generic.f32.s2"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.001)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a line has been opened."""
    event = threading.Event()
    original = progress._Announcement.open

    def opened(announcement: progress._Announcement) -> None:
        original(announcement)
        event.set()

    monkeypatch.setattr(progress._Announcement, "open", opened)
    return event


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Have stderr be a terminal; no fixture, because pytest sets it anew between setup and call."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    return stream


def compile_slowly(said: threading.Event | None = None, **about: object) -> None:
    """A compilation that ends when its announcement has been made, however long that takes."""
    with progress.compiling(VARIANT, Path("/cache"), **about):  # type: ignore[arg-type]
        if said is not None:
            assert said.wait(60)


def test_two_plain_lines(said: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    """As a log file gets them."""
    with config.override(log="info"):
        compile_slowly(said)
    opening, closing = capsys.readouterr().err.splitlines()
    assert opening == f"jitsparse: compiling {VARIANT} (first use; kept in /cache)"
    assert re.fullmatch(rf"jitsparse: compiled {re.escape(VARIANT)} in \d+\.\d s", closing)


def test_position_and_last_time(said: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(log="info"):
        compile_slowly(said, position=(2, 3), last_seconds=2.84)
    opening, closing = capsys.readouterr().err.splitlines()
    assert opening == (
        f"jitsparse: compiling {VARIANT} [2/3] (first use; 2.8 s last time; kept in /cache)"
    )
    assert closing.startswith(f"jitsparse: compiled {VARIANT} [2/3] in ")


def test_the_only_one_is_not_counted(
    said: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.override(log="info"):
        compile_slowly(said, position=(1, 1))
    assert "[" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "word"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")]
)
def test_an_error_closes_the_line(
    error: type[BaseException],
    word: str,
    said: threading.Event,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped() -> None:
        with progress.compiling(VARIANT, Path("/cache")):
            assert said.wait(60)
            raise error

    with config.override(log="info"), pytest.raises(error):
        stopped()
    assert f"jitsparse: {word} {VARIANT} after" in capsys.readouterr().err


def test_a_quick_one_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 3600.0)
    with config.override(log="info"):
        compile_slowly()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("silence", [{"log": "quiet"}, {"log": "warning"}, {"rank": 3}])
def test_silence(
    silence: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Would fail if anything were announced.
    monkeypatch.setattr(progress._Announcement, "open", None)
    with config.override(**{"log": "info", **silence}):
        compile_slowly()
        with progress.waiting(VARIANT, "pid 1", time.perf_counter()):
            pass
    assert capsys.readouterr().err == ""


def test_where_no_thread_can_start_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of the interpreter, or at the limit of a container, a kernel is compiled all the
    same."""

    def refused(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refused)
    with config.override(log="info"):
        compile_slowly()
    assert capsys.readouterr().err == ""


def test_a_waiter_says_whom_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(log="info"):
        with progress.waiting(VARIANT, "pid 7 on host", time.perf_counter() - 3):
            pass
    opening, closing = capsys.readouterr().err.splitlines()
    assert opening == f"jitsparse: waiting for pid 7 on host, which is compiling {VARIANT}"
    assert re.fullmatch(
        rf"jitsparse: waited for pid 7 on host to compile {re.escape(VARIANT)}, 3\.\d s", closing
    )


def test_a_build_in_the_background_leaves_the_terminal_alone(
    said: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> None:
        progress.use_plain_lines()
        compile_slowly(said)

    terminal = on_terminal(monkeypatch)
    with config.override(log="info", live=True):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    opening, closing = terminal.getvalue().splitlines()
    assert opening.startswith(f"jitsparse: compiling {VARIANT}")
    assert closing.startswith(f"jitsparse: compiled {VARIANT}")


def test_builds_in_the_background_are_counted(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """One job at a time, and the first does not end before all have been asked for."""
    go = tmp_path / "go"
    slow, _ = toykernel.compiler(
        tmp_path / "slow", before=f'until [ -e "{go}" ]; do sleep 0.05; done'
    )
    template = toykernel.write(tmp_path)
    with config.override(log="info", max_jobs=1, cxx=str(slow)):
        builds = [background.start(template, toykernel.variant(scale)) for scale in (2, 3, 4)]
        go.touch()
        for build in builds:
            assert toykernel.run(build.result(120))
    said = [line for line in capsys.readouterr().err.splitlines() if "compiled" in line]
    assert [re.search(r"s\d \[(\d/\d)\] in ", line)[1] for line in said[1:]] == ["2/3", "3/3"]  # type: ignore[index]


def test_the_one_live_line_stands_for_all(
    said: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that run at once the line names the first, and each leaves one line that stays."""
    terminal = on_terminal(monkeypatch)
    with config.override(log="info", live=True, color=False):
        with progress.compiling("first", Path("/cache"), position=(1, 2)):
            assert said.wait(60)
            said.clear()
            with progress.compiling("second", Path("/cache"), position=(2, 2)):
                assert said.wait(60)
                assert live._board.text().startswith(
                    "jitsparse: compiling first [1/2] and 1 more, "
                )
                assert not live._board.text(40).endswith(")")
            assert " more" not in live._board.text()
    lines = [line for line in re.split(r"[\r\n]+", terminal.getvalue()) if "compiled" in line]
    stays = [re.search(r"jitsparse: compiled (\w+) \[\d/2\] in \d+\.\d s", line) for line in lines]
    assert [match[1] for match in stays if match] == ["second", "first"]
    assert live._board.surface is None


class Writer:
    """What programs put in a stream's place to have its lines in a log."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_streams_that_only_write(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for another process announces that at once, where an error would be the
    program's."""
    log = on_terminal(monkeypatch)
    writer = Writer()
    monkeypatch.setattr(sys, stream, writer)
    with config.override(log="info", live=True):
        with progress.waiting(VARIANT, "pid 7 on host", time.perf_counter()):
            assert live._board.surface is None
    assert "waited for pid 7" in (writer.text if stream == "stderr" else log.getvalue())
    assert not live._board.works


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_closed_streams(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    closed = Terminal()
    closed.close()
    monkeypatch.setattr(sys, stream, closed)
    with config.override(log="info", live=True):
        with progress.waiting(VARIANT, "pid 7 on host", time.perf_counter()):
            pass
    assert not live._board.works


def test_a_terminal_that_goes_away(said: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)

    def hung_up(text: str) -> int:
        raise OSError(5, "Input/output error")

    with config.override(log="info", live=True):
        with progress.compiling(VARIANT, Path("/cache")):
            assert said.wait(60)
            assert live._board.surface is not None
            monkeypatch.setattr(terminal, "write", hung_up)
    assert live._board.surface is None
    assert sys.stderr is terminal


def test_details_give_way_to_a_narrow_terminal() -> None:
    details = ("2.8 s last time", "kept in /cache")
    assert live._fitted("compiling", details, None).endswith("(2.8 s last time; kept in /cache)")
    assert live._fitted("compiling", details, 40) == "compiling (2.8 s last time)"
    assert live._fitted("compiling", details, 20) == "compiling"


def test_a_forked_child_has_its_streams_and_no_live_line(
    said: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    with config.override(log="info", live=True):
        with progress.compiling(VARIANT, Path("/cache")):
            assert said.wait(60)
            assert sys.stderr is not terminal  # rich stands before it
            pid = os.fork()
            if pid == 0:
                os._exit(0 if sys.stderr is terminal and live._board.surface is None else 1)
            assert os.waitpid(pid, 0)[1] == 0
    assert sys.stderr is terminal


def test_the_last_duration_is_remembered(tmp_path: Path, cache_dir: Path) -> None:
    from jitsparse.jit import cache

    template = toykernel.write(tmp_path)
    entry = compile_only(template, toykernel.variant())
    here = cache.current()
    assert here.last_seconds(VARIANT) == pytest.approx(entry.compile_seconds, abs=1e-3)
    assert here.clear() == 1
    assert here.last_seconds(VARIANT) == pytest.approx(entry.compile_seconds, abs=1e-3)
    assert here.last_seconds("another") is None


@pytest.mark.parametrize("log", ["info", "quiet"])
def test_a_first_use_in_a_process_of_its_own(log: str, tmp_path: Path) -> None:
    """Compiling takes 1.5 s here, which is long enough to be announced; stdout stays clean."""
    toykernel.write(tmp_path)
    slow, _ = toykernel.compiler(tmp_path / "slow", before="sleep 1.5")
    child = toykernel.start(tmp_path, tmp_path / "cache", CXX=str(slow), JITSPARSE_LOG=log)
    toykernel.release(child)
    out, err = child.communicate(timeout=120)
    assert out == "True\n"
    if log == "quiet":
        assert err == ""
    else:
        opening, closing = err.splitlines()
        assert opening == (
            f"jitsparse: compiling {VARIANT} (first use; kept in {tmp_path / 'cache'})"
        )
        assert closing.startswith(f"jitsparse: compiled {VARIANT} in ")


def test_a_process_waits_for_another(tmp_path: Path) -> None:
    """The other one is held by its compiler until the waiter has said whom it waits for."""
    toykernel.write(tmp_path)
    go = tmp_path / "go"
    slow, notes = toykernel.compiler(
        tmp_path / "slow", before=f'until [ -e "{go}" ]; do sleep 0.05; done'
    )
    holder, waiter = (
        toykernel.start(tmp_path, tmp_path / "cache", CXX=str(slow), JITSPARSE_LOG="info")
        for _ in range(2)
    )
    toykernel.release(holder)
    toykernel.wait_for_the_compiler(notes)
    toykernel.release(waiter)
    assert waiter.stderr is not None
    line = waiter.stderr.readline()
    assert re.fullmatch(
        rf"jitsparse: waiting for pid {holder.pid} on \S+, which is compiling {VARIANT}\n", line
    )
    go.touch()
    for process in (holder, waiter):
        assert process.communicate(timeout=120)[0] == "True\n"
    assert toykernel.compilations(notes) == 1
