"""Hostile values of every environment variable and every option of the command line.

Whatever stands there, the outcome is one that is legal, or an error that names the variable or the
option and ends with 2. It is never a traceback. Nothing is compiled: what would do so is replaced
by the end of the program.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitsparse.cli import app, main
from jitsparse.doctor.settings import check_variables
from jitsparse.doctor.software import Torch
from jitsparse.errors import ConfigError, PinError
from jitsparse.jit import config
from jitsparse.jit.environment import VARIABLES, Config, legal_part
from jitsparse.jit.pins import parse_pins

# What has broken parsers before. None is an absolute path at which anything could be created.
NUMBERS = ("0", "-1", "1e999", "nan", "inf", "1_000", "0x10", "+5", "1.5", "9" * 30, "9" * 5000)
DIGITS = ("²", "٣", "\uff19.0", "8.\u0663")  # of other scripts
TEXT = (
    "",
    " ",
    "\n",
    "\t\r",
    "\x1b[31m",
    "\x7f",
    "é",
    "漢字",
    "🎲",
    "\u202e",
    "\udcff",
    "a\udc80b",
)
MARKUP = ("[/red]", "[bold", "{}", "%s", "*", "**/[", "--help", "-", "--", "=", ";", ":", ",", ",,")
PATHS = ("a" * 5000, "/" + "a/" * 3000, "~", "~nobody-of-this-name", "..", "/proc/self/none/a")
FILES = ("/dev/null", "/dev/full", "/proc/self/mem", "/proc/self")
WORDS = ("dsd", "dsd=", "=dsd", "dsd=mma", "dsd:=x", "on", "ON", "off", "auto", "cpu", "cuda")
DEVICES = ("cuda:99", "cuda:-1", "cuda:x", "meta", "tpu")
TARGETS = ("9.0a", "9.0a;", "sm_90a", "99.9f", "avx2;amx")
BLOCKS = ("x32", "32x", "32x64x", "32x-64", "24", "1x2", "99999999999999999999x1x1")
NASTY = (*NUMBERS, *DIGITS, *TEXT, *MARKUP, *PATHS, *FILES, *WORDS, *DEVICES, *TARGETS, *BLOCKS)
HOSTILE = st.one_of(
    # No slash: what is created shall be created in the directory of the test.
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), max_size=40),
    st.integers().map(str),
    st.floats().map(str),
)
FEW = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command with the name of every option and argument that it takes."""
    # Recent versions of typer bring a click of their own, so its classes cannot be imported.
    for name, each in getattr(command, "commands", {}).items():
        yield from options(each, (*path, name))
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield path, parameter.name.upper()
        else:
            yield path, max(parameter.opts, key=len)


COMMAND = typer.main.get_command(app)
OPTIONS = list(options(COMMAND))
REQUIRED = {
    "explain": ("dsd",),
    "export": ("bundle.tar",),
    "import": ("bundle.tar",),
    "explain-miss": ("dsd.vec.generic.f32.b8x8.lnn.r4x3",),
}
"""Arguments that a command cannot do without."""
IDS = [" ".join([*path, option]) for path, option in OPTIONS]


def run(arguments: list[str]) -> tuple[int, str]:
    """Exit code and output, on streams as strict as those of a terminal."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors=e) for e in ("strict", "replace")]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
    for stream in streams:
        stream.flush()
    return code, "".join(stream.buffer.getvalue().decode(errors="replace") for stream in streams)


@pytest.fixture(autouse=True)
def nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    modules = (
        "bench.hopper",
        "bench.report",
        "cli.bench",
        "compilation",
        "demo.run",
        "jit.exporting",
    )
    for module in modules:
        importlib.import_module(f"jitsparse.{module}")

    def accepted(*_: object, **__: object) -> None:
        raise typer.Exit(0)

    # Built anew for each of 7,000 runs it is more than half of their time.
    monkeypatch.setattr("typer.main.get_command", lambda _: COMMAND)
    monkeypatch.setattr("jitsparse.compilation.compile_variants", accepted)
    monkeypatch.setattr("jitsparse.demo.run.Demo", accepted)
    for name in ("_measure", "_around"):
        monkeypatch.setattr(f"jitsparse.cli.bench.{name}", accepted)
    monkeypatch.setattr("jitsparse.jit.tuned.export", accepted)
    monkeypatch.setattr("jitsparse.jit.exporting.export", accepted)
    monkeypatch.setattr("jitsparse.cli.bench.header", lambda _: {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Not the session's, whose thousand entries "cache info" would read 5,000 times.
    monkeypatch.setenv("JITSPARSE_CACHE_DIR", str(tmp_path / "cache"))
    with config.override(cache_dir=tmp_path / "cache"):
        yield


def test_the_list_of_variables_is_complete() -> None:
    class Asked(Mapping[str, str]):
        names: set[str] = set()  # noqa: RUF012

        def __getitem__(self, name: str) -> str:
            self.names.add(name)
            raise KeyError(name)

        def __iter__(self) -> Iterator[str]:
            return iter(())

        def __len__(self) -> int:
            return 0

    Config.from_environment(Asked())
    assert Asked.names == set(VARIABLES)


def test_there_are_options() -> None:
    assert {path[0] for path, _ in OPTIONS if path} >= {"warmup", "tune", "doctor", "cache"}
    assert len(OPTIONS) > 50


def judge_variable(name: str, value: str) -> None:
    try:
        found = Config.from_environment({name: value})
        parse_pins(found.pin, "JITSPARSE_PIN: ")
    except (ConfigError, PinError) as error:
        if name not in str(error):
            raise
    legal, errors = legal_part({name: value})
    findings = list(check_variables({name: value}, legal, errors, Torch()))
    assert {each.status for each in findings} <= {"ok", "warn", "fail"}


def judge_program(name: str, value: str) -> None:
    """Commands that read the configuration, with one variable set."""
    for arguments in (["cache", "info"], ["explain", "dsd"]):
        with (
            mock.patch.dict(os.environ, {name: value}),
            mock.patch.object(config, "_current", None),
        ):
            config.bump()
            code, output = run(arguments)
        config.bump()
        assert code in (0, 1, 2)
        assert code != 2 or name in output, (value, output)


def judge_option(path: tuple[str, ...], option: str, value: str) -> None:
    if option.isupper():
        arguments = [*path, "--", value]
    else:
        arguments = [*path, f"{option}={value}", *REQUIRED.get(path[-1] if path else "", ())]
    code, output = run(arguments)
    assert code in (0, 1, 2)
    assert code != 2 or option in output, (value, output)


@pytest.mark.parametrize("name", VARIABLES)
@settings(FEW, max_examples=200)
@given(value=HOSTILE)
def test_a_variable_is_read_or_named(name: str, value: str) -> None:
    judge_variable(name, value)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_with_a_nasty_value_is_read_or_named(name: str) -> None:
    for value in NASTY:
        judge_variable(name, value)
        judge_program(name, value)


@pytest.mark.parametrize("name", VARIABLES)
@FEW
@given(value=HOSTILE)
def test_a_program_with_a_hostile_variable(name: str, value: str) -> None:
    judge_program(name, value)


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
@FEW
@given(value=HOSTILE)
def test_an_option_is_obeyed_or_named(path: tuple[str, ...], option: str, value: str) -> None:
    judge_option(path, option, value)


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_a_nasty_option_is_obeyed_or_named(path: tuple[str, ...], option: str) -> None:
    for value in NASTY:
        judge_option(path, option, value)
