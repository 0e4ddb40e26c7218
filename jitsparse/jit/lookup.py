"""Finding entries in a writable root and the read-only ones in front of it; writes nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jitsparse.jit import files, trust
from jitsparse.jit.entry import Entry, examine, read_meta
from jitsparse.jit.key import same_but_compiler

__all__ = ["VERSION", "Lookup"]

VERSION = "v1"


class Lookup:
    """Read access to a cache.

    Args:
        root: where entries are written.
        layers: read-only roots, searched first.
        trusted: roots that are used although other users can write to them.
    """

    def __init__(
        self, root: Path, layers: tuple[Path, ...] = (), *, trusted: tuple[Path, ...] = ()
    ) -> None:
        self.root = root
        self.layers = layers
        self.trusted = trusted
        self._rejected: set[Path] = set()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({str(self.root)!r}, "
            f"layers={[str(layer) for layer in self.layers]})"
        )

    @property
    def roots(self) -> tuple[Path, ...]:
        """Every root, in the order in which they are searched."""
        return (*self.layers, self.root)

    def check(self) -> None:
        """Refuse to go on if other users can write to one of the roots.

        Raises:
            UntrustedCache: others can write to one, and its path is not trusted.
        """
        for root in self.roots:
            if root not in self.trusted:
                trust.check(root, (root, root / VERSION))

    @property
    def shared(self) -> bool:
        """Whether several users write to the root, which is then trusted for it."""
        return self.root in self.trusted

    @property
    def compiler_memos(self) -> tuple[Path, ...]:
        """Files that remember compilers' version texts, the writable one last."""
        return tuple(root / VERSION / "compilers.json" for root in self.roots)

    def find(self, name: str, key: str) -> Entry | None:
        """The valid entry of a key, or None.

        Args:
            name: directory name, ``<variant>-<hash16>``.
            key: the whole key.
        """
        for root in self.roots:
            entry = self.open(root / VERSION / name)
            if entry is not None and entry.key == key:
                return entry
        return None

    def find_any_compiler(self, fields: Mapping[str, Any]) -> Entry | None:
        """The newest valid entry whose fields agree in everything but the compiler's version."""
        for root in self.roots:
            found = []
            for path in files.listed(root / VERSION, f"{fields['variant']}-*"):
                entry = self.open(path)
                if entry is not None and same_but_compiler(entry.meta["fields"], fields):
                    found.append(entry)
            if found:
                return max(found, key=lambda entry: (entry.created, entry.key))
        return None

    def paths_of(self, variant: str) -> Iterator[Path]:
        """Directories of a variant's entries, valid or not."""
        for root in self.roots:
            yield from files.listed(root / VERSION, f"{variant}-*")

    def entries(self) -> Iterator[Entry]:
        """Every valid entry of every root, without reading the libraries."""
        for root in self.roots:
            for path in files.listed(root / VERSION, "*-*"):
                meta = read_meta(path, trusted=root in self.trusted)
                if meta is not None:
                    yield Entry(path, meta)

    def examine(self, path: Path) -> tuple[dict[str, Any] | None, str]:
        """Content of an entry's meta.json, or None and why the entry must not be used."""
        return examine(path, trusted=path.parent.parent in self.trusted)

    def open(self, path: Path) -> Entry | None:
        """The entry in a directory, if it is valid."""
        if not os.path.lexists(path) or path in self._rejected:
            return None
        meta, _ = self.examine(path)
        return None if meta is None else Entry(path, meta)

    def last_seconds(self, variant: str) -> float | None:
        """How long the last compilation of the variant took, if known."""
        for root in self.roots:
            try:
                seconds = float(files.read(root / VERSION / "seconds" / variant))
            except (OSError, ValueError):
                continue
            if 0 <= seconds < math.inf:
                return seconds
        return None

    def info(self) -> dict[str, Any]:
        """The cache's ``path``, ``layers``, ``entries``, ``bytes`` and ``compile_seconds``."""
        entries = list(self.entries())
        return {
            "path": str(self.root),
            "layers": [str(layer) for layer in self.layers],
            "entries": len(entries),
            "bytes": sum(each.library_bytes for each in entries),
            "compile_seconds": sum(each.compile_seconds for each in entries),
        }
