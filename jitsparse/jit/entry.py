"""A compiled variant on disk, and how to tell whether it is damaged.

An entry is a directory that holds the rendered source, the library, the build's log and meta.json:
the labelled fields of the key, the library's size and sha256, and how long compiling took.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from jitsparse.jit.key import digest
from jitsparse.jit.trust import objection, open_plain
from jitsparse.jit.variant import Variant

__all__ = [
    "FUNCTIONS",
    "LIBRARY",
    "LOG",
    "META",
    "SOURCES",
    "Entry",
    "examine",
    "read_meta",
    "sha256",
    "sync",
]

LIBRARY, LOG, META = "kernel.so", "build.log", "meta.json"
SOURCES = ("kernel.cpp", "kernel.cu")
FUNCTIONS = ("jitsparse_launch", "jitsparse_error")

META_LIMIT = 1 << 20
YEAR_3000 = 32503680000


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
        """The build log: the commands and the compiler's output."""
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


def examine(
    path: Path, *, name: str | None = None, trusted: bool = False
) -> tuple[dict[str, Any] | None, str]:
    """Read everything in an entry that decides whether its library may be mapped.

    Args:
        path: its directory.
        name: the directory's present or future name; by default the present one.
        trusted: whether owners and modes do not matter.

    Returns:
        Content of meta.json and an empty string, or None and what is wrong.
    """
    meta, reason = _meta(path, name or path.name, trusted)
    reason = reason or _damage(path / LIBRARY, meta, trusted)
    return (None, reason) if reason else (meta, "")


def read_meta(path: Path, *, trusted: bool = False) -> dict[str, Any] | None:
    """Content of an entry's meta.json, or None if it is missing or not what was published."""
    meta, reason = _meta(path, path.name, trusted)
    return None if reason else meta


def _meta(path: Path, name: str, trusted: bool) -> tuple[dict[str, Any], str]:
    """Content of an entry's meta.json, and what is wrong with it or with the directory."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return {}, "it is not a directory"
        reason = "" if trusted else objection(status)
        if reason:
            return {}, reason
        with os.fdopen(open_plain(path / META, trusted=trusted), "rb") as file:
            content = file.read(META_LIMIT + 1)
        if len(content) > META_LIMIT:
            return {}, f"{META} is larger than {META_LIMIT} bytes"
        return _parsed(content, name), ""
    except OSError as error:
        return {}, f"{META} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return {}, f"{META} is damaged ({type(error).__name__}: {error})"


def _parsed(content: bytes, name: str) -> dict[str, Any]:
    """Content of a meta.json, with all values of the types and in the ranges relied on.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: it is not what was published.
    """
    meta = json.loads(content)
    if not isinstance(meta, dict) or not isinstance(meta["fields"], dict):
        raise ValueError("it is not an object with fields")
    if digest(meta["fields"]) != meta["key"]:
        raise ValueError("the key does not belong to the fields")
    variant = Variant.parse(str(meta["fields"]["variant"])).name
    if name != f"{variant}-{meta['key'][:16]}":
        raise ValueError(f"it is the entry of {variant} with key {meta['key'][:16]}")
    if type(meta["library_bytes"]) is not int or type(meta["library_sha256"]) is not str:
        raise ValueError("the library's size and sha256 are not a number and a text")
    for label in ("compile_seconds", "created"):
        if type(meta[label]) not in (int, float) or not 0 <= meta[label] < YEAR_3000:
            raise ValueError(f"{label} is not a number of seconds")
    return meta


def _damage(library: Path, meta: Mapping[str, Any], trusted: bool) -> str:
    """What is wrong with a library, or an empty string."""
    try:
        with os.fdopen(open_plain(library, trusted=trusted), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != meta["library_bytes"]:
                return f"{LIBRARY} has {size} bytes and was published with {meta['library_bytes']}"
            if _sha256(file) != meta["library_sha256"]:
                return f"{LIBRARY} differs from what was published (sha256)"
    except OSError as error:
        return f"{LIBRARY} cannot be read ({error.strerror})"
    except ValueError as error:
        return f"{LIBRARY} is refused ({error})"
    return ""


def sha256(path: Path) -> str:
    """Digest of a file."""
    with path.open("rb") as file:
        return _sha256(file)


def _sha256(file: BinaryIO) -> str:
    # In pieces: the file may have any size.
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flush a file or directory to disk, so that a rename never outruns its content.

    Raises:
        OSError: there is no room, or the disk is broken.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems do not support this, for directories above all. Its sha256 then shows
        # what a power failure has lost.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)
