"""Autocast: operands take the dtype that the user asked for, not one that was registered."""

from __future__ import annotations

import pytest
import torch

import jitsparse as js


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operations_follow_the_users_dtype(dtype: torch.dtype) -> None:
    a = js.random((64, 96), 32, 0.5)
    x, y = torch.randn(96, 5), torch.randn(5, 64)
    bias = torch.randn(96)
    low = a.to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        got = (
            js.dsd(a, x),
            js.dds(y, a),
            js.linear(y, a.T, bias, "silu"),
            js.sdd(y.T, x.T, a.pattern),
        )
        assert js.dsd(low, x).dtype == dtype, "operands of two dtypes meet in autocast's"
    expected = (
        js.dsd(low, x.to(dtype)),
        js.dds(y.to(dtype), low),
        js.linear(y.to(dtype), low.T, bias.to(dtype), "silu"),
        js.sdd(y.T.to(dtype), x.T.to(dtype), a.pattern),
    )
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == dtype
        if isinstance(ours, js.BlockSparse):
            ours, theirs = ours.values, theirs.values
        assert torch.equal(ours, theirs)


def test_float64_is_left_alone_as_torch_leaves_it() -> None:
    a, x = js.random((64, 96), 32, 0.5, dtype=torch.float64), torch.randn(96, 5).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert js.dsd(a, x).dtype == (a.to_dense() @ x).dtype == torch.float64


def test_parameters_keep_their_dtype_and_receive_gradients_in_it() -> None:
    layer = js.nn.BlockSparseLinear(96, 64, 32, density=0.5)
    x = torch.randn(5, 96, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert layer.values.grad.dtype == layer.bias.grad.dtype == x.grad.dtype == torch.float32


def test_autocast_of_another_device_changes_nothing() -> None:
    a, x = js.random((64, 96), 32, 0.5), torch.randn(96, 5)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_available()):
        assert js.dsd(a, x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        assert js.dsd(a, x).dtype == torch.float32
