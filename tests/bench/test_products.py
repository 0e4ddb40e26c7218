"""Cases, peers and rows: all compute the same product, and the table's arithmetic is right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from jitsparse.bench import peers
from jitsparse.bench import products as products_module
from jitsparse.bench.cases import Case, make_operands
from jitsparse.bench.peers import (
    BMM,
    DENSE,
    OURS,
    PEERS,
    STK,
    TORCH_BSR,
    TORCH_TUNED,
    CannotCompute,
    contestants,
    those_that_run,
    usual_peers,
)
from jitsparse.bench.products import Measurement, measure, measure_beside
from jitsparse.bench.report import Table, cell, header
from jitsparse.bench.suites import GRIDS, Axes, cases, products
from jitsparse.bench.timing import Timing
from jitsparse.errors import ArgumentError
from jitsparse.kernels.float32 import float32_dtype
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.sparse import BlockSparse

CPU = torch.device("cpu")

# float32, a sum of at most 128 products of standard normals.
TOLERANCE = 128 * torch.finfo(torch.float32).eps * math.sqrt(128)


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_sparse_contestants_compute_the_same_product(op: str, layout: str) -> None:
    of = case(op, layout=layout)
    operands = make_operands(of)
    sparse = operands.sparse[0].to_dense()
    left = sparse if op == "dsd" else operands.left[0]
    right = sparse if op == "dds" else operands.right[0]
    assert (left.shape, right.shape) == ((96, 128), (128, 64))
    for operand, letter in zip((left, right), layout, strict=True):
        # A dense matrix made of a transposed view is one itself.
        assert operand.is_contiguous() == (letter == "n")
    exact = left @ right
    calls, absent = contestants(of, operands)
    with torch.no_grad():
        results = {name: call(0) for name, call in calls.items()}
    assert results[DENSE].shape == exact.shape  # type: ignore[attr-defined]
    if op == "sdd":
        mask = operands.pattern.to_mask().repeat_interleave(32, 0).repeat_interleave(32, 1)
        exact = exact * mask
    for name in {OURS, TORCH_BSR} & set(results):
        result = results[name]
        if isinstance(result, BlockSparse):
            result = result.to_dense()
        if op == "dds" and name == TORCH_BSR:
            result = result.T
        assert (result - exact).abs().max() < TOLERANCE, name
    assert {*calls, *absent} == {OURS, DENSE, TORCH_BSR}


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_peers_on_a_gpu_compute_the_same_product(op: str, layout: str) -> None:
    device = torch.device("cuda")
    of = case(
        op, layout=layout, size=(256, 384, 512), block=(128, 128), dtype="bf16", device=device
    )
    operands = make_operands(of)
    sparse = operands.sparse[0].to_dense()
    left = sparse if op == "dsd" else operands.left[0]
    right = sparse if op == "dds" else operands.right[0]
    exact = left.double() @ right.double()
    if op == "sdd":
        mask = operands.pattern.to_mask()
        exact = exact * mask.repeat_interleave(128, 0).repeat_interleave(128, 1)
    calls, _ = contestants(of, operands)
    for name, call in calls.items():
        if name == DENSE or (op == "sdd" and name == STK):
            continue  # on data of its own; a matrix of a class of its own
        with torch.no_grad():
            result = call(0)
        if isinstance(result, BlockSparse) or result.layout is torch.sparse_bsr:  # type: ignore[attr-defined]
            result = result.to_dense()  # type: ignore[attr-defined]
        if op == "dds" and name == TORCH_BSR:
            result = result.T  # type: ignore[attr-defined]
        error = (result - exact).norm() / exact.norm()  # type: ignore[operator]
        assert error < 4 * torch.finfo(torch.bfloat16).eps, name


@pytest.mark.parametrize(
    ("op", "layout", "size"),
    [("sdd", "nt", (96, 64, 128)), ("dsd", "nn", (96, 32, 64)), ("dsd", "tn", (64, 32, 96))],
)
def test_the_batch_of_experts_is_the_block_diagonal_product(
    op: str, layout: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = case(op, layout=layout, size=size, block=(16, 16), pattern="diagonal")
    operands = make_operands(of)
    drawn: list[torch.Tensor] = []

    def full(of: Case, shape: tuple[int, ...], letter: str, seed: int) -> list[torch.Tensor]:
        """What the peer would draw, with the data of ours."""
        (drawn_like,) = drawn_from(of, shape, letter, seed)
        if op == "sdd" and not drawn:
            ours = operands.left[0].view(shape)
        elif op == "sdd":
            ours = operands.right[0].view(shape[1], 2, shape[2]).transpose(0, 1)
        elif not drawn:
            dense = operands.sparse[0].to_dense()
            ours = torch.stack([dense[: shape[1], : shape[2]], dense[shape[1] :, shape[2] :]])
        else:
            ours = operands.right[0].view(shape)
        assert drawn_like.shape == ours.shape
        assert drawn_like.mT.is_contiguous() == (letter == "t")
        drawn.append(ours)
        return [ours]

    drawn_from = peers._full
    monkeypatch.setattr(peers, "_full", full)
    calls, _ = contestants(of, operands, (BMM,))
    ours, batch = calls[OURS](0), calls[BMM](0)
    assert isinstance(batch, torch.Tensor)
    if isinstance(ours, BlockSparse):
        exact = torch.block_diag(*batch)
        ours = ours.to_dense()
    else:
        exact = batch.flatten(0, 1)
    assert (ours - exact).abs().max() < TOLERANCE  # type: ignore[operator]
    inner = drawn[0].shape[2]
    assert of.useful_flops(operands.pattern) == 2 * batch.numel() * inner


def test_only_block_diagonal_patterns_are_batches() -> None:
    _, absent = contestants(case("dsd"), make_operands(case("dsd")), (BMM,))
    assert "block-diagonal" in absent[BMM]


def test_an_absent_peer_leaves_its_reason() -> None:
    _, absent = contestants(case("sdd"), make_operands(case("sdd")))
    assert absent == {TORCH_BSR: "torch has no block-sparse sdd on a CPU"}
    half = case("dds", dtype="bf16")
    _, absent = contestants(half, make_operands(half))
    assert absent == {TORCH_BSR: "torch has no block-sparse product of bfloat16 on a CPU"}


def test_only_what_we_know_of_a_peer_is_put_into_words() -> None:
    def known() -> peers.Call:
        raise CannotCompute("it has no such product")

    def unknown() -> peers.Call:
        raise RuntimeError("out of luck\nand more")

    calls, absent = those_that_run({"known": known, "unknown": unknown}, CPU)
    assert not calls
    assert absent == {"known": "it has no such product", "unknown": "RuntimeError: out of luck"}


@pytest.mark.parametrize("installed", [True, False])
def test_stk_is_a_peer_if_it_is_installed_or_asked_for(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: name if installed else None)
    assert (STK in usual_peers()) == installed
    # On a CPU not even then, and without a word.
    _, absent = contestants(case("dsd"), make_operands(case("dsd")), (STK,))
    assert not absent
    with pytest.raises(CannotCompute, match="128 x 128" if installed else "it is not installed"):
        peers._stk(case("dsd"), make_operands(case("dsd")))


def test_the_tuned_peer_says_where_it_is_not_to_be_had() -> None:
    _, absent = contestants(case("dsd"), make_operands(case("dsd")), (*PEERS, TORCH_TUNED))
    assert absent[TORCH_TUNED] == "torch tunes bsr_dense_addmm on CUDA only"


@pytest.mark.parametrize("pattern", ["random", "banded", "diagonal", "powerlaw"])
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


@pytest.mark.parametrize("density", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(2048, 1024), (96, 64)])
def test_power_law_rows(density: float, shape: tuple[int, int]) -> None:
    asked = case("dsd", size=(shape[0], 1, shape[1]), density=density, pattern="powerlaw")
    skewed = make_operands(asked).pattern
    uniform = make_operands(replace(asked, pattern="random")).pattern
    assert skewed.nnz_blocks == uniform.nnz_blocks
    counts = skewed.to_mask().sum(1)
    if density < 1 and shape[0] > 96:
        assert counts.max() > 4 * counts.min()


def test_causal_rows() -> None:
    pattern = make_operands(case("dsd", size=(128, 1, 128), pattern="causal")).pattern
    assert torch.equal(pattern.to_mask(), torch.ones(4, 4).tril().bool())


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
    assert row["ratio to bmm"] is None
    assert row["us"] == pytest.approx(1000)


def test_table_notes_say_who_is_absent() -> None:
    grid = Axes(ops=("dsd", "sdd"), sizes=((96, 64, 128),), densities=(0.5,), layouts=("nn", "nt"))
    table = products("small", [grid], CPU).table(seconds=0.0)
    assert [(row["op"], row["layout"]) for row in table.rows] == [
        ("dsd", "nn"),
        ("dsd", "nt"),
        ("sdd", "nn"),
        ("sdd", "nt"),
    ]
    for row in table.rows:
        assert str(row["variant"]).split(".")[0] == row["op"]
        assert f".l{row['layout']}" in str(row["variant"])
    assert "times stk" not in table.columns
    assert (
        "torch BSR is absent from sdd f32: torch has no block-sparse sdd on a CPU." in table.notes
    )


def test_a_case_beside_another() -> None:
    of = case("dsd", pattern="powerlaw")
    outcome = measure_beside(of, replace(of, pattern="random"), "uniform", seconds=0.0)
    (row,) = outcome.rows
    assert row["pattern"] == "powerlaw"
    assert row["times uniform"] > 0
    # Equally many operations: the rates' quotient is that of the medians, whatever it is.
    assert row["useful rate"] > 0
    assert row["uniform rate"] > 0


@pytest.mark.parametrize("dtype", ["tf32", "bf32", "f32"])
def test_the_precision_is_everyones_and_is_put_back(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = float32_dtype(-1)
    while_timed = set()

    def watched(*arguments: Any, **options: Any) -> Any:
        while_timed.add(float32_dtype(-1))
        return interleave(*arguments, **options)

    interleave = products_module.interleave
    monkeypatch.setattr(products_module, "interleave", watched)
    measured = measure(case("dsd", dtype=dtype), seconds=0.0, peers=(DENSE,))
    assert while_timed == {dtype}
    assert float32_dtype(-1) == before
    assert set(measured.timings) == {OURS, DENSE}


def test_suites_are_the_published_grids() -> None:
    count = {name: len(products(name, grids, CPU).cases) for name, grids in GRIDS.items()}
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
    with pytest.raises(ArgumentError, match="there are nn, nt, tn, tt"):
        make_operands(case("dsd", layout="nnn"))


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
