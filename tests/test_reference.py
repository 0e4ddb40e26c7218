"""The plain-torch operations, which are the specification, against torch on dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitsparse as js
from jitsparse import reference


@pytest.mark.parametrize("shape", [(40, 48), (37, 42), (40, 1), (0, 16), (16, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_those_of_the_dense_matrix(shape: tuple[int, int], transposed: bool) -> None:
    a = js.random(shape, (8, 16), 0.6, dtype=torch.float64)
    index, (rows, cols) = a.pattern.index, shape
    dense = a.to_dense().T if transposed else a.to_dense()
    b = torch.randn(3, dense.shape[1], 5, dtype=torch.float64)
    got = reference.dsd(a.values, index, b, rows, cols, transposed)
    torch.testing.assert_close(got, dense @ b)
    assert got.is_contiguous()
    c = torch.randn(3, 5, dense.shape[0], dtype=torch.float64)
    bias = torch.randn(dense.shape[1], dtype=torch.float64)
    for code, activation in enumerate(
        (nn.Identity(), nn.functional.relu, nn.functional.gelu, nn.functional.silu)
    ):
        got = reference.dds(c, a.values, index, rows, cols, transposed, bias, code)
        torch.testing.assert_close(got, activation(c @ dense + bias))
    left = torch.randn(2, rows, 7, dtype=torch.float64)
    right = torch.randn(2, 7, cols, dtype=torch.float64)
    got = reference.sdd(left, right, index, rows, cols, *a.values.shape)
    kept = js.BlockSparse.from_dense((left @ right).sum(0), (8, 16), a.pattern.to_mask())
    torch.testing.assert_close(got, kept.values)


def test_only_the_result_is_rounded() -> None:
    """The product here is more than float16 holds; what the bias leaves of it is not."""
    a = js.BlockSparse.from_dense(torch.full((8, 8), 128.0, dtype=torch.float16), 8)
    x = torch.full((1, 8), 80.0, dtype=torch.float16)
    bias = torch.full((8,), -65504.0, dtype=torch.float16)
    out = reference.dds(x, a.values, a.pattern.index, 8, 8, False, bias, 0)
    assert out.dtype == torch.float16
    assert out.tolist() == [[8 * 128 * 80 - 65504] * 8]
