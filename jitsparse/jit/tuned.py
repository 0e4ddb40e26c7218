"""The tuned table: which variant was fastest for a problem on this kind of machine.

Times on one processor say nothing about another, so every kind has a table of its own. An entry is
looked up in this order::

    <cache>/tuned/<machine>/<hash of the problem>.json      what was tuned here
    <layer>/tuned/<machine>/<hash of the problem>.json      the same in each read-only cache
    jitsparse/tuned/<machine>.json                          what is shipped with jitsparse

In caches an entry is a small file of its own, written whole and renamed into place, so processes
that tune at the same time do not lose each other's results. What is shipped is one file per
machine, as :func:`export` writes it, and is parsed once, if it exists.

An entry is only a preference: it names a variant, and the families decide whether that exists and
is legal for a call (:func:`jitsparse.jit.selection.choose`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitsparse.errors import ArgumentError
from jitsparse.jit import cache as caches
from jitsparse.jit import config, files, progress
from jitsparse.jit.lookup import Lookup

__all__ = ["Record", "adopt", "export", "lookup", "record", "records", "stored"]

FORMAT = 1

SHIPPED = Path(__file__).resolve().parent.parent / "tuned"
"""Tables that are shipped with jitsparse, ``<machine>.json``."""


@dataclass(frozen=True)
class Record:
    """An entry of the tuned table.

    Attributes:
        problem: readable name of the problem.
        variant: name of the variant that calls should prefer.
        path: file that holds the entry.
        shipped: whether that file is shipped with jitsparse.
        seconds: what each variant took, by name; empty in a shipped table.
        driver: version of the GPU's driver at the time; None for a CPU.
    """

    problem: str
    variant: str
    path: Path
    shipped: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    driver: str | None = None


def record(
    problem: str,
    machine: str,
    variant: str,
    seconds: Mapping[str, float],
    *,
    driver: str | None = None,
    version: str | None = None,
) -> Record:
    """Keep the outcome of tuning one problem, replacing an earlier one.

    Args:
        problem: readable name of the problem; equal problems must have equal names.
        machine: name of the CPU or GPU that was measured.
        variant: name of the variant that calls should prefer.
        seconds: what each variant took, by variant name.
        driver: version of the GPU's driver.
        version: version of the program that the variants belong to.

    Raises:
        ArgumentError: a name is not a string, or a time is not a finite number of seconds.
        OSError: the entry cannot be written.
    """
    if not isinstance(seconds, Mapping):
        raise ArgumentError(
            f"seconds has what each variant took, {{{variant!r}: 1e-3}}; got {seconds!r}"
        )
    for name in (problem, machine, variant, *seconds):
        if not isinstance(name, str):
            raise ArgumentError(
                f"problem, machine and variants are given by their names, got {name!r}"
            )
    for name, taken in seconds.items():
        if not _is_time(taken):
            raise ArgumentError(f"{name} cannot have taken {taken!r} seconds")
    cache = caches.current()
    if not cache.writable():
        cache = caches.private_instead(cache, cache.refusal())
    path = _path(cache.root, problem, machine)
    content = {
        "format": FORMAT,
        "problem": problem,
        "machine": machine,
        "driver": driver,
        "version": version,
        "created": time.time(),
        "variant": variant,
        "seconds": dict(seconds),
    }
    files.make_directories(path.parent.parent, path.parent, shared=cache.shared)
    files.write(path, _text(content))
    config.bump()
    return Record(problem, variant, path, False, dict(seconds), driver)


def lookup(problem: str, machine: str) -> Record | None:
    """The entry of a problem on a machine, or None.

    A damaged file is ignored, with one warning.
    """
    here = caches.current()
    for root in (here.root, *here.layers):
        found = _read(_path(root, problem, machine))
        if found is not None and found.problem == problem:
            return found
    return _shipped(SHIPPED / f"{_slug(machine)}.json").get(problem)


def records(machine: str) -> dict[str, Record]:
    """Every entry that :func:`lookup` finds for a machine, by problem."""
    here = caches.current()
    found = dict(_shipped(SHIPPED / f"{_slug(machine)}.json"))
    for root in (*reversed(here.layers), here.root):
        for path in files.listed(root / "tuned" / _slug(machine), "*.json"):
            each = _read(path)
            if each is not None and path == _path(root, each.problem, machine):
                found[each.problem] = each
    return found


def export(
    path: Path, machine: str, *, driver: str | None = None, commit: str | None = None
) -> int:
    """Write the whole table of a machine to one file, in the form shipped with jitsparse.

    Args:
        path: the file; ``jitsparse/tuned/<machine>.json`` in the sources, to ship it.
        machine: name of the CPU or GPU.
        driver, commit: what was measured with, for readers of the file.

    Returns:
        The number of entries.

    Raises:
        OSError: the file cannot be written.
    """
    entries = {each.problem: each.variant for each in records(machine).values()}
    content = {
        "format": FORMAT,
        "machine": machine,
        "driver": driver,
        "commit": commit,
        "entries": dict(sorted(entries.items())),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, _text(content))
    _shipped.cache_clear()  # it may be one of those files
    config.bump()
    return len(entries)


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def stored(cache: Lookup) -> Iterator[tuple[str, Record, bytes]]:
    """What was tuned, in the order in which lookups read it.

    Yields:
        The place below ``tuned/`` in a cache, the entry, and the content of its file.
    """
    for root in (cache.root, *cache.layers):
        for path in files.listed(root / "tuned", "*/*.json"):
            found = _read(path)
            if found is not None:
                yield f"{path.parent.name}/{path.name}", found, files.read(path)


def adopt(cache: Lookup, place: str, content: bytes) -> bool:
    """Keep an entry that was tuned elsewhere, unless its problem was tuned here.

    Args:
        cache: where to keep it.
        place: as :func:`stored` yields it; the caller guarantees that it leads nowhere else.
        content: content of the file.

    Returns:
        Whether it was kept.

    Raises:
        ValueError: it is not an entry of the tuned table, or its name is that of another problem.
        OSError: it cannot be written.
    """
    path = cache.root / "tuned" / place
    if path.name != _file_name(_record(_parse(content), path).problem):
        raise ValueError("it is the entry of another problem")
    if path.exists():
        return False
    files.make_directories(path.parent.parent, path.parent, shared=cache.shared)
    files.write(path, _text(json.loads(content)))
    config.bump()
    return True


def _read(path: Path) -> Record | None:
    """The entry in a file of a cache, or None if there is none or it is damaged."""
    content = _json(path)
    if content is None:
        return None
    try:
        return _record(content, path)
    except ValueError as error:
        _warn_once(path, str(error))
        return None


def _record(content: Mapping[str, Any], path: Path) -> Record:
    problem, variant, driver = (content.get(name) for name in ("problem", "variant", "driver"))
    seconds = content.get("seconds")
    if not (
        _are_texts((problem, variant))
        and isinstance(driver, str | None)
        and isinstance(seconds, dict)
        and all(map(_is_time, seconds.values()))
    ):
        raise ValueError("it is not an entry of the tuned table")
    return Record(str(problem), str(variant), path, False, seconds, driver)


@functools.cache
def _shipped(path: Path) -> Mapping[str, Record]:
    """The entries of a table that is shipped with jitsparse, by problem."""
    content = _json(path)
    if content is None:
        return {}
    entries, driver = content.get("entries"), content.get("driver")
    if not (
        isinstance(entries, dict)
        and isinstance(driver, str | None)
        and _are_texts(entries.values())
    ):
        _warn_once(path, "it is not a tuned table")
        return {}
    return {
        problem: Record(problem, variant, path, True, {}, driver)
        for problem, variant in entries.items()
    }


def _json(path: Path) -> dict[str, Any] | None:
    """Content of a file of this format; None if there is no such file or it is damaged."""
    try:
        return _parse(files.read(path))
    except (FileNotFoundError, NotADirectoryError):  # the cache itself may be a file
        return None
    except OSError as error:
        _warn_once(path, f"{error.strerror}.")
    except ValueError as error:
        _warn_once(path, f"{error}. Delete it.")
    return None


def _parse(data: bytes) -> dict[str, Any]:
    """Content of a file of this format.

    Raises:
        ValueError: it is damaged.
    """
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    return content


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


@functools.cache
def _warn_once(path: Path, reason: str) -> None:
    progress.warn(f"jitsparse: {path} is ignored, as if nothing had been tuned: {reason}")


def _path(root: Path, problem: str, machine: str) -> Path:
    return root / "tuned" / _slug(machine) / _file_name(problem)


def _file_name(problem: str) -> str:
    return hashlib.sha256(problem.encode(errors="backslashreplace")).hexdigest()[:32] + ".json"


def _slug(machine: str) -> str:
    """A machine as a file name: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"\W+", "-", machine).strip("-").lower()
