"""The operations that users call, with the checks of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from jitsparse import autograd
from jitsparse.checks import DTYPES, is_dense, kind_of
from jitsparse.errors import ArgumentError
from jitsparse.ops import cast_for_autocast
from jitsparse.pattern import Pattern
from jitsparse.reference import ACTIVATIONS, activate
from jitsparse.sparse import BlockSparse

__all__ = ["dds", "dsd", "linear", "sdd"]

# Asked first, since it takes 0.16 us, and the question about a device 0.38.
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


def dsd(a: BlockSparse, b: Tensor) -> Tensor:
    """Product of a block-sparse and a dense matrix.

    Args:
        a: ``(m, k)``; may be a transposed view ``s.T``.
        b: ``(*batch, k, n)``, or a vector ``(k,)``; any strides, ``x.mT`` is not copied.

    Both must have the same dtype (float64, float32, float16 or bfloat16) and device. Under autocast
    they are cast to its dtype.

    Returns:
        ``(*batch, m, n)`` or ``(m,)``. Twice differentiable in ``a.values`` and ``b``.

    Raises:
        ArgumentError: if the operands do not fit each other.

    Example:
        >>> import torch, jitsparse as js
        >>> a = js.random((64, 32), 16, 0.5)
        >>> js.dsd(a, torch.randn(7, 32, 3)).shape
        torch.Size([7, 64, 3])
    """
    if not isinstance(a, BlockSparse) or not is_dense(b):
        raise _wrong_types("dsd(a, b)", "a BlockSparse and a Tensor", a, b)
    shape = b.shape
    if len(shape) < 2:
        if not shape:
            raise ArgumentError("dsd(a, b): b must be a vector or a matrix, got a scalar")
        if shape[0] != a.shape[1]:
            raise _wrong_rows(a, shape)
        return dsd(a, b.unsqueeze(-1)).squeeze(-1)
    values = a.values
    if _any_autocast() and torch.is_autocast_enabled("cuda" if b.is_cuda else "cpu"):
        values, b = cast_for_autocast(values, b)
    pattern = a.pattern
    rows, cols = pattern.shape
    transposed = a.transposed
    if shape[-2] != (rows if transposed else cols):
        raise _wrong_rows(a, shape)
    device = b.device
    if values.dtype is not b.dtype or values.device != device:
        raise _mismatch("dsd(a, b)", a=values, b=b)
    if values.shape != pattern.values_shape:
        raise _resized("dsd(a, b)", "a", a)
    index = pattern.index
    if index.device != device:
        raise _mismatch("dsd(a, b)", b=b, pattern=index)
    return autograd.dsd(values, index, b, rows, cols, transposed)


def dds(a: Tensor, b: BlockSparse) -> Tensor:
    """Product of a dense and a block-sparse matrix.

    Args:
        a: ``(*batch, m, k)``, or a vector ``(k,)``; any strides, ``x.mT`` is not copied.
        b: ``(k, n)``; may be a transposed view ``s.T``.

    Both must have the same dtype (float64, float32, float16 or bfloat16) and device. Under autocast
    they are cast to its dtype.

    Returns:
        ``(*batch, m, n)`` or ``(n,)``. Twice differentiable in ``a`` and ``b.values``.

    Raises:
        ArgumentError: if the operands do not fit each other.

    Example:
        >>> import torch, jitsparse as js
        >>> b = js.random((32, 64), 16, 0.5)
        >>> js.dds(torch.randn(7, 3, 32), b).shape
        torch.Size([7, 3, 64])
    """
    if not is_dense(a) or not isinstance(b, BlockSparse):
        raise _wrong_types("dds(a, b)", "a Tensor and a BlockSparse", a, b)
    return _dds(_DDS, a, b, b.transposed, None, 0)


def linear(
    x: Tensor,
    weight: BlockSparse,
    bias: Tensor | None = None,
    activation: Literal["relu", "gelu", "silu"] | None = None,
) -> Tensor:
    """``activation(x @ weight.T + bias)`` in one kernel.

    Args:
        x: ``(*batch, in)``, any strides.
        weight: ``(out, in)``.
        bias: ``(out,)`` or None.
        activation: None, ``"relu"``, ``"gelu"`` (the exact one) or ``"silu"``.

    All tensors must have the same dtype (float64, float32, float16 or bfloat16) and device. Under
    autocast they are cast to its dtype. Where gradients are recorded, gelu and silu run as torch
    operations on the product, which their gradients need.

    Returns:
        ``(*batch, out)``. Twice differentiable in x, ``weight.values`` and bias.

    Raises:
        ArgumentError: if the operands do not fit each other, or the activation is unknown.

    Example:
        >>> import torch, jitsparse as js
        >>> weight = js.random((64, 32), 16, 0.5)
        >>> js.linear(torch.randn(7, 32), weight, torch.zeros(64), "relu").shape
        torch.Size([7, 64])
    """
    if not (activation is None or isinstance(activation, str)) or activation not in ACTIVATIONS:
        raise ArgumentError(
            f"linear(...): activation {activation!r} is not one of None, 'relu', 'gelu', 'silu'"
        )
    if not is_dense(x) or not isinstance(weight, BlockSparse):
        raise _wrong_types("linear(x, weight)", "a Tensor and a BlockSparse", x, weight)
    code = ACTIVATIONS.index(activation)
    return _dds(_LINEAR, x, weight, not weight.transposed, bias, code)


def sdd(a: Tensor, b: Tensor, pattern: Pattern) -> BlockSparse:
    """The blocks of a dense product that a pattern stores.

    Args:
        a: ``(*batch, m, k)``; any strides, ``x.mT`` is not copied.
        b: ``(*batch, k, n)``; batch dimensions broadcast as in ``torch.matmul``.
        pattern: of shape ``(m, n)``.

    A pattern has one set of values, so the product is **summed over the batch**: exactly the
    gradient that a batched :func:`dsd` or :func:`dds` has in its values.

    Both must have the same dtype (float64, float32, float16 or bfloat16) and device. Under autocast
    they are cast to its dtype.

    Returns:
        The :class:`BlockSparse` matrix on ``pattern``. Twice differentiable in a and b.

    Raises:
        ArgumentError: if the operands do not fit each other or the pattern.

    Example:
        >>> import torch, jitsparse as js
        >>> pattern = js.Pattern.random((64, 32), 16, 0.5)
        >>> js.sdd(torch.randn(64, 5), torch.randn(5, 32), pattern).shape
        (64, 32)
    """
    if not is_dense(a) or not is_dense(b) or not isinstance(pattern, Pattern):
        raise _wrong_types("sdd(a, b, pattern)", "two Tensors and a Pattern", a, b, pattern)
    if _any_autocast() and torch.is_autocast_enabled("cuda" if a.is_cuda else "cpu"):
        a, b = cast_for_autocast(a, b)
    rows, cols = pattern.shape
    a_shape, b_shape = a.shape, b.shape
    if len(a_shape) < 2 or len(b_shape) < 2 or a_shape[-1] != b_shape[-2]:
        raise ArgumentError(
            f"sdd(a, b, pattern): a of shape {tuple(a_shape)} and b of shape {tuple(b_shape)} have "
            f"no product; they are (*batch, m, k) and (*batch, k, n)"
        )
    if a_shape[-2] != rows or b_shape[-1] != cols:
        raise ArgumentError(
            f"sdd(a, b, pattern): the product has shape {(a_shape[-2], b_shape[-1])} and the "
            f"pattern {pattern.shape}"
        )
    dtype, device = a.dtype, a.device
    if dtype is not b.dtype or dtype not in DTYPES or device != b.device:
        raise _mismatch("sdd(a, b, pattern)", a=a, b=b)
    index = pattern.index
    if index.device != device:
        raise _mismatch("sdd(a, b, pattern)", a=a, pattern=index)
    if (len(a_shape) > 2 or len(b_shape) > 2) and a_shape[:-2] != b_shape[:-2]:
        a, b = _broadcast_batch(a, b)
    values = autograd.sdd(a, b, index, rows, cols, *pattern.values_shape)
    return BlockSparse._trusted(values, pattern)


_DDS, _LINEAR = ("dds", "a", "b"), ("linear", "x", "weight")


def _dds(
    names: tuple[str, str, str],
    a: Tensor,
    b: BlockSparse,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
) -> Tensor:
    """``activation(a @ op(b) + bias)``, where ``transposed`` says how b's values are read.

    Args:
        names: names of the operation and its two operands, for errors.
    """
    if bias is not None and not is_dense(bias):
        raise _wrong_types(_call(names), "a Tensor as bias", bias)
    shape = a.shape
    if not shape:
        raise ArgumentError(f"{_call(names)}: {names[1]} must have columns, got a scalar")
    pattern = b.pattern
    rows, cols = pattern.shape
    inner, outer = (cols, rows) if transposed else (rows, cols)
    if shape[-1] != inner:
        raise ArgumentError(
            f"{_call(names)}: {names[2]} has shape {b.shape}, so {names[1]} needs {inner} columns; "
            f"got {names[1]} of shape {tuple(shape)}"
        )
    if len(shape) < 2:
        return _dds(names, a.unsqueeze(0), b, transposed, bias, activation).squeeze(0)
    values = b.values
    if _any_autocast() and torch.is_autocast_enabled("cuda" if a.is_cuda else "cpu"):
        values, a = cast_for_autocast(values, a)
        if bias is not None:
            bias = cast_for_autocast(bias)[0]
    dtype, device = a.dtype, a.device
    if values.dtype is not dtype or values.device != device:
        raise _mismatch(_call(names), **{names[1]: a, names[2]: values})
    if values.shape != pattern.values_shape:
        raise _resized(_call(names), names[2], b)
    index = pattern.index
    if index.device != device:
        raise _mismatch(_call(names), **{names[1]: a, "pattern": index})
    if bias is not None:
        if bias.shape != (outer,):
            raise ArgumentError(
                f"{_call(names)}: the bias needs shape {(outer,)}, got {tuple(bias.shape)}"
            )
        if bias.dtype is not dtype or bias.device != device:
            raise _mismatch(_call(names), **{names[1]: a, "bias": bias})
    if activation > 1:
        tensors = (a, values) if bias is None else (a, values, bias)
        recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        # torch.jit.trace records with gradients, then checks against a trace without.
        if recorded or autograd.transformed() or autograd.traced():
            product = autograd.dds(a, values, index, rows, cols, transposed, bias, 0)
            return activate(product, activation)
    return autograd.dds(a, values, index, rows, cols, transposed, bias, activation)


def _wrong_rows(a: BlockSparse, shape: torch.Size) -> ArgumentError:
    return ArgumentError(
        f"dsd(a, b): a has shape {a.shape}, so b needs {a.shape[1]} rows; got b of shape "
        f"{tuple(shape)}"
    )


def _resized(call: str, name: str, sparse: BlockSparse) -> ArgumentError:
    """The error for values that no longer fit the pattern, since ``values.data`` was set."""
    pattern = sparse.pattern
    return ArgumentError(
        f"{call}: the pattern of {name} has {pattern.nnz_blocks} blocks of "
        f"{pattern.block_size[0]} x {pattern.block_size[1]}, but its values have the shape "
        f"{tuple(sparse.values.shape)} by now; for other blocks build another BlockSparse with "
        "another pattern"
    )


def _call(names: tuple[str, str, str]) -> str:
    """The call of an operation, as the user wrote it."""
    op, dense, sparse = names
    return f"{op}({dense}, {sparse})"


def _broadcast_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ArgumentError(
            f"sdd(a, b, pattern): batch dimensions {tuple(a.shape[:-2])} and "
            f"{tuple(b.shape[:-2])} do not broadcast"
        ) from None
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _wrong_types(asked: str, wanted: str, *got: object) -> ArgumentError:
    types = ", ".join(kind_of(thing) for thing in got)
    return ArgumentError(f"{asked} takes {wanted}, got {types}{_remedy(*got)}")


def _remedy(*got: object) -> str:
    """Advice on a bias, two factors or the three operands of an sdd that have the wrong types."""
    for thing in got:
        if isinstance(thing, Tensor) and thing.is_nested:
            return "; pad the nested tensor, x.to_padded_tensor(0.0), or pass x.values() if jagged"
        if isinstance(thing, Tensor) and thing.is_mkldnn:
            return "; convert the mkldnn tensor, x.to_dense()"
    if len(got) == 3:
        return _remedy_of_sdd(*got)
    if len(got) != 2 or not all(isinstance(thing, (Tensor, BlockSparse)) for thing in got):
        return ""
    if not any(is_dense(thing) for thing in got):
        return "; make one of the sparse operands dense, with to_dense()"
    if not any(isinstance(thing, BlockSparse) for thing in got):
        return "; BlockSparse.from_dense and from_sparse make a BlockSparse of a Tensor"
    return "; the sparse operand is the first one of dsd, and the second one of dds and linear"


def _remedy_of_sdd(a: object, b: object, pattern: object) -> str:
    """Advice on operands of an sdd that are sparse, and on what is not yet a Pattern."""
    if not all(is_dense(thing) for thing in (a, b) if isinstance(thing, (Tensor, BlockSparse))):
        return "; use dsd or dds for a sparse operand, or its to_dense()"
    if isinstance(pattern, BlockSparse):
        return f"; pass its pattern, s.pattern{'.T' if pattern.transposed else ''}"
    if isinstance(pattern, Tensor):
        return "; Pattern.from_mask(mask, block_size) makes a Pattern of a bool mask of blocks"
    return ""


def _mismatch(asked: str, **tensors: Tensor) -> ArgumentError:
    """The error for operands that disagree in device or dtype."""
    devices = {name: str(tensor.device) for name, tensor in tensors.items()}
    if len(set(devices.values())) > 1:
        where = " and ".join(f"{name} on {device}" for name, device in devices.items())
        return ArgumentError(f"{asked}: {where}; move one of them with .to()")
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    what = " and ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
    if len(set(dtypes.values())) > 1 and all(dtype in DTYPES for dtype in dtypes.values()):
        return ArgumentError(f"{asked}: {what}; convert one of them with .to()")
    return ArgumentError(f"{asked}: {what}; supported are float64, float32, float16 and bfloat16")
