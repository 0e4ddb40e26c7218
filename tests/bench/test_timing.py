"""The protocol: who is called when, and what is kept. Nothing here depends on how long it took."""

from __future__ import annotations

import pytest
import torch

from jitsparse.bench import timing

CPU = torch.device("cpu")


def test_contestants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def sample(call: timing.Call, count: int, first: int, host_seconds: float) -> float:
        call(first)
        return 1.0

    monkeypatch.setattr(timing, "_sample_cpu", sample)
    calls = {name: (lambda i, name=name: order.append(name)) for name in "abc"}
    timing.interleave(calls, CPU, seconds=0.0)
    turns = order[3 * (timing.WARM_UP_CALLS + 1) :]
    assert turns == list("abc") * timing.MIN_SAMPLES


def test_the_median_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first value sets the number of calls in a sample, the rest are the samples.
    values = iter([1.0, 9.0, 2.0, 3.0, 1.0, 8.0, 4.0, 5.0])
    monkeypatch.setattr(timing, "_sample_cpu", lambda *sample: next(values))
    result = timing.interleave({"x": lambda i: None}, CPU, seconds=0.0)["x"]
    assert result == timing.Timing((9.0, 2.0, 3.0, 1.0, 8.0, 4.0, 5.0))
    assert result.median == 4.0


def test_a_ratio_is_taken_turn_by_turn() -> None:
    # The machine is ten times slower in the last turns; the ratio of the medians would be 20.
    ours = timing.Timing((1.0, 1.0, 1.0, 10.0, 10.0))
    theirs = timing.Timing((2.0, 2.0, 20.0, 20.0, 20.0))
    assert ours.times_faster_than(theirs) == 2.0


def test_short_calls_fill_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def sample(call: timing.Call, count: int, first: int, host_seconds: float) -> float:
        counts.append(count)
        return 1e-5

    monkeypatch.setattr(timing, "_sample_cpu", sample)
    timing.interleave({"x": lambda i: None}, CPU, seconds=0.0)
    assert counts[0] == 1
    assert set(counts[1:]) == {1000}


def test_copies_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_CALLS", {"cpu": 2})
    seen: list[int] = []
    timing.interleave({"x": seen.append}, CPU, seconds=0.0)
    # After the warm-up and the trial, consecutive numbers: modulo the copies, each comes in turn.
    samples = seen[timing.WARM_UP_CALLS + 2 :]
    untimed = [first for i, first in enumerate(samples) if i % 4 < 2]
    timed = [second for i, second in enumerate(samples) if i % 4 >= 2]
    assert timed == list(range(len(timed)))
    assert untimed == timed


def test_calls_right_after_another_contestant_are_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as are timed then, here three: memory and clock settle while they run."""
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    last: list[str] = []

    def call(name: str) -> None:
        clock[0] += 0.003 if last == 3 * [name] else 0.1
        last.append(name)
        del last[:-3]

    calls = {name: (lambda i, name=name: call(name)) for name in "ab"}
    result = timing.interleave(calls, CPU, seconds=0.0)
    samples = {round(taken, 6) for each in result.values() for taken in each.samples}
    assert samples == {0.003}


def test_one_copy_on_a_cpu() -> None:
    assert timing.copies_beyond_l2(1, CPU) == 1


def test_the_device_sleeps_until_the_host_has_queued_the_calls() -> None:
    shortest, longest = (round(timing.CLOCK * seconds) for seconds in timing.SLEEP_SECONDS)
    assert timing.sleep_cycles(50, 1e-5) == shortest
    assert timing.sleep_cycles(20, 1e-4) == round(2 * 20 * 1e-4 * timing.CLOCK)
    assert timing.sleep_cycles(50, 1.0) == longest


@pytest.mark.gpu
def test_copies_overflow_the_l2() -> None:
    device = torch.device("cuda")
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    for each in (l2 // 10, l2, 10 * l2):
        copies = timing.copies_beyond_l2(each, device)
        assert copies * each >= 2 * l2
    assert timing.copies_beyond_l2(10 * l2, device) == 1


def test_host_times_are_medians_of_every_call() -> None:
    counts = {"a": 0, "b": 0}

    def count(name: str) -> None:
        counts[name] += 1

    calls = {name: (lambda name=name: count(name)) for name in counts}
    took = timing.interleave_host(calls, CPU, samples=3, calls_a_sample=5)
    assert set(took) == {"a", "b"}
    assert counts == {"a": 20, "b": 20}
