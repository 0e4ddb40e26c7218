"""The layers of the cache: whether they can be read, written, locked and executed from.

Whatever can be tried is tried, in a probe directory that is then removed: permission bits say
little about network file systems, user namespaces and read-only mounts. No cache is created.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jitsparse.doctor.finding import Finding
from jitsparse.jit import build, files, private, trust
from jitsparse.jit.cache import VERSION, Cache
from jitsparse.jit.entry import LIBRARY
from jitsparse.jit.environment import Config

__all__ = ["check_layer", "check_root", "mount_of"]

MOUNT_TABLE = Path("/proc/self/mounts")

SPACE_WARN, SPACE_FAIL = 200e6, 10e6
"""Free bytes: a model's kernels take some megabytes, a build's staging as much again."""
INODES_WARN = 1000
"""Free inodes: an entry takes five, its build some more."""
CLOCK_WARN = 60.0
"""Seconds between the clock of the file system and that of this machine."""

_ELSEWHERE = "set JITSPARSE_CACHE_DIR to a directory"


def check_root(settings: Config) -> Iterator[Finding]:
    """The cache that entries are written to."""
    root = settings.cache_dir
    existing = root
    # os.path, for which a path that is too long does not exist.
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    try:
        os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        yield _unwritable(root, str(error.strerror), settings)
        return
    parts = (root, *(root / VERSION / part for part in ("", "staging", "locks")))
    for path in (existing, *(part for part in parts if os.path.lexists(part))):
        if not path.is_dir():
            yield _unwritable(root, f"{path} is not a directory", settings)
            return
    if settings.jit and (reason := build.unusable_name(root)):
        text = f"nothing can be compiled there: {reason}"
        yield Finding("cache.directory", "fail", text, "Set JITSPARSE_CACHE_DIR to another.")
        return
    try:
        probe = Path(tempfile.mkdtemp(prefix="jitsparse-probe-", dir=existing))
    except OSError as error:
        yield _unwritable(root, f"{existing} cannot be written: {error.strerror}", settings)
        yield from _check_mount("cache", existing)
        yield from _check_entries("cache", root, settings.trust_cache)
        return
    try:
        text = f"{root}, writable" if existing == root else f"{root}, created at the first use"
        there = existing if existing == root else None
        yield _owned("cache.directory", there, text, settings.trust_cache)
        yield from _check_space(existing)
        yield from _check_mount("cache", existing)
        yield from _check_mapping(probe)
        yield from _check_locks(probe)
        yield from _check_clock(probe)
        yield from _check_entries("cache", root, settings.trust_cache)
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def check_layer(name: str, root: Path, trusted: tuple[Path, ...] = ()) -> Iterator[Finding]:
    """A read-only cache in front of the writable one.

    Args:
        name: what to call it in the findings, ``layer1``.
        root: its directory.
        trusted: roots that are used although other users can write to them.
    """
    if not os.access(root, os.R_OK | os.X_OK) or not os.path.isdir(root):
        text = "cannot be read" if os.path.exists(root) else "does not exist"
        remedy = "Mount or fill it, or take it out of JITSPARSE_CACHE_PATH."
        yield Finding(f"{name}.directory", "warn", f"{root} {text}", remedy)
        return
    yield _owned(f"{name}.directory", root, f"{root}, read only", trusted)
    yield from _check_mount(name, root)
    yield from _check_entries(name, root, trusted)


def mount_of(path: Path, table: str) -> tuple[str, str, frozenset[str]] | None:
    """Mount point, file system and options of a path, out of the text of a mount table.

    Args:
        path: the path to look up; it must exist.
        table: lines as in ``/proc/self/mounts``; of equal mount points the last one counts.
    """
    where = os.path.realpath(path)
    best: tuple[str, str, frozenset[str]] | None = None
    for line in table.splitlines():
        parts = line.split()
        if len(parts) < 4:
            continue
        # The table escapes blanks and the like as \040.
        point = parts[1].encode("latin-1", "replace").decode("unicode_escape")
        point = point.encode("latin-1", "replace").decode("utf-8", "replace")
        if where == point or where.startswith(point.rstrip("/") + "/"):
            if best is None or len(point) >= len(best[0]):
                best = (point, parts[2], frozenset(parts[3].split(",")))
    return best


def _unwritable(root: Path, reason: str, settings: Config) -> Finding:
    if not settings.jit:
        text = f"{root}: {reason}; JITSPARSE_JIT=off writes nothing"
        return Finding("cache.directory", "ok", text)
    text = f"{root}: {reason}; each process compiles into a temporary directory of its own"
    return Finding(
        "cache.directory",
        "fail",
        text,
        "Set JITSPARSE_CACHE_DIR to a directory that can be written.",
    )


def _owned(name: str, path: Path | None, text: str, trusted: tuple[Path, ...]) -> Finding:
    """The directory with its owner and mode, and whether calls use it."""
    if path is None:
        return Finding(name, "ok", text)
    facts = path.stat()
    text += f", owner {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}"
    reason = trust.objection(facts)
    if not reason:
        return Finding(name, "ok", text)
    if path in trusted:
        return Finding(name, "ok", f"{text}; {reason}, which JITSPARSE_TRUST_CACHE allows")
    return Finding(name, "fail", f"{text}; {reason}, so calls refuse it", trust.remedy(path, path))


def _check_space(path: Path) -> Iterator[Finding]:
    facts = os.statvfs(path)
    free = facts.f_bavail * facts.f_frsize
    text = f"{free / 1e9:,.1f} GB free"
    # btrfs and some network file systems count no inodes and say 0.
    short_of_inodes = facts.f_files > 0 and facts.f_favail < INODES_WARN
    if facts.f_files:
        text += f", {facts.f_favail:,} inodes free"
    remedy = f"Make room there (jitsparse cache clear), or {_ELSEWHERE} with more."
    if free < SPACE_FAIL or (facts.f_files > 0 and facts.f_favail == 0):
        yield Finding("cache.space", "fail", text, remedy)
    elif free < SPACE_WARN or short_of_inodes:
        yield Finding("cache.space", "warn", text, remedy)
    else:
        yield Finding("cache.space", "ok", text)


def _check_mount(name: str, path: Path) -> Iterator[Finding]:
    """Whether the mount table allows libraries to be mapped."""
    try:
        mount = mount_of(path, MOUNT_TABLE.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        yield Finding(f"{name}.mount", "skip", f"no mount table: {error}")
        return
    if mount is None:
        yield Finding(f"{name}.mount", "skip", f"{path} is below no mount of {MOUNT_TABLE}")
        return
    point, kind, options = mount
    text = f"{kind} at {point}"
    if "noexec" in options:
        text += (
            ", mounted noexec: each process maps copies of its kernels from a directory of its own"
        )
        remedy = f"Remount it (mount -o remount,exec '{point}'), or {_ELSEWHERE} elsewhere."
        yield Finding(f"{name}.mount", "warn", text, remedy)
    else:
        yield Finding(f"{name}.mount", "ok", text)


def _check_mapping(probe: Path) -> Iterator[Finding]:
    """Map a file as the loader maps the code of a library."""
    file = probe / LIBRARY
    file.write_bytes(bytes(mmap.PAGESIZE))
    with file.open("rb") as opened:
        try:
            private.map_as_code(opened)
        except OSError as error:
            text = (
                f"a file in the cache cannot be mapped as code ({error.strerror}); each process "
                "maps copies from a directory of its own"
            )
            remedy = f"The mount is noexec or a security policy forbids it; {_ELSEWHERE} elsewhere."
            yield Finding("cache.mapping", "warn", text, remedy)
            return
    yield Finding("cache.mapping", "ok", "files can be mapped as code")


def _check_locks(probe: Path) -> Iterator[Finding]:
    """Whether a held lock excludes others that open the file."""
    remedy = "Nothing breaks: processes that miss together may each compile, and one entry stays."
    with (probe / "lock").open("w") as first, (probe / "lock").open("w") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = f"files cannot be locked: {error.strerror}"
            yield Finding("cache.locks", "warn", text, remedy)
            return
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                yield Finding("cache.locks", "ok", "locks exclude each other")
                return
            raise
    yield Finding("cache.locks", "warn", "locks do not exclude each other", remedy)


def _check_clock(probe: Path) -> Iterator[Finding]:
    file = probe / "clock"
    before = time.time()
    file.touch()
    skew = file.stat().st_mtime - before
    if abs(skew) > CLOCK_WARN:
        text = f"the file system's clock differs from this machine's by {skew:+.0f} s"
        remedy = "Harmless for kernels, which no time decides about; have both follow NTP."
        yield Finding("cache.clock", "warn", text, remedy)
    else:
        yield Finding("cache.clock", "ok", "the file system's clock agrees with this machine's")


def _check_entries(name: str, root: Path, trusted: tuple[Path, ...]) -> Iterator[Finding]:
    """Number and size of the entries, and those whose meta.json is missing or damaged."""
    directories = [path for path in files.listed(root / VERSION, "*-*") if path.is_dir()]
    entries = list(Cache(root, trusted=trusted).entries())
    megabytes = sum(entry.library_bytes for entry in entries) / 1e6
    text = f"kernels: {len(entries)}, {megabytes:.1f} MB"
    with contextlib.suppress(OSError):
        aside = len(os.listdir(root / VERSION / "quarantine"))
        text += f", {aside} set aside as damaged" if aside else ""
    if len(directories) > len(entries):
        text += f", {len(directories) - len(entries)} more without a usable meta.json"
        remedy = "Nothing has to be done: they are never loaded, and are built again when needed."
        yield Finding(f"{name}.entries", "warn", text, remedy)
    else:
        yield Finding(f"{name}.entries", "ok", text)
