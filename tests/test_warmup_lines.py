"""A warm-up in a program is not silent: it says which kernel of how many is being compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import toykernel

SCRIPT = """\
import jitsparse as js
layer = js.nn.BlockSparseLinear(64, 48, (8, 16), density=0.5)
js.warmup(layer, (4, 64), backward=False, device="cpu"{options})
"""


def said(tmp_path: Path, options: str = "") -> str:
    """By a program whose only kernel takes two seconds, where first uses speak after one."""
    slow, notes = toykernel.compiler(tmp_path / "slow", before="sleep 2")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(options=options)],
        env={
            **os.environ,
            "CXX": str(slow),
            "JITSPARSE_CACHE_DIR": str(tmp_path / "cache"),
            "JITSPARSE_LOG": "info",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert toykernel.compilations(notes) == 1
    return done.stderr


def test_it_says_what_it_compiles(tmp_path: Path) -> None:
    lines = said(tmp_path).splitlines()
    assert len(lines) == 2, lines
    assert "compiling dds.vec." in lines[0]
    assert "compiled dds.vec." in lines[1]


def test_who_is_told_of_outcomes_says_so_himself(tmp_path: Path) -> None:
    assert said(tmp_path, ", on_outcome=lambda outcome: None") == ""
