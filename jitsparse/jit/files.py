"""Small files beside the entries: bounded reads, atomic replacement, removal of anything."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from pathlib import Path

__all__ = ["listed", "make_directories", "read", "remove", "write"]

LIMIT = 1 << 26
"""Bytes of the largest file that is read; the largest that is written has a few thousand."""


def read(path: Path) -> bytes:
    """Content of a regular file, or of one that a link leads to. Does not wait for a pipe.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, or larger than anything that is written here.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not an ordinary file")
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise ValueError(f"it is larger than {LIMIT} bytes")
    return content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def write(path: Path, text: str) -> None:
    """Replace a file atomically: readers see all of the old content or all of the new.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def make_directories(*paths: Path, shared: bool) -> None:
    """Make the directories that are missing.

    Args:
        paths: the directories, each below the one before it.
        shared: whether for everyone whom the umask admits, and not for this user alone.

    Raises:
        OSError: one cannot be made.
    """
    for path in paths:
        path.mkdir(mode=0o777 if shared else 0o700, parents=True, exist_ok=True)


def listed(directory: Path, pattern: str = "*") -> list[Path]:
    """What a directory has that matches a pattern, by name; nothing if it cannot be read."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def remove(path: Path) -> None:
    """Remove a directory with all that is in it, a file or a link; best effort."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
