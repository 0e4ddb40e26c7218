"""The key: every field counts, and nothing else does."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import ConfigError
from jitsparse.jit import key, targets

FIELDS = {
    "format": 1,
    "variant": "a.b.c.d",
    "language": "c++",
    "template": "0",
    "context": {"x": 1, "y": "2", "z": True},
    "headers": {"a.h": "1"},
    "flags": ["-O3", "-g"],
    "libraries": ["4.2.0"],
    "machine": "x86_64",
    "compiler": "1.0",
}


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("format", 2),
        ("variant", "a.b.c.e"),
        ("language", "cuda"),
        ("template", "1"),
        ("context", {"x": "1", "y": "2", "z": True}),
        ("headers", {"b.h": "1"}),
        ("headers", {"a.h": "2"}),
        ("flags", ["-g", "-O3"]),
        ("flags", ["-O3 -g"]),
        ("libraries", ["4.2.1"]),
        ("machine", "aarch64"),
        ("compiler", "1.1"),
    ],
)
def test_every_field_counts(label: str, value: object) -> None:
    assert key.digest({**FIELDS, label: value}) != key.digest(FIELDS)


def test_the_order_of_the_labels_does_not() -> None:
    assert key.digest(dict(reversed(FIELDS.items()))) == key.digest(FIELDS)


def test_the_fields_of_a_variant(tmp_path: Path) -> None:
    template = toykernel.write(tmp_path)
    fields = key.fields_of(template, toykernel.variant(), "1.0")
    assert set(fields) == set(FIELDS)
    assert fields["variant"] == "axpy.omp.generic.f32.s2"
    assert fields["context"] == {"negative": False, "scale": 2, "type": "float"}
    assert list(fields["headers"]) == ["body/axpy.h"]
    assert fields["libraries"] == []
    assert str(tmp_path) not in str(fields)
    assert fields["flags"] == [
        *targets.compile_flags("c++", "generic"),
        *targets.link_flags("c++"),
    ]


def test_a_context_is_of_plain_values(tmp_path: Path) -> None:
    """A text that is an Enum, too, is one thing to JSON and another to Jinja."""

    class Type(str, enum.Enum):
        FLOAT = "float"

    template, variant = toykernel.write(tmp_path), toykernel.variant()
    for value in (Type.FLOAT, 1.5, None, "\ud800"):
        other = replace(template, context=lambda _, value=value: {"type": value})
        with pytest.raises(ConfigError, match="'type'"):
            key.fields_of(other, variant, "")


def test_what_a_context_raises_has_the_templates_name(tmp_path: Path) -> None:
    template = replace(toykernel.write(tmp_path), context=lambda variant: {}["f16"])
    with pytest.raises(ConfigError, match=r"'axpy' has no context for axpy\.omp.*KeyError: 'f16'"):
        key.fields_of(template, toykernel.variant(), "")


def test_names_and_launchers_do_not_count(tmp_path: Path) -> None:
    """They change what Python does with the library, not the library."""
    template = toykernel.write(tmp_path)
    other = replace(template, name="other", arguments=9)
    variant = toykernel.variant()
    assert key.fields_of(template, variant, "") == key.fields_of(other, variant, "")


def test_same_but_compiler() -> None:
    assert key.same_but_compiler(FIELDS, {**FIELDS, "compiler": "2.0"})
    assert not key.same_but_compiler(FIELDS, {**FIELDS, "machine": "aarch64"})


def test_what_stands_before_every_template_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, variant = toykernel.write(tmp_path), toykernel.variant()
    before = key.fields_of(template, variant, "1.0")
    monkeypatch.setattr(key, "PROLOGUE", key.PROLOGUE + "// more\n")
    assert key.fields_of(template, variant, "1.0")["template"] != before["template"]
