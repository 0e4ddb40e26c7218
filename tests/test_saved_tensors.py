"""A backward pass that does not find what the forward pass saved says so; it never reads what is
not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitsparse as js


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def layer(device: str) -> js.nn.BlockSparseLinear:
    return js.nn.BlockSparseLinear(64, 64, 32, density=1.0, device=device)


def randn(device: str, rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 64, device=device, requires_grad=True)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_no_more_is_saved_than_gradients_need(backend: str | None, layer: Any, device: str) -> None:
    """The others may change before the backward pass."""
    torch._dynamo.reset()
    compiled = layer if backend is None else torch.compile(layer, backend=backend, fullgraph=True)
    x = torch.randn(6, 64, device=device)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: (saved.append(each), each)[1], lambda each: each
    ):
        y = compiled(x)
    assert {tuple(each.shape) for each in saved if each.is_floating_point()} == {(6, 64)}
    with torch.no_grad():
        layer.values.mul_(2)
    y.sum().backward()
    torch.testing.assert_close(
        layer.values.grad, js.sdd(torch.ones_like(y).mT, x, layer.pattern).values
    )


@pytest.mark.parametrize("new", [lambda b: b[:1].clone(), lambda b: b.double()])
def test_a_bias_whose_data_were_replaced_since(layer: Any, new: Any, device: str) -> None:
    """An operation with gelu keeps the bias, to compute the product again."""
    pattern, bias = layer.pattern, torch.zeros(64, device=device)
    operands = randn(device), layer.values.detach(), pattern.index, 64, 64, True, bias, 2
    y = torch.ops.jitsparse.dds(*operands)
    bias.data = new(bias)
    with pytest.raises(js.ArgumentError, match=r"in the place of torch\.float32 of shape"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("captured", [False, True])
def test_a_layer_that_was_cast_since(
    layer: Any, dtype: torch.dtype, captured: bool, device: str
) -> None:
    x = randn(device)
    model = torch.export.export(layer, (x,)).module() if captured else layer
    loss = model(x).sum()
    model.to(dtype)
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
    pack: Any, unpack: Any, found: str, layer: Any, device: str
) -> None:
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = layer(randn(device))
    with pytest.raises(js.ArgumentError, match=f"finds .*{found}"):
        y.sum().backward()


def test_hooks_that_give_back_the_same(layer: Any, device: str) -> None:
    x = randn(device)
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    with torch.autograd.graph.save_on_cpu():
        y = layer(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, expected)


def test_operands_whose_size_was_changed(layer: Any, device: str) -> None:
    a = js.random((64, 64), 32, 1.0, device=device).requires_grad_()
    x, b, left = (randn(device, 64) for _ in range(3))
    for out, operand in (
        (layer(x), x),
        (a @ b, b),
        (js.sdd(left, randn(device, 64), a.pattern).values, left),
    ):
        operand.data = torch.zeros(3, 64, device=device)
        with pytest.raises(js.ArgumentError, match="in the place of"):
            out.sum().backward()


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same content, its entries apart."""
    return torch.stack([tensor, tensor], -1)[..., 0]


@pytest.mark.parametrize("op", ["dsd", "dds", "relu", "sdd"])
def test_a_hook_may_give_back_other_strides(op: str, device: str) -> None:
    """Read as one row, an index with gaps has a kernel walk through what is behind it."""
    a = js.random((64, 96), 16, 0.6, dtype=torch.float64, device=device)
    x = torch.randn(96, 5, dtype=torch.float64, device=device, requires_grad=True)
    values = a.values.requires_grad_()

    def run() -> torch.Tensor:
        if op == "sdd":
            return js.sdd(torch.ones_like(x[:64]), x.mT, a.pattern).values
        if op == "dsd":
            return js.dsd(a, x)
        return js.linear(x.mT, a, None, "relu" if op == "relu" else None)

    def gradients(out: torch.Tensor) -> Any:
        return torch.autograd.grad(out.square().sum(), [x, values], allow_unused=True)

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, strided):
        out = run()
    torch.testing.assert_close(gradients(out), gradients(run()))


def test_a_result_that_a_hook_cuts_is_refused(layer: Any, device: str) -> None:
    """Of relu, whose gradient is known from it."""
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor, lambda each: each[:1] if each.shape == (6, 32) else each
    ):
        a = js.random((32, 64), 32, 1.0, device=device).requires_grad_()
        y = js.linear(randn(device), a, None, "relu")
    with pytest.raises(js.ArgumentError, match=r"finds .* of shape \(1, 32\)"):
        y.sum().backward()
