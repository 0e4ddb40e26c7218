"""A layer whose buffers were written to is looked at for the first time inside of a transform or a
mode of torch: the pattern that it makes there outlives these, and is of neither."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitsparse as js

Layer = js.nn.BlockSparseLinear
X = torch.randn(4, 64)


def of_parameters(layer: Layer) -> Any:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, parameters, X).sum()

    return torch.func.grad(loss)(dict(layer.named_parameters()))


def fake_mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def in_fake_mode(layer: Layer) -> None:
    with fake_mode():
        layer(torch.randn(4, 64))


def loaded_in_fake_mode(layer: Layer) -> None:
    state = {name: each.clone() for name, each in layer.state_dict().items()}
    with fake_mode():
        layer.load_state_dict(state)


def copied_in_grad(layer: Layer) -> Any:
    def loss(x: Tensor) -> Tensor:
        return copy.deepcopy(layer)(X).sum() + x.sum()

    return torch.func.grad(loss)(X)


def loaded_in_grad(layer: Layer) -> None:
    """Which torch refuses, as of any layer."""

    def loss(x: Tensor) -> Tensor:
        layer.load_state_dict({name: each.clone() for name, each in layer.state_dict().items()})
        return x.sum()

    with contextlib.suppress(RuntimeError):
        torch.func.grad(loss)(X)


def traced(mode: str) -> Callable[[Layer], Any]:
    return lambda layer: make_fx(layer, tracing_mode=mode, _allow_non_fake_inputs=True)(X)


FIRST: dict[str, Callable[[Layer], Any]] = {
    "grad": lambda layer: torch.func.grad(lambda x: layer(x).sum())(X),
    "grad of parameters": of_parameters,
    "vjp": lambda layer: torch.func.vjp(layer, X)[1](torch.ones(4, 64)),
    "jvp": lambda layer: torch.func.jvp(layer, (X,), (X,)),
    "hessian": lambda layer: torch.func.hessian(lambda x: layer(x).square().sum())(X[:1]),
    "grad of each": lambda layer: torch.vmap(torch.func.grad(lambda x: layer(x).sum()))(X),
    "fake tensors": in_fake_mode,
    "make_fx": traced("real"),
    "make_fx, fake": traced("fake"),
    "make_fx, symbolic": traced("symbolic"),
    "a copy in grad": copied_in_grad,
    "a load in grad": loaded_in_grad,
    "a load in fake mode": loaded_in_fake_mode,
}


@pytest.mark.parametrize("first", FIRST)
def test_a_layer_outlives_where_its_buffers_were_first_read(first: str) -> None:
    layer = Layer(64, 64, 16, density=0.5)
    weight = layer.weight.to_dense().detach()
    layer.crow_indices.add_(0)  # as a checkpoint that is loaded in place
    FIRST[first](layer)
    torch.testing.assert_close(layer.weight.to_dense(), weight)
    assert type(layer.pattern.col_indices) is Tensor
    torch.testing.assert_close(layer(X), X @ weight.T + layer.bias)


def test_a_trace_has_no_part_of_an_index_in_it() -> None:
    layer = Layer(64, 64, 16, density=0.5)
    layer.crow_indices.add_(0)
    first, second = (make_fx(layer)(X).graph.nodes for _ in range(2))
    assert len(first) == len(second)


@pytest.mark.parametrize("first", ["grad", "jvp", "vmap", "fake tensors"])
def test_a_transposed_pattern_outlives_where_it_was_made(first: str) -> None:
    a = js.random((64, 96), 16, 0.5)

    def product(x: Tensor) -> Tensor:
        return js.dsd(a.T, x) * a.pattern.T.nnz_blocks

    if first == "fake tensors":
        with fake_mode():
            product(torch.randn(64, 4))
    elif first == "grad":
        torch.func.grad(lambda x: product(x).sum())(X.T)
    elif first == "jvp":
        torch.func.jvp(product, (X.T,), (X.T,))
    else:
        torch.vmap(lambda x: product(x[:, None]))(X)
    turned = js.BlockSparse(torch.randn(a.pattern.T.values_shape), a.pattern.T)
    torch.testing.assert_close(turned @ X.T, turned.to_dense() @ X.T)
    assert torch.equal(a.pattern.T.to_mask(), a.pattern.to_mask().T)
