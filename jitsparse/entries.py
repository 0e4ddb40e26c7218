"""Gathering single elements of a sparse matrix into blocks, without a dense matrix in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jitsparse.checks import (
    as_block_size,
    as_shape,
    check_dtype,
    check_places,
    check_range,
    grid_of,
    is_dense,
    kind_of,
)
from jitsparse.errors import ArgumentError
from jitsparse.pattern import Pattern, compressed
from jitsparse.transforms import outside_of_transforms

__all__ = ["from_coo", "from_sparse"]

_SPARSE = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


def from_coo(
    rows: Tensor,
    cols: Tensor,
    values: Tensor,
    shape: Sequence[int],
    block_size: int | Sequence[int],
) -> tuple[Tensor, Pattern]:
    """Values and pattern of :meth:`BlockSparse.from_coo <jitsparse.BlockSparse.from_coo>`."""
    size, block = as_shape(shape), as_block_size(block_size)
    check_range(*grid_of(size, block), 0)
    check_places({"rows": rows, "cols": cols}, size, "element", "BlockSparse.from_coo")
    _check_values(values, rows)
    with outside_of_transforms(rows, cols):
        pattern, places = _blocks_of(rows.long(), cols.long(), size, block)
    return _sums(values, places, pattern.values_shape), pattern


def from_sparse(tensor: Tensor, block_size: int | Sequence[int]) -> tuple[Tensor, Pattern]:
    """Values and pattern of :meth:`BlockSparse.from_sparse <jitsparse.BlockSparse.from_sparse>`."""
    if not isinstance(tensor, Tensor) or tensor.layout not in _SPARSE:
        raise ArgumentError(
            f"from_sparse takes a sparse torch tensor, got {kind_of(tensor)}; from_dense takes "
            "dense ones, from_scipy SciPy's matrices"
        )
    if tensor.dim() != 2 or tensor.sparse_dim() != 2:
        raise ArgumentError(
            f"from_sparse takes a matrix of two sparse dimensions, got shape {tuple(tensor.shape)} "
            f"with {tensor.sparse_dim()} of them; take the matrices of a batch one by one"
        )
    check_dtype(tensor.dtype)
    at_least = torch.promote_types(tensor.dtype, torch.float32)
    entries = tensor.to_sparse_coo().to(at_least).coalesce()
    rows, cols = entries.indices()
    values = entries.values().to(tensor.dtype)
    return from_coo(rows, cols, values, tuple(tensor.shape), block_size)


def _check_values(values: Tensor, rows: Tensor) -> None:
    if not is_dense(values):
        raise ArgumentError(f"values is a tensor, got {kind_of(values)}")
    check_dtype(values.dtype)
    if values.shape != rows.shape or values.device != rows.device:
        raise ArgumentError(
            f"values has one entry for each of rows and cols, on their device: shape "
            f"{tuple(rows.shape)} on {rows.device}; got {tuple(values.shape)} on {values.device}"
        )


def _blocks_of(
    row: Tensor, col: Tensor, shape: tuple[int, int], block: tuple[int, int]
) -> tuple[Pattern, Tensor]:
    """The pattern of all blocks that contain an element, and where each element is in its values.

    Args:
        row, col: ``(n,)`` int64, inside the matrix.

    Returns:
        The pattern, and ``(n,)`` int64 positions in its flattened values.
    """
    (block_rows, block_cols), grid = block, grid_of(shape, block)
    position = row // block_rows * grid[1] + col // block_cols
    positions, nth = torch.unique(position, return_inverse=True)
    check_range(*grid, positions.numel())
    pattern = Pattern._trusted(shape, block, *compressed(positions, grid))
    return pattern, (nth * block_rows + row % block_rows) * block_cols + col % block_cols


def _sums(values: Tensor, places: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Zeros of ``shape`` plus the sum of the values at each place; differentiable.

    Sums are computed in float32 or wider, always in the same order, and rounded once. On a CPU
    index_add_ has a fixed order (one thread), where index_put_ adds float32 from several threads;
    on a GPU index_put_ does (it sorts), where index_add_ is atomic.
    torch.use_deterministic_algorithms documents both.
    """
    at_least = torch.promote_types(values.dtype, torch.float32)
    terms = values.to(at_least)
    sums = terms.new_zeros(shape[0] * shape[1] * shape[2])
    if values.is_cuda:
        sums.index_put_((places,), terms, accumulate=True)
    else:
        sums.index_add_(0, places, terms)
    return sums.to(values.dtype).view(shape)
