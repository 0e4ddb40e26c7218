"""First and second derivatives of every operation, in float64, and the gradients' housekeeping."""

from __future__ import annotations

import cases
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import jitsparse as js

BLOCK = (8, 16)


def matrix(seed: int = 0) -> js.BlockSparse:
    """(20, 30), with an edge, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return js.random((20, 30), BLOCK, 0.6, dtype=torch.float64, generator=generator)


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def twice(function: object, inputs: tuple[Tensor, ...]) -> None:
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("flip_dense", [False, True])
@pytest.mark.parametrize("flip_sparse", [False, True])
def test_products(flip_sparse: bool, flip_dense: bool, batch: tuple[int, ...]) -> None:
    a = matrix()
    values = a.values.clone().requires_grad_()

    def sparse(values: Tensor) -> js.BlockSparse:
        built = js.BlockSparse(values, a.pattern)
        return built.T if flip_sparse else built

    m, k = sparse(values).shape
    right = double(*batch, 3, k) if flip_dense else double(*batch, k, 3)
    twice(lambda v, x: js.dsd(sparse(v), x.mT if flip_dense else x), (values, right))
    left = double(*batch, m, 3) if flip_dense else double(*batch, 3, m)
    twice(lambda v, x: js.dds(x.mT if flip_dense else x, sparse(v)), (values, left))


@pytest.mark.parametrize("flip_left", [False, True])
@pytest.mark.parametrize("flip_right", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_sampled_products(flip_left: bool, flip_right: bool, batch: tuple[int, ...]) -> None:
    a = matrix()
    left = double(*batch, 3, 20) if flip_left else double(*batch, 20, 3)
    right = double(*batch, 30, 3) if flip_right else double(*batch, 3, 30)
    twice(
        lambda x, y: js.sdd(x.mT if flip_left else x, y.mT if flip_right else y, a.pattern).values,
        (left, right),
    )


def test_sampled_products_of_broadcast_batches() -> None:
    a = matrix()
    twice(lambda x, y: js.sdd(x, y, a.pattern).values, (double(2, 20, 3), double(3, 30)))


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_linear(activation: str | None) -> None:
    a = matrix()
    values = a.values.clone().requires_grad_()
    twice(
        lambda x, v, b: js.linear(x, js.BlockSparse(v, a.pattern), b, activation),
        (double(2, 3, 30), values, double(20)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_in_working_precision(dtype: torch.dtype) -> None:
    """Each gradient is the product that it should be, to within the rounding of its dtype."""
    weight = js.random((64, 96), 32, 0.5, dtype=dtype).requires_grad_()
    x = torch.randn(2, 10, 96, dtype=dtype, requires_grad=True)
    bias = torch.randn(64, dtype=dtype, requires_grad=True)
    grad = torch.randn(2, 10, 64, dtype=dtype)
    js.linear(x, weight, bias).backward(grad)
    dense = weight.detach().to_dense()
    cases.check_product(x.grad, grad, dense)
    cases.check_sdd(js.BlockSparse(weight.grad, weight.pattern), grad.mT, x.detach())
    cases.check_product(bias.grad[None], torch.ones(1, 20, dtype=dtype), grad.reshape(20, 64))


def test_only_what_is_asked_for_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitsparse import ops

    called: list[str] = []
    for name in ("dsd", "dds", "sdd"):
        op = getattr(ops, name)
        monkeypatch.setattr(
            ops, name, lambda *args, op=op, name=name: called.append(name) or op(*args)
        )
    a = matrix()
    x = torch.randn(30, 3, dtype=torch.float64)
    js.dsd(a, x.requires_grad_()).sum().backward()
    assert called == ["dsd", "dsd"]
    assert a.grad is None
    called.clear()
    js.dsd(a.requires_grad_(), x.detach()).sum().backward()
    assert called == ["dsd", "sdd"]
    called.clear()
    with torch.no_grad():
        assert not js.dsd(a, x).requires_grad
    assert called == ["dsd"]


def test_gradients_vanish_past_the_edge() -> None:
    a = matrix().requires_grad_()
    js.dsd(a, torch.ones(30, 3, dtype=torch.float64)).sum().backward()
    inside = js.BlockSparse.from_dense(torch.ones(20, 30), BLOCK, a.pattern.to_mask()).values
    assert torch.equal(a.grad, 3 * inside.double())


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_gradients_of_empty_and_full_patterns(density: float) -> None:
    a = js.random((16, 32), BLOCK, density, dtype=torch.float64).requires_grad_()
    x = double(32, 3)
    js.dsd(a, x).sum().backward()
    assert a.grad.shape == a.values.shape
    torch.testing.assert_close(x.grad, a.detach().to_dense().sum(0)[:, None].expand(32, 3))


def test_functorch_is_refused_not_wrong() -> None:
    a = matrix()
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: js.dsd(a, x).sum())(double(30, 3).detach())
