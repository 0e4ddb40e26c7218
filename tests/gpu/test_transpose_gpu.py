"""Kernels that transpose an operand first: a dense one or the stored blocks, so that it lies along
k, or a dense one, so that rows of it can be gathered for condensed block columns."""

from __future__ import annotations

import cases
import pytest
import torch

import jitsparse as js
from jitsparse.bench.cases import DTYPES
from jitsparse.kernels import registry
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.problem import Problem
from jitsparse.kernels.transpose import transposes, transposes_values

pytestmark = pytest.mark.gpu

ROWS, COLS = 296, 424


def variants(
    dtype: str, block: tuple[int, int], extent: int, batch: int, op: str = "sdd"
) -> list[str]:
    problem = Problem(op, "cuda", dtype, block, "tn", True, ROWS, COLS, 8, extent, batch)
    legal = [each.variant for each in registry.candidates(problem) if each.refused is None]
    return [each.name for each in legal if transposes(each) or transposes_values(each)]


@pytest.mark.parametrize(("extent", "batch"), [(3, 1), (77, 1), (200, 3), (1531, 2)])
@pytest.mark.parametrize(
    ("dtype", "block"),
    [
        *(("bf16", (16, 16)), ("f16", (32, 32)), ("bf16", (64, 16)), ("bf16", (16, 128))),
        *(("tf32", (32, 32)), ("tf32", (64, 64)), ("tf32", (128, 64))),
        *(("bf16", (8, 8)), ("f32", (8, 8)), ("f32", (16, 8))),
    ],
    ids=str,
)
def test_operands_of_an_sdd_of_any_depth(
    dtype: str, block: tuple[int, int], extent: int, batch: int
) -> None:
    names = variants(dtype, block, extent, batch)
    if not names:
        pytest.skip("no variant transposes an operand on this GPU")
    generator = torch.Generator().manual_seed(0)
    pattern = js.Pattern.random((ROWS, COLS), block, 0.4, generator=generator).to("cuda")
    # Of a wider matrix, so that a row of zeros in place of the next row's elements would be seen.
    make = dict(strided="padded", dtype=DTYPES[dtype], device="cuda", generator=generator)
    left = cases.dense((batch, ROWS, extent), "t", **make)
    right = cases.dense((batch, extent, COLS), "n", **make)
    cases.check_sdd_variants(names, dtype, left, right, pattern)


@pytest.mark.parametrize(("rows", "batch"), [(3, 1), (77, 2), (531, 1)])
@pytest.mark.parametrize(
    "block", [(32, 32), (128, 32), (32, 64), (64, 64), (64, 128), (128, 64)], ids=str
)
@pytest.mark.parametrize("op", ["dsd", "dds"])
def test_dense_operands_of_any_depth(
    op: str, block: tuple[int, int], rows: int, batch: int
) -> None:
    names = variants("tf32", block, 200, batch, op)
    if not names:
        pytest.skip("no variant transposes an operand on this GPU")
    generator = torch.Generator().manual_seed(0)
    pattern = js.Pattern.random((rows, COLS), block, 0.6, generator=generator).to("cuda")
    values = torch.randn(pattern.values_shape, generator=generator)
    stored = js.BlockSparse(values.cuda(), pattern)
    make = dict(strided="padded", dtype=torch.float32, device="cuda", generator=generator)
    with float32_as("tf32", "cuda"):
        for name in names:
            with js.pin(f"{op}={name}"):
                if op == "dsd":
                    x = cases.dense((batch, rows, 200), "n", **make)
                    got, left, right = js.dsd(stored.T, x), stored.T.to_dense(), x
                else:
                    x = cases.dense((batch, 200, rows), "t", **make)
                    got, left, right = js.dds(x, stored), x, stored.to_dense()
            cases.check_product(got, left, right, products=2**-9)


@pytest.mark.parametrize(("extent", "batch"), [(3, 1), (77, 2), (531, 1)])
@pytest.mark.parametrize("height", [16, 64, 128])
@pytest.mark.parametrize("transposed", [False, True], ids=["stored", "transposed"])
def test_block_columns_of_any_extent_are_condensed(
    transposed: bool, height: int, extent: int, batch: int
) -> None:
    """Out of a dense operand that lies along k: blocks are 16 deep along that."""
    layout, block = ("nt", (height, 16)) if transposed else ("nn", (16, height))
    problem = Problem("dds", "cuda", "bf16", block, layout, True, ROWS, COLS, 8, extent, batch)
    legal = [each.variant for each in registry.candidates(problem) if each.refused is None]
    names = [each.name for each in legal if transposes(each)]
    if not names:
        pytest.skip("no variant transposes an operand on this GPU")
    generator = torch.Generator().manual_seed(0)
    pattern = js.Pattern.random((ROWS, COLS), block, 0.2, generator=generator).to("cuda")
    values = torch.randn(pattern.values_shape, generator=generator)
    stored = js.BlockSparse(values.cuda().bfloat16(), pattern)
    weight = stored.T if transposed else stored
    make = dict(strided="padded", dtype=torch.bfloat16, device="cuda", generator=generator)
    x = cases.dense((batch, extent, weight.shape[0]), "n", **make)
    for name in names:
        with js.pin(f"dds={name}"):
            got = js.dds(x, weight)
        cases.check_product(got, x, weight.to_dense())


def test_a_matrix_that_serves_a_batch_is_transposed_once() -> None:
    names = variants("tf32", (64, 64), 200, 3, "dsd")
    if not names:
        pytest.skip("no variant transposes an operand on this GPU")
    generator = torch.Generator().manual_seed(0)
    stored = js.random((ROWS, COLS), 64, 0.5).to("cuda")
    x = torch.randn(ROWS, 200, generator=generator).cuda().expand(64, ROWS, 200)
    with float32_as("tf32", "cuda"):
        with js.pin(f"dsd={names[0]}"):
            js.dsd(stored.T, x)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            got = js.dsd(stored.T, x)
            used = torch.cuda.max_memory_allocated() - held - got.nbytes
        cases.check_product(got, stored.T.to_dense(), x, products=2**-9)
        assert used < 2 * ROWS * 200 * 4


def test_the_gradient_of_a_weight_in_a_graph() -> None:
    """Captured with its workspace, and replayed on other data."""
    if not variants("bf16", (16, 16), 256, 1):
        pytest.skip("no variant transposes an operand on this GPU")
    torch.manual_seed(0)
    layer = js.nn.BlockSparseLinear(COLS, ROWS, 16, density=0.5, bias=False)
    layer = layer.to("cuda", torch.bfloat16)
    x, y = (torch.randn(256, n, device="cuda", dtype=torch.bfloat16) for n in (COLS, ROWS))
    name = variants("bf16", (16, 16), 256, 1)[0]

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(layer(x), layer.values, y)[0]

    with js.pin(f"sdd={name}"):
        gradient()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gradient()
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(captured, gradient())
