"""The sentences that say why a miss is a miss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toykernel

from jitsparse.errors import CacheMiss
from jitsparse.jit import Entry, compile_only, config, explain_miss, load, targets
from jitsparse.jit.miss import differences, nearest

FIELDS: dict[str, Any] = {
    "format": 1,
    "variant": "axpy.omp.generic.f32.s2",
    "template": "a" * 64,
    "context": {"scale": 2, "type": "float"},
    "headers": {"a.h": "1" * 64, "b.h": "2" * 64},
    "flags": ["-O3", "-std=c++17"],
    "compiler": "c++: g++ 11.4\nCopyright (C) 2021",
}


def entry(created: float, **changes: Any) -> Entry:
    return Entry(Path("/x"), {"fields": {**FIELDS, **changes}, "created": created})


@pytest.mark.parametrize(
    ("label", "value", "sentence"),
    [
        ("format", 2, "format: 1 -> 2"),
        ("compiler", "c++: g++ 12.2\nCopyright (C) 2022", "c++: g++ 11.4 -> c++: g++ 12.2"),
        ("compiler", FIELDS["compiler"] + "\nnvcc: 13", "compiler: none -> nvcc: 13"),
        ("compiler", "", "compiler: c++: g++ 11.4 -> none"),
        ("template", "b" * 64, "template: its text was edited"),
        ("context", {"scale": 3, "type": "float"}, "context: scale 2 -> 3"),
        ("headers", {"a.h": "3" * 64, "c.h": ""}, "a.h was edited, c.h is new, b.h is gone"),
        ("flags", ["-O2", "-std=c++17"], "flags: with -O2, without -O3"),
        ("flags", ["-std=c++17", "-O3"], "flags: in another order"),
        ("flags", "-O3", "flags: "),
    ],
)
def test_sentences(label: str, value: Any, sentence: str) -> None:
    (found,) = differences(FIELDS, {**FIELDS, label: value})
    assert found.field == label
    assert sentence in found.sentence
    assert found.sentence.startswith(f"{label}: ")


def test_fields_that_one_side_lacks() -> None:
    assert differences(FIELDS, FIELDS) == ()
    more = {**FIELDS, "machine": "x86_64"}
    assert [each.sentence for each in differences(FIELDS, more)] == ["machine: None -> x86_64"]
    assert [each.field for each in differences(more, FIELDS)] == ["machine"]


def test_what_an_entry_holds_can_be_printed() -> None:
    hostile = {**FIELDS, "compiler": "\x1b]0;title\x07[red]\n", "context": {"\x1b": "\x00"}}
    for each in differences(hostile, FIELDS):
        assert each.sentence.isprintable()


def test_the_nearest_differs_least_and_is_the_newest() -> None:
    far = entry(9.0, template="b", compiler="")
    old, new = entry(1.0, compiler="x"), entry(2.0, template="c")
    other = entry(10.0, variant="axpy.omp.generic.f32.s3")
    assert nearest(FIELDS, [far, old, new, other]) is new
    assert nearest(FIELDS, [other]) is None


def test_of_a_kernel(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> None:
    template, variant = toykernel.write(tmp_path), toykernel.variant()
    nothing = explain_miss(template, variant)
    assert (nothing.path, nothing.nearest, nothing.differences) == (None, None, ())
    path = compile_only(template, variant).path
    assert explain_miss(template, variant).path == path
    other, _ = toykernel.compiler(tmp_path / "other", version="g++ (Other) 99.1")
    header = tmp_path / "headers" / "body" / "axpy.h"
    header.write_text(header.read_text() + "// another line\n")
    with config.override(cxx=str(other)):
        found = explain_miss(template, variant)
    assert (found.path, found.nearest) == (None, path)
    headers, compiler = found.differences
    assert headers.sentence == "headers: body/axpy.h was edited"
    assert compiler.sentence.endswith("-> c++: (Other) 99.1")


def test_a_root_that_cannot_have_it_is_named(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    """One that is mistyped, or a file. One without entries is not."""
    template = toykernel.write(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    layers = [tmp_path / name for name in ("typo", "file", "there")]
    with config.override(cache_path=layers, jit="off"), pytest.raises(CacheMiss) as caught:
        load(template, toykernel.variant())
    assert str(caught.value).splitlines()[1:-1] == [
        f"  the cache {layers[0]} (JITSPARSE_CACHE_PATH) does not exist",
        f"  the cache {layers[1]} (JITSPARSE_CACHE_PATH) is a file, not a directory",
    ]
    with config.override(cache_dir=tmp_path / "file", jit="off"), pytest.raises(CacheMiss) as own:
        load(template, toykernel.variant())
    assert f"{tmp_path / 'file'} (JITSPARSE_CACHE_DIR) is a file" in str(own.value)


def test_of_a_damaged_entry(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, variant = toykernel.write(tmp_path), toykernel.variant()
    path = compile_only(template, variant).path
    toykernel.replace_library(path, b"damaged")
    found = explain_miss(template, variant)
    assert found.damaged[0][0] == path
    assert "kernel.so has 7 bytes" in found.damaged[0][1]
    assert found.differences == ()
    monkeypatch.setitem(targets._CPU_FLAGS, "generic", ("-fno-inline",))
    (flags,) = explain_miss(template, variant).differences
    assert flags.sentence == "flags: with -fno-inline"


def test_a_compiler_that_is_not_asked_for_is_no_difference(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    template, variant = toykernel.write(tmp_path), toykernel.variant()
    compile_only(template, variant)
    header = tmp_path / "headers" / "body" / "axpy.h"
    header.write_text(header.read_text() + "// another line\n")
    with config.override(jit="off"):
        (headers,) = explain_miss(template, variant).differences
    assert headers.field == "headers"
