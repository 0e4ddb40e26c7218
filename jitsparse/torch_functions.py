"""The functions of torch that take a block-sparse matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import jitsparse  # for jitsparse.functional, which imports the module of the class
from jitsparse.checks import kind_of
from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    from jitsparse.sparse import BlockSparse

__all__ = ["call", "instead"]


def call(
    func: Callable[..., Any],
    types: Sequence[type],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """What ``BlockSparse.__torch_function__`` returns.

    Raises:
        TypeError: if the function takes no block-sparse matrix, or no such keyword with one.
        ArgumentError: if the operands do not fit each other.
    """
    ours = _FUNCTIONS.get(func)
    if func in _OPERATOR and torch.compiler.is_dynamo_compiling():
        return NotImplemented
    if ours is not None:
        unknown = kwargs.keys() - _KEYWORDS
        if unknown:
            raise TypeError(
                f"{torch.overrides.resolve_name(func)} takes no {', '.join(sorted(unknown))} "
                "beside a BlockSparse"
            )
        return ours(*args, **kwargs)
    plain = (Tensor, torch.nn.Parameter)
    if not all(each in plain or issubclass(each, jitsparse.BlockSparse) for each in types):
        return NotImplemented
    raise TypeError(
        f"{torch.overrides.resolve_name(func) or func} takes no BlockSparse"
        f"{instead(getattr(func, '__name__', ''))}. torch.matmul, mm, mv and "
        "torch.nn.functional.linear do; what leaves zeros zero can be done to the values, "
        "a.with_values(f(a.values)), anything else to a.to_dense()"
    )


def instead(name: str) -> str:
    """For an error: what a matrix has in place of a Tensor's function or attribute, if anything."""
    return f"; use {_EQUIVALENTS[name]}" if name in _EQUIVALENTS else ""


def _matmul(input: BlockSparse | Tensor, other: BlockSparse | Tensor) -> Tensor:
    functional = jitsparse.functional
    if isinstance(input, jitsparse.BlockSparse):
        return functional.dsd(input, other)  # type: ignore[arg-type]  # which dsd checks
    return functional.dds(input, other)  # type: ignore[arg-type]


def _mm(input: BlockSparse | Tensor, mat2: BlockSparse | Tensor) -> Tensor:
    _check_axes("mm", (input, 2), (mat2, 2))
    return _matmul(input, mat2)


def _sparse_mm(sparse: BlockSparse | Tensor, dense: BlockSparse | Tensor) -> Tensor:
    _check_axes("sparse.mm", (sparse, 2), (dense, 2))
    return _matmul(sparse, dense)


def _mv(input: BlockSparse | Tensor, vec: BlockSparse | Tensor) -> Tensor:
    _check_axes("mv", (input, 2), (vec, 1))
    return _matmul(input, vec)


def _linear(input: Tensor, weight: BlockSparse | Tensor, bias: Tensor | None = None) -> Tensor:
    return jitsparse.functional.linear(input, weight, bias)  # type: ignore[arg-type]


def _check_axes(name: str, *operands: tuple[BlockSparse | Tensor, int]) -> None:
    """Check that each operand has as many axes as torch's function requires."""
    for operand, axes in operands:
        if operand.ndim != axes:
            raise ArgumentError(
                f"torch.{name} takes a {'matrix' if axes == 2 else 'vector'} here, got a "
                f"{kind_of(operand)} of shape {tuple(operand.shape)}; torch.matmul takes vectors "
                "and batches of matrices, too"
            )


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.matmul: _matmul,
    torch.linalg.matmul: _matmul,
    torch.mm: _mm,
    torch.mv: _mv,
    torch.sparse.mm: _sparse_mm,
    Tensor.matmul: _matmul,
    Tensor.mm: _mm,
    Tensor.__matmul__: _matmul,
    torch.nn.functional.linear: _linear,
}

_EQUIVALENTS = {
    "t": "a.T",
    "mT": "a.T",
    "transpose": "a.T",
    "half": "a.to(torch.float16)",
    "bfloat16": "a.to(torch.bfloat16)",
    "float": "a.to(torch.float32)",
    "double": "a.to(torch.float64)",
    "size": "a.shape",
    "dim": "a.ndim",
    "numel": "math.prod(a.shape), or a.values.numel() for what is stored",
    "matmul": "a @ x",
    "mm": "a @ x",
    "mv": "a @ x",
    "add": "a + b, if both are block-sparse",
    "sub": "a - b, if both are block-sparse",
    "mul": "2 * a, if the factor is a number",
    "div": "a / 2, if the divisor is a number",
    "neg": "-a",
}

_KEYWORDS = {"input", "other", "mat2", "vec", "sparse", "dense", "weight", "bias"}

_OPERATOR = (Tensor.matmul, Tensor.__matmul__)
"""What Dynamo (torch 2.13) turns ``@`` into. Where a matrix is the left operand it swaps the two:
``a @ x`` would be ``x @ a``."""
