"""What a check of ``jitsparse doctor`` reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Status", "guarded"]

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what it was, the same in every run: ``torch``, ``cache.mount``.
        status: ``"ok"``; ``"warn"`` for what costs time or may surprise; ``"fail"`` for what makes
            calls fail; ``"skip"`` if it could not be examined, or was not to be.
        found: what there is, in words.
        remedy: what to do about it, in one line; empty if there is nothing to do.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""


def guarded(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a check, and one more if the check itself fails.

    A doctor that crashes on what it examines helps nobody: whatever a check did not foresee is
    reported, and the other checks go on.
    """
    try:
        yield from check()
    except Exception as error:
        yield Finding(
            name,
            "fail",
            f"the check itself failed: {type(error).__name__}: {error}",
            "Report this, with the output of jitsparse doctor --json.",
        )
