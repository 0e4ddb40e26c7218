"""Which timings come from a machine that was busy with something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitsparse.bench.timing import Timing

__all__ = ["DISTURBED", "disturbed", "times_the_least"]

DISTURBED = 2.0
"""Timings whose median is more than so many times their least sample come from a busy machine."""


def times_the_least(timing: Timing) -> float:
    """The median of the samples over the least of them."""
    return timing.median / min(timing.samples)


def disturbed(timings: Mapping[str, Timing]) -> dict[str, float]:
    """The contestants that were disturbed, to :func:`times_the_least`; the worst come first."""
    times = {name: times_the_least(timing) for name, timing in timings.items()}
    worst_first = sorted(times.items(), key=lambda each: -each[1])
    return {name: ratio for name, ratio in worst_first if ratio > DISTURBED}
