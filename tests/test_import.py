"""Importing jitsparse compiles nothing, prints nothing, writes nothing, and stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("jinja2", "rich", "typer", "scipy", "matplotlib", "torch.utils.cpp_extension", "triton")


def python(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)} | environment,
        check=True,
    )


def test_importing_leaves_no_trace(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import jitsparse, jitsparse.nn\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules and name not in before]\n"
        "assert not heavy, heavy\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    cache = tmp_path / "cache"
    done = python(code, tmp_path, JITSPARSE_CACHE_DIR=str(cache))
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_importing_asks_nothing_of_the_environment_that_it_could_refuse(tmp_path: Path) -> None:
    """An illegal setting is an error of the first call that needs it, not of the import."""
    done = python(
        "import jitsparse\nprint('ok')", tmp_path, JITSPARSE_LOG="loud", JITSPARSE_PIN="=?"
    )
    assert done.stdout == "ok\n"


def test_formats_need_no_compiler_and_no_cache(tmp_path: Path) -> None:
    code = (
        "import sys, torch, jitsparse as js\n"
        "a = js.random((64, 64), 16, .5)\n"
        "a.T.to_dense(); a.to_bsr(); str(a); js.BlockSparse.from_dense(a.to_dense(), 8)\n"
        "js.nn.BlockSparseLinear(64, 32, 8, density=.5)\n"
        "assert 'torch.utils.cpp_extension' not in sys.modules\n"
    )
    cache = tmp_path / "cache"
    python(code, tmp_path, JITSPARSE_CACHE_DIR=str(cache))
    assert not cache.exists()
