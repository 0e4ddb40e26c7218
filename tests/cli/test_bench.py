from __future__ import annotations

import json

import pytest

from jitsparse.cli import main

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
    assert any("torch BSR is absent from sdd f32" in line for line in lines)


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
    assert any(line.startswith("stk is absent from dsd bf16") for line in lines)


def test_a_pivot_of_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*HOPPER, *NARROW, "--section", "products", "--pivot", "us", "--markdown") == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("**")]
    assert [title.strip("*").split(";")[0] for title in titles] == ["us"]


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
