"""The tuned table survives the process and belongs to one kind of machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitsparse.jit import config, tuned


def test_the_fastest_is_found_again(cache_dir: Path) -> None:
    assert tuned.lookup("p") is None
    path = tuned.record("p", {"slow": 2.0, "fast": 1.0})
    assert path.is_relative_to(cache_dir)
    assert tuned.lookup("p") == "fast"
    tuned.record("p", {"slow": 0.5, "fast": 1.0})
    assert tuned.lookup("p") == "slow"
    assert tuned.lookup("q") is None


def test_recording_makes_choices_stale(cache_dir: Path) -> None:
    before = config.generation
    tuned.record("p", {"fast": 1.0})
    assert config.generation > before


def test_another_machine_has_its_own_table(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned.record("p", {"fast": 1.0})
    monkeypatch.setattr(tuned, "_machine", lambda: "another")
    assert tuned.lookup("p") is None


def test_layers_serve_what_the_root_lacks(cache_dir: Path, tmp_path: Path) -> None:
    tuned.record("p", {"fast": 1.0})
    with config.override(cache_dir=tmp_path / "own", cache_path=[cache_dir]):
        assert tuned.lookup("p") == "fast"
        tuned.record("p", {"other": 1.0})
        assert tuned.lookup("p") == "other"


@pytest.mark.parametrize("damage", ["", "{", '{"format": 0}', "[]"])
def test_a_damaged_file_is_ignored(damage: str, cache_dir: Path) -> None:
    tuned.record("p", {"fast": 1.0}).write_text(damage)
    assert tuned.lookup("p") is None
