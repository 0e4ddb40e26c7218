"""A temporary directory for this process alone, for what cannot be done in the cache itself.

It is private and removed at exit: a shared one would let another user of the machine put a library
there for this process to map.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from jitsparse.errors import ToolchainError, UnwritableCache
from jitsparse.jit import forks, progress

__all__ = ["directory", "executable_copy", "is_forbidden", "map_as_code"]

_warned: set[Path] = set()


def directory(reason: str) -> Path:
    """A new directory that is removed when this process ends.

    Args:
        reason: why it is needed, for the error message.

    Raises:
        UnwritableCache: there is no place for one.
    """
    try:
        path = Path(tempfile.mkdtemp(prefix="jitsparse-"))
    except OSError as error:
        raise UnwritableCache(
            f"{reason}, and no temporary directory can be made instead: {error}. Set "
            "JITSPARSE_CACHE_DIR, or TMPDIR, to a directory that can be written."
        ) from error
    # Imported only when needed, which is hardly ever.
    forks.ready("multiprocessing.util")
    from multiprocessing import util

    # Unlike atexit hooks, this also runs at the end of a multiprocessing worker. It does not run in
    # a forked child, since the directory is its parent's.
    util.Finalize(None, shutil.rmtree, (path, True), exitpriority=-100)
    return path


def is_forbidden(library: Path) -> bool:
    """Whether the system refuses to map a file as code: a noexec mount, or a security policy."""
    with contextlib.suppress(OSError, ValueError), library.open("rb") as file:
        try:
            map_as_code(file)
        except PermissionError:
            return True
    return False


def map_as_code(file: BinaryIO) -> None:
    """Map an open file as the loader maps the code of a library, and unmap it.

    Raises:
        OSError: it must not be mapped.
        ValueError: it is empty.
    """
    access = mmap.PROT_READ | mmap.PROT_EXEC
    mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=access).close()


def executable_copy(library: Path) -> Path:
    """A copy of a library that may be mapped where the library itself must not; warns once.

    Raises:
        UnwritableCache: no copy can be made.
        ToolchainError: the copy must not be mapped either.
    """
    root = library.parents[2]
    reason = f"the cache {root} does not allow code to be mapped (noexec)"
    folder = directory(reason)
    copy = folder / library.name
    try:
        shutil.copyfile(library, copy)
    except OSError as error:
        raise UnwritableCache(
            f"{reason}, and {library} cannot be copied to {folder}: {error.strerror}. Set "
            "JITSPARSE_CACHE_DIR to a directory on another file system."
        ) from error
    if is_forbidden(copy):
        raise ToolchainError(
            f"{reason}, and neither does {folder.parent}. Set JITSPARSE_CACHE_DIR, or TMPDIR, to a "
            "directory on a file system that is mounted without noexec."
        )
    if root not in _warned:
        _warned.add(root)
        progress.warn(
            f"jitsparse: {reason}; each process maps a copy of its own, in {folder.parent}. Set "
            "JITSPARSE_CACHE_DIR to a directory on a file system that is mounted without noexec."
        )
    return copy
