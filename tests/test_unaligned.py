"""Calls whose operands are not in multiples of 16 bytes, on a GPU: all kernels give them right
answers, on copies if need be."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse.bench.cases import DTYPES
from jitsparse.kernels.float32 import float32_as

pytestmark = pytest.mark.gpu

ROWS, COLS = 201, 333
FAMILIES = [
    *((dtype, family) for dtype in ("bf16", "f16") for family in ("wgmma", "mma", "simt")),
    *(("tf32", family) for family in ("wgmma", "mma", "simt")),
    *(("f32", family) for family in ("fma", "simt")),
    *(("f64", family) for family in ("mma", "simt")),
]


def randn(*shape: int, dtype: str, shift: int = 0) -> Tensor:
    """Standard normal, beginning ``shift`` elements past a multiple of 16 bytes."""
    count = torch.Size(shape).numel()
    data = torch.randn(shift + count, device="cuda").to(DTYPES[dtype])
    return data[shift:].view(shape)


def matrix(dtype: str, shift: int = 0) -> js.BlockSparse:
    made = js.random((ROWS, COLS), 32, 0.4, dtype=DTYPES[dtype], device="cuda")
    values = randn(*made.values.shape, dtype=dtype, shift=shift)
    return js.BlockSparse(values.copy_(made.values), made.pattern)


def products(dtype: str) -> float | None:
    return 2**-9 if dtype == "tf32" else None


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("dtype", "family"), FAMILIES)
def test_dsd_and_dds(dtype: str, family: str, batch: tuple[int, ...], shift: int) -> None:
    a = matrix(dtype, shift)
    bias = randn(COLS, dtype=dtype, shift=shift)
    with float32_as(dtype, "cuda"), js.pin(f"dsd={family}; dds={family}"):
        for n in (5, 100, 259):
            for flip in (False, True):
                sparse = a.T if flip else a
                m, k = sparse.shape
                whole = sparse.to_dense()
                x = randn(*batch, k, n, dtype=dtype, shift=shift)
                y = randn(*batch, n, k, dtype=dtype, shift=shift)
                how: dict[str, Any] = {"products": products(dtype)}
                cases.check_product(js.dsd(sparse, x), whole, x, **how)
                cases.check_product(js.dsd(sparse, y.mT), whole, y.mT, **how)
                cases.check_product(js.dds(y, sparse.T), y, whole.T, **how)
                cases.check_product(js.dds(x.mT, sparse.T), x.mT, whole.T, **how)
                if m == COLS:
                    got = js.linear(y, sparse, bias, "relu")
                    cases.check_product(got, y, whole.T, bias, "relu", **how)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("dtype", "family"), FAMILIES)
def test_sdd(dtype: str, family: str, batch: tuple[int, ...], shift: int) -> None:
    pattern = matrix(dtype).pattern
    with float32_as(dtype, "cuda"), js.pin(f"sdd={family}"):
        for k in (1, 5, 100, 259):
            for flip_left in (False, True):
                for flip_right in (False, True):
                    left = randn(*batch, ROWS, k, dtype=dtype, shift=shift)
                    right = randn(*batch, k, COLS, dtype=dtype, shift=shift)
                    if flip_left:
                        left = left.mT.contiguous().mT
                    if flip_right:
                        right = right.mT.contiguous().mT
                    got = js.sdd(left, right, pattern)
                    cases.check_sdd(got, left, right, products=products(dtype))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_step_of_a_layer(dtype: str) -> None:
    """With as many outputs as a vocabulary has words, without a pin or a synchronisation."""
    layer = js.nn.BlockSparseLinear(768, 5003, 64, density=0.25, device="cuda", dtype=DTYPES[dtype])
    x = randn(2, 1003, 768, dtype=dtype).requires_grad_()
    grad = randn(2, 1003, 5003, dtype=dtype)
    assert ".simt." not in js.explain("linear", x, layer.weight, layer.bias).variant
    layer(x).backward(grad)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for each in (layer.values, layer.bias, x):
            each.grad = None
        out = layer(x)
        out.backward(grad)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    dense = layer.weight.detach().to_dense()
    cases.check_product(out, x.detach(), dense.T, layer.bias.detach())
    cases.check_product(x.grad, grad, dense)
    got = js.BlockSparse(layer.values.grad, layer.pattern)
    cases.check_sdd(got, grad.mT, x.detach())


def test_in_a_graph() -> None:
    a, x = js.random((4096, 4096), 64, 0.25, device="cuda"), randn(4096, 1001, dtype="f32")
    assert ".simt." not in js.explain("dsd", a, x).variant
    first = js.dsd(a, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = js.dsd(a, x)
    other = randn(4096, 1001, dtype="f32")
    expected = js.dsd(a, other)
    x.copy_(other)
    graph.replay()
    assert torch.equal(out, expected)
    assert not torch.equal(out, first)
