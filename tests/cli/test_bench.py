from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jitsparse.bench import suites
from jitsparse.bench.cases import Case
from jitsparse.bench.products import Measurement
from jitsparse.cli import main
from jitsparse.jit import config
from jitsparse.jit.cache import VERSION

SMALL = ["bench", "--device", "cpu", "--size", "128", "--density", "0.25", "--seconds", "0"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--op", "dsd", "--block-size", "32,16", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["block"] for row in data["rows"]] == ["32x32", "16x16"]
    for row in data["rows"]:
        assert row["density"] == 0.25
        assert row["ratio to dense"] > 0
        assert row["times torch BSR"] > 0
        assert row["variant"].startswith("dsd.")
    assert {"device", "threads", "torch", "command"} <= set(data["measured"])


def test_markdown_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--op", "sdd", "--size", "64x128x32", "--markdown") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("device ")
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + 2  # a head, a rule, and a row for each size
    assert any("64x128x32" in line for line in table)
    assert "torch BSR is absent from sdd f32: torch has no block-sparse sdd on a CPU." in lines
    assert not any("stk" in line for line in lines)


def test_pivots_are_views_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    pivots = ["--pivot", "ratio to dense", "--pivot", "useful rate"]
    assert run(*SMALL, "--op", "dsd,sdd", "--density", "0.5", "--markdown", *pivots) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.startswith("| op |")]
    assert heads == ["| op | density 0.25 | density 0.5 |"] * 2
    assert sum(line.startswith("| dsd |") for line in lines) == 2


def test_options_narrow_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    narrow = ["--op", "dds", "--dtype", "f32", "--block-size", "64"]
    assert run(*SMALL, "--suite", "cpu", *narrow, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["op"], row["dtype"], row["block"], row["size"]) == ("dds", "f32", "64x64", "128")


HOPPER = ["bench", "--device", "cpu", "--suite", "hopper", "--seconds", "0"]
NARROW = ["--block-size", "64", "--density", "0.25", "--op", "dsd", "--layout", "tn"]


def test_sections_of_the_hopper_suite_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    sections = ["--section", "products,linear"]
    assert run(*HOPPER, *sections, "--block-size", "64", "--density", "0.5", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    (table,) = data["tables"]  # linear layers are measured at a density of 0.25 alone
    assert table["section"] == "products"
    assert {(row["op"], row["block"], row["density"]) for row in table["rows"]} == {
        (op, "64x64", 0.5) for op in ("dsd", "dds", "sdd")
    }
    assert "command" in data["measured"]


def test_sections_of_the_hopper_suite_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*HOPPER, *NARROW, "--section", "products,skew", "--markdown") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("device ")
    titles = [line for line in lines if line.startswith("**")]
    assert [title.strip("*").split(";")[0] for title in titles] == [
        "ratio to dense",
        "useful rate",
        "power-law rows beside uniform ones",
    ]
    assert all("layout tn" in title for title in titles[:2])
    assert (
        "torch BSR is absent from dsd bf16: "
        "torch has no block-sparse product of bfloat16 on a CPU." in lines
    )
    assert not any("stk" in line for line in lines)


def test_a_pivot_of_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*HOPPER, *NARROW, "--section", "products", "--pivot", "us", "--markdown") == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("**")]
    assert [title.strip("*").split(";")[0] for title in titles] == ["us"]


@pytest.mark.parametrize("error", [RuntimeError("the driver is gone"), KeyboardInterrupt()])
@pytest.mark.parametrize("shape", ["--json", "--markdown"])
def test_what_was_measured_before_an_error_is_shown(
    shape: str,
    error: BaseException,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure, cases = suites.measure, []

    def second_fails(case: Case, **how: Any) -> Measurement:
        cases.append(case)
        if len(cases) > 1:
            raise error
        return measure(case, **how)

    monkeypatch.setattr(suites, "measure", second_fails)
    with pytest.raises((RuntimeError, SystemExit)):
        main([*SMALL, "--op", "dsd", "--block-size", "32,16,8", shape])
    out = capsys.readouterr().out
    assert len(cases) == 2
    assert "32x32" in out
    assert f"1 of 3 cases: dsd nn f32 128 16x16 random 0.25 ended it, {error!r}." in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "hopper", "--section", "colours"], "there is no section 'colours'"),
        (["--suite", "cpu", "--section", "linear"], "it selects from --suite hopper or first-use"),
        (["--suite", "first-use", "--section", "ten"], "one, twenty, together"),
        (["--suite", "hopper", "--section", "linear", "--op", "dsd"], "no case of linear has op"),
        (["--suite", "hoper"], "cpu, portable, patterns, hopper, overhead, first-use"),
        (["--suite", "first-use", "--op", "dsd"], "--suite first-use measures no products"),
        (["--suite", "overhead", "--pivot", "us"], "--suite overhead measures no products"),
    ],
)
def test_what_cannot_be_selected(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "--device", "cpu", *arguments) == 2
    error = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    assert said in error


def test_a_fallback_is_never_what_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forget: Callable[[], None]
) -> None:
    """With ``JITSPARSE_FIRST_USE=fallback`` an empty cache would have plain torch measured."""
    with config.override(cache_dir=tmp_path, first_use="fallback"):
        assert run(*SMALL, "--op", "sdd", "--block-size", "8", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["variant"].startswith("sdd.")
    assert list((tmp_path / VERSION).glob("*-*"))


def test_a_pivot_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--json", "--pivot", "us") == 2
    assert "--pivot" in capsys.readouterr().err
