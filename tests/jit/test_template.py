"""Rendering keeps the template's lines, and the key sees every own header."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitsparse.errors import CompileError, ConfigError
from jitsparse.jit import Template, Variant
from jitsparse.jit.key import fields_of
from jitsparse.jit.line_marks import with_line_marks
from jitsparse.jit.template import headers, render

VARIANT = Variant("a", "b", "c", "d")

TEXT = """\
line 1
{% if yes %}
line 3
{% else %}
line 5
{% endif %}
line 7
{% for i in range(n) %}
  line 9 of {{ i }}
{% endfor %}
line 11
{{ name }} 12
line 13{% if yes %} of {{ n }}{% endif %}

line 15
#define LONG \\
{% if yes %}
  continued \\
{% endif %}
  to here
line 21
"""


def written(folder: Path, text: str) -> Template:
    (folder / "t.jinja").write_text(text)
    return Template("t", folder / "t.jinja", "c++", (folder / "inc",), 0, lambda variant: {})


def compiler_lines(text: str) -> list[tuple[int, str]]:
    """Each line of a text with the number that a compiler gives it."""
    lines, number = [], 0
    for line in text.splitlines():
        mark = re.fullmatch(r"#line (\d+)(?: .*)?", line)
        if mark:
            number = int(mark[1])
        else:
            lines.append((number, line))
            number += 1
    return lines


@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize("n", [0, 3])
def test_lines_are_the_templates(yes: bool, n: int, tmp_path: Path) -> None:
    text = render(written(tmp_path, TEXT), {"yes": yes, "n": n, "name": "line"})
    numbered = [
        (number, int(line.split()[1]))
        for number, line in compiler_lines(text)
        if line.strip().startswith("line ")
    ]
    assert {said for _, said in numbered} >= {1, 3 if yes else 5, 7, 11, 12, 13, 15, 21}
    for number, said in numbered:
        assert number == said, text


def test_a_macro_is_not_torn_apart(tmp_path: Path) -> None:
    text = render(written(tmp_path, TEXT), {"yes": True, "n": 0, "name": "line"})
    assert "#define LONG \\\n  continued \\\n  to here\n" in text


def test_the_prologue_declares_what_is_exported_and_names_the_template(tmp_path: Path) -> None:
    template = written(tmp_path, "x\n")
    first, second, third, rest = render(template, {}).split("\n", 3)
    assert "jitsparse_launch(const void* words);" in first
    assert "jitsparse_error(int code);" in second
    assert third == f'#line 1 "{template.source}"'
    assert rest == "x\n"


def test_errors_while_rendering_have_the_templates_line(tmp_path: Path) -> None:
    template = written(tmp_path, "a\n{% if yes %}\nb\n{% endif %}\n{{ 1 // zero }}\n")
    with pytest.raises(CompileError, match=r"t\.jinja:5: .*zero"):
        render(template, {"yes": False, "zero": 0})
    with pytest.raises(CompileError, match=r"t\.jinja:2: 'yes' is undefined"):
        render(template, {"zero": 1})


def tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_own_headers_are_found_recursively(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "inc/a.h": '#include "sub/b.h"\n#include <vector>\n',
            "inc/sub/b.h": '  #  include "c.h"\n#include <angled.h>\n',
            "inc/sub/c.h": '#include "../a.h"\n',
            "inc/angled.h": "",
            "beside.h": "",
            "inc/unused.h": "",
        },
    )
    template = written(tmp_path, '#include "a.h"\n#include "beside.h"\n#include <cmath>\n')
    found = headers(template, {})
    assert list(found) == ["a.h", "angled.h", "beside.h", "sub/b.h", "sub/c.h"]
    assert found["sub/c.h"] == '#include "../a.h"\n'


def test_headers_behind_conditions_count(tmp_path: Path) -> None:
    tree(tmp_path, {"inc/a.h": "", "inc/b.h": ""})
    text = '{% if no %}\n#include "a.h"\n{% endif %}\n#if 0\n#include "b.h"\n#endif\n'
    assert list(headers(written(tmp_path, text), {"no": False})) == ["a.h", "b.h"]


def test_an_include_may_be_a_name_of_the_context(tmp_path: Path) -> None:
    tree(tmp_path, {"inc/fast.h": ""})
    template = written(tmp_path, '#include "{{ which }}.h"\n')
    assert list(headers(template, {"which": "fast"})) == ["fast.h"]
    computed = written(tmp_path, '\n#include "{{ which | lower }}.h"\n')
    with pytest.raises(CompileError, match=r"t\.jinja:2: #include of .* a plain \{\{ name"):
        headers(computed, {"which": "FAST"})


@pytest.mark.parametrize(
    "include", ["#include CONFIG", "#include /* it */ IT", '#include \\\n"a.h"', "# import NAME"]
)
def test_an_include_has_to_name_its_file(include: str, tmp_path: Path) -> None:
    tree(tmp_path, {"inc/a.h": f"// first\n{include}\n"})
    with pytest.raises(CompileError, match=r'inc/a\.h:2: #i.*: write a name in "" or <>'):
        headers(written(tmp_path, '#include "a.h"\n'), {})
    with pytest.raises(CompileError, match=r't\.jinja:2: #i.*: write a name in "" or <>'):
        headers(written(tmp_path, f"// first\n{include}\n"), {})


def test_what_is_in_a_comment_includes_nothing(tmp_path: Path) -> None:
    tree(
        tmp_path, {"inc/a.h": "/* How to\n#include CONFIG\n*/\n#include/**/<b.h>\n", "inc/b.h": ""}
    )
    text = '#include "a.h"\n{# of old:\n#include IT\n#}\n'
    assert list(headers(written(tmp_path, text), {})) == ["a.h", "b.h"]


def test_other_ways_to_include(tmp_path: Path) -> None:
    """The next header of a name is looked for in the directories that follow."""
    tree(tmp_path, {"inc/a.h": "#include_next <a.h>\n#import <b.h>\n", "inc/b.h": "", "2/a.h": ""})
    template = written(tmp_path, '#include "a.h"\n')
    template = replace(template, include_dirs=(tmp_path / "inc", tmp_path / "2"))
    found = headers(template, {})
    assert sorted(found.values())[:2] == ["", ""]
    assert len(found) == 3


def test_a_header_in_another_encoding(tmp_path: Path) -> None:
    tree(tmp_path, {"inc/a.h": ""})
    (tmp_path / "inc" / "a.h").write_bytes(b"// caf\xe9\n")
    template = written(tmp_path, '#include "a.h"\n')
    one = fields_of(template, replace(VARIANT, target="generic"), "")["headers"]
    (tmp_path / "inc" / "a.h").write_bytes(b"// caf\xe8\n")
    assert one != fields_of(template, replace(VARIANT, target="generic"), "")["headers"]


def test_templates_that_are_none(tmp_path: Path) -> None:
    template = written(tmp_path, "")
    template.source.write_bytes(b"// caf\xe9\n")
    with pytest.raises(ConfigError, match=r"cannot be read from .*t\.jinja.*utf-8"):
        headers(template, {})
    with pytest.raises(ConfigError, match="'C\\+\\+' is neither 'c\\+\\+' nor 'cuda'"):
        replace(template, language="C++")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="include_dirs is a tuple of directories, got '/tmp'"):
        replace(template, include_dirs="/tmp")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="how many words the launcher reads, got -1"):
        replace(template, arguments=-1)
    with pytest.raises(ConfigError, match="a context maps names to values, got None"):
        fields_of(replace(written(tmp_path, ""), context=lambda v: None), VARIANT, "")  # type: ignore[arg-type, return-value]
    texts = replace(template, source=str(template.source), include_dirs=["inc"])  # type: ignore[arg-type]
    assert (texts.source, texts.include_dirs) == (template.source, (Path("inc"),))
    with pytest.raises(ConfigError, match=r"'where' is .*, of type"):
        fields_of(replace(template, context=lambda v: {"where": tmp_path}), VARIANT, "")  # type: ignore[dict-item]


def test_text_that_is_put_elsewhere_has_no_line_marks(tmp_path: Path) -> None:
    text = "a\n{% set body %}\nx\n{% if yes %}\ny\n{% endif %}\n{% endset %}\n"
    text += "{% set n = 1 %}\nline 9\n[{{ body }}]\n"
    rendered = render(written(tmp_path, text), {"yes": True})
    assert "[x\ny\n]" in rendered
    assert (9, "line 9") in compiler_lines(rendered)


@pytest.mark.parametrize(
    "text",
    [
        "{%- set body %}\nx\n{% endset %}\n",
        "{% set body %}\nx {% endset %}\n",
        "{% set body | replace('=', '') %}\nx\n{% endset %}\n",
        "{% set n = 1 %}\n\n\n",
        "{% set body %}x{% endset %}\n\n\n",
    ],
)
def test_line_marks_after_text_that_was_put_elsewhere(text: str, tmp_path: Path) -> None:
    text += "{% if yes %}\n{% endif %}\nline 6\n"
    rendered = render(written(tmp_path, text), {"yes": True})
    expected = text.splitlines().index("line 6") + 1
    assert (expected, "line 6") in compiler_lines(rendered), rendered


def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        tree(tmp_path / place, {"inc/sub/b.h": "", "t.jinja": '#include "sub/b.h"\n'})
    one = Template("t", tmp_path / "one/t.jinja", "c++", (tmp_path / "one/inc",), 0, lambda v: {})
    two = replace(one, source=tmp_path / "two/t.jinja", include_dirs=(tmp_path / "two/inc",))
    assert headers(one, {}) == headers(two, {}) == {"sub/b.h": ""}


@pytest.mark.parametrize(
    "text",
    [
        "{# a licence\nof two lines #}\nx\n",
        "{% set a =\n 3 %}\nx\n",
        "{{ 1\n + 2 }}\nx\n",
        "a\n{%- if yes %}\nb\n{% endif %}\nx\n",
        "{% if yes -%}\n\n\nb\n{% endif %}\nx\n",
        "a {{ n -}}\n\nb\nx\n",
        "/* a\n{% if no %}\nb\n{% endif %}\n*/\nx\n",
        "a {% if no %}b\nc{% endif %}\nx\n",
        "a {% if no %}\nb\n{% endif %} c\nx\n",
        "{% raw %}\n{% if %}\n{{ a }}\n{% endraw %}\nx\n",
        'auto s = R"q(\n{% if yes %}\n"\n{% endif %}\n)q";\nx\n',
        "\ufeff{% if yes %}\na\n{% endif %}\nx\n",
        "int a = {{ n -}}\n{% if yes %}\n;\n{% endif %}\nx\n",
        "{% set s = '%}' ~\n 'b' %}\nx\n",
        "{{ {'a':\n {'b': 1}}\n['a']['b'] }}\nx\n",
        '{% if no %}\nb\n{% endif %}\nputs(FMT_R"(%d)");\n{% if no %}\nb\n{% endif %}\nx\n',
        "{# {% raw %} #}\n{% if no %}\nb\n{% endif %}\nx\n",
        "{% raw %}\n{#\n{% endraw %}\n{% if no %}\nb\n{% endif %}\nx\n",
        'char a = \'"\'; auto z = "/*";\n{% if no %}\nb\n{% endif %}\nx\n',
        "#include <a/*.h>\n{% if no %}\nb\n{% endif %}\nx\n",
        "{% set\n a = 3 %}\nx\n",
        "{# {% set x %} #}\n{% if no %}\nb\n{% endif %}\nx\n",
        "{% set (a, b) = (1, 2) %}\nx\n",
        "a\r\n{% if no %}\r\nb\r\n{% endif %}\r\nx\r\n",
    ],
)
def test_lines_after_what_jinja_reads(text: str, tmp_path: Path) -> None:
    template = written(tmp_path, text)
    template.source.write_bytes(text.encode())
    rendered = render(template, {"yes": True, "no": False, "n": 5})
    expected = re.split(r"\r\n|\n", text).index("x") + 1
    assert (expected, "x") in compiler_lines(rendered), rendered


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ v }}\nx\n", "a\nb\nc"),
        ("a {{ v }} b\n\nx\n", "c\nd"),
        ("{% for i in [1, 2] %}\n{{ v }}\n{% endfor %}\nx\n", "a\nb"),
        ("#define A {{ v }}\nint a;\n{{ v }}\nx\n", "1 \\\n + 2"),
        ("{% macro m(a) %}\na {{ a }}\nb\n{% endmacro %}\n{{ m(1) }}\n{{ m(v) }}\nx\n", "c"),
    ],
)
def test_lines_after_values_of_several_lines(text: str, value: str, tmp_path: Path) -> None:
    rendered = render(written(tmp_path, text), {"v": value})
    assert (text.split("\n").index("x") + 1, "x") in compiler_lines(rendered), rendered


def test_a_truth_value_is_that_of_cpp(tmp_path: Path) -> None:
    text = "{{ yes }} {{ not yes }} {{ n }} {% if yes %}{{ 'True' }}{% endif %}\n"
    assert render(written(tmp_path, text), {"yes": True, "n": 1}).endswith("\ntrue false 1 True\n")


def test_a_template_includes_no_other(tmp_path: Path) -> None:
    """Of which the key would not know."""
    for directive in ("include", "extends", "import"):
        text = f"a\n{{% {directive} 'b.h' {'as b' if directive == 'import' else ''} %}}\n"
        with pytest.raises(CompileError, match=r"t\.jinja:2: .*'b\.h'.*write #include"):
            render(written(tmp_path, text), {})


def test_what_is_asked_for_is_a_header_of_its_own(tmp_path: Path) -> None:
    template = written(
        tmp_path, '#if __has_include("opt.h") || __has_include ( <opt2.h> )\n#endif\n'
    )
    assert headers(template, {}) == {}
    (tmp_path / "opt.h").write_text("1")
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "opt2.h").write_text("2")
    assert headers(template, {}) == {"opt.h": "1", "opt2.h": "2"}


def test_what_is_rendered_is_the_authors_text(tmp_path: Path) -> None:
    text = "// a form\x0cfeed, \x85 and \u2028\n{% raw %}\n{% if %}\n{% endraw %}\n"
    text += 'R"(\n{% if yes %}\nin\n{% endif %}\n)"\n'
    rendered = render(written(tmp_path, text), {"yes": True})
    assert "// a form\x0cfeed, \x85 and \u2028\n" in rendered
    assert "{% if %}\n" in rendered
    assert 'R"(\nin\n)"' in rendered


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('f(\'"\', R"({% if yes %}\nin{% endif %}\n)")\n', 'R"(\nin\n)"'),
        ('R"{{ d }}({% if yes %}\nin{% endif %}\n)q"\n', 'R"q(\nin\n)q"'),
        ("#define A(x) {% if yes %}(x) + \\{% endif %}\n  1\n", "#define A(x) (x) + \\\n  1\n"),
        ("#define A(x) (x) + {{ back }}\n  1\n", "#define A(x) (x) + \\\n  1\n"),
    ],
)
def test_no_mark_is_where_it_would_be_text(text: str, expected: str, tmp_path: Path) -> None:
    context = {"yes": True, "d": "q", "back": "\\"}
    assert expected in render(written(tmp_path, text), context)


def test_what_a_template_raises_has_its_line(tmp_path: Path) -> None:
    for text, name in (
        ("a\n{{ '{b}'.format() }}\n", "KeyError"),
        ("a\n{{ [].pop() }}\n", "IndexError"),
        ("a\n{{ 1 / 0 }}\n", "ZeroDivisionError"),
    ):
        with pytest.raises(CompileError, match=rf"t\.jinja:2: {name}: "):
            render(written(tmp_path, text), {})


OF_JINJA = (
    *("a\n", "b {{ n }}\n", "\n", "{{ n -}}\n", "{{- n }}\n", "{# c #}\n", "{# c\nd #}\n"),
    *("{% if yes %}\n", "{% if no %}\n", "  {% if yes %}\n", "{%- if yes %}\n", "{% if no -%}\n"),
    *("{% else %}\n", "{% else -%}\n", "{%- else %}\n", "{% elif yes %}\n", "{% endif %}\n"),
    *("{% endif -%}\n", "x {% if no %}y{% endif %}\n", "x {% if no %}\ny\n", "z {% endif %} w\n"),
    *("{% for i in r %}\n", "{% endfor %}\n", "v {% endfor %}\n", "{%- endfor %}\n"),
    *("{% set q = 1 %}\n", "{% set w %}\n", "{% endset %}\n", "{% raw %}\n", "{% endraw %}\n"),
    *("{% macro m() %}\n", "{% endmacro %}\n", "{% if no %}{% if yes %}\n"),
    *("/* q\n", "*/\n", 'R"(\n', ')"\n', '"s"\n', "#define A \\\n", "// it's\n", "'\"'\n"),
)
CONTEXT = {"n": 5, "yes": True, "no": False, "r": range(2)}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(OF_JINJA), max_size=9).map("".join))
def test_marks_are_lines_of_their_own_and_nothing_else_changes(text: str) -> None:
    environment = jinja2.Environment(keep_trailing_newline=True)
    try:
        plain = environment.from_string(text).render(CONTEXT)
    except jinja2.TemplateError:
        return
    marked, _ = with_line_marks(text, environment)
    rendered = environment.from_string(marked).render(CONTEXT)
    rest = re.sub(r"(?m)^#line \d+(\n|\Z)", "", rendered)
    assert "".join(rest.split()) == "".join(plain.split())
    assert "#line" not in rest


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from([each for each in OF_JINJA[:24] if not set("v-") & set(each)]), max_size=9
    )
)
def test_text_has_its_own_number(pieces: list[str]) -> None:
    """Of lines that stand alone wherever a branch was left out, a loop repeated or a tag long."""
    text = ""
    for piece in pieces:
        text += f"<{text.count(chr(10)) + 1}>\n" + piece
    environment = jinja2.Environment(keep_trailing_newline=True)
    marked, _ = with_line_marks(text, environment)
    try:
        rendered = environment.from_string(marked).render(CONTEXT)
    except jinja2.TemplateError:
        return
    for number, line in compiler_lines("#line 1\n" + rendered):
        if re.fullmatch(r"<\d+>", line):
            assert line == f"<{number}>", rendered
