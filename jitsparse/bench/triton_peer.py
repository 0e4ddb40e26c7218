"""The trivial Triton kernel whose launch is the yardstick of host time on a GPU.

Alone in a module because Triton reads the kernel's source file, and because it may be missing.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["touch"]


@triton.jit  # type: ignore[untyped-decorator]
def touch(left, right, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = left + right, one program."""
    offsets = tl.arange(0, BLOCK)
    inside = offsets < n
    left_values = tl.load(left + offsets, mask=inside)
    right_values = tl.load(right + offsets, mask=inside)
    tl.store(out + offsets, left_values + right_values, mask=inside)


TILES = [(rows, cols, 32) for rows in (16, 32, 64, 128) for cols in (16, 32, 64, 128, 256)]
"""Rows, columns and summed axis of the tiles of :func:`product`, each of which is a kernel."""


@triton.jit  # type: ignore[untyped-decorator]
def product(left, right, out, n, k, ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = left @ right, one tile per program; the tiles divide the matrices."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inner = tl.arange(0, INNER)
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for start in range(0, k, INNER):
        left_tile = tl.load(left + rows[:, None] * k + (start + inner)[None, :])
        right_tile = tl.load(right + (start + inner)[:, None] * n + cols[None, :])
        total = tl.dot(left_tile, right_tile, total)
    tl.store(out + rows[:, None] * n + cols[None, :], total.to(out.dtype.element_ty))
