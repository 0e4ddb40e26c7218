"""Blocks of dense matrices: those at some places, those that hold something, and what lies past the
edge of the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jitsparse.layout import div_up

if TYPE_CHECKING:
    from jitsparse.pattern import Pattern

__all__ = ["blocks_of", "clear_edge", "nonzero_blocks"]


def blocks_of(dense: Tensor, row: Tensor, col: Tensor, block_size: tuple[int, int]) -> Tensor:
    """Blocks of a dense matrix at block coordinates, zero past its edge; differentiable.

    Args:
        dense: ``(rows, cols)``.
        row, col: ``(nnz,)`` block coordinates.
        block_size: ``(block_rows, block_cols)``.

    Returns:
        ``(nnz, block_rows, block_cols)``, contiguous.
    """
    return _tiles(dense, block_size)[row.long(), col.long()].contiguous()


def nonzero_blocks(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """``(R, C)`` bool: blocks that hold a nonzero."""
    return _tiles(dense != 0, block).any(3).any(2)


def _tiles(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """``(R, C, block_rows, block_cols)``: all blocks of a dense matrix, zero past its edge."""
    rows, cols = dense.shape
    grid = div_up(rows, block[0]), div_up(cols, block[1])
    pad = (0, grid[1] * block[1] - cols, 0, grid[0] * block[0] - rows)
    if dense.numel() == 0:  # which torch 2.9 cannot pad
        padded = dense.new_zeros(grid[0] * block[0], grid[1] * block[1])
    else:
        padded = torch.nn.functional.pad(dense, pad) if any(pad) else dense
    return padded.reshape(grid[0], block[0], grid[1], block[1]).transpose(1, 2)


def clear_edge(values: Tensor, pattern: Pattern) -> Tensor:
    """``values`` with zeros past the edge of the matrix."""
    if not pattern.has_edge:
        return values
    (rows, cols), (block_rows, block_cols) = pattern.shape, pattern.block_size
    row = pattern.row_indices.long()[:, None, None] * block_rows
    col = pattern.col_indices.long()[:, None, None] * block_cols
    row = row + torch.arange(block_rows, device=values.device)[:, None]
    col = col + torch.arange(block_cols, device=values.device)
    return values.masked_fill((row >= rows) | (col >= cols), 0)
