"""The main job, on the command line, from an empty cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitsparse.cli import main


def test_demo(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = subprocess.run(
        [sys.executable, "-m", "jitsparse", "demo", "--steps", "3", "--device", "cpu"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert run.returncode == 0, run.stderr
    header, dense, sparse = run.stdout.splitlines()
    for column in ("parameters", "step time (ms)", "held-out loss", "compile seconds"):
        assert column in header
    assert dense.startswith("dense")
    assert sparse.startswith("sparse")
    out = tmp_path / "jitsparse-demo"
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    runs = json.loads((out / "demo.json").read_text())["runs"]
    assert len(runs["sparse"]["train_loss"]) == 3
    assert "characters to train on" in run.stderr
    assert "\x1b" not in run.stdout + run.stderr


def test_files_that_cannot_be_written_are_found_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo.png").mkdir()
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--steps", "1000000", "--device", "cpu", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "not the name of a file" in capsys.readouterr().err
