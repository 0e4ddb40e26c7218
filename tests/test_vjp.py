"""The function that torch.func.vjp returns is called when no transform is active any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

import jitsparse as js

A = js.random((24, 40), 8, 0.5, dtype=torch.float64)
P = A.pattern
MASK = P.to_mask().repeat_interleave(8, 0).repeat_interleave(8, 1)
X, Y = torch.randn(40, 3, dtype=torch.float64), torch.randn(3, 24, dtype=torch.float64)


def matrix(values: Tensor) -> js.BlockSparse:
    return js.BlockSparse(values, P)


def dense(values: Tensor) -> Tensor:
    return matrix(values).to_dense()


Function = Callable[[Tensor, Tensor], Tensor]
CASES: dict[str, tuple[Function, Function, tuple[Tensor, Tensor]]] = {
    "dsd": (lambda v, x: js.dsd(matrix(v), x), lambda v, x: dense(v) @ x, (A.values, X)),
    "dds": (lambda y, v: js.dds(y, matrix(v)), lambda y, v: y @ dense(v), (Y, A.values)),
    "sdd": (
        lambda y, x: js.sdd(y.T, x.T, P).to_dense(),
        lambda y, x: (y.T @ x.T) * MASK,
        (Y, X),
    ),
    "linear": (
        lambda y, v: js.linear(y, matrix(v).T, None, "gelu"),
        lambda y, v: nn.functional.gelu(y @ dense(v)),
        (Y, A.values),
    ),
}


@pytest.mark.parametrize("operation", CASES)
def test_it_may_be_called_mapped_and_differentiated(operation: str) -> None:
    ours, theirs, arguments = CASES[operation]
    out, back = vjp(ours, *arguments)
    _, expected = vjp(theirs, *arguments)
    cotangent = torch.randn_like(out)
    torch.testing.assert_close(back(cotangent), expected(cotangent))
    many = torch.randn(2, *out.shape, dtype=out.dtype)
    torch.testing.assert_close(vmap(back)(many), vmap(expected)(many))
    leaves = [each.clone().requires_grad_() for each in arguments]

    def penalty(function: Function) -> tuple[Tensor, ...]:
        products = vjp(function, *leaves)[1](cotangent)
        return torch.autograd.grad(sum(each.square().sum() for each in products), leaves)

    torch.testing.assert_close(penalty(ours), penalty(theirs))
