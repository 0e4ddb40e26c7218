"""What the gradients of the operations are.

    C = op(S) B:      dB = op(S)^T dC          dS = sdd(dC, B^T), or sdd(B, dC^T) when op transposes
    C = A op(S):      dA = dC op(S)^T          dS = sdd(A^T, dC), or sdd(dC^T, A) when op transposes
    V = sdd(A, B):    dA = V' B^T              dB = A^T V'

For each operation, what the forward pass saves, and what the backward pass computes of it. ``ctx``
is that of a ``torch.autograd.Function`` or of a registered operation. A backward pass computes with
the operations themselves, which are passed to it, so it is differentiable, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from jitsparse import reference
from jitsparse.blocks import clear_past
from jitsparse.errors import ArgumentError

__all__ = [
    "RELU",
    "Products",
    "gradients_of_dds",
    "gradients_of_dsd",
    "gradients_of_sdd",
    "save_dds",
    "save_dsd",
    "save_sdd",
    "within_matrix",
]

Products = Callable[..., tuple[Callable[..., Tensor], ...]]
"""Given the gradient and what was saved, dsd, dds and sdd for a backward pass."""

RELU = 1
"""The activation whose gradient needs no product."""

_BACKWARD: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    2: torch.ops.aten.gelu_backward,
    3: torch.ops.aten.silu_backward,
}
"""Backward functions of activations whose gradients need the product."""


def _written_out(grad: Tensor) -> Tensor:
    """A gradient, contiguous if it is expanded, as that of a sum is.

    Each product would copy it, and not to the same layout: a transposed copy takes another kernel
    than the one that a warm-up has compiled for gradients with memory of their own.
    """
    expanded = not torch.compiler.is_compiling() and 0 in grad.stride()
    return grad.contiguous() if expanded else grad


def _require_unchanged(ctx: Any, grad: Tensor, index: Tensor, *saved: Tensor | None) -> Tensor:
    """Check saved tensors before a kernel reads them.

    The data of a parameter may have been replaced since the forward pass, and saved-tensor hooks
    may return anything.

    Returns:
        The index, contiguous whatever strides a hook gave it.

    Raises:
        ArgumentError: a dtype, shape or device is not that of the forward pass.
    """
    if torch.compiler.is_compiling():
        return index
    dtype, size, *shapes = ctx.seen
    operands = [
        (each, dtype, shape) for each, shape in zip(saved, shapes, strict=True) if each is not None
    ]
    for tensor, was, shape in (*operands, (index, torch.int32, size)):
        if tensor.dtype is not was or tensor.shape != shape or tensor.device != grad.device:
            raise ArgumentError(
                f"the backward pass of a product finds {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} on {tensor.device} in the place of {was} of shape "
                f"{tuple(shape)} on {grad.device}, which the forward pass saved: the data of an "
                "operand was replaced since (Module.to, .data), or a hook for saved tensors did "
                "not give it back as it was"
            )
    return index.contiguous()


def within_matrix(values: Tensor, index: Tensor, rows: int, cols: int) -> Tensor:
    """A gradient or tangent of values, zeroed past the edge of the matrix as kernels assume.

    Derivatives at the zeros there may be infinite, like that of a square root.
    """
    nnz, *block = values.shape
    if rows % block[0] == 0 and cols % block[1] == 0:
        return values
    row, col = reference.coordinates(index, rows, cols, nnz, (block[0], block[1]))
    return clear_past(values, row, col, (rows, cols))


def save_dsd(
    ctx: Any,
    of_values: bool,
    of_dense: bool,
    values: Tensor,
    index: Tensor,
    dense: Tensor,
    sizes: Sequence[int],
) -> None:
    """Save what the gradients of a dsd need, and the dtype and shapes that they have to find.

    Args:
        of_values, of_dense: whether there will be gradients of these.
        sizes: rows, cols and transposed.
    """
    ctx.save_for_backward(values if of_dense else None, index, dense if of_values else None)
    ctx.sizes = sizes
    ctx.seen = dense.dtype, index.shape, values.shape, dense.shape


def gradients_of_dsd(
    products: Products, ctx: Any, grad: Tensor, of_values: bool, of_dense: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of values and dense that are asked for."""
    values, index, dense = ctx.saved_tensors
    index = _require_unchanged(ctx, grad, index, values, dense)
    rows, cols, transposed = ctx.sizes
    grad_values = grad_dense = None
    _dsd, _, _sdd = products(grad, values, dense)
    grad = _written_out(grad)
    if of_values:
        left, right = (dense, grad.mT) if transposed else (grad, dense.mT)
        *_, blocks, _ = ctx.seen
        grad_values = _sdd(left, right, index, rows, cols, *blocks)
    if of_dense:
        grad_dense = _dsd(values, index, grad, rows, cols, not transposed)
    return grad_values, grad_dense


def save_dds(
    ctx: Any,
    of_dense: bool,
    of_values: bool,
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    sizes: Sequence[int],
    bias: Tensor | None,
    output: Tensor,
) -> None:
    """Like that of a dsd.

    Args:
        of_dense, of_values: whether there will be gradients of these.
        sizes: rows, cols, transposed and activation.
    """
    activation = sizes[3]
    recompute = activation > RELU  # the gradient of the activation needs the product
    ctx.save_for_backward(
        dense if of_values or recompute else None,
        values if of_dense or recompute else None,
        index,
        output if activation == RELU else None,
        bias if recompute else None,
    )
    ctx.sizes = sizes
    of_bias = None if bias is None else bias.shape
    ctx.seen = dense.dtype, index.shape, dense.shape, values.shape, of_bias, output.shape


def gradients_of_dds(
    products: Products, ctx: Any, grad: Tensor, of_dense: bool, of_values: bool, of_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of dense, values and bias that are asked for."""
    dense, values, index, out, bias = ctx.saved_tensors
    index = _require_unchanged(ctx, grad, index, dense, values, bias, out)
    rows, cols, transposed, activation = ctx.sizes
    _, _dds, _sdd = products(grad, dense, values, bias)
    grad = _written_out(grad)
    if activation == RELU:
        # relu's gradient is known from its output; its second derivative is zero.
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    elif activation:
        product = _dds(dense, values, index, rows, cols, transposed, bias, 0)
        grad = _BACKWARD[activation](grad, product)
    grad_dense = grad_values = grad_bias = None
    if of_dense:
        grad_dense = _dds(grad, values, index, rows, cols, not transposed, None, 0)
    if of_values:
        left, right = (grad.mT, dense) if transposed else (dense.mT, grad)
        *_, blocks, _, _ = ctx.seen
        grad_values = _sdd(left, right, index, rows, cols, *blocks)
    if of_bias:
        grad_bias = grad.sum(dim=tuple(range(grad.dim() - 1)))
    return grad_dense, grad_values, grad_bias


def save_sdd(
    ctx: Any,
    of_left: bool,
    of_right: bool,
    left: Tensor,
    right: Tensor,
    index: Tensor,
    sizes: Sequence[int],
) -> None:
    """Like that of a dsd.

    Args:
        of_left, of_right: whether there will be gradients of these.
        sizes: rows, cols, nnz, block_rows and block_cols.
    """
    ctx.save_for_backward(left if of_right else None, right if of_left else None, index)
    ctx.sizes = sizes
    ctx.seen = left.dtype, index.shape, left.shape, right.shape


def gradients_of_sdd(
    products: Products, ctx: Any, grad: Tensor, of_left: bool, of_right: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of left and right that are asked for."""
    left, right, index = ctx.saved_tensors
    index = _require_unchanged(ctx, grad, index, left, right)
    rows, cols, *_ = ctx.sizes
    grad = within_matrix(grad.contiguous(), index, rows, cols)
    grad_left = grad_right = None
    _dsd, _dds, _ = products(grad, left, right)
    if of_left:
        grad_left = _dsd(grad, index, right.mT, rows, cols, False)
    if of_right:
        grad_right = _dds(left.mT, grad, index, rows, cols, False, None, 0)
    return grad_left, grad_right
