"""First uses are counted and timed as the table says, and peers that cannot run are named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from jitsparse.bench import first_use, fresh
from jitsparse.bench.first_use_process import CONTESTANTS, PROBLEMS, ours
from jitsparse.errors import JitsparseError
from jitsparse.kernels import registry

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """jitsparse alone, with two kernels, two processes together, and one turn."""
    monkeypatch.setattr(first_use, "CONTESTANTS", {"ours": "jitsparse", "triton": "Triton"})
    monkeypatch.setattr(first_use, "COUNTS", {"one": 2})
    monkeypatch.setattr(first_use, "RANKS", 2)
    monkeypatch.setattr(first_use, "RUNS", 1)


@pytest.mark.usefixtures("small")
def test_the_tables() -> None:
    steps: list[str] = []
    table, together = first_use.first_use_tables(CPU, on_step=steps.append)
    cold, warm = table.rows
    assert (cold["cache"], warm["cache"]) == ("cold", "warm")
    for row in table.rows:
        assert set(row) == set(table.columns)
        assert row["kernels"] == 2
        assert row["ms a kernel"] == pytest.approx(500 * row["s"])
    # A compiler process alone takes longer than reading what it wrote.
    assert cold["processor s"] > warm["processor s"] > 0
    assert cold["s"] > warm["s"] > 0
    assert any(note == "Triton is absent: it compiles for GPUs." for note in table.notes)
    (run,) = together.rows
    assert 0 < run["compile s"] < run["first answer s"] <= run["last answer s"]
    assert run["last less first s"] == pytest.approx(run["last answer s"] - run["first answer s"])
    assert run["last less compile s"] == pytest.approx(run["last answer s"] - run["compile s"])
    assert steps == ["jitsparse, 2 cold", "jitsparse, 2 warm", "2 processes that miss together"]


def test_the_problems_are_a_kernel_each(tmp_path: Path) -> None:
    """What twenty first uses are said to be, on a GPU too: this asks for the choice alone."""
    from jitsparse.kernels import choice
    from jitsparse.kernels.problem import Problem

    for target, device in (("avx512", "cpu"), ("generic", "cpu"), ("sm90a", "cuda")):
        chosen = set()
        for op, dtype, block, layout in PROBLEMS:
            problem = Problem(op, device, dtype, (block, block), layout, True, 256, 256, 16, 256, 1)
            chosen.add(choice.choose(problem, target).candidate.variant.name)
        assert len(chosen) == len(PROBLEMS) == 20, target
    assert {op for op, *_ in PROBLEMS} == set(registry.OPS)
    assert len(list(ours(CPU, 20, tmp_path))) == 20


def test_too_few_kernels_are_no_table(cache_dir: Path) -> None:
    with pytest.raises(JitsparseError, match="2 first uses made 0 kernels"):
        first_use._check_entries(cache_dir, 2)


def test_the_peer_is_what_extensions_usually_are(tmp_path: Path) -> None:
    """Its sources are distinct; none is compiled here, which takes half a minute each."""
    calls = list(CONTESTANTS["torch headers"](CPU, 3, tmp_path))
    sources = [path.read_text() for path in sorted(tmp_path.glob("*/*.cpp"))]
    assert len(calls) == len(set(sources)) == 3
    assert all("#include <torch/extension.h>" in source for source in sources)


def test_a_process_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JitsparseError, match="no such thing"):
        fresh.run(["-c", "raise SystemExit('no such thing')"], tmp_path)


def test_a_process_that_says_much_is_not_held_up(tmp_path: Path) -> None:
    code = (
        "import sys; sys.stderr.write('w' * 10**6); print('ready', flush=True); input(); print(1)"
    )
    process = fresh.start(["-c", code], tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    assert fresh.answer(process) == 1


def test_settings_of_this_process_do_not_reach_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITSPARSE_PIN", "dsd=vec")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = (
        "import json, os, sys, jitsparse\n"
        "names = [n for n in os.environ if n.startswith('JITSPARSE_')]\n"
        "print(json.dumps([names, sys.dont_write_bytecode, jitsparse.__file__]))"
    )
    names, without_bytecode, package = fresh.run(["-c", code], tmp_path)
    assert names == ["JITSPARSE_CACHE_DIR"]
    assert not without_bytecode
    assert package == sys.modules["jitsparse"].__file__
