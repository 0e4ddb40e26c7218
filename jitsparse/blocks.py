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
    rows, cols = dense.shape
    block_rows, block_cols = block_size
    grid = div_up(rows, block_rows), div_up(cols, block_cols)
    pad = (0, grid[1] * block_cols - cols, 0, grid[0] * block_rows - rows)
    padded = torch.nn.functional.pad(dense, pad) if any(pad) else dense
    tiles = padded.reshape(grid[0], block_rows, grid[1], block_cols).transpose(1, 2)
    return tiles[row.long(), col.long()].contiguous()


def nonzero_blocks(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """``(R, C)`` bool: blocks that hold a nonzero."""
    rows, cols = dense.shape
    pad = (0, -cols % block[1], 0, -rows % block[0])
    hits = torch.nn.functional.pad(dense != 0, pad)
    grid = hits.shape[0] // block[0], hits.shape[1] // block[1]
    return hits.view(grid[0], block[0], grid[1], block[1]).any(3).any(1)


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
