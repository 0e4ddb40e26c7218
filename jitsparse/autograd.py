"""The registered operations with gradients, to any order.

Each backward pass is written in the functions of this module, so it is differentiable itself:

    C = op(S) B:      dB = op(S)^T dC          dS = sdd(dC, B^T), or sdd(B, dC^T) when op transposes
    C = A op(S):      dA = dC op(S)^T          dS = sdd(A^T, dC), or sdd(dC^T, A) when op transposes
    V = sdd(A, B):    dA = V' B^T              dB = A^T V'

The Functions stand outside the registered operations: that is the cheapest arrangement of a call
(docs/performance.md), and none is entered when no gradient is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jitsparse import ops

__all__ = ["dds", "dsd", "sdd"]

_RELU = 1


def dsd(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> Tensor:
    """As ``jitsparse::dsd``, differentiable in values and dense."""
    if (values.requires_grad or dense.requires_grad) and torch.is_grad_enabled():
        return _dsd_with_gradient(values, index, dense, rows, cols, transposed)
    return ops.dsd(values, index, dense, rows, cols, transposed)


def dds(
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
) -> Tensor:
    """As ``jitsparse::dds``, differentiable in dense, values and bias.

    Where a gradient is recorded the activation is none or relu: the others need the product.
    """
    if (
        dense.requires_grad or values.requires_grad or (bias is not None and bias.requires_grad)
    ) and torch.is_grad_enabled():
        return _dds_with_gradient(dense, values, index, rows, cols, transposed, bias, activation)
    return ops.dds(dense, values, index, rows, cols, transposed, bias, activation)


def sdd(
    left: Tensor,
    right: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    nnz: int,
    block_rows: int,
    block_cols: int,
) -> Tensor:
    """As ``jitsparse::sdd``, differentiable in left and right."""
    if (left.requires_grad or right.requires_grad) and torch.is_grad_enabled():
        return _sdd_with_gradient(left, right, index, rows, cols, nnz, block_rows, block_cols)
    return ops.sdd(left, right, index, rows, cols, nnz, block_rows, block_cols)


class _Dsd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        index: Tensor,
        dense: Tensor,
        rows: int,
        cols: int,
        transposed: bool,
    ) -> Tensor:
        ctx.save_for_backward(values, index, dense)
        ctx.sizes = (rows, cols, transposed)
        return ops.dsd(values, index, dense, rows, cols, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, index, dense = ctx.saved_tensors
        rows, cols, transposed = ctx.sizes
        needs_values, _, needs_dense, *_ = ctx.needs_input_grad
        grad_values = grad_dense = None
        if needs_values:
            left, right = (dense, grad.mT) if transposed else (grad, dense.mT)
            grad_values = sdd(left, right, index, rows, cols, *values.shape)
        if needs_dense:
            grad_dense = dsd(values, index, grad, rows, cols, not transposed)
        return grad_values, None, grad_dense, None, None, None


class _Dds(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        dense: Tensor,
        values: Tensor,
        index: Tensor,
        rows: int,
        cols: int,
        transposed: bool,
        bias: Tensor | None,
        activation: int,
    ) -> Tensor:
        out = ops.dds(dense, values, index, rows, cols, transposed, bias, activation)
        if activation == _RELU:
            ctx.save_for_backward(dense, values, index, out)
        else:
            ctx.save_for_backward(dense, values, index)
        ctx.sizes = (rows, cols, transposed, activation)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dense, values, index, *out = ctx.saved_tensors
        rows, cols, transposed, activation = ctx.sizes
        needs_dense, needs_values, _, _, _, _, needs_bias, _ = ctx.needs_input_grad
        if activation == _RELU:
            # relu's gradient is known from its output; its second derivative is zero.
            grad = torch.ops.aten.threshold_backward(grad, out[0], 0)
        grad_dense = grad_values = grad_bias = None
        if needs_dense:
            grad_dense = dds(grad, values, index, rows, cols, not transposed, None, 0)
        if needs_values:
            left, right = (grad.mT, dense) if transposed else (dense.mT, grad)
            grad_values = sdd(left, right, index, rows, cols, *values.shape)
        if needs_bias:
            grad_bias = grad.sum(dim=tuple(range(grad.dim() - 1)))
        return grad_dense, grad_values, None, None, None, None, grad_bias, None


class _Sdd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        index: Tensor,
        rows: int,
        cols: int,
        nnz: int,
        block_rows: int,
        block_cols: int,
    ) -> Tensor:
        ctx.save_for_backward(left, right, index)
        ctx.sizes = (rows, cols)
        return ops.sdd(left, right, index, rows, cols, nnz, block_rows, block_cols)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right, index = ctx.saved_tensors
        rows, cols = ctx.sizes
        grad = grad.contiguous()
        grad_left = grad_right = None
        if ctx.needs_input_grad[0]:
            grad_left = dsd(grad, index, right.mT, rows, cols, False)
        if ctx.needs_input_grad[1]:
            grad_right = dds(left.mT, grad, index, rows, cols, False, None, 0)
        return grad_left, grad_right, *(None,) * 6


def _applier(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """``function.apply`` without what it does for functorch's transforms, 2 us of each call."""
    eager: Callable[..., Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def apply(*args: Any) -> Tensor:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return function.apply(*args)  # type: ignore[no-any-return]
        return eager(*args)

    return apply


_dsd_with_gradient = _applier(_Dsd)
_dds_with_gradient = _applier(_Dds)
_sdd_with_gradient = _applier(_Sdd)
