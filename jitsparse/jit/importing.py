"""Reading a bundle into a cache: every file is checked before any entry appears. Nothing is run."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from jitsparse.errors import BundleError
from jitsparse.jit import config, prune, tuned
from jitsparse.jit.bundle import FILE_LIMIT, MANIFEST, Expected, read_manifest
from jitsparse.jit.cache import VERSION, Cache
from jitsparse.jit.entry import LIBRARY, examine
from jitsparse.jit.inventory import disk_usage
from jitsparse.jit.ustar import Member, members

__all__ = ["Imported", "import_bundle"]


@dataclass(frozen=True)
class Imported:
    """The outcome of importing a bundle.

    Attributes:
        imported: directories of the entries that are new in the cache.
        present: directories of those that were already there, and were left unchanged.
        tuned: how many entries of the tuned table are new.
        rejected: what was not imported, with the reason.
    """

    imported: tuple[Path, ...]
    present: tuple[Path, ...]
    tuned: int
    rejected: tuple[tuple[str, str], ...]


def import_bundle(cache: Cache, path: Path) -> Imported:
    """Import the entries of a bundle into the writable cache.

    Args:
        cache: the cache to write to. Its valid entries stay unchanged.
        path: the archive.

    Returns:
        What was imported, and what was not because it is damaged or does not belong there.

    Raises:
        BundleError: the file is not a bundle, or cannot be read.
        UnwritableCache: the cache cannot be written.
    """
    cache.require_writable(f"{path} was not imported")
    try:
        with path.open("rb") as archive, _Import(cache) as progress:
            _read(archive, progress)
    except OSError as error:
        raise BundleError(f"the bundle {path} could not be imported: {error}.") from error
    except _NoBundle as error:
        raise BundleError(
            f"{path} is not a bundle of compiled kernels: {error}. Bundles are written by "
            "jitsparse cache export."
        ) from error
    added = sum(disk_usage(path)[0] for path in progress.imported)
    prune.enforce(cache, config.get().cache_max_size, added)
    rejected = tuple(progress.rejected.items())
    return Imported(tuple(progress.imported), tuple(progress.present), progress.tuned, rejected)


class _NoBundle(Exception):
    """The first file of an archive is not a manifest."""


def _read(archive: BinaryIO, progress: _Import) -> None:
    stream = members(archive, FILE_LIMIT)
    try:
        first = next(stream, None)
        if first is None or first.name != MANIFEST or first.content is None:
            raise ValueError(f"its first file is not {MANIFEST}")
        expected = read_manifest(first.content)
    except ValueError as error:
        raise _NoBundle(error) from error
    progress.expect(expected)
    try:
        for member in stream:
            progress.take(member)
    except ValueError as error:
        progress.end("not in the archive, as far as that can be read")
        progress.rejected[MANIFEST] = f"announces more than can be read: {error}"
    else:
        progress.end("not in the archive")


@dataclass
class _Parcel:
    """An entry that is being assembled."""

    missing: set[str] = field(default_factory=set)
    staging: Path | None = None


class _Import:
    """Entries on their way from an archive into a cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._expected: dict[str, Expected] = {}
        self._parcels: dict[str, _Parcel] = {}
        self.imported: list[Path] = []
        self.present: list[Path] = []
        self.tuned = 0
        self.rejected: dict[str, str] = {}

    def __enter__(self) -> _Import:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._parcels):
            self._drop(name)

    def expect(self, files: dict[str, Expected]) -> None:
        """Take note of what the manifest announces."""
        self._expected = dict(files)
        for each in files.values():
            if each.entry is not None:
                self._parcels.setdefault(each.entry, _Parcel()).missing.add(each.place)
        for name in list(self._parcels):
            target = self._cache.root / VERSION / name
            if self._cache.open(target) is not None:
                self.present.append(target)
                del self._parcels[name]

    def take(self, member: Member) -> None:
        """Take one file of the archive."""
        expected = self._expected.pop(member.name, None)
        if expected is None:
            self.rejected[member.name] = "the manifest does not name it, or names it once"
            return
        defect = _defect(member, expected)
        if expected.entry is None:
            self._take_tuned(member, expected, defect)
        elif expected.entry in self._parcels:
            if defect:
                self._reject(expected.entry, f"{expected.place} {defect}")
            else:
                self._add(expected.entry, expected.place, member.content or b"")

    def end(self, reason: str) -> None:
        """Reject what is incomplete, since no more files come."""
        for each in self._expected.values():
            if each.entry in self._parcels:
                self._reject(each.entry, f"{each.place} is {reason}")
            elif each.entry is None:
                self.rejected[f"tuned/{each.place}"] = reason

    def _add(self, name: str, place: str, content: bytes) -> None:
        parcel = self._parcels[name]
        if parcel.staging is None:
            parcel.staging = self._cache.stage(name)
        file = parcel.staging / place
        file.write_bytes(content)
        file.chmod(0o755 if place == LIBRARY else 0o644)
        parcel.missing.discard(place)
        if parcel.missing:
            return
        meta, defect = examine(parcel.staging, name=name)
        if meta is None:
            self._reject(name, defect)
        else:
            self.imported.append(self._cache.adopt(parcel.staging, name, meta).path)
            del self._parcels[name]

    def _take_tuned(self, member: Member, expected: Expected, defect: str) -> None:
        try:
            if defect:
                raise ValueError(defect)
            self.tuned += tuned.adopt(self._cache, expected.place, member.content or b"")
        except ValueError as error:
            self.rejected[member.name] = str(error)

    def _reject(self, name: str, reason: str) -> None:
        self.rejected[name] = reason
        self._drop(name)

    def _drop(self, name: str) -> None:
        staging = self._parcels.pop(name).staging
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def _defect(member: Member, expected: Expected) -> str:
    """How a file differs from what the manifest announces, or an empty string."""
    if member.content is None or member.size != expected.bytes:
        return f"has {member.size} bytes instead of {expected.bytes}"
    if hashlib.sha256(member.content).hexdigest() != expected.sha256:
        return "differs from what was exported (sha256)"
    return ""
