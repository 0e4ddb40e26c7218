"""Compiled kernels on disk: bytes and paths, no torch and no compiler.

    <root>/v1/<variant>-<hash16>/     kernel.cpp or kernel.cu, kernel.so, build.log, meta.json
    <root>/v1/failed/<variant>-<hash16>/   source and log of the last build that failed
    <root>/v1/staging/                builds in progress, one private directory each
    <root>/v1/quarantine/             entries that were found damaged
    <root>/v1/locks/                  one lock per key
    <root>/v1/seconds/<variant>       how long the variant took to compile last time

An entry appears by renaming a complete directory, so no reader ever sees half of one. The lock only
saves work: on a file system where it does not exclude others, two builders make two complete
directories and the second rename loses. Before a library is mapped, its size and sha256 are checked
against meta.json, which is written last and whose modification time is that of the last use.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jitsparse.errors import UnwritableCache
from jitsparse.jit import builders, config, files, private, progress, roots, trust
from jitsparse.jit.entry import LIBRARY, META, Entry, sha256, sync
from jitsparse.jit.environment import Config
from jitsparse.jit.lookup import VERSION, Lookup

__all__ = ["VERSION", "Cache", "current"]

# The time of last use is updated at most this often, so loads on the warm path hardly ever write.
USE_STEP = 60.0


class Cache(Lookup):
    """One writable cache and the read-only ones in front of it.

    Args:
        root: where entries are written. Nothing is created before something is written.
        layers: read-only roots, searched first.
        trusted: roots that are used although other users can write to them.
        lock: whether builders of a key exclude each other. Off only to show that correctness
            does not depend on it.
    """

    def __init__(
        self,
        root: Path,
        layers: tuple[Path, ...] = (),
        *,
        trusted: tuple[Path, ...] = (),
        lock: bool = True,
    ) -> None:
        # The layers may include the writable root, or one root twice.
        others = tuple(each for each in dict.fromkeys(layers) if each != root)
        super().__init__(root, others, trusted=trusted)
        self._lock = lock
        self._warned: set[tuple[Path, str]] = set()

    # Setting aside

    def repair(self, name: str) -> None:
        """Set damaged entries of a name aside, with one warning each.

        A builder holds the lock meanwhile. An import does not, and some file systems have no locks:
        then what has just been rebuilt may be set aside. This breaks nothing, since builds in
        progress are elsewhere, and a process whose entry is gone before it is mapped looks again.
        """
        for root in self.roots:
            path = root / VERSION / name
            if os.path.lexists(path) and path not in self._rejected:
                _, reason = self.examine(path)
                if reason:
                    self.set_aside(path, reason)

    def set_aside(self, path: Path, reason: str) -> None:
        """Move a damaged entry out of the way, with one warning; it will be built again.

        In a read-only layer it stays where it is and this process ignores it.
        """
        # An entry that cannot be moved is met again by the rename that would replace it.
        if (path, reason) not in self._warned:
            self._warned.add((path, reason))
            progress.warn(
                f"jitsparse: cached kernel {path} is unusable: {reason}. It will be built again."
            )
        if path.parent == self.root / VERSION:
            target = self._directory("quarantine") / f"{path.name}.{uuid.uuid4().hex[:8]}"
            # Another process may have been faster.
            with contextlib.suppress(OSError):
                os.rename(path, target)
        else:
            self._rejected.add(path)

    # Writing

    def stage(self, name: str) -> Path:
        """Make a private directory to build an entry in, and remove those of dead builders.

        Raises:
            UnwritableCache: it cannot be made.
        """
        path = self.staging_path(name)
        self.make_staging(path)
        return path

    def staging_path(self, name: str) -> Path:
        """Where :meth:`stage` would make a directory, for a caller that must always remove it.

        Ctrl-C may come after a directory is made and before a variable holds its path.
        """
        unique = f"{name.rpartition('-')[2]}.{builders.owner()}.{uuid.uuid4().hex[:8]}"
        return self.root / VERSION / "staging" / unique

    def make_staging(self, path: Path) -> None:
        """Make the directory of :meth:`staging_path`.

        Raises:
            UnwritableCache: it cannot be made.
        """
        staging = self._directory("staging")
        try:
            path.mkdir(mode=0o700)
            # Its time is by the file system's clock, as are those of other hosts' directories; this
            # machine's clock may differ.
            now = path.stat().st_mtime
            others = list(staging.iterdir())
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise self._unwritable(path, error) from error
        for other in others:
            if builders.abandoned(other, now):
                files.remove(other)

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
        (staging / META).write_text(json.dumps(complete, indent=1), encoding="utf-8")
        return self.adopt(staging, name, complete)

    def adopt(self, staging: Path, name: str, meta: Mapping[str, Any]) -> Entry:
        """Rename a complete directory, meta.json included, to the entry of its name.

        A valid entry that is already there stays, and is returned.

        Raises:
            OSError: something cannot be written.
        """
        for path in (*staging.iterdir(), staging):
            mode = stat.S_IMODE(path.stat().st_mode)
            # Under a lax umask others could write to a file, if the directory is opened later. Some
            # file systems let nobody change a mode, so it is not set where it is correct.
            if mode & trust.WRITABLE:
                path.chmod(mode & ~trust.WRITABLE)
            sync(path)
        if self.shared:
            self._let_in(staging)
        target = self._directory() / name
        obstacle: OSError | None = None
        for _ in range(3):
            try:
                os.rename(staging, target)
            except OSError as error:
                obstacle = error
                winner = self.open(target)
                if winner is not None:
                    shutil.rmtree(staging, ignore_errors=True)
                    return winner
                self.repair(name)
                continue
            sync(target.parent)
            self._remember_seconds(meta)
            return Entry(target, meta, fresh=True)
        reason = obstacle.strerror if obstacle else ""
        raise OSError(f"{target} cannot be replaced: {reason}") from obstacle

    def blocked(self, name: str) -> str:
        """That the entry of a name is unusable and may not be moved, as the beginning of a message;
        otherwise an empty string. It is another user's then: moving a directory takes the right to
        write to it."""
        path = self.root / VERSION / name
        if not path.is_dir() or path.is_symlink() or os.access(path, os.W_OK):
            return ""
        _, reason = self.examine(path)
        return f"the cached kernel {path} is unusable: {reason}" if reason else ""

    def ignore(self, name: str) -> None:
        """Look past the entries of a name in every root but the writable one."""
        self._rejected.update(root / VERSION / name for root in self.layers)

    def _let_in(self, staging: Path) -> None:
        """Let those into a finished directory who may read its files, which the umask decided.

        It was made for its builder alone, and would be in the way of the others.
        """
        readable = (staging / META).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        mode = stat.S_IMODE(staging.stat().st_mode)
        with contextlib.suppress(OSError):  # some file systems let nobody change a mode
            staging.chmod(mode | readable | readable >> 2)

    def used(self, entry: Entry) -> None:
        """Record that an entry of this cache is used now, for pruning.

        The time is the modification time of its meta.json: access times are not kept everywhere.
        Nothing is recorded in a read-only layer, or in a cache whose files were made read-only.
        """
        meta = entry.path / META
        with contextlib.suppress(OSError):
            status = meta.stat()
            if (
                entry.path.parent == self.root / VERSION
                and status.st_mode & stat.S_IWUSR
                and abs(time.time() - status.st_mtime) > USE_STEP
            ):
                os.utime(meta)

    def discard(self, path: Path) -> bool:
        """Delete an entry; returns whether it was there.

        It is renamed first, so that no reader sees half of it. A process that has its library
        mapped keeps it: the file disappears with its last mapping.

        Raises:
            UnwritableCache: it is there but cannot be renamed.
        """
        while os.path.lexists(path):
            doomed = self._directory("quarantine") / f"{path.name}.{uuid.uuid4().hex[:8]}"
            try:
                os.rename(path, doomed)
            except FileNotFoundError:
                continue  # another process was faster, and a third may have built it again
            except OSError as error:
                raise self._unwritable(path, error) from error
            files.remove(doomed)
            return True
        return False

    def keep_failure(self, staging: Path, name: str) -> Path:
        """Keep the source and the log of a failed build where its error message can point.

        Raises no error of its own, which would hide the compiler's: they may be missing afterwards.
        """
        target = self.root / VERSION / "failed" / name
        discarded = staging.with_name(f"{staging.name}.discarded")
        with contextlib.suppress(OSError):
            self._directory("failed")
            os.rename(target, discarded)
        try:
            os.rename(staging, target)
        except OSError:  # another process failed at the same moment; its copy says the same
            shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(discarded, ignore_errors=True)
        return target

    def clear(self) -> int:
        """Delete every entry, remains of failed builds, and locks; returns how many entries.

        Read-only layers are left alone, and so are builds in progress.

        Raises:
            UnwritableCache: one cannot be deleted; all others have been.
        """
        root = self.root / VERSION
        count, refused = 0, None
        for path in files.listed(root, "*-*"):
            try:
                count += self.discard(path)
            except UnwritableCache as error:
                refused = refused or error
        # Only their contents: another process may be about to rename an entry into them.
        for part in ("quarantine", "failed"):
            for path in files.listed(root / part):
                files.remove(path)
        builders.remove_locks(root / "locks")
        if refused is not None:
            raise refused
        return count

    # Excluding other builders

    @contextlib.contextmanager
    def locked(
        self, name: str, waiting: Callable[[str], contextlib.AbstractContextManager[None]]
    ) -> Iterator[None]:
        """Hold the lock of a key; proceed without it where it cannot be acquired.

        Args:
            name: directory name, ``<variant>-<hash16>``.
            waiting: as for :func:`~jitsparse.jit.builders.exclusively`.
        """
        locks: Path | None = None
        if self._lock:
            with contextlib.suppress(UnwritableCache):
                locks = self._directory("locks")
        if locks is None:
            yield
            return
        with builders.exclusively(locks / name.rpartition("-")[2], waiting, shared=self.shared):
            yield

    def _directory(self, part: str = "") -> Path:
        path = self.root / VERSION / part
        try:
            if not path.is_dir():
                parts = (self.root, self.root / VERSION, path)
                files.make_directories(*parts, shared=self.shared)
        except OSError as error:
            raise self._unwritable(path, error) from error
        return path

    def _unwritable(self, path: Path, error: OSError) -> UnwritableCache:
        return UnwritableCache(
            f"the cache {self.root} cannot be written: {path}: {error.strerror}. Make it writable, "
            "or set JITSPARSE_CACHE_DIR to a directory that is."
        )

    def _remember_seconds(self, meta: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            directory = self._directory("seconds")
            files.write(directory / meta["fields"]["variant"], f"{meta['compile_seconds']:.3f}")

    def require_writable(self, lost: str) -> None:
        """Refuse to go on where entries cannot be written.

        Args:
            lost: the consequence, as the end of a sentence.

        Raises:
            UnwritableCache: they cannot be written.
        """
        if not self.writable():
            raise UnwritableCache(
                f"{self.refusal()}, so {lost}. Set JITSPARSE_CACHE_DIR to a directory that can."
            )

    def refusal(self) -> str:
        """That entries cannot be written, as the beginning of a message; why, if it is a file."""
        reason = roots.file_in_the_way(self.root)
        because = f", because it {reason}" if reason else ""
        return f"the cache {self.root} cannot be written{because}"

    def writable(self) -> bool:
        """Whether entries can be written, found by trying."""
        try:
            probe = self._directory("staging") / f"probe.{builders.owner()}.{uuid.uuid4().hex[:8]}"
            try:
                probe.mkdir(mode=0o700)
                probe.rmdir()
            except KeyboardInterrupt:  # it may come after the directory was made
                shutil.rmtree(probe, ignore_errors=True)
                raise
        except OSError:
            return False
        return True


_caches: dict[tuple[tuple[Path, ...], ...], Cache] = {}
_replacing = threading.Lock()


def _after_fork() -> None:
    global _replacing
    _replacing = threading.Lock()
    for identity, cache in list(_caches.items()):
        # It is private to the parent, which removes it at exit.
        if (cache.root,) != identity[0]:
            del _caches[identity]


os.register_at_fork(after_in_child=_after_fork)


def current() -> Cache:
    """The cache that the configuration names.

    Raises:
        UntrustedCache: other users can write to it.
    """
    settings = config.get()
    identity = _identity(settings)
    cache = _caches.get(identity)
    if cache is None:
        made = Cache(settings.cache_dir, settings.cache_path, trusted=settings.trust_cache)
        cache = _caches.setdefault(identity, made)  # another thread's, if it was quicker
    cache.check()
    return cache


def _identity(settings: Config) -> tuple[tuple[Path, ...], ...]:
    return (settings.cache_dir,), settings.cache_path, settings.trust_cache


_WRITABLE = "Set JITSPARSE_CACHE_DIR to a directory that can be written."


def private_instead(cache: Cache, reason: str, remedy: str = _WRITABLE) -> Cache:
    """A cache for this process alone, where the configured one cannot be used; warns once.

    Args:
        cache: the configured one.
        reason: why it cannot, as the beginning of a message.
        remedy: what to do about it.

    Raises:
        UnwritableCache: there is no place for one either.
    """
    with _replacing:
        if current() is not cache:
            return current()
        root = private.directory(reason)
        _caches[_identity(config.get())] = Cache(root, cache.roots, trusted=cache.trusted)
    progress.warn(f"jitsparse: {reason}; what this process compiles is lost when it ends. {remedy}")
    return current()
