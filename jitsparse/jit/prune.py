"""Keeping a cache small: the least recently used entries are deleted first.

Entries in use are safe. One whose library a process of this machine has mapped is not chosen; which
these are is read from /proc, so a process that was killed leaves no claim behind. A process that
cannot be seen from here (in another container, or of another user) keeps the library that it has
mapped, since the file itself disappears with its last mapping. Builds in progress are ignored: they
become entries by a rename at their end.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from jitsparse.errors import UnwritableCache
from jitsparse.jit import files, progress
from jitsparse.jit.cache import VERSION, Cache
from jitsparse.jit.inventory import directories, disk_usage
from jitsparse.jit.units import format_bytes

__all__ = ["Pruned", "enforce", "mapped", "prune"]

# Under the size cap, entries built or loaded this recently stay: another process may have found one
# and be about to map it.
GRACE = 600.0
# Under the size cap the whole cache is measured again this long after the last time, since other
# processes add to it, too; or when this one has added half of what was left, but at least a share
# of the cap. Measuring it after every build took half of a warm-up's Python time from 400 entries
# on, and on 64 processors that was what a warm-up waited for (docs/performance.md).
MEASURED_EVERY = 60.0
MIN_SHARE = 1 / 64
# The source and log of a failed build, and entries set aside as damaged, are kept for this long.
LEFTOVER_AGE = 86400.0


@dataclass(frozen=True)
class Pruned:
    """The outcome of pruning a cache.

    Attributes:
        deleted: directories of the entries that were deleted, least recently used first.
        deleted_bytes: their size.
        kept: how many entries are left.
        kept_bytes: their size.
        in_use: directories that would have been deleted if no process had them mapped.
    """

    deleted: tuple[Path, ...]
    deleted_bytes: int
    kept: int
    kept_bytes: int
    in_use: tuple[Path, ...]


def prune(
    cache: Cache,
    *,
    max_size: int | None = None,
    older_than: float | None = None,
    grace: float = 0.0,
    dry_run: bool = False,
) -> Pruned:
    """Delete entries of the writable cache, least recently used first. Layers are left alone.

    Args:
        cache: which cache.
        max_size: delete until the entries take no more than this many bytes.
        older_than: delete what was last used this many seconds ago or earlier.
        grace: keep what was used within this many seconds.
        dry_run: only report what would be deleted.

    Raises:
        UnwritableCache: something should be deleted and cannot be; what else should be has been.
    """
    now = time.time()
    found = [(path, *disk_usage(path)) for path in directories(cache.root)]
    found.sort(key=lambda each: (each[2], each[0]))
    kept, kept_bytes = len(found), sum(size for _, size, _ in found)
    busy: set[str] | None = None
    deleted: list[Path] = []
    in_use: list[Path] = []
    refused: UnwritableCache | None = None
    before = kept_bytes
    for path, size, last_use in found:
        age = abs(now - last_use)  # a time by a clock that was ahead says as little as an old one
        too_old = older_than is not None and age >= older_than
        too_much = max_size is not None and kept_bytes > max_size
        if not (too_old or too_much) or age < grace:
            continue
        if busy is None:
            busy = mapped(cache.root)
        if path.name in busy:
            in_use.append(path)
            continue
        try:
            gone = dry_run or cache.discard(path)
        except UnwritableCache as error:
            refused = refused or error
            continue
        if gone:
            deleted.append(path)
            kept, kept_bytes = kept - 1, kept_bytes - size
    if not dry_run:
        _remove_leftovers(cache.root, now)
    if refused is not None:
        raise refused
    return Pruned(tuple(deleted), before - kept_bytes, kept, kept_bytes, tuple(in_use))


class _Allowances:
    """How much may be added to each cache before it is measured again, and until when."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.guard = threading.Lock()
        self.of: dict[tuple[Path, int], tuple[float, float]] = {}

    def spend(self, cache: tuple[Path, int], added: int) -> bool:
        """Whether the cache need not be measured after so many bytes were added."""
        with self.guard:
            left, until = self.of.get(cache, (0.0, 0.0))
            if added < left and time.monotonic() < until:
                self.of[cache] = left - added, until
                return True
            # One thread measures; others go on meanwhile.
            self.of[cache] = math.inf, time.monotonic() + MEASURED_EVERY
            return False

    def grant(self, cache: tuple[Path, int], left: int) -> None:
        """Record how many bytes are left below the cap; negative if it is exceeded."""
        with self.guard:
            share = max(left / 2, MIN_SHARE * cache[1])
            self.of[cache] = share, time.monotonic() + MEASURED_EVERY


_allowances = _Allowances()

os.register_at_fork(after_in_child=_allowances.reset)


def enforce(cache: Cache, max_size: int | None, added: int) -> None:
    """Keep a cache below its size cap, after so many bytes were added.

    Raises no error in what added them. Not every call measures the cache: it may exceed the cap by
    a 64th, and by what other processes add in a minute.
    """
    if max_size is None or _allowances.spend((cache.root, max_size), added):
        return
    with contextlib.suppress(OSError):
        total = sum(disk_usage(path)[0] for path in directories(cache.root))
        if total <= max_size:
            _allowances.grant((cache.root, max_size), max_size - total)
            return
        done = prune(cache, max_size=max_size, grace=GRACE)
        _allowances.grant((cache.root, max_size), max_size - done.kept_bytes)
        if done.deleted:
            progress.say(
                "info",
                f"{len(done.deleted)} cached kernels ({format_bytes(done.deleted_bytes)}), those "
                f"not used for longest, were deleted from {cache.root} to keep it below "
                f"{format_bytes(max_size)} (JITSPARSE_CACHE_MAX_SIZE)",
            )


def mapped(root: Path) -> set[str]:
    """Names of the entries below a root whose libraries live processes have mapped.

    Processes that may not be inspected are skipped.
    """
    # The path in /proc is without symbolic links. A newline in it is written as \\012.
    prefix = os.path.realpath(root / VERSION).replace("\n", "\\012")
    pattern = re.compile(re.escape(os.fsencode(prefix)) + rb"/([^/\n]+)/[^/\n]+$", re.MULTILINE)
    names: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for name in pattern.findall((process / "maps").read_bytes()):
                names.add(os.fsdecode(name))
    return names


def _remove_leftovers(root: Path, now: float) -> None:
    """Delete what nobody will look at any more: old failures, and entries set aside as damaged."""
    for part in ("failed", "quarantine"):
        for path in files.listed(root / VERSION / part):
            with contextlib.suppress(OSError):
                if now - path.lstat().st_ctime > LEFTOVER_AGE:
                    files.remove(path)
