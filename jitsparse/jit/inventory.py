"""What a cache holds, and whether it is as it was published. Loads nothing, changes nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jitsparse.jit import files
from jitsparse.jit.entry import META, Entry
from jitsparse.jit.lookup import VERSION, Lookup

__all__ = ["Stored", "Verdict", "directories", "disk_usage", "stored", "verify"]


@dataclass(frozen=True)
class Stored:
    """An entry on disk.

    Attributes:
        entry: what its meta.json says.
        bytes: size of all its files.
        last_use: when it was last loaded or, if never, compiled or imported, in seconds since the
            epoch. Loads within the same minute count as one.
        read_only: whether it is in a read-only layer.
    """

    entry: Entry
    bytes: int
    last_use: float
    read_only: bool


@dataclass(frozen=True)
class Verdict:
    """What :func:`verify` found out about one entry.

    Attributes:
        path: its directory.
        variant: name of the variant, None if that cannot be read.
        defect: why it will not be used; empty if it is intact.
    """

    path: Path
    variant: str | None
    defect: str


def directories(root: Path) -> list[Path]:
    """Directories of the entries below a root, valid or not, by name."""
    return files.listed(root / VERSION, "*-*")


def disk_usage(path: Path) -> tuple[int, float]:
    """Size of an entry's files, and when it was last used; 0 and 0.0 if it is gone."""
    size, last_use = 0, 0.0
    with contextlib.suppress(OSError), os.scandir(path) as found:
        for file in found:
            status = file.stat(follow_symlinks=False)
            size += status.st_size
            if file.name == META:
                last_use = status.st_mtime
    return size, last_use


def stored(cache: Lookup) -> Iterator[Stored]:
    """Every entry of every root, in the order in which roots are searched."""
    for entry in cache.entries():
        size, last_use = disk_usage(entry.path)
        read_only = entry.path.parent.parent != cache.root
        yield Stored(entry, size, last_use, read_only)


def verify(cache: Lookup) -> Iterator[Verdict]:
    """Examine every entry of every root: ownership, metadata, key, size and sha256."""
    for root in cache.roots:
        for path in directories(root):
            meta, defect = cache.examine(path)
            yield Verdict(path, None if meta is None else str(meta["fields"]["variant"]), defect)
