"""The timing protocol. The rates in docs/performance.md were taken by :func:`interleave`.

The contestants take turns in one process, so that clock changes, other users of the machine and
memory placement affect all of them alike. A sample is long enough for its clock, and the median of
the samples is reported; a ratio is the median of the ratios within a turn.

CPU: ``perf_counter`` around enough calls to last 10 ms, after as many that are not timed. The
first call pays for the memory that the previous contestant returned to the system. (torch's BSR
product returns so much that the 16 MB output of the next call is 4096 new pages, which take 4 to
5 ms of its 10.) And for some 7 ms it runs at the clock that the previous contestant left behind:
after a dense product in AVX-512 that is a tenth lower, as a loop of multiply-adds in registers
shows.

CUDA: an event before and after enough calls to last a millisecond, queued behind a sleep kernel
that lasts until the host has queued them all, so that the host's speed is not measured. Inputs
rotate through copies that together exceed twice the L2 cache, as they would in a model with other
layers in between.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

__all__ = [
    "Timing",
    "copies_beyond_l2",
    "estimate",
    "interleave",
    "interleave_host",
    "settle",
    "sleep_cycles",
]

Call = Callable[[int], object]
"""A contestant: told which copy of its inputs to use."""

SAMPLE_SECONDS = {"cpu": 10e-3, "cuda": 1e-3}
WARM_UP_CALLS = 3
MIN_SAMPLES = 7
MAX_SAMPLES = 200
MAX_CALLS = {"cpu": 1000, "cuda": 50}
CLOCK = 2e9
"""Cycles per second, about the most of any current GPU."""
SLEEP_SECONDS = (1.25e-3, 20e-3)
"""Shortest and longest sleep before a sample: 50 short calls are queued in the former."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one sample per turn.

    Attributes:
        samples: in the order in which they were taken.
    """

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of all samples."""
        return statistics.median(self.samples)

    def times_faster_than(self, other: Timing) -> float:
        """Median over the turns of the other's time over this one's.

        The samples of one turn are milliseconds apart, so a machine that slows down for a while
        slows both of them, whereas it would change the quotient of two medians.
        """
        pairs = zip(other.samples, self.samples, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def interleave(
    calls: Mapping[str, Call], device: torch.device, *, seconds: float = 2.0
) -> dict[str, Timing]:
    """Time every call in turn, again and again.

    Args:
        calls: name to call. A call takes the number of the copy of its inputs to use, which counts
            up from 0; it must not synchronise.
        device: where the calls run.
        seconds: rough budget for all of them together; at least :data:`MIN_SAMPLES` samples each
            are taken.

    Returns:
        Name to :class:`Timing`.

    Example:
        >>> x = torch.ones(64, 64)
        >>> timing = interleave({"mm": lambda i: x @ x}, torch.device("cpu"), seconds=0.01)["mm"]
        >>> min(timing.samples) <= timing.median <= max(timing.samples)
        True
    """
    sample = _sample_cuda if device.type == "cuda" else _sample_cpu
    counts, hosts = {}, {}
    for name, call in calls.items():
        hosts[name] = min(_host_seconds(call, i) for i in range(WARM_UP_CALLS))
        once = sample(call, 1, 0, hosts[name])
        wanted = round(SAMPLE_SECONDS[device.type] / max(once, 1e-9))
        counts[name] = max(1, min(MAX_CALLS[device.type], wanted))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    for turn in range(MAX_SAMPLES):
        if turn >= MIN_SAMPLES and time.perf_counter() > deadline:
            break
        for name, call in calls.items():
            count = counts[name]
            samples[name].append(sample(call, count, turn * count, hosts[name]))
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}


def estimate(call: Call, device: torch.device) -> float:
    """Seconds of a call that has run before, roughly: the least of three."""
    sample = _sample_cuda if device.type == "cuda" else _sample_cpu
    host = _host_seconds(call, 0)
    return min(sample(call, 1, i, host) for i in range(3))


def copies_beyond_l2(bytes_each: int, device: torch.device) -> int:
    """How many copies of inputs of this size exceed twice the L2 cache, at most 64; 1 on a CPU."""
    if device.type != "cuda":
        return 1
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    return max(1, min(64, -(-2 * l2 // max(1, bytes_each))))


def settle(device: torch.device) -> None:
    """Wait for what was launched on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sleep_cycles(count: int, host_seconds: float) -> int:
    """How long a GPU sleeps while the host queues a sample's calls, with room to spare.

    Args:
        count: calls in the sample.
        host_seconds: what the host needs for one of them. A call that waits for the device, as
            some peers' do, looks like a very slow one: no sleep is long enough for it.
    """
    shortest, longest = SLEEP_SECONDS
    return round(CLOCK * min(max(2 * count * host_seconds, shortest), longest))


def _host_seconds(call: Call, i: int) -> float:
    start = time.perf_counter()
    call(i)
    return time.perf_counter() - start


def _sample_cpu(call: Call, count: int, first: int, host_seconds: float) -> float:
    for i in range(first, first + count):
        call(i)
    start = time.perf_counter()
    for i in range(first, first + count):
        call(i)
    return (time.perf_counter() - start) / count


def _sample_cuda(call: Call, count: int, first: int, host_seconds: float) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(sleep_cycles(count, host_seconds))
    start.record()
    for i in range(first, first + count):
        call(i)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / count


def interleave_host(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    samples: int = 51,
    calls_a_sample: int = 200,
) -> dict[str, float]:
    """Median seconds that the host spends in a call, the calls taking turns.

    On CUDA the clock stops before waiting for the device, so only the host's part counts; the
    calls must be short enough for the device to keep up.

    Args:
        calls: name to call.
        device: waited for between samples.
        samples: taken of each call.
        calls_a_sample: averaged for one.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(calls_a_sample):
            call()
    for _ in range(samples):
        for name, call in calls.items():
            settle(device)
            start = time.perf_counter()
            for _ in range(calls_a_sample):
                call()
            taken[name].append((time.perf_counter() - start) / calls_a_sample)
    return {name: statistics.median(times) for name, times in taken.items()}
