"""Importing jitsparse compiles nothing, prints nothing, writes nothing, and stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = (
    *("jinja2", "rich", "typer", "scipy", "matplotlib", "triton"),
    *("torch.utils.cpp_extension", "torch.utils.flop_counter"),
)


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
        "before, seeded = set(sys.modules), torch.get_rng_state()\n"
        "import jitsparse, jitsparse.nn\n"
        "assert torch.equal(torch.get_rng_state(), seeded)\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules and name not in before]\n"
        "assert not heavy, heavy\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    cache = tmp_path / "cache"
    done = python(code, tmp_path, JITSPARSE_CACHE_DIR=str(cache))
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_is_there_without_torch(tmp_path: Path) -> None:
    """What is wrong with a torch can only be said by a program that does not import it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: not found')")
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import jitsparse as js, jitsparse.cli\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'dsd' in dir(js)\n"
        "js.cache_info()\n"
        "try:\n"
        "    js.dsd\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    assert python(code, tmp_path).stdout == "libcudart.so.12: not found\n"


def test_a_submodule_can_be_imported_before_anything_else(tmp_path: Path) -> None:
    """Also those that have the name of a function, which stays the function."""
    for first in ("warmup", "sparse", "ops"):
        code = (
            f"import jitsparse.{first}\n"
            "import torch, jitsparse as js\n"
            "assert callable(js.warmup) and callable(js.explain) and callable(js.tune)\n"
            "a = js.random((8, 8), 8, 1.0)\n"
            "assert torch.ops.jitsparse.dsd\n"
            "assert js.checks.BLOCK_SIZES\n"
            "assert not hasattr(js, 'no_such_name')\n"
        )
        assert python(code, tmp_path).stderr == ""


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


def test_a_file_loads_with_weights_only_though_torch_was_looked_for_before(tmp_path: Path) -> None:
    """To ask for torch's spec, as programs do that can do without it, is not to import it."""
    python(
        "import torch, jitsparse as js\ntorch.save(js.random((16, 16), 8, 0.5), 'a.pt')", tmp_path
    )
    code = (
        "import importlib.util, sys\n"
        "import jitsparse\n"
        "finders = len(sys.meta_path)\n"
        "assert importlib.util.find_spec('torch') and importlib.util.find_spec('torch')\n"
        "assert len(sys.meta_path) == finders\n"
        "import torch\n"
        "assert len(sys.meta_path) < finders\n"
        "assert torch.load('a.pt', weights_only=True).shape == (16, 16)\n"
    )
    assert python(code, tmp_path).stderr == ""
