"""A damaged entry is never mapped: it is set aside with one warning and built again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import CacheMiss, ToolchainError
from jitsparse.jit import build, compile_only, config, key, load


def truncate(entry: Path) -> None:
    toykernel.replace_library(entry, (entry / "kernel.so").read_bytes()[:1000])


def flip_a_bit(entry: Path) -> None:
    content = bytearray((entry / "kernel.so").read_bytes())
    content[len(content) // 2] ^= 1
    toykernel.replace_library(entry, content)


def lose_the_library(entry: Path) -> None:
    (entry / "kernel.so").unlink()


def lose_the_metadata(entry: Path) -> None:
    (entry / "meta.json").unlink()


def cut_the_metadata(entry: Path) -> None:
    meta = entry / "meta.json"
    meta.write_text(meta.read_text()[:100])


def forge_the_metadata(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    meta["fields"]["flags"] = ["-O0"]
    (entry / "meta.json").write_text(json.dumps(meta))


def make_unloadable(entry: Path) -> None:
    """Intact as far as the metadata know, but nothing that can be mapped: of another system."""
    content = b"\x7fELF of another system"
    meta = json.loads((entry / "meta.json").read_text())
    meta["library_bytes"] = len(content)
    meta["library_sha256"] = hashlib.sha256(content).hexdigest()
    (entry / "meta.json").write_text(json.dumps(meta))
    toykernel.replace_library(entry, content)


DAMAGES = [
    truncate,
    flip_a_bit,
    lose_the_library,
    lose_the_metadata,
    cut_the_metadata,
    forge_the_metadata,
    make_unloadable,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_entry_is_built_again(
    damage: Callable[[Path], None],
    tmp_path: Path,
    cache_dir: Path,
    forget: Callable[[], None],
) -> None:
    template = toykernel.write(tmp_path)
    path = compile_only(template, toykernel.variant()).path
    damage(path)
    with pytest.warns(RuntimeWarning, match=f"cached kernel {path} is unusable") as seen:
        kernel = load(template, toykernel.variant())
    assert len(seen) == 1
    assert kernel.entry.fresh
    assert toykernel.run(kernel)
    assert toykernel.entries(cache_dir) == [path]
    assert [each.name.split(".")[0] for each in (cache_dir / "v1" / "quarantine").iterdir()]
    assert not compile_only(template, toykernel.variant()).fresh


def test_quiet_means_no_warning(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None], recwarn: pytest.WarningsRecorder
) -> None:
    template = toykernel.write(tmp_path)
    truncate(compile_only(template, toykernel.variant()).path)
    with config.override(log="quiet"):
        assert load(template, toykernel.variant()).entry.fresh
    assert recwarn.list == []


def test_with_compiling_off_a_damaged_entry_is_named(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    template = toykernel.write(tmp_path)
    flip_a_bit(compile_only(template, toykernel.variant()).path)
    with config.override(jit="off"), pytest.raises(CacheMiss, match=r"usable: kernel\.so differs"):
        load(template, toykernel.variant())


def test_a_miss_names_what_is_damaged_and_not_what_is_sound(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    """Of several entries of a variant, in whatever order the directory lists them."""
    template = toykernel.write(tmp_path)
    (header,) = tmp_path.rglob("axpy.h")
    for number in range(4):
        header.write_text(f"{toykernel.HEADER}// {number}\n")
        entry = compile_only(template, toykernel.variant())
    flip_a_bit(entry.path)
    with config.override(jit="off"), pytest.raises(CacheMiss, match=r"usable: kernel\.so differs"):
        load(template, toykernel.variant())


def test_a_library_that_cannot_be_mapped_when_new_is_an_error(
    tmp_path: Path,
    cache_dir: Path,
    forget: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Building it again would not help, so it is not tried."""
    counting, notes = toykernel.compiler(tmp_path / "counting")
    for module in (build, key):
        monkeypatch.setattr(module, "link_flags", lambda language: ())
    template = toykernel.write(tmp_path)
    header = tmp_path / "headers" / "body" / "axpy.h"
    header.write_text(header.read_text() + "int missing();\nint used = missing();\n")
    with config.override(cxx=str(counting)):
        with pytest.raises(ToolchainError, match=r"cannot be used here.*undefined symbol"):
            load(template, toykernel.variant())
    assert toykernel.compilations(notes) == 1
