"""Compiled kernels on disk: bytes and paths, no torch and no compiler.

    <root>/v1/<variant>-<hash16>/     kernel.cpp or kernel.cu, kernel.so, build.log, meta.json
    <root>/v1/failed/<variant>-<hash16>/   source and log of the last build that failed
    <root>/v1/staging/                builds in progress, one private directory each
    <root>/v1/quarantine/             entries that were found damaged
    <root>/v1/locks/                  one lock a key
    <root>/v1/seconds/<variant>       how long the variant took to compile last time

An entry appears by the rename of a complete directory, so no reader ever sees half of one. The lock
saves work only: on a file system where it does not exclude, two builders make two complete
directories and the second rename loses. Before a library is mapped its size and sha256 are compared
with those in meta.json, which is written last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jitsparse.jit import config
from jitsparse.jit.entry import LIBRARY, META, Entry, damage, read_meta, sha256, sync
from jitsparse.jit.key import same_but_compiler

__all__ = ["Cache", "current"]

VERSION = "v1"

# A waiter that has waited this long builds for itself: its own copy is as good, and a holder that
# is suspended or on a node that died must not stop it for ever.
LOCK_TIMEOUT = 600.0
# A waiter says whom it waits for after this long.
LOCK_PATIENCE = 2.0
# Staging directories of other hosts are presumed abandoned after a day; no compiler runs that long.
STAGING_AGE = 86400.0


class Cache:
    """One writable cache and the read-only ones in front of it.

    Args:
        root: where entries are written. Nothing is created before something is written.
        layers: read-only roots, searched first.
        lock: whether builders of one key exclude each other. Off only to show that correctness
            does not depend on it.
    """

    def __init__(self, root: Path, layers: tuple[Path, ...] = (), *, lock: bool = True) -> None:
        self.root = root
        self.layers = layers
        self._lock = lock
        self._rejected: set[Path] = set()

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r}, layers={[str(layer) for layer in self.layers]})"

    @property
    def compiler_memos(self) -> tuple[Path, ...]:
        """Files that remember compilers' version texts, the writable one last."""
        return tuple(root / VERSION / "compilers.json" for root in (*self.layers, self.root))

    # Looking up

    def find(self, name: str, key: str, *, repair: bool = False) -> Entry | None:
        """The valid entry of a key, or None.

        Args:
            name: directory name, ``<variant>-<hash16>``.
            key: the whole key.
            repair: set a damaged entry aside, with one warning. Only a builder that holds the lock
                does so: anyone else might set aside what has just been rebuilt.
        """
        for root in (*self.layers, self.root):
            entry = self._open(root / VERSION / name, repair=repair)
            if entry is not None and entry.key == key:
                return entry
        return None

    def find_any_compiler(self, fields: Mapping[str, Any]) -> Entry | None:
        """The newest valid entry whose fields agree in everything but the compiler's version."""
        for root in (*self.layers, self.root):
            found = []
            for path in (root / VERSION).glob(f"{fields['variant']}-*"):
                entry = self._open(path, repair=False)
                if entry is not None and same_but_compiler(entry.meta["fields"], fields):
                    found.append(entry)
            if found:
                return max(found, key=lambda entry: (entry.created, entry.key))
        return None

    def paths_of(self, variant: str) -> Iterator[Path]:
        """Directories of a variant's entries, valid or not."""
        for root in (*self.layers, self.root):
            yield from (root / VERSION).glob(f"{variant}-*")

    def entries(self) -> Iterator[Entry]:
        """Every entry of every layer, without reading the libraries."""
        for root in (*self.layers, self.root):
            for path in sorted((root / VERSION).glob("*-*")):
                meta = read_meta(path)
                if meta is not None:
                    yield Entry(path, meta)

    def _open(self, path: Path, *, repair: bool) -> Entry | None:
        if not path.is_dir() or path in self._rejected:
            return None
        meta = read_meta(path)
        reason = "its meta.json is missing or damaged"
        if meta is not None:
            reason = damage(path / LIBRARY, meta)
            if not reason:
                return Entry(path, meta)
        if repair:
            self.set_aside(path, reason)
        return None

    def set_aside(self, path: Path, reason: str) -> None:
        """Move a damaged entry out of the way, with one warning; it will be built again.

        In a read-only layer it stays where it is and this process looks past it.
        """
        _warn(f"jitsparse: cached kernel {path} is unusable: {reason}. It will be built again.")
        if path.parent == self.root / VERSION:
            target = self._directory("quarantine") / f"{path.name}.{uuid.uuid4().hex[:8]}"
            # Another process may have been faster.
            with contextlib.suppress(OSError):
                os.rename(path, target)
        else:
            self._rejected.add(path)

    # Writing

    def stage(self, name: str) -> Path:
        """A private directory in which to build an entry; those of dead builders are removed."""
        staging = self._directory("staging")
        for path in staging.iterdir():
            if _abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
        path = staging / f"{name.rpartition('-')[2]}.{_owner()}.{uuid.uuid4().hex[:8]}"
        path.mkdir(mode=0o700)
        return path

    def publish(self, staging: Path, name: str, meta: Mapping[str, Any]) -> Entry:
        """Turn a finished build into an entry, or use the one that another builder published.

        Args:
            staging: directory from :meth:`stage`, holding the source, the library and the log.
            name: directory name, ``<variant>-<hash16>``.
            meta: ``key``, ``fields`` and ``compile_seconds``; the rest is added here.
        """
        library = staging / LIBRARY
        complete = {
            **meta,
            "library_bytes": library.stat().st_size,
            "library_sha256": sha256(library),
            "created": time.time(),
        }
        for path in staging.iterdir():
            sync(path)
        (staging / META).write_text(json.dumps(complete, indent=1), encoding="utf-8")
        sync(staging / META)
        sync(staging)
        target = self._directory() / name
        for _ in range(3):
            try:
                os.rename(staging, target)
            except OSError:
                winner = self.find(name, str(complete["key"]), repair=True)
                if winner is not None:
                    shutil.rmtree(staging, ignore_errors=True)
                    return winner
                # What stood in the way was damaged and has been set aside by find.
                continue
            sync(target.parent)
            self._remember_seconds(complete)
            return Entry(target, complete, fresh=True)
        raise OSError(f"{target} cannot be replaced")

    def keep_failure(self, staging: Path, name: str) -> Path:
        """Keep the source and the log of a failed build where its error message can point."""
        target = self._directory("failed") / name
        discarded = staging.with_name(f"{staging.name}.discarded")
        with contextlib.suppress(OSError):
            os.rename(target, discarded)
        try:
            os.rename(staging, target)
        except OSError:  # another process failed at the same moment; its copy says the same
            shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(discarded, ignore_errors=True)
        return target

    def last_seconds(self, variant: str) -> float | None:
        """How long the variant took to compile when it was compiled last, if that is known."""
        for root in (*self.layers, self.root):
            try:
                return float((root / VERSION / "seconds" / variant).read_text(encoding="ascii"))
            except (OSError, ValueError):
                continue
        return None

    def clear(self) -> int:
        """Delete every entry, and what is left of builds that failed; returns how many entries.

        Read-only layers are left alone, and so are builds in progress.
        """
        root = self.root / VERSION
        count = 0
        for path in root.glob("*-*"):
            # Renamed first, so that no reader meets half an entry.
            doomed = self._directory("quarantine") / f"{path.name}.{uuid.uuid4().hex[:8]}"
            with contextlib.suppress(OSError):
                os.rename(path, doomed)
                count += 1
        for part in ("quarantine", "failed"):
            shutil.rmtree(root / part, ignore_errors=True)
        return count

    def info(self) -> dict[str, Any]:
        """Facts of the cache: ``path``, ``layers``, ``entries``, ``bytes``, ``compile_seconds``."""
        entries = list(self.entries())
        return {
            "path": str(self.root),
            "layers": [str(layer) for layer in self.layers],
            "entries": len(entries),
            "bytes": sum(each.library_bytes for each in entries),
            "compile_seconds": sum(each.compile_seconds for each in entries),
        }

    # Excluding other builders

    @contextlib.contextmanager
    def locked(self, name: str, waiting: Callable[[str], None]) -> Iterator[None]:
        """Hold the lock of a key. Proceeds without it where it cannot be had.

        Args:
            name: directory name, ``<variant>-<hash16>``.
            waiting: called once with a description of the holder when it takes a while.
        """
        if not self._lock:
            yield
            return
        import filelock

        path = self._directory("locks") / name.rpartition("-")[2]
        holder = path.with_suffix(".holder")
        lock = filelock.FileLock(path.with_suffix(".lock"), mode=0o600)
        try:
            lock.acquire(timeout=LOCK_PATIENCE)
        except filelock.Timeout:
            waiting(_read_holder(holder))
            try:
                lock.acquire(timeout=LOCK_TIMEOUT)
            except filelock.Timeout:
                _warn(
                    f"jitsparse: waited {LOCK_TIMEOUT:.0f} s for {_read_holder(holder)}; "
                    "compiling here as well."
                )
        except (OSError, NotImplementedError):
            pass  # a file system without locks
        try:
            with contextlib.suppress(OSError):
                holder.write_text(f"pid {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
            yield
        finally:
            lock.release()

    def _directory(self, part: str = "") -> Path:
        path = self.root / VERSION / part
        if not path.is_dir():
            for each in (self.root, self.root / VERSION, path):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _remember_seconds(self, meta: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            directory = self._directory("seconds")
            temporary = directory / f".{uuid.uuid4().hex}"
            temporary.write_text(f"{meta['compile_seconds']:.3f}", encoding="ascii")
            os.replace(temporary, directory / meta["fields"]["variant"])

    def writable(self) -> bool:
        """Whether entries can be written, found by trying."""
        try:
            probe = self._directory("staging") / f"probe.{_owner()}.{uuid.uuid4().hex[:8]}"
            probe.mkdir(mode=0o700)
            probe.rmdir()
        except OSError:
            return False
        return True


_caches: dict[tuple[Path, tuple[Path, ...]], Cache] = {}
_replacing = threading.Lock()


def _after_fork() -> None:
    global _replacing
    _replacing = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def current() -> Cache:
    """The cache that the configuration names."""
    settings = config.get()
    identity = (settings.cache_dir, settings.cache_path)
    if identity not in _caches:
        _caches[identity] = Cache(*identity)
    return _caches[identity]


def private_instead(cache: Cache) -> Cache:
    """A cache for this process alone, where the configured one cannot be written; warns once.

    The temporary directory is private and removed at exit: a shared one would let another user of
    the machine put a library there for this process to map.
    """
    import atexit

    identity = (config.get().cache_dir, config.get().cache_path)
    with _replacing:
        if current() is not cache:
            return current()
        root = Path(tempfile.mkdtemp(prefix="jitsparse-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        _caches[identity] = Cache(root, (*cache.layers, cache.root))
    _warn(
        f"jitsparse: the cache {cache.root} cannot be written; what this process compiles is lost "
        "when it ends. Set JITSPARSE_CACHE_DIR to a directory that can be written."
    )
    return current()


def _owner() -> str:
    """Host, pid namespace and pid of this builder: elsewhere a pid alone means nothing."""
    return f"{_place()}.{os.getpid()}"


def _place() -> str:
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname().replace('.', '_')}-{namespace}"


def _abandoned(path: Path) -> bool:
    """Whether the builder of a staging directory is dead, or must be."""
    parts = path.name.split(".")
    if len(parts) >= 4 and parts[1] == _place() and parts[2].isdigit():
        return not Path(f"/proc/{parts[2]}").exists()
    try:
        return time.time() - path.stat().st_mtime > STAGING_AGE
    except OSError:
        return False


def _read_holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"


def _warn(message: str) -> None:
    if config.get().log != "quiet":
        warnings.warn(message, RuntimeWarning, stacklevel=2)
