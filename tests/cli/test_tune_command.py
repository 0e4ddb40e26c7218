"""``jitsparse tune``: what it times, what it prints and how it ends."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jitsparse as js
from jitsparse import calls
from jitsparse.bench import disturbance, timing
from jitsparse.cli import main
from jitsparse.jit import config, tuned
from jitsparse.kernels import registry
from jitsparse.kernels.problem import Problem, product_problem

# As an attribute of the package, "tune" is the function.
tune_module = importlib.import_module("jitsparse.tune")

SMALL = ["--op", "dsd", "--block-size", "8", "--size", "32x16x24", "--density", "0.5"]
QUICK = ["--device", "cpu", "--seconds", "0"]
PROBLEM = product_problem("dsd", "cpu", "f32", (8, 8), "nn", (32, 16, 24), 0.5).rounded()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def own_table(kernels: Path, tmp_path: Path) -> Iterator[None]:
    """One cache of kernels for all of these tests, an empty tuned table for each."""
    with config.override(cache_dir=kernels):
        yield
        for path in (kernels / "tuned").rglob("*.json"):
            path.unlink()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work on the machine that runs these tests disturbs no timings."""
    monkeypatch.setattr(disturbance, "DISTURBED", math.inf)


def take(monkeypatch: pytest.MonkeyPatch, samples: dict[str, tuple[float, ...]]) -> None:
    """Decides each sample of some variants; others are slow."""

    def interleave(turns: dict[str, Any], device: Any, *, seconds: float) -> Any:
        return {name: timing.Timing(samples.get(name, (100.0,) * 7)) for name in turns}

    monkeypatch.setattr(timing, "interleave", interleave)
    monkeypatch.setattr(timing, "estimate", lambda turn, device: 1.0)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["tune", *arguments])
    return int(stop.value.code or 0)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, *QUICK, "--json") == 0
    captured = capsys.readouterr()
    (row,) = json.loads(captured.out)
    assert row["problem"]["op"] == "dsd"
    assert row["problem"]["nnz"] == 6
    assert row["winner"] in row["seconds"]
    assert row["failures"] == []
    assert row["source"] == "heuristic"
    assert all(seconds > 0 for seconds in row["seconds"].values())
    assert "1 problem tuned" in captured.err
    found = js.explain(PROBLEM)
    assert (found.variant, found.source, found.tuned_in) == (row["winner"], "tuned", row["path"])


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(calls.Call, "run", None)
    with config.override(cache_dir=tmp_path / "file" / "cache"):
        assert main(["tune", *SMALL, *QUICK]) == 1
    assert "no winner would be kept" in capsys.readouterr().err


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, *QUICK, "--layout", "nn,nt") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["problem", "us", "winner"]
    assert [line.split()[0] for line in lines[1:]] == [
        PROBLEM.name,
        PROBLEM.name.replace(".lnn.", ".lnt."),
    ]


def test_the_gain_is_the_ratio_that_decided(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, winner = js.explain(PROBLEM).variant, js.explain(PROBLEM).alternatives[0]
    samples = {
        before: (12.0, 14.0, 16.0, 12.0, 14.0, 16.0, 14.0),
        winner: (10.0, 10.0, 10.0, 10.0, 14.0, 14.0, 14.0),
    }
    take(monkeypatch, samples)
    assert run(*SMALL, *QUICK) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].split()[2:5] == [winner, "1.2", before]
    assert "1 problem tuned, 1 with another kernel than before, 0 failures" in captured.err


def test_disturbed_timings_end_in_a_table_and_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(disturbance, "DISTURBED", 2.0)
    before = js.explain(PROBLEM).variant
    take(monkeypatch, {before: (4.0, *(9.0,) * 6)})
    said = f"timings of {before} are disturbed, their median is 2.2 times the least"
    assert run(*SMALL, *QUICK) == 1
    captured = capsys.readouterr()
    assert said in " ".join(captured.out.split())
    assert "0 problems tuned, 0 with another kernel than before, 1 failure" in captured.err
    assert run(*SMALL, *QUICK, "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["winner"], row["path"]) == (None, None)
    assert row["problem"]["op"] == "dsd"
    assert row["seconds"][before] == 9.0
    assert said in row["error"]
    assert js.explain(PROBLEM).source == "heuristic"


def test_dry_run_times_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--device", "cpu", "--dry-run", "--json", "--density", "0.5,1") == 0
    plans = json.loads(capsys.readouterr().out)
    assert plans[0]["problem"] == PROBLEM.name
    assert plans[0]["variants"] == [
        each.variant.name for each in registry.candidates(PROBLEM) if each.refused is None
    ]
    assert len(plans) == 2
    assert tuned.lookup(PROBLEM.name, registry.machine_of("cpu")) is None
    assert run(*SMALL, "--device", "cpu", "--dry-run") == 0
    assert capsys.readouterr().out.count(PROBLEM.name) == len(plans[0]["variants"])


def layer() -> js.nn.BlockSparseLinear:
    return js.nn.BlockSparseLinear(24, 32, 8, density=0.5)


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(layer(), js.nn.BlockSparseLinear(32, 16, 8, density=0.5))


MODEL = ["--model", f"{__name__}:layer", "--input-shape", "16x24"]


def test_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*MODEL, *QUICK, "--dry-run", "--json") == 0
    plans = json.loads(capsys.readouterr().out)
    assert sorted(each["problem"].split(".")[0] for each in plans) == ["dds", "dds", "sdd"]
    assert run(*MODEL, *QUICK, "--forward-only", "--json") == 0
    (forward,) = json.loads(capsys.readouterr().out)
    assert forward["problem"]["extent"] == 16
    assert sorted(forward["seconds"]) in [sorted(each["variants"]) for each in plans]
    made = layer()
    assert js.explain("dds", torch.randn(16, 24), made.weight.T).source == "tuned"
    assert js.explain("dds", torch.randn(64, 24), made.weight.T).source == "heuristic"
    assert run(*MODEL, *QUICK, "--forward-only", "--dtype", "f64", "--dry-run", "--json") == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["problem"].startswith("dds.f64.")
    assert plan["variants"]


def test_a_model_whose_pattern_is_not_random(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a GPU, where that is part of a problem: it is told, and the rest tuned."""
    sample = calls.sample

    def choosy(problem: Problem, *where: object) -> calls.Call:
        if problem.cols == 24:
            raise js.ArgumentError(f"no call on a random pattern has the problem {problem.name}")
        return sample(problem, *where)  # type: ignore[arg-type]

    monkeypatch.setattr(calls, "sample", choosy)
    two = [*QUICK, "--forward-only", "--model", f"{__name__}:layers", *MODEL[2:]]
    assert run(*two) == 1
    captured = capsys.readouterr()
    assert "no call on a random pattern" in " ".join(captured.out.split())
    assert "1 problem tuned" in captured.err
    assert "1 failure" in captured.err
    assert run(*two, "--json") == 1
    *_, untuned = json.loads(capsys.readouterr().out)
    assert untuned["problem"]["cols"] == 24
    assert "no call on a random pattern" in untuned["error"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*MODEL, "--op", "dds", "--size", "64"], "no --op and no --size"),
        (["--input-shape", "8x24"], "--model, which was not given"),
        (["--forward-only"], "--model, which was not given"),
        (MODEL[:2], "needs the shape of its input"),
        ([*MODEL, "--dtype", "f32,f64"], "one dtype"),
        ([*MODEL[:3], "16x25"], "does not run"),
    ],
)
def test_what_belongs_to_a_model(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*options, *QUICK) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_wrong_answer_ends_in_a_table_and_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    liar = js.explain(PROBLEM).variant
    run_kernel = calls.Call.run

    def lying(self: calls.Call, kernel: object) -> object:
        answer = run_kernel(self, kernel)  # type: ignore[arg-type]
        return answer + 1 if kernel.variant.name == liar else answer  # type: ignore[attr-defined]

    monkeypatch.setattr(calls.Call, "run", lying)
    assert run(*SMALL, *QUICK) == 1
    captured = capsys.readouterr()
    assert liar in captured.out
    assert "wrong answer" in captured.out
    assert "1 failure" in captured.err
    assert js.explain(PROBLEM).variant != liar
    assert run(*SMALL, *QUICK, "--json") == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert [name for name, _ in row["failures"]] == [liar]


def test_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert run(*SMALL, *QUICK, "--export", str(first)) == 0
    winner = js.explain(PROBLEM).variant
    content = json.loads(first.read_text())
    assert content["machine"] == registry.machine_of("cpu")
    assert content["entries"] == {PROBLEM.name: winner}
    capsys.readouterr()
    assert run("--device", "cpu", "--export", str(second), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(second), "problems": 1}
    monkeypatch.setattr(tune_module, "tune_call", None)
    assert run("--device", "cpu", "--export", str(second)) == 0
    captured = capsys.readouterr()
    assert not captured.out
    assert "1 problem written" in captured.err
    assert second.read_text() == first.read_text()


@pytest.mark.parametrize("dtype", ["f32", "tf32", "bf32"])
def test_problems_of_float32_in_each_precision(
    dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL, "--device", "cpu", "--dtype", dtype, "--dry-run", "--json") == 0
    plans = json.loads(capsys.readouterr().out)
    assert {plan["problem"].split(".")[1] for plan in plans} == {dtype}


def test_an_export_is_no_dry_run(tmp_path: Path) -> None:
    for filters in ((), tuple(SMALL)):
        table = tmp_path / "table.json"
        with pytest.raises(SystemExit) as left:
            main(["tune", *filters, "--device", "cpu", "--dry-run", "--export", str(table)])
        assert left.value.code == 2
        assert not table.exists()
