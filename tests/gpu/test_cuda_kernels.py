"""Every tile of every CUDA family is right, whether or not a choice would ever pick it.

The other GPU tests call what the families prefer. Here each legal candidate is pinned by name. Run
under compute-sanitizer, this file is also the check for races and stray accesses.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import cases
import pytest
import torch

import jitsparse as js
from jitsparse.bench.cases import DTYPES
from jitsparse.compilation import compile_variants
from jitsparse.jit import Variant
from jitsparse.kernels import cuda, registry
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.problem import Problem
from jitsparse.kernels.roles import LAYOUTS

pytestmark = pytest.mark.gpu

BLOCKS = (
    *((8, 8), (16, 16), (32, 32), (64, 64), (128, 128)),
    *((16, 64), (64, 16), (128, 32), (64, 128), (128, 16), (32, 16), (16, 128)),
    *((8, 64), (16, 8)),
)
# Aligned, so that no family stands back; no multiple of a block, so that every edge is met.
ROWS, COLS, EXTENT, BATCH = 296, 424, 200, 2


@cache
def half_full(block: tuple[int, int]) -> js.Pattern:
    """With an empty row of blocks."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(-(-ROWS // block[0]), -(-COLS // block[1]), generator=generator) < 0.5
    mask[0] = False
    return js.Pattern.from_mask(mask, block, (ROWS, COLS))


def problem(op: str, dtype: str, block: tuple[int, int], layout: str) -> Problem:
    return Problem(
        op=op,
        device="cuda",
        dtype=dtype,
        block=block,
        layout=layout,
        aligned=True,
        rows=ROWS,
        cols=COLS,
        nnz=half_full(block).nnz_blocks,
        extent=EXTENT,
        batch=1,
    )


def legal(
    op: str, dtype: str, block: tuple[int, int], layout: str, target: str | None = None
) -> list[Variant]:
    found = registry.candidates(problem(op, dtype, block, layout), target)
    return [each.variant for each in found if each.refused is None]


def grid() -> list[tuple[str, str, tuple[int, int]]]:
    """Every block size meets bf16, the type with most families; others meet square ones, and f16,
    which differs from bf16 in an instruction, a few of these."""
    square = [block for block in BLOCKS if block[0] == block[1]]
    few = {
        "bf16": BLOCKS,
        "f32": (*square, (8, 32), (8, 64), (16, 8), (128, 8)),
        "f16": ((8, 8), (16, 16), (128, 128)),
        "f64": (*square, (8, 64), (64, 8), (16, 128), (128, 32)),
        "tf32": (*square, (64, 128), (128, 64), (32, 64), (64, 32)),
    }
    return [
        (op, dtype, block)
        for op, dtype in itertools.product(registry.OPS, cuda.ELEMENTS)
        for block in few.get(dtype, square)
    ]


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """Compiles, in parallel, what the selected tests run."""
    if not torch.cuda.is_available():
        return
    names = ("family", "op", "dtype", "block")
    wanted = [
        tuple(each[name] for name in names)
        for each in cases.selected(request, test_every_candidate_is_right)
    ]
    variants = [
        variant
        for family, op, dtype, block in wanted
        for layout in LAYOUTS
        for variant in legal(op, dtype, block, layout)
        if variant.family == family
    ]
    failed = [each for each in compile_variants(dict.fromkeys(variants)) if each.error is not None]
    if failed:
        raise failed[0].error or AssertionError


def by_family() -> list[tuple[str, str, str, tuple[int, int]]]:
    """The grid, for each family that has something to offer on Hopper."""
    return [
        (family, op, dtype, block)
        for op, dtype, block in grid()
        for family in dict.fromkeys(
            variant.family
            for layout in LAYOUTS
            for variant in legal(op, dtype, block, layout, "sm90a")
        )
    ]


@pytest.mark.parametrize(("family", "op", "dtype", "block"), by_family(), ids=str)
def test_every_candidate_is_right(family: str, op: str, dtype: str, block: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    pattern = half_full(block).to("cuda")
    values = torch.randn(pattern.values_shape, generator=generator)
    stored = js.BlockSparse(values.to("cuda", DTYPES[dtype]), pattern)
    products = 2**-9 if dtype == "tf32" else None
    found = [
        (layout, variant.name)
        for layout in LAYOUTS
        for variant in legal(op, dtype, block, layout)
        if variant.family == family
    ]
    if not found:
        pytest.skip(f"{family} has nothing for this GPU")
    with float32_as(dtype, "cuda"):
        for layout, name in found:
            with js.pin(f"{op}={name}"):
                call(op, layout, stored, products, generator)


def call(
    op: str,
    layout: str,
    stored: js.BlockSparse,
    products: float | None,
    generator: torch.Generator,
) -> None:
    make = dict(strided="packed", dtype=stored.dtype, device="cuda", generator=generator)
    if op == "dsd":
        a = stored.T if layout[0] == "t" else stored
        b = cases.dense((BATCH, a.shape[1], EXTENT), layout[1], **make)
        cases.check_product(js.dsd(a, b), a.to_dense(), b, products=products)
    elif op == "dds":
        b = stored.T if layout[1] == "t" else stored
        a = cases.dense((BATCH, EXTENT, b.shape[0]), layout[0], **make)
        # A bias may begin anywhere: this one does one element past what is aligned.
        bias = torch.randn(1 + b.shape[1], generator=generator).to("cuda", stored.dtype)[1:]
        cases.check_product(js.dds(a, b), a, b.to_dense(), products=products)
        for activation in ("relu", "gelu"):
            got = js.linear(a, b.T, bias, activation)
            cases.check_product(got, a, b.to_dense(), bias, activation, products=products)
    else:
        a = cases.dense((BATCH, ROWS, EXTENT), layout[0], **make)
        b = cases.dense((BATCH, EXTENT, COLS), layout[1], **make)
        cases.check_sdd(js.sdd(a, b, stored.pattern), a, b, products=products)
        cases.check_past_edge(js.sdd(cases.infinite(a, -1), b, stored.pattern))
        cases.check_past_edge(js.sdd(a, cases.infinite(b, -2), stored.pattern))


MANY_TILES = [
    *(("bf16", block) for block in ((16, 16), (32, 32), (64, 64), (128, 128), (32, 128))),
    *(("tf32", block) for block in ((32, 32), (64, 64), (128, 128), (64, 128))),
]


@pytest.mark.parametrize(("dtype", "block"), MANY_TILES, ids=str)
@pytest.mark.parametrize("op", registry.OPS)
def test_ctas_that_take_tile_after_tile(op: str, dtype: str, block: tuple[int, int]) -> None:
    """More tiles than the GPU has multiprocessors, of all lengths, with panels that are empty: the
    first choice of a smaller product, and every variant of persistent CTAs."""
    generator = torch.Generator().manual_seed(1)
    grid = -(-5000 // block[0]), -(-4104 // block[1])
    density = torch.rand(grid[0], 1, generator=generator) ** 4
    density[grid[0] // 2 :] *= torch.rand(grid[0] - grid[0] // 2, 1, generator=generator) < 0.5
    mask = torch.rand(grid, generator=generator) < density
    mask[grid[0] // 4 : grid[0] // 3] = False
    pattern = js.Pattern.from_mask(mask, block, (5000, 4104)).to("cuda")
    values = torch.randn(pattern.values_shape, generator=generator)
    stored = js.BlockSparse(values.to("cuda", DTYPES[dtype]), pattern)
    make = dict(strided="packed", dtype=DTYPES[dtype], device="cuda", generator=generator)
    products = 2**-9 if dtype == "tf32" else None
    wanted = []
    for layout in LAYOUTS:
        found = legal(op, dtype, block, layout)
        persistent = [variant for variant in found if variant.family == "wgmma"]
        wanted += [(layout, variant) for variant in dict.fromkeys((found[0], *persistent))]
    compile_variants(dict.fromkeys(variant for _, variant in wanted))
    with float32_as(dtype, "cuda"):
        for layout, variant in wanted:
            with js.pin(f"{op}={variant.name}"):
                many_tiles(op, layout, stored, products, make)


def many_tiles(
    op: str, layout: str, stored: js.BlockSparse, products: float | None, make: dict[str, Any]
) -> None:
    if op == "sdd":
        # Of a sum over 72 a tile is done before the one before it is stored.
        for batch, extent in ((2, 520), (1, 72)):
            a = cases.dense((batch, 5000, extent), layout[0], **make)
            b = cases.dense((batch, extent, 4104), layout[1], **make)
            got, again = (js.sdd(a, b, stored.pattern) for _ in range(2))
            cases.check_sdd(got, a, b, products=products)
            assert torch.equal(got.values, again.values)
        return
    if op == "dsd":
        a = stored.T if layout[0] == "t" else stored
        b = cases.dense((a.shape[1], 3208), layout[1], **make)
        got, again = (js.dsd(a, b) for _ in range(2))
        cases.check_product(got, a.to_dense(), b, products=products)
    else:
        b = stored.T if layout[1] == "t" else stored
        a = cases.dense((3208, b.shape[0]), layout[0], **make)
        got, again = (js.dds(a, b) for _ in range(2))
        cases.check_product(got, a, b.to_dense(), products=products)
        # A tile asks for its bias while the one before it is finished.
        bias = torch.randn(b.shape[1], generator=make["generator"]).to("cuda", make["dtype"])
        biased = js.linear(a, b.T, bias)
        cases.check_product(biased, a, b.to_dense(), bias, products=products)
    assert torch.equal(got, again)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
@pytest.mark.parametrize("block", [16, 64])
def test_relu_keeps_nan(block: int, dtype: str) -> None:
    """As torch's does, by every kernel, whether relu comes with rounding or before it."""
    x = torch.randn(EXTENT, COLS, device="cuda", dtype=DTYPES[dtype])
    x[3] = float("nan")
    first = js.BlockSparse.from_dense(torch.eye(ROWS, COLS, device="cuda", dtype=x.dtype), block)
    exact = x[:, :ROWS].relu().nan_to_num(7)
    wanted = legal("dds", dtype, (block, block), "nt")
    compile_variants(wanted)
    for variant in wanted:
        with js.pin(f"dds={variant.name}"):
            got = js.linear(x, first, activation="relu")
        assert torch.equal(got.nan_to_num(7), exact), variant.name


@pytest.mark.parametrize("block", [16, 128])
def test_a_broadcast_batch(block: int) -> None:
    """A dense operand whose batch has stride 0 is read as it is."""
    generator = torch.Generator().manual_seed(2)
    pattern = js.Pattern.random((512, 384), block, 0.4, generator=generator).to("cuda")
    values = torch.randn((pattern.nnz_blocks, block, block), generator=generator)
    stored = js.BlockSparse(values.to("cuda", torch.bfloat16), pattern)
    x = torch.randn(384, 256, generator=generator).to("cuda", torch.bfloat16).expand(3, 384, 256)
    y = torch.randn(256, 512, generator=generator).to("cuda", torch.bfloat16).expand(3, 256, 512)
    cases.check_product(js.dsd(stored, x), stored.to_dense(), x)
    cases.check_product(js.dds(y, stored), y, stored.to_dense())
    right = torch.randn(3, 256, 384, generator=generator).to("cuda", torch.bfloat16)
    cases.check_sdd(js.sdd(y.mT, right, pattern), y.mT, right)
