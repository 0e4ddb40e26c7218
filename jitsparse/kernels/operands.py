"""Dense operands as kernels take them: address and layout.

A letter says which axis is contiguous; strides of the other axis and of the batch say the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitsparse.errors import ArgumentError
from jitsparse.jit.kernel import Kernel

__all__ = [
    "FREED_BELOW",
    "flipped",
    "is_worth_gathering",
    "layout_of",
    "packed",
    "with_memory",
]

FREED_BELOW = 1 << 40
"""An address. A tensor whose storage was freed reports only its offset in bytes, which is below
this; allocated memory is above."""


def with_memory(kernel: object, *operands: Tensor) -> list[Tensor]:
    """The operands, with zeros in memory for those that stand for zeros without having any; an
    empty list if all have memory. The stand-in kernel of a warm-up reads none.

    Autograd makes tensors that stand for zeros, as the gradient of ``sgn`` for one. Torch's
    dispatcher would write the zeros, but most calls bypass it. Only called for operands below
    :data:`FREED_BELOW`.

    Raises:
        ArgumentError: one was freed.
    """
    zeros = [each._is_zerotensor() for each in operands]
    if any(zeros):
        return [
            torch.zeros(each.shape, dtype=each.dtype, device=each.device) if zero else each
            for each, zero in zip(operands, zeros, strict=True)
        ]
    missing = [
        each for each in operands if not (each.data_ptr() and each.untyped_storage().nbytes())
    ]
    if missing and isinstance(kernel, Kernel):
        raise _without_memory(missing[0])
    return []


def flipped(tensor: Tensor) -> Tensor:
    """As ``tensor.mT``.

    Raises:
        ArgumentError: its storage was freed.
    """
    _require_storage(tensor)
    return tensor.mT


def packed(tensor: Tensor) -> Tensor:
    """As ``tensor.contiguous()``, which would read freed memory.

    Raises:
        ArgumentError: its storage was freed.
    """
    _require_storage(tensor)
    return tensor.contiguous()


def _require_storage(tensor: Tensor) -> None:
    if tensor.data_ptr() < FREED_BELOW and tensor.numel():
        stands_for_data = tensor.is_meta or tensor._is_zerotensor()
        if not stands_for_data and not tensor.untyped_storage().nbytes():
            raise _without_memory(tensor)


def _without_memory(operand: Tensor) -> ArgumentError:
    return ArgumentError(
        f"an operand of shape {tuple(operand.shape)} has no memory: it was freed, as FSDP and "
        "offloading do"
    )


def is_worth_gathering(device: int, members: int, vectors: int, copied: int, stored: int) -> bool:
    """Whether to copy a batch whose members are not laid out as one matrix so that they are.

    Members of few vectors do not fill a tile, and each reads all blocks. Not called for expanded
    batches, whose members are one in memory. (Gathering 64 members of 8, 16, 64 vectors, permuted,
    through 4096 x 4096 in blocks of 64 at density 0.25: 128 -> 18, 127 -> 30, 102 -> 102 us on an
    H200. On a CPU it is worth it up to 16.)

    Args:
        device: index of the GPU, or -1.
        members: number of members of the batch.
        vectors: number of vectors of a member.
        copied: elements of a member.
        stored: elements of all blocks.
    """
    return members >= 4 and vectors <= (32 if device >= 0 else 16) and stored >= 4 * copied


def layout_of(tensor: Tensor) -> tuple[Tensor, str, int, int, int]:
    """A dense operand as kernels take it: ``(tensor, letter, ld, batch, batch stride)``.

    The letter is ``n`` if the last axis is contiguous and ``t`` if the one before it is; ``ld`` is
    the stride of the other one, at least the extent of the contiguous one. A tensor that fits
    neither, or whose batch dimensions have no common stride, is copied.

    An axis of one entry is never the contiguous one, since kernels copy 16 bytes along that. Its
    stride, which is never used, is the batch's, so a batch of vectors is laid out like a matrix.
    """
    shape, strides = tensor.shape, tensor.stride()
    batch, batch_stride = 1, 0
    if len(shape) == 2:
        (rows, cols), (row_stride, col_stride) = shape, strides
    else:
        *outer, rows, cols = shape
        *outer_strides, row_stride, col_stride = strides
        for extent, stride in zip(reversed(outer), reversed(outer_strides), strict=True):
            if extent == 1:
                continue
            if batch == 1:
                batch_stride = stride
            elif stride != batch * batch_stride:
                return layout_of(packed(tensor))
            batch *= extent
    if rows == 1 or cols == 1:
        letter, extent, stride = ("n", cols, col_stride) if rows == 1 else ("t", rows, row_stride)
        if stride == 1 or extent == 1:
            ld = batch_stride if batch > 1 and batch_stride > extent else extent
            return tensor, letter, ld, batch, batch_stride
    elif col_stride == 1 and row_stride >= cols:
        return tensor, "n", row_stride, batch, batch_stride
    elif row_stride == 1 and col_stride >= rows:
        return tensor, "t", col_stride, batch, batch_stride
    return layout_of(packed(tensor))
