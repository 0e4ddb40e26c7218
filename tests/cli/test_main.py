"""What every command keeps to: exit codes, streams, no colour where none is wanted."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jitsparse.cli import main

COMMANDS = ["demo", "warmup", "list", "explain", "bench", "tune", "doctor", "cache"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_more_memory_than_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--size", "10000000", "--density", "0.000000001", "--block-size", "8"]
    assert main(["tune", "--device", "cpu", *size, "--dry-run"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("jitsparse: out of memory: ")
    assert "Traceback" not in error


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert "Usage: jitsparse" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["bench", "--op", "ddd"],
        ["bench", "--suite", "nope"],
        ["bench", "--size", "0"],
        ["bench", "--density", "2"],
        ["bench", "--device", "tpu"],
        ["explain", "ddd"],
        ["explain", "dsd", "--dtype", "f8"],
        ["explain", "dsd", "--block-size", "24"],
        ["explain", "dsd", "--density", "nan"],
        ["explain", "dsd", "--arch", "avx2", "--device", "cuda"],
        ["explain", "dsd", "--arch", "avx2", "--gpu", "H100"],
        ["bench", "--json", "--markdown"],
        ["list", "--known", "--block-size", "24"],
        ["warmup", "--op", "dsd", "--from", "x.jsonl"],
        ["warmup", "--op", "ddd"],
        ["warmup", "--dtype", "f8"],
        ["warmup", "--arch", "pentium"],
        ["list", "--known", "--op", "ddd"],
        ["warmup", "--from", "/nonexistent/record"],
        ["tune", "--export", "/dev/null"],
        ["tune", "--export", "/proc/none/table.json"],
        ["demo", "--steps", "-1"],
        ["tune", "--op", "ddd"],
        ["tune", "--dtype", "f8"],
        ["tune", "--block-size", "24"],
        ["tune", "--size", "1x2"],
        ["tune", "--size", "2147483648", "--dry-run"],
        ["tune", "--density", "0"],
        ["tune", "--layout", "nx"],
        ["tune", "--device", "tpu"],
        ["tune", "--seconds", "-1"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert "Usage: jitsparse" in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["warmup", "--arch", "9.0a", "--device", "cpu"],
        ["warmup", "--arch", "avx2", "--dtype", "tf32", "--op", "dsd", "--device", "cuda"],
    ],
    ids=" ".join,
)
def test_errors_are_messages_and_not_tracebacks(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith("jitsparse: ")
    assert "Traceback" not in captured.err


def test_module_is_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jitsparse", "cache", "path", "--json"]
    environment = {**os.environ, "JITSPARSE_CACHE_DIR": str(tmp_path / "there")}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(result.stdout) == {"path": str(tmp_path / "there")}
    assert not (tmp_path / "there").exists()


def test_errors_without_stderr_are_not_data(tmp_path: Path) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m jitsparse cache path 2>&-"
    environment = {**os.environ, "JITSPARSE_LOG": "loud"}
    result = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, env=environment)
    assert (result.returncode, result.stdout) == (2, b"")


def _in_terminal(*arguments: str, **variables: str) -> str:
    """Output of the program with stdout and stderr on a terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    process = subprocess.Popen(
        [sys.executable, "-m", "jitsparse", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=child,
        stderr=child,
        env=environment,
    )
    os.close(child)
    chunks = []
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:  # Linux: the last holder of the other end is gone
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(parent)
    assert process.wait() == 0
    return b"".join(chunks).decode()


def test_colour_on_a_terminal_unless_it_is_unwanted() -> None:
    arguments = ["warmup", "--op", "dsd", "--dtype", "f32", "--block-size", "32", "--device", "cpu"]
    colour = "\x1b[3"
    environment = {"NO_COLOR": ""} if "NO_COLOR" in os.environ else {}
    assert colour in _in_terminal(*arguments, **environment)
    assert colour not in _in_terminal(*arguments, NO_COLOR="1")
