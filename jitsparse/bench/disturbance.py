"""Which timings come from a machine that was busy with something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitsparse.bench.timing import Timing

__all__ = ["DISTURBED", "disturbed"]

DISTURBED = 2.0
"""Timings whose median is more than so many times their least sample come from a busy machine."""


def disturbed(timings: Mapping[str, Timing]) -> dict[str, float]:
    """The contestants that were disturbed, to how many times the least their median is.

    The worst come first.
    """
    times = {name: timing.median / min(timing.samples) for name, timing in timings.items()}
    worst_first = sorted(times.items(), key=lambda each: -each[1])
    return {name: ratio for name, ratio in worst_first if ratio > DISTURBED}
