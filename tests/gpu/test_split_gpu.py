"""An sdd whose sums are divided among CTAs: few blocks, a long k."""

from __future__ import annotations

import cases
import pytest
import torch

import jitsparse as js
from jitsparse.bench.cases import DTYPES
from jitsparse.kernels import registry
from jitsparse.kernels.problem import Problem
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.kernels.split import most_parts, splits

pytestmark = pytest.mark.gpu

ROWS, COLS, EXTENT, BATCH = 296, 424, 2600, 2


def variants(dtype: str, block: int, layout: str) -> list[str]:
    problem = Problem(
        "sdd", "cuda", dtype, (block, block), layout, True, ROWS, COLS, 8, EXTENT, BATCH
    )
    legal = [each.variant for each in registry.candidates(problem) if each.refused is None]
    return [variant.name for variant in legal if splits(variant)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32"])
def test_divided_sums_are_right_and_repeatable(dtype: str, block: int, layout: str) -> None:
    names = variants(dtype, block, layout)
    if not names:
        pytest.skip("no variant that divides sums")
    generator = torch.Generator().manual_seed(0)
    pattern = js.Pattern.random((ROWS, COLS), block, 0.4, generator=generator).to("cuda")
    assert most_parts(pattern.nnz_blocks * block * block, EXTENT, BATCH) > 1
    make = dict(strided="packed", dtype=DTYPES[dtype], device="cuda", generator=generator)
    left = cases.dense((BATCH, ROWS, EXTENT), layout[0], **make)
    right = cases.dense((BATCH, EXTENT, COLS), layout[1], **make)
    cases.check_sdd_variants(names, dtype, left, right, pattern)
