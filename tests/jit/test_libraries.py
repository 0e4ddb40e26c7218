"""A template's own libraries and flags: used by the compiler, and known to the key."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitsparse.errors import ConfigError
from jitsparse.jit import Template, Variant, compile_only, load

SOURCE = """\
#include <library/half.h>
#ifndef FACTOR
#define FACTOR 1
#endif
extern "C" int jitsparse_launch(const void* words) {
  return int(z_of(*static_cast<const long long*>(words))) * FACTOR;
}
extern "C" const char* jitsparse_error(int) { return ""; }
"""
LIBRARY = """\
#define NAME <vector>
#include NAME
#include "inner.h"
#if 0
#include NOBODY_KNOWS
#endif
"""
VARIANT = Variant("answer", "plain", "generic", "f32")


@pytest.fixture
def template(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Template:
    """Whose library lies beside it, and includes what its text does not name."""
    library = tmp_path / "third party" / "include"
    (library / "library").mkdir(parents=True)
    (library / "library" / "half.h").write_text(LIBRARY)
    (library / "library" / "inner.h").write_text("inline long z_of(long x) { return x / 2; }\n")
    (tmp_path / "answer.cpp.jinja").write_text(SOURCE)
    return Template(
        *("answer", tmp_path / "answer.cpp.jinja", "c++", (), 1, lambda variant: {}),
        libraries=((library, "1.0"),),
    )


def answer(template: Template) -> int:
    kernel = load(template, VARIANT)
    return kernel.launch(kernel.pack(6))


def test_a_library_is_found_and_its_version_counts(template: Template, tmp_path: Path) -> None:
    assert answer(template) == 3
    inner = tmp_path / "third party" / "include" / "library" / "inner.h"
    inner.write_text("inline long z_of(long x) { return x / 3; }\n")
    assert answer(template) == 3  # as the version says
    newer = replace(template, libraries=((template.libraries[0][0], "1.1"),))
    assert compile_only(newer, VARIANT).fresh
    assert answer(newer) == 2


def test_the_place_of_a_library_does_not_count(template: Template, tmp_path: Path) -> None:
    compile_only(template, VARIANT)
    (tmp_path / "third party").rename(tmp_path / "elsewhere")
    moved = replace(template, libraries=((tmp_path / "elsewhere" / "include", "1.0"),))
    assert not compile_only(moved, VARIANT).fresh


def test_flags_count(template: Template) -> None:
    assert answer(template) == 3
    assert answer(replace(template, flags=("-DFACTOR=5",))) == 15


def test_a_template_links_what_it_names(template: Template) -> None:
    """``-z defs`` refuses what nothing defines."""
    source = template.source.read_text().replace("z_of(", "zlibCompileFlags() * z_of(")
    template.source.write_text('extern "C" unsigned long zlibCompileFlags();\n' + source)
    linked = replace(template, link_flags=("-l:libz.so.1",))
    if not _has_zlib():
        pytest.skip("there is no libz.so.1")
    assert answer(linked) != 0
    with pytest.raises(Exception, match="zlibCompileFlags"):
        compile_only(template, VARIANT)


def _has_zlib() -> bool:
    try:
        ctypes.CDLL("libz.so.1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"flags": "-g"}, "flags is a tuple of texts, got '-g'"),
        ({"link_flags": [1]}, "link_flags is a tuple of texts"),
        ({"flags": ("-O1", "-I/usr/include/eigen3")}, "'-I/usr/include/eigen3' names headers"),
        ({"flags": ("-include", "all.h")}, "belongs to include_dirs or libraries"),
        ({"libraries": (Path("a"),)}, "libraries is a tuple of pairs"),
        ({"libraries": ((Path("a"), 4),)}, "the version of what is there"),
    ],
)
def test_what_is_none_is_refused(options: dict[str, Any], said: str, template: Template) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(template, **options)
