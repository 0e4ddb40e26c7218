"""Uninitialized memory for a call: its output, and what a kernel needs besides its operands.

It comes from the functions with which torch.compile's code allocates, which bypass torch's
dispatcher: on a GPU 1.0 us on the host instead of the 3.1 of ``Tensor.new_empty``, of the 12 that a
call took (H200); on a CPU 0.6 instead of 1.0. Nothing observes a call here any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["new_bytes", "new_matrices", "on_cpu", "on_current_gpu"]

_Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]
"""Returns a tensor of these sizes, strides and dtype."""

on_current_gpu: _Allocate = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]
on_cpu: _Allocate = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]


def new_matrices(like: Tensor, device: int, batch: Sequence[int], rows: int, cols: int) -> Tensor:
    """A contiguous tensor ``(*batch, rows, cols)`` with the dtype and on the device of another.

    Args:
        like: the tensor that has both.
        device: its index, which must be that of the current device; -1 if it is not a GPU but a
            CPU or the meta device.
        batch: extents ahead of those of the matrix.
        rows: rows of the matrix.
        cols: columns of the matrix.
    """
    if device < 0 and not like.is_cpu:
        return like.new_empty(*batch, rows, cols)
    sizes: tuple[int, ...] = rows, cols
    strides: tuple[int, ...] = cols or 1, 1
    for extent in reversed(batch):
        strides = (sizes[0] or 1) * strides[0], *strides
        sizes = extent, *sizes
    return (on_cpu if device < 0 else on_current_gpu)(sizes, strides, like.dtype)


def new_bytes(size: int) -> Tensor:
    """``size`` bytes on the current GPU."""
    return on_current_gpu((size,), (1,), torch.uint8)
