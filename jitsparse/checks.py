"""Checks of what describes a matrix: shapes, block sizes, dtypes, densities, indices."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jitsparse.errors import ArgumentError, PatternError
from jitsparse.layout import div_up

if TYPE_CHECKING:
    from jitsparse.pattern import Pattern
    from jitsparse.sparse import BlockSparse

__all__ = [
    "BLOCK_SIZES",
    "DTYPES",
    "as_block_size",
    "as_blocks",
    "as_count",
    "as_fraction",
    "as_shape",
    "check_alike",
    "check_coordinates",
    "check_dtype",
    "check_entries",
    "check_form",
    "check_generator",
    "check_indices",
    "check_places",
    "check_range",
    "grid_of",
    "is_dense",
    "is_fake",
    "is_readable",
    "kind_of",
]

BLOCK_SIZES = (8, 16, 32, 64, 128)
"""Legal numbers of rows and of columns of a block."""

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Legal dtypes of values."""

_INT32_MAX = 2**31 - 1


def is_dense(thing: object) -> bool:
    """Whether it is a strided tensor, the only layout that operations take."""
    return isinstance(thing, Tensor) and thing.layout is torch.strided and not thing.is_nested


def is_fake(tensor: Tensor) -> bool:
    """Whether it is one of torch's fake tensors, which stand for others and have no data."""
    return hasattr(tensor, "fake_mode")


def is_readable(tensor: Tensor) -> bool:
    """Whether the host can read a tensor here and now."""
    return (
        type(tensor) is Tensor
        and not tensor.is_meta
        and not torch.compiler.is_compiling()
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def kind_of(thing: object) -> str:
    """Its type for an error message, and the layout of a tensor if that is the reason."""
    name = type(thing).__name__
    if not isinstance(thing, Tensor) or is_dense(thing):
        return name
    return f"{name} ({'nested, ' if thing.is_nested else ''}{thing.layout})"


def as_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return ``shape`` as a pair of ints, or raise PatternError."""
    try:
        rows, cols = (operator.index(extent) for extent in shape)
    except (TypeError, ValueError):
        raise PatternError(f"shape is a pair (rows, cols) of ints, got {shape!r}") from None
    if rows < 0 or cols < 0:
        raise PatternError(f"shape must not be negative, got {(rows, cols)}")
    return rows, cols


def as_block_size(block_size: int | Sequence[int]) -> tuple[int, int]:
    """Return ``block_size`` as a legal ``(block_rows, block_cols)``, or raise PatternError."""
    sides = tuple(block_size) if isinstance(block_size, Sequence) else (block_size, block_size)
    try:
        pair = tuple(operator.index(side) for side in sides)
    except TypeError:
        pair = ()
    if len(pair) != 2 or any(side not in BLOCK_SIZES for side in pair):
        raise PatternError(
            f"block size {block_size!r} is not supported; legal are an int or a pair of ints, each "
            f"one of {', '.join(map(str, BLOCK_SIZES))}"
        )
    return pair[0], pair[1]


def as_fraction(thing: Any) -> float | None:
    """A number from 0 to 1, which NumPy or torch may have made, or None for anything else."""
    try:
        fraction = math.nan if isinstance(thing, (str, bytes)) else float(thing)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last for a tensor of many
        return None
    return fraction if 0.0 <= fraction <= 1.0 else None


def as_count(density: float, total: int) -> int:
    """Return how many of ``total`` blocks a density keeps, or raise PatternError."""
    fraction = as_fraction(density)
    if fraction is None:
        raise PatternError(f"density is a fraction between 0 and 1, got {density!r}")
    return round(fraction * total)


def grid_of(shape: tuple[int, int], block_size: tuple[int, int]) -> tuple[int, int]:
    """Block rows and block columns of a matrix; the last ones may reach past its edge."""
    return div_up(shape[0], block_size[0]), div_up(shape[1], block_size[1])


def check_range(rows: int, cols: int, count: int) -> None:
    """Raise PatternError unless 32-bit indices can name ``count`` of ``rows`` x ``cols`` blocks."""
    if max(rows + 1, cols, count) > _INT32_MAX:
        raise PatternError(
            f"block indices are 32-bit: {rows} x {cols} blocks of which {count} are stored do not "
            "fit; use larger blocks"
        )


def check_generator(generator: torch.Generator | None) -> None:
    """Raise ArgumentError unless it is a ``torch.Generator`` or None."""
    if not isinstance(generator, (torch.Generator, type(None))):
        raise ArgumentError(f"generator is a torch.Generator or None, got {generator!r}")


def check_dtype(dtype: torch.dtype | None) -> None:
    """Raise ArgumentError unless values can have it; None stands for torch's default."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in DTYPES:
        is_real = isinstance(dtype, torch.dtype) and not dtype.is_complex
        remedy = "; convert with .to(torch.float32)" if is_real else ""
        raise ArgumentError(
            f"values must be float64, float32, float16 or bfloat16, got {dtype!r}{remedy}"
        )


def check_alike(sign: str, a: Pattern | BlockSparse, b: Pattern | BlockSparse) -> None:
    """Raise ArgumentError unless ``a + b`` (or another sign) is of operands that fit each other.

    They fit if they have one shape, block size and device, as read: transposed or not.
    """
    if (a.shape, a.block_size, a.device) == (b.shape, b.block_size, b.device):
        return
    remedy = ""
    if a.device != b.device:
        remedy = "; move one of them with .to()"
    elif a.shape == b.shape:
        remedy = "; build one of them in the blocks of the other"
    raise ArgumentError(
        f"a {sign} b takes operands of one shape, block size and device; a is {a.shape} in blocks "
        f"of {a.block_size} on {a.device}, b is {b.shape} in blocks of {b.block_size} on "
        f"{b.device}{remedy}"
    )


def check_coordinates(row: Tensor, col: Tensor, grid: tuple[int, int]) -> None:
    """Raise PatternError unless these are coordinates of blocks of a grid. Reads them once."""
    check_range(*grid, 0)
    check_places({"row_indices": row, "col_indices": col}, grid, "block", "Pattern.from_indices")
    check_range(*grid, col.numel())


def check_places(
    places: Mapping[str, Tensor], extents: tuple[int, int], kind: str, maker: str
) -> None:
    """Raise PatternError unless two tensors are valid rows and columns. Reads them once.

    Args:
        places: the two, by their names in errors.
        extents: number of rows, of columns.
        kind: what is at such a position, ``"block"`` or ``"element"``.
        maker: the function that was called.
    """
    for name, indices in places.items():
        if not is_dense(indices):
            raise PatternError(f"{name} is a tensor, got {kind_of(indices)}")
        if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
            raise PatternError(
                f"{name} is 1-d and int32 or int64, got shape {tuple(indices.shape)} and "
                f"{indices.dtype}"
            )
        if indices.is_meta or is_fake(indices):
            raise PatternError(
                f"{name} has no data that says where {kind}s are (meta and fake tensors have none, "
                f"nor those that torch.compile traces); call {maker} with indices that have, "
                f"outside, and move what it makes: {maker}(...).to('meta')"
            )
    row, col = places.values()
    if row.shape != col.shape or row.device != col.device:
        raise PatternError(
            f"{' and '.join(places)} have one entry for each {kind}, on one device; got "
            f"{row.numel()} on {row.device} and {col.numel()} on {col.device}"
        )
    # In 64 bits: torch compares in the tensor's type, in which a larger extent would be negative.
    row, col = row.long(), col.long()
    outside = (row < 0) | (row >= extents[0]) | (col < 0) | (col >= extents[1])
    if outside.any():
        at = int(outside.nonzero()[0])
        raise PatternError(
            f"{kind} {at} is at ({int(row[at])}, {int(col[at])}), and the matrix has {extents[0]} "
            f"x {extents[1]} {kind}s"
        )


def as_blocks(blocks: Tensor, nnz: int) -> Tensor:
    """``(n,)`` int64: a selection of a pattern's blocks as positions. Reads it.

    Raises:
        PatternError: it is neither ``(n,)`` int32 or int64 positions of existing blocks, nor
            ``(nnz,)`` bool.
    """
    if not is_dense(blocks) or blocks.dim() != 1:
        shape = f" of shape {tuple(blocks.shape)}" if is_dense(blocks) else ""
        raise PatternError(
            f"blocks are (n,) numbers or ({nnz},) bool, got {kind_of(blocks)}{shape}"
        )
    if blocks.dtype is torch.bool and blocks.numel() == nnz:
        return blocks.nonzero().flatten()
    if blocks.dtype not in (torch.int32, torch.int64):
        raise PatternError(
            f"blocks are (n,) int32 or int64, or ({nnz},) bool, got {blocks.numel()} of "
            f"{blocks.dtype}"
        )
    outside = (blocks < 0) | (blocks >= nnz)
    if outside.any():
        raise PatternError(
            f"block {int(blocks[outside][0])} is none of {nnz} blocks, which count from 0"
        )
    return blocks.long()


def check_indices(
    shape: tuple[int, int], block_size: tuple[int, int], crow: Tensor, col: Tensor
) -> None:
    """Raise PatternError unless the indices are those of a BSR matrix. Reads them once."""
    check_form(shape, block_size, crow, col)
    check_entries(grid_of(shape, block_size)[1], crow, col)


def check_form(
    shape: tuple[int, int], block_size: tuple[int, int], crow: Tensor, col: Tensor
) -> None:
    """Raise PatternError if the indices cannot be those of a BSR matrix. Does not read them."""
    for name, indices in (("crow_indices", crow), ("col_indices", col)):
        if not is_dense(indices):
            raise PatternError(f"{name} is a tensor, got {kind_of(indices)}")
        if indices.dtype not in (torch.int32, torch.int64):
            raise PatternError(f"{name} must be int32 or int64, got {indices.dtype}")
        if indices.dim() != 1:
            raise PatternError(f"{name} must be 1-d, got shape {tuple(indices.shape)}")
    if crow.dtype != col.dtype or crow.device != col.device:
        raise PatternError(
            f"crow_indices and col_indices must agree in dtype and device, got {crow.dtype} on "
            f"{crow.device} and {col.dtype} on {col.device}"
        )
    rows, cols = grid_of(shape, block_size)
    check_range(rows, cols, col.numel())
    if crow.numel() != rows + 1:
        raise PatternError(
            f"a matrix of {shape[0]} rows has {rows} block rows of {block_size[0]}, so "
            f"crow_indices has {rows + 1} entries; got {crow.numel()}"
        )


def check_entries(cols: int, crow: Tensor, col: Tensor) -> None:
    """Read the indices once and raise a PatternError that names the first offender, if any."""
    nnz = col.numel()
    starts = torch.zeros(nnz + 1, dtype=torch.bool, device=col.device)
    starts[crow.clamp(0, nnz).long()] = True
    falls = crow[1:] < crow[:-1]
    outside = (col < 0) | (col >= cols)
    disorder = (col[1:] <= col[:-1]) & ~starts[1:nnz] if nnz else outside
    ends = (crow[0] != 0) | (crow[-1] != nnz)
    checks = torch.stack([ends, falls.any(), outside.any(), disorder.any()])
    bad_ends, bad_falls, bad_outside, bad_disorder = checks.tolist()
    if bad_ends:
        raise PatternError(
            f"crow_indices must begin with 0 and end with the number of blocks, {nnz}; got "
            f"{int(crow[0])} and {int(crow[-1])}"
        )
    if bad_falls:
        at = int(falls.nonzero()[0])
        raise PatternError(
            f"crow_indices must not decrease; entry {at + 1} is {int(crow[at + 1])} after "
            f"{int(crow[at])}"
        )
    if bad_outside:
        at = int(outside.nonzero()[0])
        raise PatternError(
            f"col_indices are out of range: entry {at} is {int(col[at])}, the matrix has {cols} "
            f"block columns"
        )
    if bad_disorder:
        at = int(disorder.nonzero()[0])
        row = int(torch.searchsorted(crow, at + 1, right=True)) - 1
        first, second = int(col[at]), int(col[at + 1])
        problem, remedy = (
            "is not sorted",
            "Sort the blocks of each row by column (SciPy: matrix.sort_indices())",
        )
        if first == second:
            problem, remedy = "has a duplicate", "Sum the blocks that lie in one place"
        raise PatternError(
            f"col_indices must increase strictly within a block row; block row {row} {problem}: "
            f"{first} is followed by {second} (entries {at} and {at + 1}). {remedy}"
        )
