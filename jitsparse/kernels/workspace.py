"""The workspace of a call on a GPU: a transposed copy of an operand, then partial sums of split-K.

It is freed in stream order, when the caller has launched the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitsparse.kernels import split, transpose
from jitsparse.kernels.allocate import new_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from jitsparse.jit import Kernel, Variant

__all__ = ["NO_WORKSPACE", "may_need_workspace", "workspace_of_product", "workspace_of_sdd"]

NO_WORKSPACE = "no workspace"
"""Noted on a kernel that needs none, so that the next call sees it at once."""

_NEED_WORKSPACE = frozenset((transpose.KNOB, transpose.VALUES_KNOB, split.KNOB))
"""Knobs of variants that may need a workspace."""


def may_need_workspace(kernel: Kernel) -> bool:
    """Whether calls of a kernel may need a workspace."""
    if not _NEED_WORKSPACE.isdisjoint(kernel.variant.knobs):
        return True
    kernel.note = NO_WORKSPACE
    return False


def workspace_of_product(
    variant: Variant,
    values: Tensor,
    size: tuple[int, int, int],
    batch: int,
    batch_stride: int,
) -> tuple[Tensor | None, int]:
    """Workspace of a dsd or dds, if it needs any, and the number of parts that it is for.

    ``size`` is (rows, columns, k) in the role of ``op_block``.
    """
    m, n, k = size
    stored = values.nbytes
    needed = transpose.bytes_for_spmm(variant, stored, n, k, batch, batch_stride, values.itemsize)
    parts = 1
    if split.splits(variant):
        parts, sums = split.parts_of_product(variant, m, n, k, batch, values.numel())
        needed += sums
    return (new_bytes(needed) if needed else None), parts


def workspace_of_sdd(
    variant: Variant,
    out: Tensor,
    shape: tuple[int, int],
    k: int,
    batch: int,
    strides: tuple[int, int],
) -> tuple[Tensor | None, int]:
    """Workspace of an sdd, if it needs any, and the number of parts that it is for.

    ``shape`` is that of the pattern, ``strides`` are those of the operands' batches.
    """
    needed, parts = 0, 1
    if transpose.transposes(variant):
        needed = transpose.bytes_for_sdd(variant, shape, k, batch, strides, out.itemsize)
    if split.splits(variant):
        parts, sums = split.parts_of_sdd(variant, out.numel(), k, batch)
        needed += sums
    return (new_bytes(needed) if needed else None), parts
