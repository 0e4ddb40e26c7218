"""Derivatives know nothing of what lies past the edge of a matrix.

Where blocks do not divide its shape, the last ones hold zeros past it, at which a function of the
user may have an infinite derivative, as the square root has. Each test follows one through a
product and expects what plain torch finds on the dense matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitsparse as js

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BLOCKS = [(8, 16), (16, 8), (32, 32)]
ROWS, COLS = 20, 30

pytestmark = pytest.mark.parametrize("device", DEVICES)


def positive(*shape: int, device: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, dtype=torch.float64, generator=generator) + 0.5).to(device)


def problem(device: str, block: tuple[int, int]) -> tuple[js.Pattern, tuple[Tensor, ...]]:
    """A pattern with blocks at both edges and in their corner, and factors of an sdd."""
    pattern = js.random(
        (ROWS, COLS), block, 0.7, generator=torch.Generator().manual_seed(1)
    ).pattern
    mask = pattern.to_mask()
    mask[-1] = mask[:, -1] = True
    pattern = js.Pattern.from_mask(mask, block, (ROWS, COLS)).to(device)
    left = positive(ROWS, 4, device=device, seed=2)
    return pattern, (left, positive(4, COLS, device=device, seed=3))


def roots(pattern: js.Pattern) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Square roots of sampled products, squared and in products, ours and plain torch's, as
    functions of the factors."""
    kept = js.BlockSparse.from_dense(
        torch.ones(ROWS, COLS, dtype=torch.float64, device=pattern.device),
        pattern.block_size,
        pattern.to_mask(),
    ).to_dense()
    x = positive(COLS, 3, device=str(pattern.device), seed=4)
    y = positive(2, ROWS, device=str(pattern.device), seed=5)

    def ours(left: Tensor, right: Tensor) -> Tensor:
        root = js.BlockSparse(js.sdd(left, right, pattern).values.sqrt(), pattern)
        squares = root.to_dense() ** 2
        return squares.sum() + js.dsd(root, x).sum() + js.linear(y, root.T).sum()

    def plain(left: Tensor, right: Tensor) -> Tensor:
        root = (left @ right).sqrt() * kept
        return (root**2).sum() + (root @ x).sum() + (y @ root).sum()

    return ours, plain


def check(device: str, block: tuple[int, int], derive: Callable[..., Any]) -> None:
    """``derive(function, factors)`` of both."""
    pattern, factors = problem(device, block)
    ours, plain = (derive(each, factors) for each in roots(pattern))
    torch.testing.assert_close(ours, plain)


def gradients(
    function: Callable[..., Tensor], factors: tuple[Tensor, ...], **settings: Any
) -> tuple[Tensor, ...]:
    factors = tuple(each.clone().requires_grad_() for each in factors)
    return torch.autograd.grad(function(*factors), factors, **settings)


@pytest.mark.parametrize("block", BLOCKS)
def test_gradients(device: str, block: tuple[int, int]) -> None:
    check(device, block, gradients)


@pytest.mark.parametrize("block", BLOCKS)
def test_gradients_of_gradients(device: str, block: tuple[int, int]) -> None:
    def penalty(function: Callable[..., Tensor], factors: tuple[Tensor, ...]) -> Any:
        factors = tuple(each.clone().requires_grad_() for each in factors)
        first = torch.autograd.grad(function(*factors), factors, create_graph=True)
        return torch.autograd.grad(sum((each**2).sum() for each in first), factors)

    check(device, block, penalty)


def test_batched_gradients(device: str) -> None:
    cotangents = torch.arange(1.0, 4.0, dtype=torch.float64, device=device)
    check(
        device,
        (8, 16),
        lambda f, factors: gradients(f, factors, grad_outputs=cotangents, is_grads_batched=True),
    )


def test_tangents(device: str) -> None:
    check(
        device,
        (8, 16),
        lambda f, factors: torch.func.jvp(f, factors, tuple(each.cos() for each in factors)),
    )


def test_hessian_vector_products(device: str) -> None:
    def product(function: Callable[..., Tensor], factors: tuple[Tensor, ...]) -> Any:
        gradient = torch.func.grad(function, (0, 1))
        return torch.func.jvp(gradient, factors, tuple(each.cos() for each in factors))

    check(device, (8, 16), product)


def test_under_vmap(device: str) -> None:
    def each_of_three(function: Callable[..., Tensor], factors: tuple[Tensor, ...]) -> Any:
        batch = tuple(torch.stack([each, 2 * each, 3 * each]) for each in factors)
        return torch.func.vmap(torch.func.grad(function, (0, 1)))(*batch)

    check(device, (8, 16), each_of_three)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(device: str, dynamic: bool) -> None:
    def compiled(function: Callable[..., Tensor], factors: tuple[Tensor, ...]) -> Any:
        # The backward pass is traced; code for the rest would take seconds to make.
        how: dict[str, Any] = {"fullgraph": True, "dynamic": dynamic, "backend": "aot_eager"}
        return gradients(torch.compile(function, **how), factors)

    check(device, (8, 16), compiled)


def test_nothing_is_masked_where_blocks_divide_the_shape(device: str) -> None:
    pattern = js.Pattern.from_mask(torch.ones(2, 2, dtype=torch.bool), 16, (32, 32)).to(device)
    left = positive(32, 4, device=device, seed=2).requires_grad_()
    values = js.sdd(left, left.mT, pattern).values
    with torch.profiler.profile() as profile:
        values.sum().backward()
    assert not [event for event in profile.events() if "masked_fill" in event.name]
