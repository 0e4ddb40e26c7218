"""Who could have written, or overwritten, a file that this process is about to run.

A cached kernel is code. Whoever can write to the directory that holds it decides what this process
executes, and hashes are no help, because the writer can replace them too. So a cache is used only
if this user and root alone can write to it, or if its path is named in ``JITSPARSE_TRUST_CACHE``.
A directory above it that others can write to, such as /tmp, is no objection: what they could put in
the cache's place would belong to them, and be refused for that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from jitsparse.errors import UntrustedCache

__all__ = ["check", "objection", "open_plain", "remedy"]

WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def objection(status: os.stat_result) -> str:
    """Why a file or directory may hold what another user wrote, or an empty string."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}, who is neither this one nor root"
    if status.st_mode & WRITABLE:
        mode = stat.S_IMODE(status.st_mode)
        return f"other users can write to it: its mode is {mode:04o}"
    return ""


def check(root: Path, parts: Iterable[Path]) -> None:
    """Refuse a cache that other users can write to.

    Args:
        root: the cache, which is what the user named.
        parts: its directories to check. Those that do not exist are skipped.

    Raises:
        UntrustedCache: one of them can be written by others.
    """
    for path in parts:
        try:
            reason = objection(path.stat())
        except OSError:
            continue
        if reason:
            raise UntrustedCache(
                f"the cache directory {path} is refused, because {reason}. Whoever can write there "
                f"decides which code this process runs. {remedy(root, path)}"
            )


def remedy(root: Path, path: Path) -> str:
    """What to do about a cache with a directory that other users can write to."""
    return (
        f"Make it yours alone (chown it, chmod go-w {path}), or set JITSPARSE_CACHE_DIR to another "
        "directory; if you trust everyone who can write there, say so: "
        f"JITSPARSE_TRUST_CACHE={root}"
    )


def open_plain(path: Path, *, trusted: bool) -> int:
    """A descriptor of a regular file that nobody else could have written.

    Args:
        path: the file. A link is not followed, and a pipe is not waited for.
        trusted: whether its owner and mode do not matter.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not a regular file, or another user could have written it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if path.is_symlink():
            raise ValueError("it is a symbolic link") from None
        raise
    status = os.fstat(descriptor)
    reason = "" if trusted else objection(status)
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not an ordinary file"
    if reason:
        os.close(descriptor)
        raise ValueError(reason)
    return descriptor
