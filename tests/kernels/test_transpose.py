"""Which operand is transposed so that it lies along k, and when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitsparse.jit import Variant
from jitsparse.kernels import cost, registry
from jitsparse.kernels.cuda import CONDENSED
from jitsparse.kernels.problem import Problem, product_problem, typical_problem
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.kernels.transpose import (
    KNOB,
    VALUES_KNOB,
    bytes_for_sdd,
    bytes_for_spmm,
    bytes_of,
    copying,
    transposes,
    transposes_values,
)


def legal(problem: Problem) -> list[Variant]:
    return [each.variant for each in registry.candidates(problem, "sm90a") if not each.refused]


def gradient(block: int, width: int, tokens: int, density: float, dtype: str = "bf16") -> Problem:
    """Of a square weight."""
    size = width, width, tokens
    return product_problem("sdd", "cuda", dtype, (block, block), "tn", size, density)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "block"),
    [("bf16", 8), ("bf16", 16), ("f16", 32), ("bf16", 64), ("tf32", 32), ("tf32", 16)],
)
def test_only_what_cannot_be_read_well_as_it_lies_is_transposed(
    dtype: str, block: int, layout: str
) -> None:
    wgmma = [
        variant
        for variant in legal(typical_problem("sdd", "cuda", dtype, block, layout))
        if variant.family == "wgmma"
    ]
    if dtype == "tf32":
        assert {transposes(variant) for variant in wgmma} == (
            {layout == "tn"} if block == 32 else set()
        )
    else:
        assert any(map(transposes, wgmma)) == (layout == "tn" and block in (16, 32))
        assert not wgmma or not all(map(transposes, wgmma)), "as they lie, too"


@pytest.mark.parametrize("density", [0.05, 0.5])
def test_the_reason_says_so(density: float) -> None:
    first = registry.candidates(gradient(32, 4096, 4096, density), "sm90a")[0]
    assert transposes(first.variant) == ("transposed first" in first.why) == (density > 0.1)


def test_transposing_pays_where_much_is_gathered() -> None:
    assert transposes(legal(gradient(16, 4096, 4096, 0.25))[0])
    assert transposes(legal(gradient(32, 8192, 8192, 0.5))[0])
    assert not transposes(legal(gradient(16, 512, 512, 0.25))[0])
    assert not transposes(legal(gradient(32, 4096, 4096, 0.1))[0])
    assert not transposes(legal(gradient(64, 8192, 8192, 0.5))[0])
    assert transposes(legal(gradient(64, 512, 512, 0.1, "tf32"))[0])


@pytest.mark.parametrize(
    ("op", "block", "size", "density", "family"),
    [
        ("sdd", 64, (4096, 4096, 4096), 0.1, "wgmma"),
        ("sdd", 128, (1024, 1024, 8192), 0.05, "mma"),
        ("sdd", 64, (1 << 20, 1 << 20, 4096), 1e-8, "simt"),
        ("dsd", 64, (4096, 4096, 4096), 0.25, "wgmma"),
        ("dsd", 64, (4096, 4096, 4096), 0.05, "mma"),
        ("dsd", 128, (1024, 64, 1024), 0.25, "mma"),
    ],
)
def test_tf32_is_not_copied_for_a_few_blocks(
    op: str, block: int, size: tuple[int, int, int], density: float, family: str
) -> None:
    problem = product_problem(op, "cuda", "tf32", (block, block), "tn", size, density)
    assert legal(problem)[0].family == family


@pytest.mark.parametrize(("rows", "cols", "side"), [(1024, 4096, "rows"), (4096, 1024, "cols")])
def test_the_narrower_operand_is_transposed(rows: int, cols: int, side: str) -> None:
    size = rows, cols, 4096
    first = legal(product_problem("sdd", "cuda", "bf16", (16, 16), "tn", size, 0.25))[0]
    assert transposes(first)
    assert first.knob("g") == side


@pytest.mark.parametrize(("op", "layout"), [("dsd", "tn"), ("dds", "tn")])
def test_a_product_whose_operands_both_lie_across_k_is_transposed_for_tf32(
    op: str, layout: str
) -> None:
    first = legal(typical_problem(op, "cuda", "tf32", 64, layout))[0]
    assert first.family == "wgmma"
    assert transposes(first)
    assert not transposes(legal(typical_problem(op, "cuda", "bf16", 64, layout))[0])
    assert not transposes(legal(typical_problem(op, "cuda", "tf32", 64, "nn"))[0])


@pytest.mark.parametrize(("op", "layout"), [("dsd", "tn"), ("dsd", "tt"), ("dds", "nn")])
def test_low_blocks_whose_columns_are_multiplied_are_transposed_for_tf32(
    op: str, layout: str
) -> None:
    problem = typical_problem(op, "cuda", "tf32", 32, layout)
    low = legal(problem)
    assert low[0].family == "wgmma"
    assert transposes_values(low[0])
    assert not transposes(low[0])
    stored = problem.nnz * 32 * 32
    assert cost.breakdown(problem, low[0])["copy"] == copying(2 * stored)
    high = legal(typical_problem(op, "cuda", "tf32", 64, layout))
    assert not any(map(transposes_values, high))


@given(
    width=st.integers(1, 2**20),
    k=st.integers(1, 2**20),
    batch=st.integers(1, 9),
    batch_stride=st.sampled_from([0, 8]),
    itemsize=st.sampled_from([2, 4]),
)
def test_a_transposed_operand_has_room_for_rows_of_whole_chunks(
    width: int, k: int, batch: int, batch_stride: int, itemsize: int
) -> None:
    size = bytes_of(width, k, batch, batch_stride, itemsize)
    rows = width * (batch if batch_stride else 1)
    assert size % rows == 0
    assert size // rows % 16 == 0
    assert 0 <= size // rows - k * itemsize < 16


@pytest.mark.parametrize(("strides", "matrices"), [((8, 8), (3, 3)), ((8, 0), (3, 1))])
def test_an_sdd_has_room_for_the_operand_that_it_gathers(
    strides: tuple[int, int], matrices: tuple[int, int]
) -> None:
    """Rows of 37 elements in 2 bytes take five chunks of 16."""
    for side, rows, count in zip(("rows", "cols"), (96, 160), matrices, strict=True):
        variant = Variant("sdd", "wgmma", "sm90a", "bf16", (("g", side), KNOB))
        assert bytes_for_sdd(variant, (96, 160), 37, 3, strides, 2) == count * rows * 80


@pytest.mark.parametrize(
    ("knobs", "room"),
    [
        ((KNOB,), 100 * 80),
        ((CONDENSED, KNOB), 37 * 208),
        ((VALUES_KNOB,), 4096),
        ((CONDENSED,), 0),
        ((), 0),
    ],
)
def test_a_product_has_room_for_what_it_transposes(knobs: Any, room: int) -> None:
    """A dense operand of 37 x 100 so that it lies along the 37; along the 100 where block columns
    are condensed; or 4096 bytes of values."""
    variant = Variant("dsd", "wgmma", "sm90a", "bf16", knobs)
    assert bytes_for_spmm(variant, 4096, 100, 37, 1, 0, 2) == room
