"""What an entry does not depend on, and what it does: place and time never, content always."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import CacheMiss, ToolchainError
from jitsparse.jit import Template, compile_only, config, explain_miss, load, targets, toolchain
from jitsparse.jit.cache import current
from jitsparse.jit.environment import LOG_LEVELS
from jitsparse.jit.miss import other_targets


@pytest.fixture
def built(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Template:
    """The template, its kernel compiled into the cache of the test."""
    template = toykernel.write(tmp_path)
    assert compile_only(template, toykernel.variant()).fresh
    return template


def hits(template: Template) -> bool:
    return not compile_only(template, toykernel.variant()).fresh


def test_a_moved_cache_hits(built: Template, cache_dir: Path, tmp_path: Path) -> None:
    os.rename(cache_dir, tmp_path / "elsewhere")
    with config.override(cache_dir=tmp_path / "elsewhere"):
        kernel = load(built, toykernel.variant())
    assert not kernel.entry.fresh
    assert toykernel.run(kernel)


def test_a_copied_template_hits(built: Template, tmp_path: Path) -> None:
    """As from another virtual environment, or another user's home."""
    shutil.copytree(tmp_path / "headers", tmp_path / "copy" / "headers")
    shutil.copy(built.source, tmp_path / "copy")
    shutil.rmtree(tmp_path / "headers")
    assert hits(toykernel.template(tmp_path / "copy"))


def test_touched_files_hit(built: Template, cache_dir: Path, tmp_path: Path) -> None:
    for path in [*tmp_path.rglob("*")]:
        os.utime(path, (1, 1))
    assert hits(built)


def test_a_changed_path_hits(
    built: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "c++").symlink_to(os.path.realpath(str(shutil.which("c++"))))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nowhere:{os.environ['PATH']}")
    assert hits(built)


def test_the_same_compiler_at_another_place_hits(built: Template, tmp_path: Path) -> None:
    real = toolchain.find("cpu").cxx.path
    (tmp_path / "other").mkdir()
    copy = tmp_path / "other" / "g++-of-mine"
    shutil.copy(real, copy)
    with config.override(cxx=str(copy)):
        assert hits(built)


def test_a_changed_header_misses(built: Template, tmp_path: Path) -> None:
    header = tmp_path / "headers" / "body" / "axpy.h"
    header.write_text(header.read_text() + "// another line\n")
    assert not hits(built)
    assert hits(built)


def test_a_changed_header_of_a_header_misses(built: Template, tmp_path: Path) -> None:
    body = tmp_path / "headers" / "body"
    (body / "axpy.h").write_text('#include "inner.h"\n' + (body / "axpy.h").read_text())
    (body / "inner.h").write_text("#pragma once\n")
    assert not hits(built)
    (body / "inner.h").write_text("#pragma once\n#define INNER\n")
    assert not hits(built)
    assert hits(built)


def test_a_changed_template_misses(built: Template) -> None:
    built.source.write_text(built.source.read_text() + "// another line\n")
    assert not hits(built)


def test_a_changed_context_misses(built: Template) -> None:
    changed = replace(built, context=lambda variant: {**built.context(variant), "negative": True})
    assert not hits(changed)
    assert hits(built)


def test_a_changed_flag_misses(built: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets._CPU_FLAGS, "generic", ("-fno-inline",))
    assert not hits(built)


def test_a_changed_compiler_misses(built: Template, tmp_path: Path) -> None:
    other, notes = toykernel.compiler(tmp_path / "other", version="g++ (Other) 99.1")
    with config.override(cxx=str(other)):
        assert not hits(built)
        assert toykernel.compilations(notes) == 1
        assert hits(built)


def test_a_compiler_replaced_in_place_misses(built: Template, tmp_path: Path) -> None:
    """Its path is the same; its size and time are not, so it is asked for its version again."""
    path, _ = toykernel.compiler(tmp_path / "gcc", version="g++ (Other) 99.1")
    with config.override(cxx=str(path)):
        assert not hits(built)
        toykernel.compiler(tmp_path / "gcc", version="g++ (Other) 99.20")
        assert not hits(built)


def test_the_log_level_changes_nothing(built: Template) -> None:
    for level in LOG_LEVELS:
        with config.override(log=level):
            assert hits(built)


def test_without_a_compiler_the_entry_of_any_compiler_serves(
    built: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A production image: filled where there is a compiler, run where there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with config.override(cxx=None):  # which CXX may have named
        kernel = load(built, toykernel.variant())
        assert toykernel.run(kernel)
        missing = r"Searched for c\+\+, g\+\+ in .*apt install"
        with pytest.raises(ToolchainError, match=missing):
            load(built, toykernel.variant(scale=5))


def test_with_compiling_off_the_entry_of_any_compiler_serves(
    built: Template, tmp_path: Path
) -> None:
    other, _ = toykernel.compiler(tmp_path / "other", version="g++ (Other) 99.1")
    with config.override(jit="off", cxx=str(other)):
        assert toykernel.run(load(built, toykernel.variant()))


def test_with_compiling_off_a_miss_names_the_command(built: Template, cache_dir: Path) -> None:
    with config.override(jit="off"):
        with pytest.raises(CacheMiss) as caught:
            load(built, toykernel.variant(scale=5), hint=lambda: "jitsparse warmup --op axpy")
    message = str(caught.value)
    assert "axpy.omp.generic.f32.s5 is not in the cache" in message
    assert str(cache_dir) in message
    assert "JITSPARSE_JIT=off" in message
    assert "jitsparse warmup --op axpy" in message


def test_a_miss_says_in_what_the_nearest_entry_differs(built: Template, tmp_path: Path) -> None:
    header = tmp_path / "headers" / "body" / "axpy.h"
    header.write_text(header.read_text() + "// another line\n")
    with config.override(jit="off"), pytest.raises(CacheMiss, match="differs in: headers"):
        load(built, toykernel.variant())


def test_a_miss_names_targets_that_the_cache_has(built: Template) -> None:
    """An image that was built on another processor."""
    other = replace(toykernel.variant(), target="avx2")
    with config.override(jit="off"):
        with pytest.raises(CacheMiss) as caught:
            load(built, other)
        assert explain_miss(built, other).other_targets == ("generic",)
    assert "kernels of axpy in f32 are there for generic" in str(caught.value)
    assert 'JITSPARSE_ARCH="generic"' in str(caught.value)
    assert other_targets(replace(other, target="sm90a"), current().entries()) == ()
    in_float64 = replace(other, dtype="f64")
    assert explain_miss(built, in_float64).other_targets == ()


def test_a_forbidden_build_says_why(built: Template) -> None:
    with pytest.raises(CacheMiss, match="a CUDA graph is being captured"):
        load(
            built,
            toykernel.variant(scale=5),
            allow_build=False,
            why_not="a CUDA graph is being captured",
        )
    assert toykernel.run(load(built, toykernel.variant(), allow_build=False))
