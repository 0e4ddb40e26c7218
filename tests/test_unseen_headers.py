"""No header is read that the key does not know, and no edit gets lost: what is compiled is what the
key says, whichever way a header is included and whenever it is edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jitsparse.errors import CompileError, ToolchainError
from jitsparse.jit import (
    Template,
    Variant,
    background,
    cache,
    compile_only,
    load,
    ninja,
    targets,
    toolchain,
)
from jitsparse.jit import build as building

BODY = """
extern "C" int jitsparse_launch(const void*) { return VALUE; }
extern "C" const char* jitsparse_error(int) { return ""; }
"""
VARIANT = Variant("value", "plain", targets.cpu_target(), "f32")


@pytest.fixture
def folder(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Path:
    (tmp_path / "templates").mkdir()
    (tmp_path / "inc" / "sub").mkdir(parents=True)
    return tmp_path


def template(folder: Path, text: str, **context: str | bool) -> Template:
    source = folder / "templates" / "value.cpp.jinja"
    source.write_text(text + BODY)
    return Template("value", source, "c++", (folder / "inc",), 0, lambda variant: context)


def value(template: Template) -> int:
    """What the kernel returns."""
    return load(template, VARIANT).launch(b"")


SEEN = {
    "beside the template, in angles": ("templates/v.h", {}, "#include <v.h>"),
    "beside the template, from a header": (
        "templates/v.h",
        {"inc/sub/x.h": '#include "v.h"'},
        "#include <sub/x.h>",
    ),
    "first beside the template": ("templates/v.h", {"inc/v.h": "#error"}, "#include <v.h>"),
    "an include directory": ("inc/v.h", {}, "#include <v.h>"),
}


@pytest.mark.parametrize("way", SEEN)
def test_an_edited_header_is_another_kernel(way: str, folder: Path) -> None:
    header, others, text = SEEN[way]
    for name, content in others.items():
        (folder / name).write_text(content)
    mine = template(folder, text)
    for expected in (1, 2, 1):
        (folder / header).write_text(f"#define VALUE {expected}\n")
        assert value(mine) == expected
    assert len(list(cache.current().entries())) == 2


def test_headers_lie_beside_the_link_to_a_template(folder: Path) -> None:
    mine = template(folder, "#include <v.h>")
    (folder / "links").mkdir()
    (folder / "links" / "value.cpp.jinja").symlink_to(mine.source)
    linked = Template(
        "value", folder / "links" / "value.cpp.jinja", "c++", (), 0, lambda variant: {}
    )
    for expected in (1, 2):
        (folder / "links" / "v.h").write_text(f"#define VALUE {expected}\n")
        assert value(linked) == expected


UNSEEN: dict[str, tuple[str, dict[str, Any]]] = {
    "between tags": ('{% if fast %}#include "v.h"{% endif %}', {"fast": True}),
    "after a comment of the template": ('{# old #}#include "v.h"', {}),
    "after a comment": ('/* licence */ #include "v.h"', {}),
    "out of the context": ("{{ first }}", {"first": '#include "v.h"'}),
    "a digraph": ('%:include "v.h"', {}),
    "a spliced line": ('#\\\ninclude "v.h"', {}),
    "a mark of bytes before it": ('#include "bom.h"', {}),
}


@pytest.mark.parametrize("way", UNSEEN)
def test_what_the_text_does_not_show_is_refused(way: str, folder: Path) -> None:
    (folder / "inc" / "v.h").write_text("#define VALUE 1\n")
    (folder / "inc" / "bom.h").write_text('\ufeff#include "v.h"\n')
    text, context = UNSEEN[way]
    for load_it in (load, compile_only):
        with pytest.raises(CompileError, match=r"inc/v\.h, which the text does not show"):
            load_it(template(folder, text, **context), VARIANT)
    assert not list(cache.current().entries())


@pytest.mark.parametrize("name", ['"../b.h"', "<limits.h>"])
def test_a_macro_that_names_a_header_is_refused(name: str, folder: Path) -> None:
    """Wherever that lies: the compiler's account may leave it out."""
    (folder / "b.h").write_text("")
    text = f"#pragma GCC system_header\n#define NAME {name}\n#include NAME\n#define VALUE 1\n"
    (folder / "inc" / "v.h").write_text(text)
    with pytest.raises(CompileError, match=r"inc/v\.h:3: #include: write a name"):
        value(template(folder, '#include "v.h"'))


def test_what_belongs_to_the_compilers_may_lie_in_an_include_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvcc names its own headers and those of the system."""
    (folder / "inc" / "theirs").mkdir()
    (folder / "inc" / "theirs" / "a.h").write_text("")
    read, found = ninja.dependencies, toolchain.Compiler.header_directories
    theirs = str(folder / "inc" / "theirs" / "a.h")
    monkeypatch.setattr(ninja, "dependencies", lambda *at: {*read(*at), theirs})
    mine = template(folder, "#define VALUE 3")
    with pytest.raises(CompileError, match=r"theirs/a\.h, which the text does not show"):
        value(mine)
    monkeypatch.setattr(
        toolchain.Compiler,
        "header_directories",
        lambda self: [*found(self), folder / "inc" / "theirs"],
    )
    assert value(mine) == 3


def test_a_compiler_says_where_its_headers_lie() -> None:
    assert any((path / "stdlib.h").exists() for path in toolchain.find("c++").header_directories())


def test_a_header_above_a_linked_directory(folder: Path) -> None:
    (folder / "else" / "sub").mkdir(parents=True)
    (folder / "inc" / "linked").symlink_to(folder / "else" / "sub")
    (folder / "else" / "sub" / "a.h").write_text('#include "../b.h"\n')
    mine = template(folder, '#include "linked/a.h"')
    for expected in (1, 2):
        (folder / "else" / "b.h").write_text(f"#define VALUE {expected}\n")
        assert value(mine) == expected


def test_what_a_line_mark_names_is_no_header(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc says that it has read the template."""
    mine, read = template(folder, "#define VALUE 3"), ninja.dependencies
    monkeypatch.setattr(ninja, "dependencies", lambda *at: {*read(*at), str(mine.source)})
    assert value(mine) == 3


def test_the_rendered_source_includes_no_header_of_its_own_name(folder: Path) -> None:
    (folder / "inc" / "kernel.cpp").write_text("#define VALUE 1\n")
    with pytest.raises(CompileError, match="which is what its rendered source is called"):
        value(template(folder, '#include "kernel.cpp"'))


def test_an_edit_while_it_is_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, build, edits = folder / "inc" / "v.h", building.build, [2]

    def edit_and_build(*arguments: Any) -> float:
        if edits:
            header.write_text(f"#define VALUE {edits.pop()}\n")
        return build(*arguments)

    monkeypatch.setattr(building, "build", edit_and_build)
    mine = template(folder, '#include "v.h"')
    header.write_text("#define VALUE 1\n")
    assert value(mine) == 2, "what it was edited to"
    header.write_text("#define VALUE 1\n")
    assert value(mine) == 1, "and that is undone"
    assert len(list(cache.current().entries())) == 2


def test_two_templates_of_one_name_in_the_background(folder: Path) -> None:
    builds = []
    for number in ("1", "2"):
        (folder / number / "templates").mkdir(parents=True)
        mine = template(folder / number, f"#define VALUE {number}")
        builds.append(background.start(mine, VARIANT))
    assert [build.result().launch(b"") for build in builds] == [1, 2]


def test_an_edit_that_takes_a_header_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or mends what did not compile: neither is held against the kernel that there is now."""
    header, build = folder / "inc" / "v.h", building.build
    (folder / "inc" / "w.h").write_text("")
    for before in ('#include "w.h"\n#define VALUE 1\n', "#error half saved\n"):
        header.write_text(before)
        edits = ["#define VALUE 7\n"]

        def build_and_edit(*arguments: Any, edits: list[str] = edits) -> float:
            try:
                return build(*arguments)
            finally:
                if edits:
                    header.write_text(edits.pop())

        monkeypatch.setattr(building, "build", build_and_edit)
        assert value(template(folder, f'#include "v.h"\n// {len(before)}')) == 7


def test_edits_without_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, build = folder / "inc" / "v.h", building.build
    header.write_text("#define VALUE 0\n")

    def edit_and_build(*arguments: Any) -> float:
        header.write_text(header.read_text() + "\n")
        return build(*arguments)

    monkeypatch.setattr(building, "build", edit_and_build)
    with pytest.raises(ToolchainError, match="was compiled 3 times, and each time"):
        value(template(folder, '#include "v.h"'))
    assert not list(cache.current().entries())
