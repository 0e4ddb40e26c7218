"""What a first use says on stderr: a line when it lasts, a line when it is done, or nothing."""

from __future__ import annotations

import io
import re
import sys
import threading
from pathlib import Path

import pytest
import toykernel

from jitsparse.jit import compile_only, config, progress

VARIANT = "axpy.omp.generic.f32.s2"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)


def compile_slowly(said: threading.Event | None = None, **about: object) -> None:
    """A compilation that ends when its announcement has been made, however long that takes."""
    with progress.compiling(VARIANT, Path("/cache"), **about):  # type: ignore[arg-type]
        if said is not None:
            assert said.wait(60)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a line has been opened."""
    event = threading.Event()
    original = progress._Line.open

    def opened(line: progress._Line) -> None:
        original(line)
        event.set()

    monkeypatch.setattr(progress._Line, "open", opened)
    return event


def test_two_plain_lines(said: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    """As a notebook and a log file get them."""
    with config.override(log="info"):
        compile_slowly(said)
    opening, closing = capsys.readouterr().err.splitlines()
    assert opening == f"jitsparse: compiling {VARIANT} (first use; kept in /cache)"
    assert re.fullmatch(rf"jitsparse: compiled {re.escape(VARIANT)} in \d+\.\d s", closing)


def test_position_and_last_time(said: threading.Event, capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(log="info"):
        compile_slowly(said, position=(2, 3), last_seconds=2.84)
    opening = capsys.readouterr().err.splitlines()[0]
    assert f"compiling {VARIANT} [2/3] (first use, 2.8 s last time; kept in" in opening


def test_an_interrupt_closes_the_line(
    said: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        with progress.compiling(VARIANT, Path("/cache")):
            assert said.wait(60)
            raise KeyboardInterrupt

    with config.override(log="info"), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert f"jitsparse: interrupted {VARIANT} after" in capsys.readouterr().err


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
    monkeypatch.setattr(progress, "_Line", None)  # would fail if a line were prepared
    with config.override(**{"log": "info", **silence}):
        compile_slowly()
        progress.waiting(VARIANT, "pid 1")
    assert capsys.readouterr().err == ""


def test_a_build_in_the_background_leaves_the_terminal_alone(
    said: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> None:
        progress.use_plain_lines()
        compile_slowly(said)

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with config.override(log="info", live=True):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    opening, closing = terminal.getvalue().splitlines()
    assert opening.startswith(f"jitsparse: compiling {VARIANT}")
    assert closing.startswith(f"jitsparse: compiled {VARIANT}")


def test_a_terminal_gets_a_live_line(
    said: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with config.override(log="info", live=True):
        compile_slowly(said)
    text = terminal.getvalue()
    assert f"compiling {VARIANT}" in text
    assert text.splitlines()[-1].endswith(" s")
    assert f"jitsparse: compiled {VARIANT} in" in text.splitlines()[-1]


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
