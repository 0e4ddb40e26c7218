"""The reason for a miss: the labelled fields of the key in which the nearest entry differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jitsparse.jit.entry import Entry
from jitsparse.jit.variant import Variant

__all__ = ["Difference", "Miss", "differences", "nearest", "other_targets"]

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One field in which two keys differ.

    Attributes:
        field: its label.
        sentence: what changed, from the entry to what is looked for.
    """

    field: str
    sentence: str


@dataclass(frozen=True)
class Miss:
    """Why a variant is not in the cache.

    Attributes:
        variant: its name.
        key: sha256 of the labelled fields.
        path: directory of its entry; None if it is a miss.
        nearest: directory of the entry of this name that differs in the fewest fields, if any.
        differences: what differs.
        damaged: directories of this name that are not used because they are damaged, and why.
        other_targets: those that have kernels of its operation and dtype, if there is no entry of
            this name: CUDA targets for a CUDA target, CPU targets for a CPU target.
    """

    variant: str
    key: str
    path: Path | None
    nearest: Path | None
    differences: tuple[Difference, ...]
    damaged: tuple[tuple[Path, str], ...]
    other_targets: tuple[str, ...] = ()


def nearest(fields: Fields, entries: Iterable[Entry]) -> Entry | None:
    """The entry of the same variant that differs in the fewest fields; of several, the newest."""
    same = [each for each in entries if each.variant == fields["variant"]]
    return min(
        same,
        key=lambda each: (len(_changed(each.meta["fields"], fields)), -each.created),
        default=None,
    )


def other_targets(variant: Variant, entries: Iterable[Entry]) -> tuple[str, ...]:
    """Other targets that have kernels of a variant's operation and dtype.

    CUDA targets for a CUDA target, CPU targets for a CPU target: an image that was built on another
    machine has such.
    """
    found = [Variant.parse(each.variant) for each in entries]
    alike = {
        each.target
        for each in found
        if (each.op, each.dtype) == (variant.op, variant.dtype)
        and each.target.startswith("sm") == variant.target.startswith("sm")
    }
    return tuple(sorted(alike - {variant.target}))


def differences(there: Fields, wanted: Fields) -> tuple[Difference, ...]:
    """What changed from one key to another.

    Args:
        there: the fields of an entry. Whatever they hold, the sentences can be printed.
        wanted: the fields of the missing entry.
    """
    return tuple(
        Difference(label, _printable(_sentence(label, there.get(label), wanted.get(label))))
        for label in _changed(there, wanted)
    )


def _changed(there: Fields, wanted: Fields) -> list[str]:
    return [
        label
        for label in dict.fromkeys([*wanted, *there])
        if label not in there or label not in wanted or there[label] != wanted[label]
    ]


def _sentence(label: str, old: Any, new: Any) -> str:
    if label == "template":
        return "template: its text was edited, or is that of another version of the package"
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return f"{label}: {', '.join(_parts(label, old, new))}"
    if isinstance(old, list) and isinstance(new, list):
        gone = [f"without {each}" for each in old if each not in new]
        come = [f"with {each}" for each in new if each not in old]
        return f"{label}: {', '.join(come + gone) or 'in another order, or other numbers of them'}"
    if isinstance(old, str) and isinstance(new, str):
        # Compilers' version texts have several lines; the first that differs has the version.
        for one, other in zip_longest(old.splitlines(), new.splitlines(), fillvalue=""):
            if one != other:
                return f"{label}: {one or 'none'} -> {other or 'none'}"
    return f"{label}: {old} -> {new}"


def _parts(label: str, old: Fields, new: Fields) -> list[str]:
    parts = []
    for name in _changed(old, new):
        if name not in old:
            parts.append(f"{name} is new")
        elif name not in new:
            parts.append(f"{name} is gone")
        elif label == "headers":
            parts.append(f"{name} was edited")
        else:
            parts.append(f"{name} {old[name]} -> {new[name]}")
    return parts


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
