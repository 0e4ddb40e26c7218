"""Writing a bundle: entries of every root, each verified as it is written."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jitsparse.errors import ArgumentError, BundleError
from jitsparse.jit import tuned
from jitsparse.jit.bundle import FILE_LIMIT, FILES, MANIFEST, Expected, manifest
from jitsparse.jit.entry import LIBRARY
from jitsparse.jit.inventory import directories
from jitsparse.jit.lookup import VERSION, Lookup
from jitsparse.jit.trust import open_plain
from jitsparse.jit.ustar import write_end, write_member
from jitsparse.jit.variant import Variant

__all__ = ["Exported", "export"]

Keep = Callable[[Variant], bool]


@dataclass(frozen=True)
class Exported:
    """What a bundle holds.

    Attributes:
        path: the archive.
        bytes: its size.
        entries: names of the entries, ``<variant>-<hash16>``.
        tuned: how many entries of the tuned table.
        skipped: what was asked for and left out, with the reason.
    """

    path: Path
    bytes: int
    entries: tuple[str, ...]
    tuned: int
    skipped: tuple[tuple[str, str], ...]


def export(cache: Lookup, path: Path, *, keep: Keep = lambda variant: True) -> Exported:
    """Write entries and the tuned table of a cache and its layers to one archive.

    Args:
        cache: what to read.
        path: the archive. It is replaced at the end, when everything is in it.
        keep: which variants to export. An entry of the tuned table goes with its variant.

    Raises:
        BundleError: there is nothing to export, or the archive cannot be written.
    """
    skipped: list[tuple[str, str]] = []
    files: dict[str, Expected] = {}
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        # The manifest comes first and has the digests of everything that follows.
        with tempfile.TemporaryFile(dir=path.parent) as body:
            for place, content in (*_entries(cache, keep, skipped), *_tuned(cache, keep, skipped)):
                files[place] = _add(body, place, content)
            if not files:
                raise BundleError(_nothing(cache, skipped))
            body.seek(0)
            with temporary.open("wb") as archive:
                write_member(archive, MANIFEST, manifest(files))
                shutil.copyfileobj(body, archive)
                write_end(archive)
        os.replace(temporary, path)
        size = path.stat().st_size
    except OSError as error:
        raise BundleError(
            f"the bundle {path} cannot be written: {error}. Name a file in a directory that can "
            "be written, with room for the cache's libraries twice."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    names = dict.fromkeys(each.entry for each in files.values() if each.entry is not None)
    count = sum(each.entry is None for each in files.values())
    return Exported(path, size, tuple(names), count, tuple(skipped))


def _add(body: BinaryIO, place: str, content: bytes) -> Expected:
    expected = Expected.at(place, len(content), hashlib.sha256(content).hexdigest())
    write_member(body, place, content)
    return expected


def _entries(
    cache: Lookup, keep: Keep, skipped: list[tuple[str, str]]
) -> Iterator[tuple[str, bytes]]:
    """Every file of every kept entry, by name; of equal names the one that a lookup finds."""
    chosen: dict[str, Path] = {}
    for root in cache.roots:
        for path in directories(root):
            try:
                if not keep(Variant.parse(path.name.rpartition("-")[0])):
                    continue
            except ArgumentError as error:
                skipped.append((str(path), str(error)))
                continue
            _, defect = cache.examine(path)
            if defect:
                skipped.append((str(path), defect))
            else:
                chosen.setdefault(path.name, path)
    for name, path in sorted(chosen.items()):
        try:
            contents = _read(cache, path)
        except (OSError, ValueError) as error:
            skipped.append((str(path), str(error)))
            continue
        for file, content in contents.items():
            yield f"{VERSION}/{name}/{file}", content


def _read(cache: Lookup, path: Path) -> dict[str, bytes]:
    """Content of an entry's files.

    Raises:
        OSError: one cannot be read.
        ValueError: one may not be used, or is not what was published.
    """
    meta, defect = cache.examine(path)
    if meta is None:
        raise ValueError(defect)
    trusted = path.parent.parent in cache.trusted
    contents = {}
    for name in FILES:
        if os.path.lexists(path / name):
            with os.fdopen(open_plain(path / name, trusted=trusted), "rb") as file:
                contents[name] = file.read(FILE_LIMIT + 1)
            if len(contents[name]) > FILE_LIMIT:
                raise ValueError(f"{name} is larger than {FILE_LIMIT} bytes")
    # What is written is what is verified, whatever happened to the file in between.
    if hashlib.sha256(contents[LIBRARY]).hexdigest() != meta["library_sha256"]:
        raise ValueError(f"{LIBRARY} was changed while it was read")
    return contents


def _tuned(
    cache: Lookup, keep: Keep, skipped: list[tuple[str, str]]
) -> Iterator[tuple[str, bytes]]:
    """Every file of the tuned table whose variant is kept; of equal paths the one lookups use."""
    done: set[str] = set()
    for place, record, content in tuned.stored(cache):
        try:
            if place in done or not keep(Variant.parse(record.variant)):
                continue
            Expected.at(f"tuned/{place}", len(content), "0" * 64)
        except ValueError as error:
            skipped.append((str(record.path), str(error)))
            continue
        done.add(place)
        yield f"tuned/{place}", content


def _nothing(cache: Lookup, skipped: list[tuple[str, str]]) -> str:
    roots = ", ".join(str(root) for root in cache.roots)
    damaged = (
        f" {len(skipped)} entries were left out; the first is {skipped[0]}." if skipped else ""
    )
    return (
        f"the cache ({roots}) has nothing of what was asked for, so no bundle was written."
        f"{damaged} List what is there with jitsparse cache ls, fill it with jitsparse warmup."
    )
