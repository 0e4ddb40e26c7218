"""How many compilers this process may run at a time, given its CPUs and its memory.

In a container, control groups limit both, which shows neither in the number of CPUs nor in the free
memory that the system reports. A job too many costs more than one too few: an exhausted quota stops
every compiler, and a group that is out of memory loses one, or the whole program.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["JOB_BYTES", "limit"]

JOB_BYTES = 256 * 1024**2
"""Memory that a job is assumed to need. With our templates the largest process of a g++ run took
86 MiB and the largest of an nvcc run 194 MiB (docs/performance.md); nvcc's run one at a time."""

_ROOT = Path("/")
_NO_LIMIT = 1 << 60
"""cgroup v1 writes the largest multiple of the page size where there is no limit."""


def limit(root: Path = _ROOT) -> int:
    """How many compilers may run at a time, at least one.

    The least of: CPUs that this process may run on, the CPU quota of its control groups, rounded
    up, and the jobs that fit into the memory that is still available.

    Args:
        root: root of the file system that ``/proc`` and ``/sys`` are read from.
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
    """Directories of the control groups that this process is in, and of all their ancestors.

    In a container a group may be named as the host sees it; then the root of the hierarchy, which
    is always included, is the container's own group.
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
    """How many CPUs' worth of time a group may use, or None for no limit."""
    both = (_text(group / "cpu.max") or "").split()  # "max 100000" without a quota
    if not both:
        both = [_text(group / name) or "" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    quota, period = (_number(each) for each in [*both, "", ""][:2])
    return quota / period if quota and period else None


def _left(group: Path) -> int | None:
    """Bytes that the processes of a group may still take, or None for no limit."""
    for most, current, name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        size, used = _number(_text(group / most)), _number(_text(group / current))
        if size is not None and used is not None and size < _NO_LIMIT:
            # The cache of files that were read long ago counts as used, but is freed on demand.
            return max(0, size - used + (_field(group / "memory.stat", name) or 0))
    return None


def _available(root: Path) -> int | None:
    """Bytes that the system says can be taken without swapping."""
    kibibytes = _field(root / "proc/meminfo", "MemAvailable:")
    return None if kibibytes is None else kibibytes * 1024


def _field(path: Path, name: str) -> int | None:
    """The number after a name in a file with one name and one number per line."""
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return _number(words[1])
    return None


def _number(text: str | None) -> int | None:
    """A whole number of 0 or more; None for anything else, such as ``max`` or ``-1``."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None


def _text(path: Path) -> str | None:
    """Content of a file; None if it is missing or empty."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None
