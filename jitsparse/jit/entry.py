"""One compiled variant on disk, and how it is told from a damaged one.

An entry is a directory that holds the rendered source, the library, the build's log and meta.json:
the labelled fields of the key, the library's size and sha256, and how long compiling took.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitsparse.jit.key import digest

__all__ = ["LIBRARY", "LOG", "META", "Entry", "damage", "read_meta", "sha256", "sync"]

LIBRARY, LOG, META = "kernel.so", "build.log", "meta.json"


@dataclass(frozen=True)
class Entry:
    """A compiled variant in a cache.

    Attributes:
        path: its directory.
        meta: content of its meta.json.
        fresh: whether this process compiled it in the call that returned it.
    """

    path: Path
    meta: Mapping[str, Any] = field(repr=False)
    fresh: bool = False

    @property
    def variant(self) -> str:
        """Name of the variant."""
        return str(self.meta["fields"]["variant"])

    @property
    def key(self) -> str:
        """sha256 of the labelled fields."""
        return str(self.meta["key"])

    @property
    def library(self) -> Path:
        """The shared library."""
        return self.path / LIBRARY

    @property
    def log(self) -> Path:
        """The commands that built it."""
        return self.path / LOG

    @property
    def compile_seconds(self) -> float:
        """How long compiling it took."""
        return float(self.meta["compile_seconds"])

    @property
    def library_bytes(self) -> int:
        """Size of the library."""
        return int(self.meta["library_bytes"])

    @property
    def created(self) -> float:
        """When it was compiled, in seconds since the epoch."""
        return float(self.meta["created"])


def read_meta(path: Path) -> dict[str, Any] | None:
    """Content of an entry's meta.json, or None if it is missing or not what was written."""
    try:
        meta = json.loads((path / META).read_bytes())
        if digest(meta["fields"]) != meta["key"]:
            return None
        for label, kind in (("library_bytes", int), ("library_sha256", str)):
            if not isinstance(meta[label], kind):
                return None
        float(meta["compile_seconds"]), float(meta["created"]), str(meta["fields"]["variant"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(meta)


def damage(library: Path, meta: Mapping[str, Any]) -> str:
    """What is wrong with a library, or an empty text."""
    try:
        size = library.stat().st_size
        if size != meta["library_bytes"]:
            return f"{LIBRARY} has {size} bytes and was published with {meta['library_bytes']}"
        if sha256(library) != meta["library_sha256"]:
            return f"{LIBRARY} differs from what was published (sha256)"
    except OSError as error:
        return f"{LIBRARY} cannot be read ({error.strerror})"
    return ""


def sha256(path: Path) -> str:
    """Digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sync(path: Path) -> None:
    """Have a file or directory reach the disk, so that a rename never outruns its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
