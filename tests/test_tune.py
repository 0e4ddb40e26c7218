"""Tuning changes what calls choose, and neither a wrong kernel nor an illegal one ever wins."""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import jitsparse as js
from jitsparse import calls
from jitsparse.bench import disturbance, timing
from jitsparse.compilation import compile_variants
from jitsparse.explain import Explanation
from jitsparse.jit import Kernel, Variant, config, targets, tuned
from jitsparse.kernels import registry
from jitsparse.kernels.choice import choose, key_on_device, problem_of
from jitsparse.kernels.float32 import float32_as, float32_dtype
from jitsparse.kernels.problem import LESS_PRECISE, Problem, product_problem
from jitsparse.traits import profile_of
from jitsparse.warmup import problems_of

# As an attribute of the package, "tune" is the function.
tune_module = importlib.import_module("jitsparse.tune")

M, N, K = 40, 24, 48
QUICK: dict[str, Any] = {"seconds": 0.0}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with every variant of the problem that these tests tune."""
    root = tmp_path_factory.mktemp("compiled")
    with config.override(cache_dir=root):
        problem = js.explain("dsd", *operands()).problem
        compile_variants([each.variant for each in tune_module.legal_candidates(problem)])
    return root


@pytest.fixture
def cache(compiled: Path, tmp_path: Path) -> Iterator[Path]:
    """An empty cache in front of which lies the one with the kernels."""
    with config.override(cache_dir=tmp_path / "cache", cache_path=[compiled]):
        yield tmp_path / "cache"


def operands() -> tuple[js.BlockSparse, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = js.random((M, K), 8, 0.5, generator=generator)
    return a, torch.randn(K, N, generator=generator)


def explain() -> Explanation:
    return js.explain("dsd", *operands())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Decides what each variant takes: two seconds, if nothing is said of it."""
    seconds: dict[str, float] = {}

    def interleave(turns: dict[str, Any], device: Any, *, seconds: float) -> Any:
        return {name: timing.Timing((told.get(name, 2.0),) * 7) for name in turns}

    told = seconds
    monkeypatch.setattr(timing, "interleave", interleave)
    monkeypatch.setattr(timing, "estimate", lambda turn, device: 2.0)
    return seconds


def take(monkeypatch: pytest.MonkeyPatch, samples: Mapping[str, tuple[float, ...]]) -> None:
    """Decides each sample of some variants; others are slow."""

    def interleave(turns: dict[str, Any], device: Any, *, seconds: float) -> Any:
        return {name: timing.Timing(samples.get(name, (100.0,) * 7)) for name in turns}

    monkeypatch.setattr(timing, "interleave", interleave)


def test_a_call_uses_the_winner(cache: Path, clock: dict[str, float]) -> None:
    before = explain()
    assert before.source == "heuristic"
    winner = before.alternatives[-1]
    clock[winner] = 1.0
    tuning = js.tune("dsd", *operands(), **QUICK)
    assert tuning.winner == winner
    assert (tuning.before, tuning.source) == (before.variant, "heuristic")
    assert tuning.heuristic == before.variant
    assert set(tuning.seconds) == {before.variant, *before.alternatives}
    assert next(iter(tuning.seconds)) == winner
    assert tuning.problem == before.problem
    assert tuning.failures == ()
    after = explain()
    assert (after.variant, after.source) == (winner, "tuned")
    a, x = operands()
    torch.testing.assert_close(js.dsd(a, x), a.to_dense() @ x)
    # Another size class is another problem.
    assert js.explain("dsd", a, torch.randn(K, 8 * N)).source == "heuristic"


@pytest.mark.parametrize(
    ("current", "other"),
    [(10.0, 9.0), (9.0, 2.0), (9.0, 50.0)],
    ids=["the fastest", "what it is compared with", "what calls use and the fastest"],
)
def test_timings_of_a_busy_machine_are_not_recorded(
    current: float,
    other: float,
    cache: Path,
    clock: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose clock reads the scheduler's ticks: one sample says what the kernel takes."""
    before, leader = explain().variant, explain().alternatives[0]
    samples = {before: current, leader: other}
    take(
        monkeypatch,
        {name: (4.0 if each == 9.0 else each, *(each,) * 6) for name, each in samples.items()},
    )
    disturbed = before if current == 9.0 else leader
    said = f"timings of {disturbed} are disturbed, their median is 2.2 times the least"
    with pytest.warns(RuntimeWarning, match=f"not tuned: .*{said}"):
        tuning = js.tune("dsd", *operands(), **QUICK)
    assert (tuning.winner, tuning.gain, tuning.path) == (None, None, None)
    assert f"not tuned {said}" in str(tuning)
    assert (explain().variant, explain().source) == (before, "heuristic")


def test_an_entry_outlives_disturbed_timings(
    cache: Path, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = explain().alternatives[0]
    tuned.record(explain().problem.name, registry.machine_of("cpu"), held, {held: 1e-6})
    take(monkeypatch, {held: (4.0, *(9.0,) * 6)})
    with pytest.warns(RuntimeWarning, match=f"not tuned: .*timings of {held} are disturbed"):
        js.tune("dsd", *operands(), **QUICK)
    assert (explain().variant, explain().tuned_seconds) == (held, {held: 1e-6})


def test_explain_says_where_an_entry_is_and_what_was_measured(
    cache: Path, clock: dict[str, float]
) -> None:
    winner = explain().alternatives[0]
    clock[winner] = 1.5e-3
    tuning = js.tune("dsd", *operands(), **QUICK)
    found = explain()
    assert found.tuned_in == tuning.path
    assert found.tuned_seconds == tuning.seconds
    text = str(found)
    assert f"variant   {winner}  (1500.0 us when tuned)" in text
    assert f"table     {tuning.path}" in text


def test_the_table_for_people(cache: Path, clock: dict[str, float]) -> None:
    winner = explain().alternatives[0]
    clock[winner] = 1.0
    text = str(js.tune("dsd", *operands(), **QUICK))
    rows = [line.split() for line in text.splitlines() if line.startswith("dsd.")]
    assert rows[0] == [winner, "1000000.0", "1.00", "winner"]
    assert ["before", "(heuristic),", "heuristic"] in [row[3:] for row in rows]
    assert "pinned" not in text


@pytest.mark.parametrize(("seconds", "wins"), [(1.99, False), (1.9, True)])
def test_a_tie_goes_to_the_heuristic(
    seconds: float, wins: bool, cache: Path, clock: dict[str, float]
) -> None:
    other = explain().alternatives[0]
    clock[other] = seconds
    tuning = js.tune("dsd", *operands(), **QUICK)
    assert tuning.winner == (other if wins else tuning.heuristic)
    assert explain().source == "tuned"


@pytest.mark.parametrize(("seconds", "wins"), [(0.995, False), (0.9, True)])
def test_a_winner_beats_what_was_tuned_before(
    seconds: float, wins: bool, cache: Path, clock: dict[str, float]
) -> None:
    held, other = explain().alternatives[:2]
    tuned.record(explain().problem.name, registry.machine_of("cpu"), held, {})
    clock[held], clock[other] = 1.0, seconds
    tuning = js.tune("dsd", *operands(), **QUICK)
    assert (tuning.before, tuning.source) == (held, "tuned")
    assert tuning.winner == (other if wins else held)
    assert tuning.gain == pytest.approx(1 / 0.9 if wins else 1.0)
    assert explain().variant == tuning.winner


def test_the_ratios_within_a_turn_decide(
    cache: Path, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the quotient of the medians, which the slow turns of either would change."""
    held, other = explain().alternatives[:2]
    tuned.record(explain().problem.name, registry.machine_of("cpu"), held, {})
    slower = {
        held: (10.0, 12.0, 14.0, 10.0, 12.0, 14.0, 12.0),
        other: (10.5, 12.5, 14.5, 10.5, 11.0, 11.0, 11.0),
    }
    take(monkeypatch, slower)
    tuning = js.tune("dsd", *operands(), **QUICK)
    assert next(iter(tuning.seconds)) == other
    assert (tuning.winner, tuning.gain) == (held, 1.0)
    faster = {
        held: (12.0, 14.0, 16.0, 12.0, 14.0, 16.0, 14.0),
        other: (10.0, 10.0, 10.0, 10.0, 14.0, 14.0, 14.0),
    }
    take(monkeypatch, faster)
    tuning = js.tune("dsd", *operands(), **QUICK)
    assert tuning.winner == other
    assert tuning.gain == pytest.approx(1.2)
    assert "gain      1.20 over before" in str(tuning)


def estimate_as_slow(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], problem: Problem
) -> None:
    """Estimates of these variants are hopeless; they are made in the order of preference."""
    legal = [each.variant.name for each in tune_module.legal_candidates(problem)]
    estimates = iter([100.0 if name in names else 1.0 for name in legal])
    monkeypatch.setattr(timing, "estimate", lambda turn, device: next(estimates))


def test_a_hopeless_variant_is_not_timed_on(
    cache: Path, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = explain().alternatives[0]
    estimate_as_slow(monkeypatch, (slow,), explain().problem)
    clock[slow] = 1e-9
    tuning = js.tune("dsd", *operands(), **QUICK)
    assert tuning.seconds[slow] == 100.0
    assert tuning.winner == tuning.heuristic


def test_what_calls_use_is_timed_whatever_its_estimate(
    cache: Path, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the table, without it, or by a pin: on a busy machine first calls may all be slow."""
    heuristic, (held, pinned) = explain().variant, explain().alternatives[:2]
    tuned.record(explain().problem.name, registry.machine_of("cpu"), held, {})
    estimate_as_slow(monkeypatch, (heuristic, held, pinned), explain().problem)
    clock.update({heuristic: 1.0, held: 1.1, pinned: 1.2})
    with js.pin(f"dsd={pinned}"):
        tuning = js.tune("dsd", *operands(), **QUICK)
    assert [*tuning.seconds.items()][:3] == [(heuristic, 1.0), (held, 1.1), (pinned, 1.2)]
    assert tuning.winner == heuristic
    assert tuning.gain == pytest.approx(1.2)


def test_a_pin_has_no_say_in_the_table(cache: Path, clock: dict[str, float]) -> None:
    pinned, other = explain().alternatives[:2]
    clock[other] = 1.99
    clock[pinned] = 3.0
    with js.pin(f"dsd={pinned}"):
        tuning = js.tune("dsd", *operands(), **QUICK)
    assert (tuning.winner, tuning.gain) == (tuning.heuristic, 1.5)


def test_a_pin_outranks_what_was_tuned(cache: Path, clock: dict[str, float]) -> None:
    pinned, winner = explain().alternatives[:2]
    clock[winner] = 1.0
    with js.pin(f"dsd={pinned}"):
        tuning = js.tune("dsd", *operands(), **QUICK)
        assert (tuning.winner, tuning.before, tuning.source) == (winner, pinned, "context")
        assert f"calls go on using {pinned}" in str(tuning)
        assert (explain().variant, explain().source) == (pinned, "context")
    assert explain().variant == winner


@pytest.mark.parametrize(
    "spoil",
    [
        lambda out: out.add_(1.0),
        lambda out: out.view(-1)[-1].add_(0.5),
        lambda out: out.view(-1)[3].fill_(float("nan")),
    ],
    ids=["everywhere", "at one place", "not a number"],
)
def test_a_wrong_answer_never_wins(
    spoil: Any, cache: Path, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = explain().alternatives[0]
    clock[liar] = 1e-6
    run = calls.Call.run

    def lying(self: calls.Call, kernel: Kernel) -> torch.Tensor:
        answer = run(self, kernel)
        if kernel.variant.name == liar:
            spoil(answer)
        return answer

    monkeypatch.setattr(calls.Call, "run", lying)
    with pytest.warns(RuntimeWarning, match=f"{liar}: wrong answer"):
        tuning = js.tune("dsd", *operands(), **QUICK)
    assert tuning.winner != liar
    assert liar not in tuning.seconds
    assert [name for name, _ in tuning.failures] == [liar]
    assert f"failed    {liar}: wrong answer" in str(tuning)
    assert explain().variant != liar


def test_what_is_no_number_in_the_right_answer_is_no_fault() -> None:
    a, x = operands()
    x[0, 0], x[1, 1] = float("inf"), float("nan")
    call = calls.catch("dsd", a, x)
    expected = call.exact()
    right = expected[0].float()
    assert not right.isfinite().all()
    assert call.fault(right, expected) is None
    assert call.fault(right.nan_to_num(0.0), expected) is not None
    assert call.fault(-right, expected) is not None


def test_an_answer_may_differ_by_rounding_and_no_more() -> None:
    a, x = operands()
    call = calls.catch("dsd", a, x)
    expected = call.exact()
    size = a.to_dense().double().abs() @ x.double().abs()
    for share, fault in ((0.0, False), (1e-6, False), (1e-4, True)):
        answer = (expected[0] + share * size).float()
        assert (call.fault(answer, expected) is not None) == fault


def test_a_kernel_that_breaks_the_gpu_ends_the_tuning(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the GPU afterwards is told of the same error, so nobody else is tried."""
    tried: list[str] = []

    def breaking(self: calls.Call, kernel: Kernel) -> torch.Tensor:
        tried.append(kernel.variant.name)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(calls.Call, "run", breaking)
    with pytest.raises(js.LaunchError, match=r"could not be tried: CUDA error: an illegal"):
        js.tune("dsd", *operands(), **QUICK)
    assert tried == [explain().variant]
    assert explain().source == "heuristic"


def test_a_batch_of_an_sdd_is_a_longer_sum() -> None:
    """As far as rounding goes."""
    a, b, pattern = torch.randn(64, M, 8), torch.randn(64, 8, N), js.random((M, N), 8, 0.5).pattern
    _, allowed = calls.catch("sdd", a, b, pattern).exact()
    flat = a.movedim(0, 1).reshape(M, -1), b.reshape(-1, N)
    torch.testing.assert_close(calls.catch("sdd", *flat, pattern).exact()[1], allowed)


def test_a_kernel_that_fails_is_left_out(cache: Path, clock: dict[str, float]) -> None:
    victim = explain().alternatives[0]
    clock[victim] = 1e-6
    call = calls.catch("dsd", *operands())
    launch = Kernel.__init__

    def failing(self: Kernel, variant: Variant, entry: Any, arguments: int) -> None:
        launch(self, variant, entry, arguments)
        if variant.name == victim:
            self.launch = lambda words: 7

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitsparse.jit.kernel._mapped", {})
        patch.setattr(Kernel, "__init__", failing)
        tuning = tune_module.tune_call(call, seconds=0.0)
    assert tuning.winner != victim
    ((name, reason),) = tuning.failures
    assert name == victim
    assert "code 7" in reason


def test_no_variant_left_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.Call, "fault", lambda *_: "wrong answer")
    with pytest.raises(js.LaunchError, match=r"no variant of dsd\.f32(.|\n)*wrong answer"):
        js.tune("dsd", *operands(), **QUICK)
    assert explain().source == "heuristic"


def test_an_illegal_winner_is_passed_over_visibly(cache: Path) -> None:
    """A table says nothing of legality: here it names AMX tiles for float32."""
    found = explain()
    name, why = found.refused[0]
    machine = registry.machine_of("cpu")
    tuned.record(found.problem.name, machine, name, {name: 1e-6})
    after = explain()
    assert (after.variant, after.source) == (found.variant, "heuristic")
    assert (after.tuned, after.not_tuned) == (name, why)
    assert f"tuned     {name}, refused: {why}" in str(after)
    a, x = operands()
    torch.testing.assert_close(js.dsd(a, x), a.to_dense() @ x)


def test_a_call_that_is_not_aligned_has_an_entry_of_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aligned = product_problem("dsd", "cuda", "bf16", (64, 64), "nn", (512, 512, 512), 0.5)
    unaligned = product_problem("dsd", "cuda", "bf16", (64, 64), "nn", (512, 512, 512), 0.5, False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(targets, "cuda_name", lambda device=None: "NVIDIA H200")
    winner = js.explain(aligned, target="sm90a").alternatives[0]
    tuned.record(aligned.name, "NVIDIA H200", winner, {})
    assert js.explain(aligned, target="sm90a").variant == winner
    assert js.explain(unaligned, target="sm90a").source == "heuristic"
    tuned.record(unaligned.name, "NVIDIA H200", winner, {})
    found = js.explain(unaligned, target="sm90a")
    assert (found.source, found.variant) == ("tuned", winner)


def test_each_device_has_its_own_table(
    cache: Path, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU problem belongs to the processor, with GPUs too; any other to the GPU it runs on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names = {None: "NVIDIA A", 0: "NVIDIA A", 1: "NVIDIA B"}
    monkeypatch.setattr(targets, "cuda_name", lambda device=None: names[device])
    assert registry.machine_of("cpu") == targets.cpu_name()
    assert [registry.machine_of("cuda", index) for index in (-1, 0, 1)] == [
        "NVIDIA A",
        "NVIDIA A",
        "NVIDIA B",
    ]
    problem = product_problem("dsd", "cuda", "bf16", (64, 64), "nn", (512,) * 3, 0.5)
    winner = js.explain(problem, target="sm90a").alternatives[0]
    tuned.record(problem.name, "NVIDIA B", winner, {})
    assert choose(problem, "sm90a", 0).source == "heuristic"
    assert choose(problem, "sm90a", 1).source == "tuned"
    path = js.tune("dsd", *operands(), **QUICK).path
    assert path is not None
    assert Path(path).parent.name == tuned._slug(targets.cpu_name())


def test_without_a_gpu_no_table_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    problem = product_problem("dsd", "cuda", "bf16", (64, 64), "nn", (512,) * 3, 0.5)
    assert js.explain(problem, target="sm90a").tuned is None
    with pytest.raises(js.ArgumentError, match="is for a GPU"):
        js.tune(problem)


def test_the_shipped_table_serves_whoever_has_none(
    cache: Path, clock: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped")
    first, second = explain().alternatives[:2]
    machine = registry.machine_of("cpu")
    path = tmp_path / "shipped" / f"{tuned._slug(machine)}.json"
    clock[first] = 1.0
    js.tune("dsd", *operands(), **QUICK)
    tuned.export(path, machine)
    shutil.rmtree(cache)
    found = explain()
    assert (found.variant, found.source, found.tuned_in) == (first, "tuned", str(path))
    assert not found.tuned_seconds
    clock[second] = 0.5
    js.tune("dsd", *operands(), **QUICK)
    assert explain().variant == second


def test_with_jit_off_every_variant_must_be_cached(cache: Path, clock: dict[str, float]) -> None:
    with config.override(jit="off"):
        assert js.tune("dsd", *operands(), **QUICK).winner
        with config.override(cache_path=[]), pytest.raises(js.CacheMiss) as caught:
            js.tune("dsd", *operands(), **QUICK)
    assert "JITSPARSE_JIT=on" in str(caught.value)
    assert explain().alternatives[-1] in str(caught.value)
    with config.override(cache_path=[], cxx="/nonexistent/g++"):
        with pytest.raises(js.ToolchainError, match=r"/nonexistent/g\+\+"):
            js.tune("dsd", *operands(), **QUICK)


NO_COMPILER = pytest.mark.parametrize("setting", [{"jit": "off"}, {"cxx": "/nonexistent/g++"}])


@NO_COMPILER
def test_a_winner_that_cannot_be_had_is_passed_over(
    setting: dict[str, Any], cache: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    """Warm-up compiles what the families choose, and a machine may have no compiler."""
    found = explain()
    winner = found.alternatives[-1]
    with config.override(cache_dir=tmp_path / "warm", cache_path=[]):
        compile_variants([Variant.parse(found.variant)])
        tuned.record(found.problem.name, registry.machine_of("cpu"), winner, {})
        assert explain().variant == winner
        forget()
        with config.override(**setting):
            after = explain()
            assert (after.variant, after.source) == (found.variant, "heuristic")
            assert (after.tuned, after.cached) == (winner, True)
            assert f"tuned     {winner}, refused: it is not cached" in str(after)
            a, x = operands()
            torch.testing.assert_close(js.dsd(a, x), a.to_dense() @ x)


@NO_COMPILER
def test_a_winner_that_is_cached_needs_no_compiler(
    setting: dict[str, Any], cache: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    found = explain()
    winner = found.alternatives[-1]
    with config.override(cache_dir=tmp_path / "warm", cache_path=[]):
        compile_variants([Variant.parse(winner)])
        tuned.record(found.problem.name, registry.machine_of("cpu"), winner, {})
        forget()
        with config.override(**setting):
            after = explain()
    assert (after.variant, after.source, after.not_tuned) == (winner, "tuned", None)


def test_trying_is_not_recorded_as_use(
    cache: Path, clock: dict[str, float], tmp_path: Path
) -> None:
    with config.override(record=tmp_path / "used.jsonl"):
        js.tune("dsd", *operands(), **QUICK)
        assert not (tmp_path / "used.jsonl").exists()


def test_a_model(cache: Path, clock: dict[str, float]) -> None:
    """Each of its problems once, those of gradients if there will be any."""
    layer = js.nn.BlockSparseLinear(48, 64, 16, density=0.5)
    model = torch.nn.Sequential(layer, torch.nn.Linear(64, 48), layer)
    problems = problems_of(model, (16, 48), "cpu")
    assert sorted(each.op for each in problems) == ["dds", "dds", "sdd"]
    (forward,) = js.tune(model, torch.randn(16, 48), backward=False, **QUICK)
    assert forward.problem in problems
    assert forward.problem.layout == "nt"
    assert js.explain("linear", torch.randn(16, 48), layer.weight).source == "tuned"


@pytest.mark.gpu
def test_a_model_on_a_gpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "DISTURBED", math.inf)
    # All blocks: of a few, half at random may be clustered enough to be a problem of its own.
    layer = js.nn.BlockSparseLinear(256, 512, 64, density=1.0, device="cuda", dtype=torch.bfloat16)
    for tuning in js.tune(layer, (128, 256), seconds=0.01):
        assert not tuning.failures
        assert tuning.winner in tuning.seconds
    x = torch.randn(128, 256, device="cuda", dtype=torch.bfloat16)
    assert js.explain("linear", x, layer.weight).source == "tuned"


def test_a_model_with_a_pattern_that_is_not_random(
    cache: Path, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(problem: Problem, *where: object) -> None:
        raise js.ArgumentError(f"no call has the problem {problem.name}")

    monkeypatch.setattr(calls, "sample", refuse)
    layer = js.nn.BlockSparseLinear(48, 64, 16, density=0.5)
    with pytest.warns(RuntimeWarning, match="not tuned: no call has the problem"):
        assert js.tune(layer, (16, 48), backward=False, **QUICK) == []


def test_what_a_model_takes() -> None:
    layer = js.nn.BlockSparseLinear(48, 64, 16, density=0.5)
    for operands_, options in (((), {}), (((8, 48), 3), {}), (((8, 48),), {"bias": None})):
        with pytest.raises(js.ArgumentError, match="a model is tuned for the shape of its input"):
            js.tune(layer, *operands_, **options)
    with pytest.raises(js.ArgumentError, match="does not run"):
        js.tune(layer, (8, 47))


def test_operands_without_data() -> None:
    a = js.random((64, 64), 16, 0.5, device="meta")
    with pytest.raises(js.ArgumentError, match="operands on the meta device have no data"):
        js.tune("dsd", a, torch.empty(64, 8, device="meta"))


def test_operands_of_no_kernel() -> None:
    with pytest.raises(js.ArgumentError, match="runs no kernel"):
        js.tune("dsd", js.random((16, 16), 8, 0.0), torch.randn(16, 4))
    with pytest.raises(js.ArgumentError, match="no operation 'mm'"):
        js.tune("mm")


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_a_call_can_be_made_for_a_problem(op: str, layout: str, aligned: bool) -> None:
    sizes = (64, 32, 128)
    problem = product_problem(op, "cpu", "f32", (16, 32), layout, sizes, 0.5, aligned)
    assert calls.sample(problem).problem == problem.rounded()


def test_no_call_has_a_contradictory_problem() -> None:
    many = Problem("dsd", "cpu", "f32", (32, 32), "nn", True, 64, 64, 8, 64, 1)
    with pytest.raises(js.ArgumentError, match="cannot store 8"):
        calls.sample(many)
    merged = Problem("dds", "cpu", "f32", (32, 32), "nn", True, 64, 64, 4, 64, 4)
    with pytest.raises(js.ArgumentError, match=r"the nearest is dds\.f32\S+e256\.x1"):
        calls.sample(merged)


STRIDED = {
    "padded": lambda x: torch.randn(*x.shape[:-1], x.shape[-1] + 3)[..., : x.shape[-1]],
    "transposed": lambda x: torch.randn(x.shape[::-1]).T,
    "expanded": lambda x: torch.randn(*x.shape).expand(3, *x.shape),
    "shifted": lambda x: torch.randn(x.numel() + 1)[1:].view(x.shape),
}


@pytest.mark.parametrize("strided", STRIDED)
def test_copies_lie_in_memory_as_the_operands_do(strided: str) -> None:
    a, x = operands()
    call = calls.catch("dsd", a, STRIDED[strided](x))
    copy = call.copy()
    for ours, theirs in zip(copy._operands(), call._operands(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
        assert ours.data_ptr() % 16 == theirs.data_ptr() % 16
        assert ours.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_linear_is_judged_with_its_activation(activation: str | None) -> None:
    a, _ = operands()
    x, bias = torch.randn(2, 5, K), torch.randn(M)
    call = calls.catch("linear", x, a, bias, activation=activation)
    expected = call.exact()
    answer = js.linear(x, a, bias, activation)
    assert call.fault(answer, expected) is None
    assert call.fault(answer + 0.01, expected) is not None
    assert call.fault(answer[0], expected) == "wrong answer: shape (5, 40), not (2, 5, 40)"


def test_a_table_made_by_one_process_serves_the_next(cache: Path, compiled: Path) -> None:
    problem = explain().problem
    victim = explain().alternatives[2]
    tuned.record(problem.name, registry.machine_of("cpu"), victim, {victim: 1.0})
    program = (
        "import json, torch, jitsparse as js\n"
        f"a, x = js.random(({M}, {K}), 8, 0.5), torch.randn({K}, {N})\n"
        "js.dsd(a, x)\n"
        "found = js.explain('dsd', a, x)\n"
        "print(json.dumps([found.variant, found.source]))\n"
    )
    environment = {
        **os.environ,
        "JITSPARSE_CACHE_DIR": str(cache),
        "JITSPARSE_CACHE_PATH": str(compiled),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(done.stdout) == [victim, "tuned"]


def test_what_a_call_uses_after_tuning_is_recorded(
    cache: Path, clock: dict[str, float], tmp_path: Path
) -> None:
    """Tuning maps kernels, and what it only tries is not recorded."""
    a, x = operands()
    with config.override(record=tmp_path / "used"):
        tuning = js.tune("dsd", a, x, **QUICK)
        assert not (tmp_path / "used").exists()
        js.dsd(a, x)
        assert str(tuning.winner) in (tmp_path / "used").read_text()


def test_a_problem_stands_alone_and_needs_no_rounding(cache: Path) -> None:
    problem = replace(js.explain("dsd", *operands()).problem, cols=K - 1, extent=N - 1)
    assert js.explain(problem).problem == problem.rounded() != problem
    for function in (js.explain, js.tune):
        with pytest.raises(js.ArgumentError, match="a problem alone"):
            function(problem, *operands())
        with pytest.raises(js.ArgumentError, match="a problem alone"):
            function(problem, activation="relu")


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1"])
def test_no_time_to_spend(seconds: Any) -> None:
    with pytest.raises(js.ArgumentError, match="is no time to spend"):
        js.tune("dsd", *operands(), seconds=seconds)


def test_a_negative_number_of_jobs(cache: Path) -> None:
    with pytest.raises(js.ArgumentError, match="jobs=-1"):
        js.tune("dsd", *operands(), jobs=-1)
    with pytest.raises(js.ArgumentError, match="jobs='2'"):
        js.warmup(op="dsd", dtype="f32", block_size=8, jobs="2")  # type: ignore[call-overload]
    for background in (False, True):
        with pytest.raises(js.ArgumentError, match="jobs=-1"):
            js.warmup(op="dsd", dtype="f32", block_size=8, jobs=-1, background=background)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_answers_may_be_stored_as_far_off_as_their_dtype_is(dtype: torch.dtype) -> None:
    a, x = operands()
    call = calls.catch("dsd", a.to(dtype), (100 * x).to(dtype))
    expected, eps = call.exact(), torch.finfo(dtype).eps
    for off, fault in ((eps / 4, False), (4 * eps, True)):
        answer = (expected[0] * (1 + off)).to(dtype)
        assert (call.fault(answer, expected) is not None) == fault


def test_float64_is_held_to_its_own_precision() -> None:
    a, x = operands()
    call = calls.catch("dsd", a.to(torch.float64), x.double())
    expected = call.exact()
    assert call.fault(js.dsd(a.to(torch.float64), x.double()), expected) is None
    assert call.fault(expected[0] * (1 + 1e-8), expected) is not None


def test_tf32_may_cut_off_13_bits_of_both_factors() -> None:
    a, x = operands()
    call = calls.catch("dsd", a, x)
    short = replace(call, key=key_on_device(call.key, 0, "tf32"))
    cut = ((each.view(torch.int32) & -(1 << 13)).view(torch.float32) for each in (a.to_dense(), x))
    factors = [*cut]
    answer = factors[0] @ factors[1]
    assert short.fault(answer, short.exact()) is None
    assert call.fault(answer, call.exact()) is not None


@pytest.mark.parametrize("dtype", LESS_PRECISE)
def test_what_is_tuned_in_float32_counts_where_kernels_have_no_less(
    dtype: str, cache: Path, clock: dict[str, float]
) -> None:
    """As blocks of 8 have not, whatever the processor."""
    with float32_as(dtype, "cpu"):
        tuning = js.tune("dsd", *operands(), seconds=0.0)
        assert tuning.problem.dtype == dtype
    explained = explain()
    assert explained.problem.dtype == "f32"
    with float32_as(dtype, "cpu"):
        for each in (explained, explain()):
            assert (each.source, each.variant) == ("tuned", tuning.winner)


def test_bf32_may_round_both_factors_to_bfloat16() -> None:
    a, x = operands()
    call = calls.catch("dsd", a, x)
    short = replace(call, key=key_on_device(call.key, -1, "bf32"))
    factors = [each.bfloat16().float() for each in (a.to_dense(), x)]
    answer = factors[0] @ factors[1]
    assert short.fault(answer, short.exact()) is None
    in_tf32 = replace(call, key=key_on_device(call.key, -1, "tf32"))
    assert in_tf32.fault(answer, in_tf32.exact()) is not None


def test_a_random_pattern_is_random_whatever_chance_makes_of_it() -> None:
    """A GPU's kernels are chosen by the profile, which the problem asked for has none of."""
    drawn = js.Pattern.random((512, 512), 64, 2 / 64, generator=torch.Generator().manual_seed(0))
    assert profile_of(drawn.traits) != 0, "two blocks in one row"
    call = calls.sample(Problem("dsd", "cpu", "f32", (64, 64), "nn", True, 512, 512, 2, 64, 1))
    assert problem_of(key_on_device(call.key, 0, "f32")).profile == 0


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_an_activation_makes_no_answer_more_exact(activation: str) -> None:
    """Rounding is relative to what is summed, and what follows on it rounds, too."""
    a, _ = operands()
    x, bias = torch.randn(5, K), torch.randn(M)
    allowed = [
        calls.catch("linear", x, a, bias, activation=each).exact()[1] for each in (None, activation)
    ]
    assert (allowed[1] >= allowed[0]).all()


def test_how_far_rounding_leads_does_not_depend_on_the_columns() -> None:
    """Of the dense operand: they are not summed over."""
    a, x = operands()
    for op, all_of, one in (("dsd", (a, x), (a, x[:, :1])), ("dds", (x.T, a.T), (x.T[:1], a.T))):
        allowed, of_one = (calls.catch(op, *each).exact()[1] for each in (all_of, one))
        torch.testing.assert_close(of_one, allowed[:, :1] if op == "dsd" else allowed[:1])


def test_a_call_whose_gradient_is_wanted_is_the_same_call() -> None:
    a, _ = operands()
    x = torch.randn(5, K)
    plain = calls.catch("linear", x, a, activation="gelu")
    recorded = calls.catch("linear", x.requires_grad_(), a, activation="gelu")
    assert recorded.key == plain.key
    assert recorded.arguments[6:] == plain.arguments[6:]


def test_a_call_for_a_problem_has_its_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch is set to: a GPU has other kernels for it."""
    arithmetic: list[str] = []
    catch = calls.catch

    def watched(op: str, *operands: Any) -> calls.Call:
        arithmetic.append(float32_dtype(-1))
        return catch(op, *operands)

    monkeypatch.setattr(calls, "catch", watched)
    problem = product_problem("dsd", "cpu", "f32", (16, 32), "nn", (64, 32, 128), 0.5)
    for around in ("f32", "tf32", "bf32"):
        with float32_as(around, "cpu"):
            calls.sample(problem)
            assert float32_dtype(-1) == around
    assert arithmetic == ["f32", "f32", "f32"]


def test_bytes_are_those_of_all_operands() -> None:
    a, x = operands()
    assert calls.catch("dsd", a, x).bytes == a.values.nbytes + x.nbytes


def test_timings_rotate_through_copies(
    clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[calls.Call] = []
    monkeypatch.setattr(timing, "copies_beyond_l2", lambda size, device: 3)
    monkeypatch.setattr(timing, "estimate", lambda turn, device: float(len([*map(turn, range(6))])))
    monkeypatch.setattr(calls.Call, "run", lambda self, kernel: ran.append(self))
    kernels: dict[str, Any] = {"only": None}
    tune_module._timed(calls.catch("dsd", *operands()), kernels, 0.0, always=())
    assert [id(each) for each in ran[:3]] == [id(each) for each in ran[3:]]
    assert len({each.arguments[2].data_ptr() for each in ran}) == 3
