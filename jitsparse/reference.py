"""The operations in plain torch: what the kernels must compute, and the oracle of their tests.

The functions take what the registered operations take (:mod:`jitsparse.ops`) and are differentiable
by torch itself. They work on the dense matrix, so they cost a dense product whatever the density:
correct everywhere, but slow. Where no C++ compiler is installed, the CPU operations run on them,
after one warning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitsparse.blocks import extract_blocks
from jitsparse.layout import IndexLayout, div_up

__all__ = ["ACTIVATIONS", "activate", "coordinates", "dds", "dsd", "expand", "sdd"]

ACTIVATIONS: tuple[str | None, ...] = (None, "relu", "gelu", "silu")
"""Activations of a fused epilogue; the position is the code that operations and kernels take."""


def dsd(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> Tensor:
    """``op(S) @ dense``: ``(*batch, k, n)`` to ``(*batch, m, n)``, contiguous."""
    matrix = _matrix(values, index, rows, cols)
    product = torch.matmul(matrix.mT if transposed else matrix, _wide(dense))
    return product.to(values.dtype).contiguous()


def dds(
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None = None,
    activation: int = 0,
) -> Tensor:
    """``activation(dense @ op(S) + bias)``: ``(*batch, m, k)`` to contiguous ``(*batch, m, n)``."""
    matrix = _matrix(values, index, rows, cols)
    product = torch.matmul(_wide(dense), matrix.mT if transposed else matrix)
    if bias is not None:
        product = product + bias
    return activate(product, activation).to(values.dtype).contiguous()


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
    """Blocks of ``left @ right`` that the pattern stores, summed over the batch.

    ``(*batch, rows, k)`` and ``(*batch, k, cols)`` to ``(nnz, block_rows, block_cols)``.
    """
    # The sum over the batch is part of the product: a row of (batch, k) times a column of it.
    terms = left.shape[:-2].numel() * left.shape[-1]
    flat_left = _wide(left).movedim(-2, 0).reshape(rows, terms)
    flat_right = _wide(right).reshape(terms, cols)
    product = (flat_left @ flat_right).to(left.dtype)
    row, col = coordinates(index, rows, cols, nnz, (block_rows, block_cols))
    return extract_blocks(product, row, col, (block_rows, block_cols))


def activate(x: Tensor, activation: int) -> Tensor:
    """The activation with this code (:data:`ACTIVATIONS`) of ``x``; gelu is the exact one."""
    name = ACTIVATIONS[activation]
    if name is None:
        return x
    if name == "relu":
        return torch.relu(x)
    if name == "gelu":
        return torch.nn.functional.gelu(x)
    return torch.nn.functional.silu(x)


def expand(values: Tensor, row: Tensor, col: Tensor, shape: tuple[int, int]) -> Tensor:
    """Dense matrix of ``shape`` from blocks at block coordinates; differentiable.

    Args:
        values: ``(nnz, block_rows, block_cols)``.
        row, col: ``(nnz,)`` block coordinates.
        shape: ``(rows, cols)``; elements of blocks past it are dropped.
    """
    block_rows, block_cols = values.shape[1:]
    grid = div_up(shape[0], block_rows), div_up(shape[1], block_cols)
    tiles = values.new_zeros(*grid, block_rows, block_cols)
    tiles = tiles.index_put((row.long(), col.long()), values)
    padded = tiles.transpose(1, 2).reshape(grid[0] * block_rows, grid[1] * block_cols)
    return padded[: shape[0], : shape[1]].contiguous()


def _wide(tensor: Tensor) -> Tensor:
    """``tensor`` in accumulation precision: at least float32. Only results are rounded to less."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _matrix(values: Tensor, index: Tensor, rows: int, cols: int) -> Tensor:
    """The matrix as stored, dense, in accumulation precision."""
    nnz, block_rows, block_cols = values.shape
    row, col = coordinates(index, rows, cols, nnz, (block_rows, block_cols))
    return expand(_wide(values), row, col, (rows, cols))


def coordinates(
    index: Tensor, rows: int, cols: int, nnz: int, block: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Block row and block column of each block in a packed index, each ``(nnz,)``."""
    layout = IndexLayout(div_up(rows, block[0]), div_up(cols, block[1]), nnz, block, panels=False)
    return layout.view(index, "row_indices"), layout.view(index, "col_indices")
