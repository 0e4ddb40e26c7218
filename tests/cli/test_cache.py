from __future__ import annotations

import json
from pathlib import Path

import pytest

import jitsparse as js
from jitsparse.cli import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


WARM = [
    "warmup",
    "--op",
    "dsd",
    "--dtype",
    "f32",
    "--block-size",
    "32",
    "--device",
    "cpu",
    "--json",
]


def test_a_life_of_the_cache(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, filled by warm-up, listed, found by explain, warm, cleared."""

    def output(*arguments: str) -> object:
        assert run(*arguments) == 0
        return json.loads(capsys.readouterr().out)

    assert output("cache", "path", "--json") == {"path": str(cache_dir)}
    assert output("cache", "info", "--json")["entries"] == 0  # type: ignore[index]
    assert output("list", "--json") == []
    explained = output("explain", "dsd", "--device", "cpu", "--json")
    assert explained["cached"] is False  # type: ignore[index]

    outcomes = output(*WARM)["outcomes"]  # type: ignore[index]
    names = {outcome["variant"] for outcome in outcomes}
    assert {outcome["status"] for outcome in outcomes} == {"compiled"}
    assert all(outcome["compile_seconds"] > 0 for outcome in outcomes)

    listed = output("list", "--json")
    assert {row["variant"] for row in listed} == names  # type: ignore[union-attr]
    assert output("list", "--op", "sdd", "--json") == []
    assert len(output("list", "--block-size", "32", "--json")) == len(names)  # type: ignore[arg-type]
    info = output("cache", "info", "--json")
    assert info == js.cache_info()
    assert info["entries"] == len(names)  # type: ignore[index]
    explained = output("explain", "dsd", "--device", "cpu", "--json")
    assert explained["cached"] is True  # type: ignore[index]
    assert explained["variant"] in names  # type: ignore[index]

    again = output(*WARM)["outcomes"]  # type: ignore[index]
    assert {outcome["status"] for outcome in again} == {"cached"}
    assert output("cache", "clear", "--json") == {"path": str(cache_dir), "deleted": len(names)}
    assert output("list", "--json") == []


def test_known_variants_are_what_warmup_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    from jitsparse.warmup import plan

    filters = ["--op", "dsd,sdd", "--dtype", "bf16", "--block-size", "64", "--arch", "9.0a"]
    assert run("list", "--known", "--json", *filters) == 0
    listed = [row["variant"] for row in json.loads(capsys.readouterr().out)]
    planned = plan(op=["dsd", "sdd"], dtype="bf16", block_size=64, arch="9.0a")
    assert listed == [variant.name for variant in planned]


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--known", "--op", "dsd", "--dtype", "f32", "--arch", "sm80") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].strip() == "variant"
    assert all(line.startswith("dsd.") for line in lines[1:])
    assert f"{len(lines) - 1} known variants" in captured.err
