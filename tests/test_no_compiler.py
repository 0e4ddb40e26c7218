"""Without a compiler: right answers on the CPU after one warning, a clear error for CUDA."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import jitsparse as js
from jitsparse.compilation import compile_variants
from jitsparse.jit import config
from jitsparse.kernels import registry

PRODUCTS = """
import warnings
warnings.simplefilter("always")
import torch, jitsparse as js
torch.manual_seed(0)
a = js.random((40, 50), (8, 16), .5).requires_grad_()
x = torch.randn(50, 6, requires_grad=True)
bias = torch.randn(40)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    out = js.dsd(a, x)
    out.sum().backward()
    y = js.linear(x.T.detach(), a.detach(), bias, "silu")
    js.sdd(out.detach(), x.T.detach(), a.pattern)
dense = a.detach().to_dense()
torch.testing.assert_close(out, dense @ x)
torch.testing.assert_close(y, torch.nn.functional.silu(x.T @ dense.T + bias))
torch.testing.assert_close(x.grad, dense.sum(0)[:, None].expand(50, 6))
"""


def run(code: str, tmp_path: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Python where PATH finds nothing but what is asked for, with an empty cache."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CXX", "CC", "CUDA_HOME", "CUDA_PATH")
    }
    environment |= {"PATH": path or str(tmp_path), "JITSPARSE_CACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )


def test_what_runs_instead_is_explained(tmp_path: Path) -> None:
    code = (
        "import torch, jitsparse as js\n"
        "a, x = js.random((64, 64), 16, 0.5), torch.randn(64, 64)\n"
        "said = js.explain('dsd', a, x)\n"
        "assert said.obstacle in str(said)\n"
        "print(said.obstacle)\n"
    )
    assert run(code, tmp_path).stdout.startswith(
        "plain torch operations answer: no C++ compiler was found"
    )
    a, x = js.random((64, 64), 16, 0.5), torch.randn(64, 64)
    with config.override(jit="off", cache_dir=tmp_path / "empty"):
        assert js.explain("dsd", a, x).obstacle == (
            "a call raises CacheMiss: it is not cached, and JITSPARSE_JIT=off"
        )
        with pytest.raises(js.CacheMiss):
            js.dsd(a, x)
    js.dsd(a, x)
    assert js.explain("dsd", a, x).obstacle is None


def test_the_reference_answers_after_one_warning(tmp_path: Path) -> None:
    code = PRODUCTS + (
        "ours = [w for w in caught if 'jitsparse' in str(w.message)]\n"
        "assert len(ours) == 1, [str(w.message) for w in caught]\n"
        "print(ours[0].category.__name__, ours[0].message)\n"
    )
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RuntimeWarning")
    assert "g++" in done.stdout
    assert "install" in done.stdout


def test_another_compiler_is_refused_in_a_sentence(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than in its own words for the first extension that it lacks."""
    from jitsparse.kernels import dispatch

    monkeypatch.setattr(dispatch, "_kernels", {})
    clang = tmp_path / "clang++"
    clang.write_text(f'#!/bin/sh\nexec {shutil.which("c++")} -D__clang__ "$@"\n')
    clang.chmod(0o755)
    a, x = js.random((64, 64), 32, 0.5), torch.randn(64, 8)
    with config.override(cxx=str(clang)):
        with pytest.raises(js.CompileError, match="kernels need g"):
            js.dsd(a, x)


def test_a_wrong_cxx_is_no_missing_compiler(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised: plain torch would be a slow answer to a typing error."""
    from jitsparse.kernels import dispatch

    monkeypatch.setattr(dispatch, "_kernels", {})
    a = js.random((40, 50), (8, 16), 0.5)
    with config.override(cxx="ccache g++"):
        with pytest.raises(js.ToolchainError, match="CXX='ccache g\\+\\+' is not"):
            js.dsd(a, torch.randn(50, 8))


def test_a_template_that_does_not_compile_is_no_missing_compiler(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler refuses is raised, not answered by the reference."""
    from jitsparse.kernels import cpu, dispatch

    context = cpu._context
    monkeypatch.setattr(cpu, "_context", lambda v: {**context(v), "element": "NoSuchType"})
    monkeypatch.setattr(dispatch, "_kernels", {})
    a = js.random((40, 50), (8, 16), 0.5)
    with pytest.raises(js.CompileError, match=r"NoSuchType"):
        js.dsd(a, js.random((50, 8), 8, 1.0).to_dense())


def test_a_build_that_finds_no_room_is_no_missing_compiler(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, and tried again by the next call."""
    from jitsparse.jit import cache
    from jitsparse.kernels import dispatch

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dispatch, "_kernels", {})
    a, x = js.random((40, 50), (8, 16), 0.5), torch.randn(50, 8)
    with monkeypatch.context() as disk:
        disk.setattr(cache, "sync", full)
        with pytest.raises(js.ToolchainError, match="Make room"):
            js.dsd(a, x)
    torch.testing.assert_close(js.dsd(a, x), a.to_dense() @ x)
    assert len(list((cache_dir / "v1").glob("dsd.*"))) == 1


def test_cuda_kernels_name_what_was_searched(tmp_path: Path) -> None:
    code = (
        "import pathlib, jitsparse as js\n"
        "from jitsparse.jit import toolchain\n"
        "toolchain.USUAL_CUDA_HOME = pathlib.Path('nowhere')\n"
        "try:\n"
        "    js.warmup(op='dsd', dtype='bf16', block_size=32, arch='9.0a')\n"
        "except js.ToolchainError as error:\n"
        "    print(error)\n"
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "g++").symlink_to(shutil.which("g++") or pytest.skip("no g++"))
    done = run(code, tmp_path, str(programs))
    assert done.returncode == 0, done.stderr
    assert "nvcc" in done.stdout or "without CUDA" in done.stdout, done.stdout


def test_cached_kernels_need_no_compiler(tmp_path: Path) -> None:
    """A cache that was filled where there is a compiler serves where there is none."""
    filled = run(PRODUCTS, tmp_path, os.environ["PATH"])
    assert filled.returncode == 0, filled.stderr
    done = run(PRODUCTS + "assert not caught, [str(w.message) for w in caught]\n", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_missing_compiler_is_an_outcome_of_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitsparse import jit

    def missing(*_: object, **__: object) -> None:
        raise js.ToolchainError("no compiler")

    monkeypatch.setattr(jit, "compile_only", missing)
    variants = list(registry.default_variants("generic"))[:3]
    seen = []
    outcomes = compile_variants(variants, jobs=2, on_outcome=seen.append)
    assert [outcome.variant for outcome in outcomes] == variants
    assert {outcome.status for outcome in outcomes} == {"failed"}
    assert len(seen) == 3
    with pytest.raises(js.ToolchainError, match="no compiler"):
        js.warmup(op="dsd", dtype="f32", block_size=32, arch="generic")
