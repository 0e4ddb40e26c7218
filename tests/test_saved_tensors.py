"""A backward pass that does not find what the forward pass saved says so; it never reads what is
not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitsparse as js


@pytest.fixture
def layer() -> js.nn.BlockSparseLinear:
    return js.nn.BlockSparseLinear(64, 64, 32, density=1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_layer_that_was_cast_since(layer: Any, dtype: torch.dtype) -> None:
    loss = layer(torch.randn(6, 64, requires_grad=True)).sum()
    layer.to(dtype)
    with pytest.raises(js.ArgumentError, match=f"finds {dtype} .* in the place of torch.float32"):
        loss.backward()


@pytest.mark.parametrize(
    ("pack", "unpack", "found"),
    [
        (lambda t: t.bfloat16(), lambda t: t.float(), "torch.float32"),  # the index, too
        (lambda t: t.bfloat16() if t.is_floating_point() else t, lambda t: t, "torch.bfloat16"),
        (lambda t: t, lambda t: t[:-1], "of shape"),
    ],
)
def test_hooks_that_give_back_something_else(
    pack: Any, unpack: Any, found: str, layer: Any
) -> None:
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = layer(torch.randn(6, 64, requires_grad=True))
    with pytest.raises(js.ArgumentError, match=f"finds .*{found}"):
        y.sum().backward()


def test_hooks_that_give_back_the_same(layer: Any) -> None:
    x = torch.randn(6, 64, requires_grad=True)
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    with torch.autograd.graph.save_on_cpu():
        y = layer(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, expected)


def test_operands_whose_size_was_changed(layer: Any) -> None:
    a = js.random((64, 64), 32, 1.0).requires_grad_()
    x, b, left = (torch.randn(64, 64, requires_grad=True) for _ in range(3))
    for out, operand in (
        (layer(x), x),
        (a @ b, b),
        (js.sdd(left, torch.randn(64, 64), a.pattern).values, left),
    ):
        operand.data = torch.zeros(3, 64)
        with pytest.raises(js.ArgumentError, match="in the place of"):
            out.sum().backward()
