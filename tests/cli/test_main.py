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
import torch
import toykernel

import jitsparse as js
from jitsparse import jit
from jitsparse.bench import cases
from jitsparse.cli import main
from jitsparse.cli.options import one_of
from jitsparse.jit import Cache

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
    said = capsys.readouterr().out
    assert "Usage: jitsparse" in said
    assert "<=x<=" not in said  # a limit of 19 digits
    assert run(command, "-h") == 0
    assert capsys.readouterr().out == said


def test_help_of_commands_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["cache", "ls"]):
        assert run(*words, "-h") == 0
        assert " ".join(["Usage: jitsparse", *words]) in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"jitsparse {js.__version__}\n"


@pytest.mark.parametrize(
    "name", ["float64", "double", "float32", "float", "float16", "half", "bfloat16"]
)
def test_a_dtype_by_the_name_that_torch_has_for_it(name: str) -> None:
    read = one_of(tuple(cases.DTYPES))
    assert cases.DTYPES[read(name)] is getattr(torch, name)
    assert read(f"torch.{name}") == read(read(name)) == read(name)
    with pytest.raises(ValueError, match="not one of f64, tf32"):
        one_of(("f64", "tf32"))("float32")


@pytest.mark.parametrize(
    "arguments",
    [
        ["warmup", "--op", "dsd", "--block-size", "32", "--device", "cpu", "--dry-run"],
        ["list", "--known", "--op", "dsd", "--arch", "avx2"],
        ["list"],
        ["explain", "dsd", "--device", "cpu"],
        ["tune", "--op", "dsd", "--device", "cpu", "--dry-run"],
    ],
    ids=" ".join,
)
def test_commands_take_both_names_of_a_dtype(
    arguments: list[str], cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over a cache of its own, into which no other test puts a kernel between the two."""
    toykernel.publish(Cache(cache_dir), 2, age=0)
    said = []
    for name in ("f32", "float32"):
        assert run(*arguments, "--dtype", name, "--json") == 0
        said.append(capsys.readouterr().out)
    assert json.loads(said[0])
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("arguments", "said", "what"),
    [
        (["list", "--arch", "foo"], "--arch: 'foo' is not a target.", "foo"),
        (["list", "--known", "--arch", "3.5"], "--arch: '3.5' is a GPU older", "3.5"),
        (["warmup", "--variant", "foo"], "--variant: 'foo' is not the name of a variant", "foo"),
        (["explain", "dsd", "--block-size", "24"], "--block-size: block size 24 is not", "24"),
        (["explain", "dsd", "--density", "0"], "--density: '0': a density is above 0", "'0'"),
        (["explain", "dsd", "--dtype", "f8"], "--dtype: 'f8': not one of f64, f32", "f8"),
        (["explain", "dsd", "--m", "2147483648"], "2147483648 is more than 2147483647", "648"),
    ],
)
def test_what_was_given_is_said_once(
    arguments: list[str], said: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    error = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    assert said in error
    assert error.count(what) == 1


@pytest.mark.parametrize(
    "arguments", [["explain", "dsd"], ["bench"], ["demo"], ["tune"]], ids=" ".join
)
def test_a_gpu_that_is_not_there_is_asked_for_in_vain(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(*arguments, "--device", "cuda") == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert "Invalid value for --device: " in captured.err


def test_a_list_of_the_cache_needs_no_torch(cache_dir: Path, tmp_path: Path) -> None:
    jit.compile_only(toykernel.write(tmp_path), toykernel.variant())
    code = (
        "import sys; from jitsparse.cli import main\n"
        "for asked in ([], ['--op', 'axpy', '--dtype', 'float32', '--arch', 'generic']):\n"
        "    try: main(['list', *asked])\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "JITSPARSE_CACHE_DIR": str(cache_dir)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.count("axpy.omp.generic.f32.s2") == 2


def test_a_list_tells_two_kernels_of_a_variant_apart(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON they are what ``cache ls`` says of them."""
    template = toykernel.write(tmp_path)
    header = tmp_path / "headers" / "body" / "axpy.h"
    entries = []
    for comment in ("one", "other"):
        header.write_text(f"// {comment}\n{toykernel.HEADER}")
        entries.append(jit.compile_only(template, toykernel.variant()))
    assert run("list") == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [entry.variant, entry.key[:8]] for entry in entries
    ]
    said = {}
    for words in ("list", "cache ls"):
        assert run(*words.split(), "--json") == 0
        said[words] = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in said["list"]] == [str(entry.path) for entry in entries]
    assert said["list"] == sorted(said["cache ls"], key=lambda row: row["created"])


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
