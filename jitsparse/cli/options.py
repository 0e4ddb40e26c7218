"""Values of options that several commands take; an illegal one raises ValueError."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jitsparse.cli.console import split
from jitsparse.errors import ConfigError

if TYPE_CHECKING:
    from jitsparse.jit import Variant

__all__ = [
    "MAX_SIZE",
    "at_most",
    "one_of",
    "read_arch",
    "read_density",
    "read_size",
    "readable_file",
    "variant_filter",
    "writable_file",
]

MAX_SIZE = 2**31 - 1
"""Rows, columns and steps are 32-bit numbers in kernels."""

MAX_PATH = 4000
MAX_NAME = 200
"""Bytes of a path and of the name at its end: below what systems allow, since a longer name is
written first."""


_SHORT = {
    "float64": "f64",
    "double": "f64",
    "float32": "f32",
    "float": "f32",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
}
"""What torch calls dtypes, and our names for them."""


def one_of(legal: Sequence[str]) -> Callable[[str], str]:
    """A reader of legal names; a legal dtype may also be given by torch's name for it."""

    def read(text: str) -> str:
        name = text if text in legal else _SHORT.get(text.removeprefix("torch."), text)
        if name not in legal:
            raise ValueError(f"not one of {', '.join(legal)}")
        return name

    return read


def at_most(most: int) -> Callable[[int], int]:
    """A callback that checks the upper limit of an option.

    Options do not pass it as ``max=``: their help would print it in full, as
    ``[0<=x<=9223372036854775807]``.
    """

    def check(value: int) -> int:
        if value > most:
            raise typer.BadParameter(f"{value} is more than {most}")
        return value

    return check


def read_arch(text: str) -> tuple[str, ...]:
    """``"9.0a"`` or ``"avx2"``, or several, as names of targets."""
    from jitsparse.jit.environment import parse_arch

    name = "target"
    try:
        return parse_arch(text, name)
    except ConfigError as error:
        # It begins with the setting's name; the option is named anyway.
        raise ValueError(str(error).removeprefix(f"{name}: ")) from error


def read_size(text: str) -> tuple[int, ...]:
    """``"512"`` or ``"512x256x128"`` as ``(m, n, k)``."""
    words = text.lower().split("x")
    sides = tuple(int(word) if word.isdecimal() and len(word) < 20 else 0 for word in words)
    if len(sides) not in (1, 3) or min(sides) < 1 or max(sides) > MAX_SIZE:
        raise ValueError(f"a size is m = n = k, or MxNxK, each from 1 to {MAX_SIZE}")
    return sides * 3 if len(sides) == 1 else sides


def read_density(text: str) -> float:
    """A share of blocks."""
    try:
        density = float(text)
    except ValueError:
        density = 0.0
    if not 0 < density <= 1:
        raise ValueError("a density is above 0 and at most 1")
    return density


def readable_file(text: str) -> Path:
    """A file that exists."""
    path = Path(text)
    short = len(os.fsencode(text)) <= MAX_PATH
    if short and path.is_dir():
        raise ValueError("a directory, not a file")
    if not (short and path.is_file()):
        raise ValueError("there is no such file")
    return path


def writable_file(text: str) -> Path:
    """A file that exists or could; checked before the work whose result it will hold."""
    path = Path(text)
    # Written beside and renamed, so anything but a regular file would be replaced by one.
    if not path.name or (os.path.lexists(path) and not os.path.isfile(path)):
        raise ValueError("not the name of a file")
    if len(os.fsencode(path.name)) > MAX_NAME:
        raise ValueError(f"a name of more than {MAX_NAME} bytes")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"its directory cannot be created: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path.parent} cannot be written")
    return path


def variant_filter(
    op: Sequence[str],
    dtype: Sequence[str],
    block_size: Sequence[str],
    arch: Sequence[str],
    patterns: Sequence[str] = (),
) -> Callable[[Variant], bool]:
    """Whether a variant is among what these options name; an option that is not given admits all.

    Torch is imported only for block sizes, and for names that no cached kernel has.

    Raises:
        typer.BadParameter: an operation or a dtype that neither jitsparse nor a cached kernel of
            another template has; an impossible block size or target.
    """
    from jitsparse.jit import Variant, cache

    cached: list[Variant] = []
    if op or dtype:
        cached = [Variant.parse(entry.variant) for entry in cache.current().entries()]
    ops = set(split(op, _cached_or_ours({each.op for each in cached}, "OPS"), "--op"))
    dtypes = set(
        split(dtype, _cached_or_ours({each.dtype for each in cached}, "DTYPES"), "--dtype")
    )
    sides = split(block_size, _read_block_size, "--block-size")
    blocks = {f"{rows}x{cols}" for rows, cols in sides}
    targets = {name for names in split(arch, read_arch, "--arch") for name in names}

    def keep(variant: Variant) -> bool:
        return (
            (not ops or variant.op in ops)
            and (not dtypes or variant.dtype in dtypes)
            and (not blocks or dict(variant.knobs).get("b") in blocks)
            and (not targets or variant.target in targets)
            and (not patterns or any(fnmatchcase(variant.name, each) for each in patterns))
        )

    return keep


def _cached_or_ours(cached: Collection[str], table: str) -> Callable[[str], str]:
    """A reader of names that cached kernels have, or that a table of the registry lists."""

    def read(text: str) -> str:
        try:
            return one_of([*cached])(text)
        except ValueError:
            from jitsparse.kernels import registry

            ours: Sequence[str] = getattr(registry, table)
            return one_of([*ours, *sorted({*cached} - {*ours})])(text)

    return read


def _read_block_size(text: str) -> tuple[int, int]:
    from jitsparse.kernels.registry import parse_block_size

    return parse_block_size(text)
