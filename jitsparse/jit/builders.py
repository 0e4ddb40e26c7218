"""Coordination of builders: the lock of a key, and the owners of staging directories.

Neither is needed for correctness. The lock saves work: where it does not exclude others, two
builders make two complete entries and the second rename loses. Owners tell which staging
directories may be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from jitsparse.jit import files, forks
from jitsparse.jit.progress import warn

__all__ = ["abandoned", "exclusively", "owner", "remove_locks"]

# A waiter that has waited this long builds for itself: its own copy is as good, and a holder that
# is suspended or on a node that died must not stop it forever.
LOCK_TIMEOUT = 600.0
# Waiters enter one after the other, each up to this long after the one before it.
LOCK_POLL = 0.01
# After this long a waiter says whom it waits for.
LOCK_PATIENCE = 1.0
# Staging directories of other hosts are presumed abandoned after a day; no compiler runs that long.
STAGING_AGE = 86400.0


@contextlib.contextmanager
def exclusively(
    path: Path, waiting: Callable[[str], AbstractContextManager[None]], *, shared: bool = False
) -> Iterator[None]:
    """Hold a lock; proceed without it where it cannot be acquired.

    Args:
        path: the lock's file, without its suffix.
        waiting: called once with a description of the holder when it takes a while; the context
            that it returns is entered for the rest of the wait.
        shared: whether several users' builders exclude each other.
    """
    forks.ready("filelock")
    import filelock

    holder = path.with_suffix(".holder")
    file = path.with_suffix(".lock")
    lock = filelock.FileLock(file)
    try:
        # Some versions of filelock change the file's mode, too.
        lock = filelock.FileLock(file, mode=_try(file, 0o666 if shared else 0o600))
        try:
            lock.acquire(timeout=LOCK_PATIENCE, poll_interval=LOCK_POLL)
        except filelock.Timeout:
            with waiting(_read_holder(holder)):
                lock.acquire(timeout=LOCK_TIMEOUT, poll_interval=LOCK_POLL)
    except filelock.Timeout:
        warn(
            f"jitsparse: waited {LOCK_TIMEOUT:.0f} s for {_read_holder(holder)}; "
            "compiling here as well."
        )
    except (OSError, NotImplementedError):
        pass  # a file system without locks, or a cache that was deleted meanwhile
    try:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                files.write(holder, f"pid {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        # It is released in any case when the descriptor is closed, at the latest with the process.
        with contextlib.suppress(OSError):
            lock.release()


def _try(path: Path, mode: int) -> int:
    """Check that the file system has locks at all; returns the mode of the lock's file.

    Where it has none, filelock would take the existence of a file for the lock, which a killed
    process would leave behind forever.

    Raises:
        OSError: it has none.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Closing alone would leave it locked by a child that was forked meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        pass  # somebody holds it, so there are locks
    finally:
        made = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    return made


def remove_locks(folder: Path) -> None:
    """Delete the locks that nobody holds.

    A process about to take one of them takes a new one: at worst two compile the same kernel.
    """
    for path in files.listed(folder, "*.lock"):
        with contextlib.suppress(OSError):  # held, or gone meanwhile
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.with_suffix(".holder").unlink(missing_ok=True)
                path.unlink()
            finally:
                os.close(descriptor)


def _read_holder(path: Path) -> str:
    try:
        return files.read(path).decode().strip() or "another process"
    except (OSError, ValueError):
        return "another process"


def owner() -> str:
    """Host, boot, pid namespace and pid of this builder: elsewhere a pid alone means nothing."""
    return f"{_place()}.{os.getpid()}"


def _place() -> str:
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        # Hosts of the same name also share the number of their first namespace, on every Linux.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        namespace, boot = 0, ""
    return f"{socket.gethostname().replace('.', '_')}-{boot[:8]}-{namespace}"


def abandoned(path: Path, now: float) -> bool:
    """Whether the builder of a staging directory is dead, or must be.

    Args:
        path: the directory.
        now: the time by the clock of the file system, in seconds since the epoch.
    """
    parts = path.name.split(".")
    if len(parts) >= 4 and parts[1] == _place() and parts[2].isdigit():
        return not Path(f"/proc/{parts[2]}").exists()
    try:
        return now - path.stat().st_mtime > STAGING_AGE
    except OSError:
        return False
