"""The identity of an entry: labelled fields that determine the library, and their digest.

The template's text and the context that it is rendered with stand for the rendered text, which they
determine, so a hit renders nothing. No field holds an absolute path (except one that the
environment passes to nvcc), a time, or the version of torch or Python: an entry may be moved,
copied into an image, and shared between environments.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from jitsparse.errors import ConfigError, JitsparseError
from jitsparse.jit.targets import compile_flags, link_flags
from jitsparse.jit.template import PROLOGUE, Template, headers
from jitsparse.jit.variant import Variant

__all__ = ["FORMAT", "digest", "fields_of", "same_but_compiler"]

FORMAT = 1
"""Version of the build recipe and of the entry's layout; raised when either changes."""


def fields_of(template: Template, variant: Variant, compiler: str) -> dict[str, Any]:
    """Labelled fields of a variant's entry.

    Args:
        template: the template it is rendered from.
        variant: the variant.
        compiler: version text of the compilers, empty where none can be used.

    Returns:
        A JSON-serialisable mapping. Texts appear as their sha256, so that comparing two entries
        field by field shows the reason for a miss.

    Raises:
        ConfigError: the context holds something other than str, int and bool.
        CompileError: the template, or one of its headers, has an include that names no file.
    """
    try:
        context = template.context(variant)
    except JitsparseError:
        raise
    except Exception as error:  # whatever the author's function raises
        raise ConfigError(
            f"template {template.name!r} has no context for {variant.name}: "
            f"{type(error).__name__}: {error}."
        ) from error
    if not isinstance(context, Mapping) or not all(isinstance(name, str) for name in context):
        raise ConfigError(
            f"template {template.name!r}: a context maps names to values, got {context!r}."
        )
    for name, value in context.items():
        # Exactly these: a str Enum would be keyed as one text and rendered as another.
        if type(value) not in (str, int, bool):
            raise ConfigError(
                f"template {template.name!r}: a context holds str, int and bool, but {name!r} is "
                f"{value!r}, of type {type(value).__name__}."
            )
        if isinstance(value, str) and not value.isascii() and _has_surrogate(value):
            raise ConfigError(
                f"template {template.name!r}: {name!r} in its context is {value!r}, which is no "
                "text in UTF-8."
            )
    return {
        "format": FORMAT,
        "variant": variant.name,
        "language": template.language,
        "template": _sha256((PROLOGUE + template.text()).encode()),
        "context": {name: context[name] for name in sorted(context)},
        "headers": {
            name: _sha256(text.encode(errors="surrogateescape"))
            for name, text in headers(template, context).items()
        },
        "flags": [
            *compile_flags(template.language, variant.target),
            *template.flags,
            *link_flags(template.language),
            *template.link_flags,
        ],
        "libraries": [version for _, version in template.libraries],
        "machine": os.uname().machine,
        "compiler": compiler,
    }


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def digest(fields: Mapping[str, Any]) -> str:
    """sha256 over the fields, each under its label."""
    return _sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def same_but_compiler(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two entries' fields agree in everything except the compiler's version."""
    return {**left, "compiler": ""} == {**right, "compiler": ""}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
