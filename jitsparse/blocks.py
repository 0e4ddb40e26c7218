"""Blocks of matrices: extracted from dense ones, cleared past the edge, moved between patterns."""

from __future__ import annotations

import torch
from torch import Tensor

from jitsparse.errors import ArgumentError
from jitsparse.layout import div_up
from jitsparse.pattern import Pattern

__all__ = [
    "block_positions",
    "clear_edge",
    "clear_past",
    "extract_blocks",
    "frobenius_norms",
    "gather_blocks",
    "nonzero_block_mask",
    "require_like",
]


_AT_A_TIME = 1 << 24
"""Elements whose squares are summed at a time."""


def extract_blocks(dense: Tensor, row: Tensor, col: Tensor, block_size: tuple[int, int]) -> Tensor:
    """Blocks of a dense matrix at block coordinates, zero past its edge; differentiable.

    Args:
        dense: ``(rows, cols)``.
        row, col: ``(nnz,)`` block coordinates.
        block_size: ``(block_rows, block_cols)``.

    Returns:
        ``(nnz, block_rows, block_cols)``, contiguous.
    """
    return _tiles(dense, block_size)[row.long(), col.long()].contiguous()


def nonzero_block_mask(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """``(R, C)`` bool: blocks that hold a nonzero."""
    return _tiles(dense != 0, block).any(3).any(2)


def _tiles(dense: Tensor, block: tuple[int, int]) -> Tensor:
    """``(R, C, block_rows, block_cols)``: all blocks of a dense matrix, zero past its edge."""
    rows, cols = dense.shape
    grid = div_up(rows, block[0]), div_up(cols, block[1])
    pad = (0, grid[1] * block[1] - cols, 0, grid[0] * block[0] - rows)
    if dense.numel() == 0:  # torch 2.9 cannot pad it; use zeros that autograd connects to it
        padded = dense.sum(dtype=dense.dtype).expand(grid[0] * block[0], grid[1] * block[1])
    else:
        padded = torch.nn.functional.pad(dense, pad) if any(pad) else dense
    return padded.reshape(grid[0], block[0], grid[1], block[1]).transpose(1, 2)


def frobenius_norms(values: Tensor) -> Tensor:
    """``(nnz,)``: the norm of each block, in float32 or wider.

    Norms rounded to bfloat16 would be mostly ties. Squares are summed in float64: those of float32
    and bfloat16 leave the range of float32 from 2e19 on and below 1e-23, where norms would be ties
    of infinity or zero.
    """
    at_least = torch.promote_types(values.dtype, torch.float32)
    # A part at a time, since torch converts a copy of what it is given.
    parts = values.split(max(1, _AT_A_TIME // (values.shape[1] * values.shape[2])))
    norms = (torch.linalg.vector_norm(each, dim=(1, 2), dtype=torch.float64) for each in parts)
    return torch.cat([each.to(at_least) for each in norms])


def clear_edge(values: Tensor, pattern: Pattern) -> Tensor:
    """``values`` with zeros past the edge of the matrix."""
    if not pattern.has_edge:
        return values
    return clear_past(values, pattern._rows, pattern.col_indices, pattern.shape)


def clear_past(values: Tensor, row: Tensor, col: Tensor, shape: tuple[int, int]) -> Tensor:
    """``values`` of blocks at block coordinates, with zeros past the edge of a matrix.

    Returned as they are if blocks divide its ``shape``.
    """
    for dim, block, extent in ((-2, row, shape[0]), (-1, col, shape[1])):
        size = values.shape[dim]
        if extent % size:
            inner = torch.arange(size, device=values.device)
            past = block.long()[:, None] * size + inner >= extent
            # Broadcast: a mask of all elements would be written and read back.
            values = values.masked_fill(past.unsqueeze(-3 - dim), 0)
    return values


def require_like(
    call: str,
    pattern: object,
    shape: tuple[int, int],
    block_size: tuple[int, int],
    device: torch.device,
) -> None:
    """Check a pattern that is to replace another.

    Raises:
        ArgumentError: it is not a pattern, or has another shape, block size or device.
    """
    wanted = f"{call} takes a Pattern of shape {shape} in blocks of {block_size} on {device}"
    if not isinstance(pattern, Pattern):
        raise ArgumentError(f"{wanted}, got {type(pattern).__name__}")
    if (pattern.shape, pattern.block_size) != (shape, block_size):
        raise ArgumentError(f"{wanted}, got {pattern!r}")
    if pattern.device != device:
        raise ArgumentError(f"{wanted}, got one on {pattern.device}: move it with .to()")


def block_positions(wanted: Pattern, stored: Pattern) -> Tensor:
    """Where the blocks of one pattern are among those of another. Reads nothing on the host.

    Shape, block size and device must agree.

    Returns:
        ``(nnz,)`` int64: a position in ``stored``, or its number of blocks where it lacks one.
    """
    (rows, cols), nnz = stored.grid, stored.nnz_blocks
    known, asked = stored._positions(), wanted._positions()
    # A sentinel that matches no block, so that every result is a valid position.
    known = torch.nn.functional.pad(known, (0, 1), value=rows * cols)
    place = torch.searchsorted(known, asked)
    return torch.where(known[place] == asked, place, nnz)


def gather_blocks(values: Tensor, places: Tensor) -> Tensor:
    """Rows of ``values`` at :func:`block_positions`, zeros for new blocks; differentiable."""
    nothing = values.new_zeros(1, *values.shape[1:])
    with torch.autocast("cuda" if values.is_cuda else "cpu", enabled=False):  # it makes cat cast
        return torch.cat([values, nothing]).index_select(0, places)
