"""What is known about a variant without compiling or mapping anything; why it would be a miss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jitsparse.jit import cache as caches
from jitsparse.jit.resolve import Request
from jitsparse.jit.template import Template
from jitsparse.jit.variant import Variant

if TYPE_CHECKING:
    from jitsparse.jit.miss import Miss

__all__ = ["Description", "describe", "explain_miss"]


@dataclass(frozen=True)
class Description:
    """What is known about a variant without compiling it.

    Attributes:
        variant: its name.
        key: sha256 of the labelled fields.
        path: directory of its entry, present or not.
        cached: whether a valid entry is there.
        compile_seconds: how long it took to compile, or took last time; None if never.
        library_bytes: size of the library, None if not cached.
        changed: labels of the fields in which the nearest other entry of the variant differs, which
            explain a miss. Empty on a hit, or if there is no other entry.
    """

    variant: str
    key: str
    path: Path
    cached: bool
    compile_seconds: float | None
    library_bytes: int | None
    changed: tuple[str, ...]


def describe(template: Template, variant: Variant, *, why: bool = True) -> Description:
    """What is known about a variant, without compiling or mapping anything.

    Args:
        template: what it is rendered from.
        variant: the variant to describe.
        why: whether to look for what changed, among all entries.
    """
    request = Request(template, variant)
    cache = caches.current()
    entry = request.find(cache)
    _, changed = request.nearest(cache) if why and not entry else (None, ())
    return Description(
        variant=variant.name,
        key=entry.key if entry else request.key,
        path=entry.path if entry else request.path(cache),
        cached=entry is not None,
        compile_seconds=entry.compile_seconds if entry else cache.last_seconds(variant.name),
        library_bytes=entry.library_bytes if entry else None,
        changed=tuple(each.field for each in changed),
    )


def explain_miss(template: Template, variant: Variant) -> Miss:
    """Why a variant would be compiled: how the nearest entry of its name differs."""
    from jitsparse.jit.miss import Miss

    request = Request(template, variant)
    cache = caches.current()
    entry = request.find(cache)
    if entry is not None:
        return Miss(variant.name, entry.key, entry.path, None, (), ())
    near, changed = request.nearest(cache)
    damaged = tuple(
        (path, defect)
        for path in cache.paths_of(variant.name)
        for _, defect in [cache.examine(path)]
        if defect
    )
    others = () if near or damaged else request.other_targets(cache)
    path = near.path if near else None
    return Miss(variant.name, request.key, None, path, changed, damaged, others)
