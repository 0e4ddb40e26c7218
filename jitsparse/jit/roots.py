"""What is wrong with the roots of a cache themselves: one that does not exist, or is a file.

Neither stops a lookup, which finds nothing there. So it is said where that matters.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from jitsparse.errors import ConfigError
from jitsparse.jit import config
from jitsparse.jit.lookup import Lookup

__all__ = ["file_in_the_way", "notes", "require_directories"]

C = TypeVar("C", bound=Lookup)

_READ_ONLY = "JITSPARSE_CACHE_PATH"
_MISSING = "does not exist"
_FILE = "is a file, not a directory"
_BELOW_A_FILE = "lies below a file"
_NO_DIRECTORY = (_FILE, _BELOW_A_FILE)


def file_in_the_way(root: Path) -> str:
    """That a root is a file, or is below one; otherwise an empty string."""
    reason = _defect(root)
    return reason if reason in _NO_DIRECTORY else ""


def notes(cache: Lookup) -> list[str]:
    """A line for each root in which nothing can be found, to explain a miss.

    The writable root may be missing: it is created when something is written.
    """
    return [
        f"the cache {root} ({variable}) {reason}"
        for root, variable, reason in _defects(cache)
        if reason != _MISSING or variable == _READ_ONLY
    ]


def require_directories(cache: C) -> C:
    """The cache, unless it is a file, which would be reported as an empty cache.

    A root may be missing.

    Raises:
        ConfigError: a root is a file, or is below one.
    """
    for root, variable, reason in _defects(cache):
        if reason in _NO_DIRECTORY:
            raise ConfigError(f"the cache {root} {reason}. Set {variable} to a directory.")
    return cache


def _defect(root: Path) -> str:
    """Why nothing can be found in a root, or an empty string."""
    try:
        mode = root.stat().st_mode
    except FileNotFoundError:
        return _MISSING
    except NotADirectoryError:
        return _BELOW_A_FILE
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if stat.S_ISDIR(mode) else _FILE


def _defects(cache: Lookup) -> Iterator[tuple[Path, str, str]]:
    """Each root in which nothing can be found, the variable that names it, and the reason."""
    # Where a private cache stands in for the configured one, that one is among the layers.
    writable = (cache.root, config.get().cache_dir)
    for root in cache.roots:
        reason = _defect(root)
        if reason:
            yield root, "JITSPARSE_CACHE_DIR" if root in writable else _READ_ONLY, reason
