"""What is wrong with the roots of a cache themselves: one is missing, a file, or unreadable.

None of this stops a lookup, which finds nothing there. So it is said where that matters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from jitsparse.errors import ConfigError
from jitsparse.jit import config
from jitsparse.jit.lookup import VERSION, Lookup

__all__ = ["file_in_the_way", "notes", "require_directories"]

C = TypeVar("C", bound=Lookup)

_READ_ONLY = "JITSPARSE_CACHE_PATH"
_MISSING = "does not exist"
_FILE = "is a file, not a directory"
_BELOW_A_FILE = "lies below a file"
_FILE_INSIDE = f"has a file where its {VERSION} should be"
_NO_DIRECTORY = (_FILE, _BELOW_A_FILE, _FILE_INSIDE)
_UNREADABLE = "cannot be read"


def file_in_the_way(root: Path) -> str:
    """That a root is a file, is below one, or has one inside; otherwise an empty string."""
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
    """The cache, unless it would be reported as an empty one for another reason than being new.

    A root may be missing.

    Raises:
        ConfigError: a root is a file, is below one or has one inside, or may not be read.
    """
    for root, variable, reason in _defects(cache):
        if reason in _NO_DIRECTORY:
            raise ConfigError(f"the cache {root} {reason}. Set {variable} to a directory.")
        if reason.startswith(_UNREADABLE):
            raise ConfigError(
                f"the cache {root} {reason}. Make it readable (chmod -R a+rX {root}), or set "
                f"{variable} to another directory."
            )
    return cache


def _defect(root: Path) -> str:
    """Why nothing can be found in a root, or an empty string."""
    try:
        root.stat()
    except FileNotFoundError:
        return _MISSING
    except NotADirectoryError:
        return _BELOW_A_FILE
    except OSError as error:
        return f"{_UNREADABLE}: {error.strerror}"
    for directory in (root, root / VERSION):
        try:
            os.scandir(directory).close()
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            return _FILE if directory == root else _FILE_INSIDE
        except OSError as error:
            return f"{_UNREADABLE}: {error.strerror}"
    return ""


def _defects(cache: Lookup) -> Iterator[tuple[Path, str, str]]:
    """Each root in which nothing can be found, the variable that names it, and the reason."""
    # Where a private cache stands in for the configured one, that one is among the layers.
    writable = (cache.root, config.get().cache_dir)
    for root in cache.roots:
        reason = _defect(root)
        if reason:
            yield root, "JITSPARSE_CACHE_DIR" if root in writable else _READ_ONLY, reason
