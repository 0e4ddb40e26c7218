"""Cases, peers and rows: all compute the same product, and the table's arithmetic is right."""

from __future__ import annotations

import math

import pytest
import torch

from jitsparse.bench.cases import Case, make_operands
from jitsparse.bench.peers import DENSE, OURS, STK, TORCH_BSR, contestants
from jitsparse.bench.products import SUITES, Axes, Measurement, cases, product_table
from jitsparse.bench.report import Table, cell, header
from jitsparse.bench.timing import Timing
from jitsparse.errors import ArgumentError
from jitsparse.sparse import BlockSparse

CPU = torch.device("cpu")


def case(op: str, **changes: object) -> Case:
    facts: dict[str, object] = {
        "op": op,
        "size": (96, 64, 128),
        "block": (32, 32),
        "density": 0.5,
        "dtype": "f32",
        "device": CPU,
    }
    return Case(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_sparse_contestants_compute_the_same_product(op: str) -> None:
    operands = make_operands(case(op))
    sparse = operands.sparse[0].to_dense()
    left = sparse if op == "dsd" else operands.left[0]
    right = sparse if op == "dds" else operands.right[0]
    exact = left @ right
    calls, absent = contestants(case(op), operands)
    with torch.no_grad():
        results = {name: call(0) for name, call in calls.items()}
    assert results[DENSE].shape == exact.shape  # type: ignore[attr-defined]
    if op == "sdd":
        mask = operands.pattern.to_mask().repeat_interleave(32, 0).repeat_interleave(32, 1)
        exact = exact * mask
    # float32, a sum of at most 128 products of standard normals.
    tolerance = 128 * torch.finfo(torch.float32).eps * math.sqrt(128)
    for name in {OURS, TORCH_BSR} & set(results):
        result = results[name]
        if isinstance(result, BlockSparse):
            result = result.to_dense()
        if op == "dds" and name == TORCH_BSR:
            result = result.T
        assert (result - exact).abs().max() < tolerance, name
    assert {*calls, *absent} == {OURS, DENSE, TORCH_BSR, STK}


def test_an_absent_peer_leaves_its_reason() -> None:
    _, absent = contestants(case("sdd"), make_operands(case("sdd")))
    assert absent[STK] == "ModuleNotFoundError: not installed"
    assert TORCH_BSR in absent
    assert absent[TORCH_BSR].startswith("RuntimeError: ")


@pytest.mark.parametrize("pattern", ["random", "banded", "diagonal"])
@pytest.mark.parametrize("density", [0.1, 0.25, 0.5])
def test_patterns_have_about_the_density_asked_for(pattern: str, density: float) -> None:
    asked = case("dsd", size=(2048, 1, 2048), density=density, pattern=pattern)
    got = make_operands(asked).pattern
    assert got.shape == (2048, 2048)
    assert got.density == pytest.approx(density, rel=0.1)
    mask = got.to_mask()
    if pattern == "diagonal":
        assert mask.diagonal().all()
        assert not mask[0, -1]
    if pattern == "banded":
        assert torch.equal(mask, mask.T)


def test_the_arithmetic_of_a_row() -> None:
    timings = {
        name: Timing((seconds,) * 7)
        for name, seconds in ((OURS, 1e-3), (DENSE, 2e-3), (TORCH_BSR, 5e-3))
    }
    of = case("dsd", size=(1000, 1000, 1000), density=0.25)
    flops = 2e9 * 0.25
    measurement = Measurement(of, 0.25, "dsd.some.variant", flops, timings, {STK: "not installed"})
    row = measurement.row()
    assert row["useful rate"] == pytest.approx(500)
    assert row["dense rate"] == pytest.approx(1000)
    assert row["ratio to dense"] == pytest.approx(0.5)
    assert row["times torch BSR"] == pytest.approx(5)
    assert row["times stk"] is None
    assert row["us"] == pytest.approx(1000)


def test_table_notes_say_who_is_absent() -> None:
    table = product_table("small", [case("dsd"), case("sdd")], seconds=0.0)
    assert [row["op"] for row in table.rows] == ["dsd", "sdd"]
    assert all(str(row["variant"]).split(".")[0] == row["op"] for row in table.rows)
    assert "times stk" not in table.columns
    assert any("stk is absent from dsd f32, sdd f32" in note for note in table.notes)


def test_suites_are_the_published_grids() -> None:
    count = {name: len({c for a in axes for c in cases(a, CPU)}) for name, axes in SUITES.items()}
    assert count["cpu"] == 3 * 5 * 3 + 3 * 3 * 3
    assert count["portable"] == 3 * 2 * 4 * 3


def test_a_grid_is_every_combination() -> None:
    grid = Axes(ops=("dsd", "sdd"), blocks=((8, 8), (16, 32)), densities=(0.1, 0.2, 0.3))
    assert len(set(cases(grid, CPU))) == 12


def test_unknown_words_are_errors() -> None:
    with pytest.raises(ArgumentError, match="there are dsd, dds, sdd"):
        make_operands(case("ddd"))
    with pytest.raises(ArgumentError, match="random, banded, diagonal"):
        make_operands(case("dsd", pattern="stripes"))


def test_markdown() -> None:
    table = Table("t", ["a", "b"], [{"a": "x", "b": 0.12345}, {"a": "y"}], ["a note"])
    assert table.markdown() == "**t**\n\n| a | b |\n|---|---|\n| x | 0.123 |\n| y | - |\n\na note\n"


def test_pivot() -> None:
    def row(op: str, block: str, density: float, ratio: float) -> dict[str, object]:
        return {"op": op, "block": block, "density": density, "us": 1.0, "ratio": ratio}

    rows = [row("dsd", "8x8", d, r) for d, r in ((0.1, 1.0), (0.5, 2.0))]
    rows += [row("sdd", "8x8", 0.1, 3.0)]
    pivot = Table("t", list(rows[0]), rows).pivot("ratio")
    assert pivot.title == "ratio; block 8x8"
    assert pivot.columns == ["op", "density 0.1", "density 0.5"]
    assert [[line.get(c) for c in pivot.columns] for line in pivot.rows] == [
        ["dsd", 1.0, 2.0],
        ["sdd", 3.0, None],
    ]
    with pytest.raises(ArgumentError, match="no column 'speed'; there are op, block"):
        Table("t", list(rows[0]), rows).pivot("speed")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (12.345, "12.3"), (0.0, "0"), (None, "-"), (7, "7"), ("x", "x")],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_header_says_where() -> None:
    facts = header(CPU)
    assert facts["torch"] == str(torch.__version__)
    assert facts["threads"] == str(torch.get_num_threads())
    assert "cores" in facts["device"]
