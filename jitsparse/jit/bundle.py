"""A bundle: entries and tuned tables of a cache in one tar archive, for a machine elsewhere.

    bundle.json                         the manifest: format, and size and sha256 of every file
    v1/<variant>-<hash16>/kernel.so     the files of each entry, as in a cache
    v1/<variant>-<hash16>/meta.json
    ...
    tuned/<machine>/<hash of the problem>.json

The manifest comes first, so that a reader knows what to expect of every file before it comes. Equal
entries make byte-identical archives.

Hashes detect damage, not malice: a bundle is code, to be accepted only from a source whose programs
one would run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from jitsparse.jit.entry import LIBRARY, LOG, META, SOURCES
from jitsparse.jit.lookup import VERSION

__all__ = ["FILES", "FILE_LIMIT", "MANIFEST", "Expected", "manifest", "read_manifest"]

FORMAT = 1
"""Version of the manifest and of the file layout."""

MANIFEST = "bundle.json"
FILES = (META, LIBRARY, LOG, *SOURCES)
"""The files of an entry's directory that go into a bundle."""

FILE_LIMIT = 256 * 1024**2
"""No file of a bundle is larger. A kernel's library takes tens or hundreds of kB."""

_FILES = "|".join(re.escape(name) for name in FILES)
_ENTRY = re.compile(rf"{VERSION}/([a-z][a-z0-9_.]*-[0-9a-f]{{16}})/({_FILES})")
_TUNED = re.compile(r"tuned/([a-z0-9_][a-z0-9_-]*/[0-9a-f]{32}\.json)")


@dataclass(frozen=True)
class Expected:
    """A file that the manifest announces.

    Attributes:
        bytes: its size.
        sha256: its digest.
        entry: name of the entry that it belongs to, None for a file of the tuned table.
        place: file name in the entry, or path below ``tuned/``.
    """

    bytes: int
    sha256: str
    entry: str | None
    place: str

    @classmethod
    def at(cls, path: str, size: object, sha256: object) -> Expected:
        """The file expected at a path in the archive.

        Raises:
            ValueError: no bundle has a file there, or of this size.
        """
        entry, tuned = _ENTRY.fullmatch(path), _TUNED.fullmatch(path)
        if type(size) is not int or not 0 <= size <= FILE_LIMIT:
            raise ValueError(f"{path!r} cannot have {size!r} bytes")
        if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError(f"{path!r} has no sha256 but {sha256!r}")
        if entry:
            return cls(size, sha256, entry[1], entry[2])
        if tuned:
            return cls(size, sha256, None, tuned[1])
        raise ValueError(f"{path!r} is not a place for a file of a bundle")


def manifest(files: dict[str, Expected]) -> bytes:
    """The manifest of files, given by their paths in the archive."""
    listed = {path: {"bytes": each.bytes, "sha256": each.sha256} for path, each in files.items()}
    return json.dumps({"format": FORMAT, "files": listed}, indent=1).encode() + b"\n"


def read_manifest(content: bytes) -> dict[str, Expected]:
    """The files that a manifest announces, by their paths in the archive.

    Raises:
        ValueError: it is not a manifest of this format.
    """
    try:
        data: Any = json.loads(content)
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}, and this release reads {FORMAT}")
        return {
            path: Expected.at(path, each["bytes"], each["sha256"])
            for path, each in data["files"].items()
        }
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
