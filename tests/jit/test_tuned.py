"""The tuned table survives the process and belongs to one kind of machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from jitsparse.errors import ArgumentError
from jitsparse.jit import cache, config, tuned

GPU = "NVIDIA H200"


@pytest.fixture(autouse=True)
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No table comes with jitsparse, except what a test writes."""
    shipped = tmp_path / "shipped"
    monkeypatch.setattr(tuned, "SHIPPED", shipped)
    return shipped


def variant_of(problem: str, machine: str = GPU) -> str | None:
    found = tuned.lookup(problem, machine)
    return found and found.variant


def test_what_is_recorded_is_found_again(cache_dir: Path) -> None:
    assert tuned.lookup("p", GPU) is None
    kept = tuned.record("p", GPU, "fast", {"fast": 1.0, "slow": 2.0}, driver="CUDA 12.8")
    assert kept.path.is_relative_to(cache_dir / "tuned" / "nvidia-h200")
    assert tuned.lookup("p", GPU) == kept
    assert kept.seconds == {"fast": 1.0, "slow": 2.0}
    assert kept.driver == "CUDA 12.8"
    assert not kept.shipped
    tuned.record("p", GPU, "slow", {"slow": 0.5})
    assert variant_of("p") == "slow"
    assert tuned.lookup("q", GPU) is None


def test_the_file_says_where_it_was_measured(cache_dir: Path) -> None:
    kept = tuned.record("p", GPU, "fast", {"fast": 1.0}, driver="CUDA 12.8", version="1.2")
    content = json.loads(kept.path.read_text())
    assert content["created"] > 0
    assert {name: content[name] for name in ("format", "machine", "driver", "version")} == {
        "format": tuned.FORMAT,
        "machine": GPU,
        "driver": "CUDA 12.8",
        "version": "1.2",
    }
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]


def test_seconds_are_by_variant(cache_dir: Path) -> None:
    with pytest.raises(ArgumentError, match=re.escape("{'fast': 1e-3}; got 1.0")):
        tuned.record("p", GPU, "fast", 1.0)


def test_recording_makes_choices_stale(cache_dir: Path) -> None:
    before = config.generation
    tuned.record("p", GPU, "fast", {})
    assert config.generation > before


def test_another_machine_has_its_own_table(cache_dir: Path) -> None:
    tuned.record("p", GPU, "fast", {})
    assert variant_of("p", "Another x2") is None
    tuned.record("p", "Another x2", "other", {})
    assert (variant_of("p"), variant_of("p", "Another x2")) == ("fast", "other")


def test_the_own_cache_then_layers_then_what_is_shipped(
    cache_dir: Path, tmp_path: Path, nothing_shipped: Path
) -> None:
    tuned.record("p", GPU, "shipped", {})
    tuned.record("q", GPU, "shipped", {})
    tuned.export(nothing_shipped / "nvidia-h200.json", GPU)
    layer, own = tmp_path / "layer", tmp_path / "own"
    with config.override(cache_dir=layer):
        found = tuned.lookup("p", GPU)
        assert found is not None
        assert found.shipped
        assert found.path == nothing_shipped / "nvidia-h200.json"
        tuned.record("p", GPU, "layer", {})
    with config.override(cache_dir=own, cache_path=[layer]):
        assert variant_of("p") == "layer"
        tuned.record("p", GPU, "own", {})
        assert variant_of("p") == "own"
        assert variant_of("q") == "shipped"
        assert {p: r.variant for p, r in tuned.records(GPU).items()} == {
            "p": "own",
            "q": "shipped",
        }


def test_export_and_use_elsewhere(cache_dir: Path, tmp_path: Path, nothing_shipped: Path) -> None:
    for problem in ("b", "a"):
        tuned.record(problem, GPU, f"best for {problem}", {"x": 1.0})
    tuned.record("a", "Another x2", "not this", {})
    path = nothing_shipped / "nvidia-h200.json"
    assert tuned.export(path, GPU, driver="CUDA 12.8", commit="abc") == 2
    assert json.loads(path.read_text()) == {
        "format": tuned.FORMAT,
        "machine": GPU,
        "driver": "CUDA 12.8",
        "commit": "abc",
        "entries": {"a": "best for a", "b": "best for b"},
    }
    again = tmp_path / "again.json"
    with config.override(cache_dir=tmp_path / "empty"):
        assert variant_of("a") == "best for a"
        assert variant_of("a", "Another x2") is None
        tuned.export(again, GPU, driver="CUDA 12.8", commit="abc")
    assert again.read_text() == path.read_text()


def test_the_shipped_table_is_parsed_once(
    cache_dir: Path, nothing_shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned.record("p", GPU, "fast", {})
    tuned.export(nothing_shipped / "nvidia-h200.json", GPU)
    parsed = []
    load = tuned._json
    monkeypatch.setattr(tuned, "_json", lambda path: parsed.append(path) or load(path))
    for problem in ("q", "r", "s"):
        assert tuned.lookup(problem, GPU) is None
    assert parsed.count(nothing_shipped / "nvidia-h200.json") == 1


ENTRY = {"format": tuned.FORMAT, "problem": "p", "variant": "v", "driver": None, "seconds": {}}


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "\x00" * 64,
        "[" * 100_000,
        '{"format": 0}',
        json.dumps({"format": tuned.FORMAT}),
        json.dumps({**ENTRY, "variant": None}),
        json.dumps({**ENTRY, "seconds": {"v": "soon"}}),
        json.dumps({**ENTRY, "seconds": {"v": float("nan")}}),
        json.dumps({**ENTRY, "seconds": {"v": -1.0}}),
        json.dumps({**ENTRY, "seconds": 3}),
        json.dumps({**ENTRY, "driver": 3}),
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_file_is_ignored_with_one_warning(damage: str, cache_dir: Path) -> None:
    path = tuned.record("p", GPU, "fast", {}).path
    path.write_text(damage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tuned.lookup("p", GPU) is None
        assert tuned.lookup("p", GPU) is None
        assert tuned.records(GPU) == {}
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert str(path) in str(caught[0].message)


@pytest.mark.parametrize(
    "damage", ["{", '{"format": 0}', '{"format": 1, "entries": {"p": 3}}', '{"format": 1}']
)
def test_a_damaged_shipped_table_is_ignored_with_one_warning(
    damage: str, cache_dir: Path, nothing_shipped: Path
) -> None:
    nothing_shipped.mkdir()
    (nothing_shipped / "nvidia-h200.json").write_text(damage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tuned.lookup("p", GPU) is None
        assert tuned.lookup("q", GPU) is None
    assert len(caught) == 1
    assert "nvidia-h200.json is ignored" in str(caught[0].message)


def test_an_entry_under_another_problems_name_is_not_used(cache_dir: Path) -> None:
    kept = tuned.record("p", GPU, "fast", {})
    kept.path.rename(tuned._path(cache_dir, "q", GPU))
    assert tuned.lookup("q", GPU) is None
    assert tuned.records(GPU) == {}


def test_what_is_adopted_makes_choices_stale_and_keeps_what_was_tuned_here(
    cache_dir: Path, tmp_path: Path
) -> None:
    with config.override(cache_dir=tmp_path / "other"):
        theirs = tuned.record("p", GPU, "theirs", {}).path
    place, content = f"nvidia-h200/{theirs.name}", theirs.read_bytes()
    before = config.generation
    assert tuned.adopt(cache.current(), place, content)
    assert config.generation > before
    assert variant_of("p") == "theirs"
    tuned.record("p", GPU, "ours", {})
    assert not tuned.adopt(cache.current(), place, content)
    assert variant_of("p") == "ours"


def test_another_problems_entry_is_not_adopted(cache_dir: Path) -> None:
    content = tuned.record("p", GPU, "fast", {}).path.read_bytes()
    place = tuned._path(Path(), "q", GPU).relative_to("tuned")
    with pytest.raises(ValueError, match="another problem"):
        tuned.adopt(cache.current(), str(place), content)
    assert tuned.lookup("q", GPU) is None


def test_where_the_cache_cannot_be_written_the_process_keeps_what_it_tuned(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with config.override(cache_dir=tmp_path / "file" / "cache"):
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            tuned.record("p", GPU, "fast", {})
        assert variant_of("p") == "fast"


def test_below_a_file_nothing_was_tuned(tmp_path: Path) -> None:
    """Of the cache it is said what it is; of each problem that would be once too often."""
    (tmp_path / "file").touch()
    with config.override(cache_dir=tmp_path / "file"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned.lookup("p", GPU) is None


def test_quiet_says_nothing_of_damage(cache_dir: Path) -> None:
    tuned.record("p", GPU, "fast", {}).path.write_text("{")
    with config.override(log="quiet"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned.lookup("p", GPU) is None


def test_processes_that_tune_together_lose_nothing(cache_dir: Path) -> None:
    """Each writes problems of its own and one that all of them write, again and again."""
    program = (
        "import sys\n"
        "from jitsparse.jit import tuned\n"
        "me = sys.argv[1]\n"
        "for i in range(40):\n"
        "    tuned.record(f'{me} {i}', 'gpu', me, {me: 1.0})\n"
        "    tuned.record('shared', 'gpu', me, {me: 1.0})\n"
        "    assert tuned.lookup('shared', 'gpu').variant in '0123'\n"
    )
    environment = {**os.environ, "JITSPARSE_CACHE_DIR": str(cache_dir)}
    writers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", program, str(me)], env=environment)
        for me in range(4)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 4
    found = tuned.records("gpu")
    assert {problem: record.variant for problem, record in found.items() if " " in problem} == {
        f"{me} {i}": str(me) for me in range(4) for i in range(40)
    }
    assert "shared" in found
    leftovers = [path for path in (cache_dir / "tuned").rglob(".*") if path.is_file()]
    assert not leftovers
