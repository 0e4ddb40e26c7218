"""How many compilers this process may run at a time: as its processors and its memory allow.

In a container both are limited by control groups, of which neither the number of processors nor the
free memory that the system reports knows anything. A job too many costs more than one too few: a
quota that is used up stops every compiler, and a group that is out of memory loses one, or the
whole program.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["JOB_BYTES", "limit"]

JOB_BYTES = 256 * 1024**2
"""Memory that a job is taken to need. Of our templates the largest process of a g++ run took 86 MiB
and the largest of an nvcc run 194 MiB (docs/performance.md); nvcc's wait for each other."""

_ROOT = Path("/")
_NO_LIMIT = 1 << 60
"""Version 1 writes the largest multiple of a page where there is no limit."""


def limit(root: Path = _ROOT) -> int:
    """How many compilers may run at a time, at least one.

    The least of: processors that this process may run on, processor time that its control groups
    grant it in a period, rounded up, and what fits into the memory that is still available.

    Args:
        root: of the file system that ``/proc`` and ``/sys`` are read from.
    """
    groups = list(_groups(root))
    memory = _available(root)
    bounds = [len(os.sched_getaffinity(0))]
    for group in groups:
        processors = _processors(group)
        if processors is not None:
            bounds.append(math.ceil(processors))
        left = _left(group)
        if left is not None:
            memory = left if memory is None else min(memory, left)
    if memory is not None:
        bounds.append(memory // JOB_BYTES)
    return max(1, min(bounds))


def _groups(root: Path) -> Iterator[Path]:
    """Directories of the control groups that this process is in, and of all that they are in.

    In a container a group may be named as the host sees it; then the root of the hierarchy, which
    is looked at in any case, is the container's own group.
    """
    hierarchies = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        names = controllers.split(",")
        if number == "0":
            base = hierarchies
        elif "cpu" in names or "memory" in names:
            base = hierarchies / controllers
        else:
            continue
        inner = base / name.lstrip("/")
        # A process that was moved out of its namespace's root has a name with "..".
        inside = [] if ".." in inner.parts else [inner, *inner.parents]
        yield from (each for each in inside if each.is_relative_to(base) and each != base)
        yield base


def _processors(group: Path) -> float | None:
    """Processors' worth of time that a group may use, or None for any."""
    both = (_text(group / "cpu.max") or "").split()  # "max 100000" without a quota
    if not both:
        both = [_text(group / name) or "" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    quota, period = (_number(each) for each in [*both, "", ""][:2])
    return quota / period if quota and period else None


def _left(group: Path) -> int | None:
    """Bytes that the processes of a group may still take, or None for any number."""
    for most, current, name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        size, used = _number(_text(group / most)), _number(_text(group / current))
        if size is not None and used is not None and size < _NO_LIMIT:
            # Files that were read long ago count as used, and make room for whoever asks.
            return max(0, size - used + (_field(group / "memory.stat", name) or 0))
    return None


def _available(root: Path) -> int | None:
    """Bytes that the system says can be taken without swapping."""
    kibibytes = _field(root / "proc/meminfo", "MemAvailable:")
    return None if kibibytes is None else kibibytes * 1024


def _field(path: Path, name: str) -> int | None:
    """The number behind a name in a file of one name and number a line."""
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return _number(words[1])
    return None


def _number(text: str | None) -> int | None:
    """A whole number of 0 or more; None for anything else, as ``max`` or ``-1``."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None


def _text(path: Path) -> str | None:
    """What a file holds, if it is there and holds something."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None
