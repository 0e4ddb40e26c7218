"""Products whose sums are divided among CTAs: few blocks or few columns, a long k."""

from __future__ import annotations

import cases
import pytest
import torch

import jitsparse as js
from jitsparse.bench.cases import DTYPES
from jitsparse.compilation import compile_variants
from jitsparse.jit import Variant
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.problem import Problem
from jitsparse.kernels.roles import LAYOUTS, is_flipped
from jitsparse.kernels.split import most_parts, parts_of_product, splits
from jitsparse.tune import legal_candidates

pytestmark = pytest.mark.gpu

ROWS, COLS, EXTENT, BATCH = 296, 424, 2600, 2


def divided(problem: Problem) -> list[str]:
    """Names of what divides sums or steps, compiled."""
    found = [each.variant for each in legal_candidates(problem) if splits(each.variant)]
    compile_variants(found)
    return [variant.name for variant in found]


def variants(dtype: str, block: int, layout: str) -> list[str]:
    problem = Problem(
        "sdd", "cuda", dtype, (block, block), layout, True, ROWS, COLS, 8, EXTENT, BATCH
    )
    return divided(problem)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32"])
def test_divided_sums_are_right_and_repeatable(dtype: str, block: int, layout: str) -> None:
    names = variants(dtype, block, layout)
    generator = torch.Generator().manual_seed(0)
    pattern = js.Pattern.random((ROWS, COLS), block, 0.4, generator=generator).to("cuda")
    elements = pattern.nnz_blocks * block * block
    assert dtype == "f32" or most_parts(elements, EXTENT, BATCH) > 1
    make = dict(strided="packed", dtype=DTYPES[dtype], device="cuda", generator=generator)
    left = cases.dense((BATCH, ROWS, EXTENT), layout[0], **make)
    right = cases.dense((BATCH, EXTENT, COLS), layout[1], **make)
    assert names
    cases.check_sdd_variants(names, dtype, left, right, pattern)


FEW, LONG, COLUMNS = 200, 2696, 40


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("op", ["dsd", "dds"])
@pytest.mark.parametrize("dtype", ["bf16", "tf32", "f32"])
def test_divided_steps_are_right_and_repeatable(
    dtype: str, op: str, block: int, layout: str
) -> None:
    """With a bias and an activation, which whoever adds the parts applies."""
    shape = (LONG, FEW) if is_flipped(op, layout) else (FEW, LONG)
    blocks, stored = (block, block), FEW * LONG * 2 // 5 // block**2
    problem = Problem(op, "cuda", dtype, blocks, layout, True, *shape, stored, COLUMNS, BATCH)
    names = divided(problem)
    generator = torch.Generator().manual_seed(0)
    pattern = js.Pattern.random(shape, block, 0.4, generator=generator).to("cuda")
    values = torch.randn(pattern.values_shape, generator=generator)
    matrix = js.BlockSparse(values.to("cuda", DTYPES[dtype]), pattern)
    make = dict(strided="packed", dtype=DTYPES[dtype], device="cuda", generator=generator)
    products = 2**-9 if dtype == "tf32" else None
    assert names
    for name in names:
        sizes = FEW, COLUMNS, LONG, BATCH, pattern.nnz_blocks * block * block
        assert parts_of_product(Variant.parse(name), *sizes)[0] > 1
        with float32_as(dtype, "cuda"), js.pin(f"{op}={name}"):
            if op == "dsd":
                a = matrix.T if layout[0] == "t" else matrix
                x = cases.dense((BATCH, a.shape[1], COLUMNS), layout[1], **make)
                first, second = js.dsd(a, x), js.dsd(a, x)
                cases.check_product(first, a.to_dense(), x, products=products)
            else:
                b = matrix.T if layout[1] == "t" else matrix
                x = cases.dense((BATCH, COLUMNS, b.shape[0]), layout[0], **make)
                bias = torch.randn(b.shape[1], generator=generator).to("cuda", DTYPES[dtype])
                first, second = (js.linear(x, b.T, bias, "gelu") for _ in range(2))
                cases.check_product(first, x, b.to_dense(), bias, "gelu", products=products)
        assert torch.equal(first, second)
