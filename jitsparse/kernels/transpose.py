"""Transposed copies of operands, for kernels that need them along k, the summed axis, or across it.

Two kinds of kernels want an operand along k. An sdd gathers blocks along one side: if the operand
there lies across k, as in the gradient of a weight, rows of a block of 16 have 32 bytes, for which
TMA takes as long as for 128. And wgmma reads TF32 from shared memory only where it lies along k,
dense operands and stored blocks alike. One kind wants it across: a dsd or dds that condenses block
columns gathers rows of the dense operand. Variants with the knob ``o`` make a copy in the workspace
first: ``transposed`` of a dense operand, ``values`` of every stored block. Measurements are in
docs/performance.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitsparse.jit import Variant
from jitsparse.kernels.cuda import CONDENSED
from jitsparse.layout import div_up
from jitsparse.traits import random_steps

if TYPE_CHECKING:
    from jitsparse.kernels.problem import Problem

__all__ = [
    "KNOB",
    "SHORT",
    "VALUES_KNOB",
    "bytes_for_sdd",
    "bytes_for_spmm",
    "bytes_of",
    "copying",
    "pays",
    "transposes",
    "transposes_values",
    "width",
]

KNOB = ("o", "transposed")
VALUES_KNOB = ("o", "values")


_ALIGNMENT = 16
"""Rows of a transposed copy begin at multiples of so many bytes (``kernels/transpose.cuh``)."""

_PANEL = 64
"""Rows of an sdd's panel, unless blocks are higher (``GatherShape`` of ``csrc/abi.h``)."""

_SAVED = {16: 3.7e-6, 32: 1.65e-6}
_COPIED, _LAUNCH = 1.25e-6, 3.0
"""Microseconds on an H200: saved where a block of so many columns is gathered, for each of k; what
copying takes for each 16-bit element; and what it takes however little there is to copy."""

SHORT = tuple(_SAVED)
"""Sizes of blocks that make short rows of 16-bit elements."""


def transposes(variant: Variant) -> bool:
    """Whether a variant transposes a dense operand."""
    return KNOB in variant.knobs


def transposes_values(variant: Variant) -> bool:
    """Whether a variant transposes each stored block."""
    return VALUES_KNOB in variant.knobs


def width(problem: Problem, side: str) -> int:
    """Extent, beside k, of the operand that is gathered along a side."""
    return problem.rows if side == "rows" else problem.cols


def pays(problem: Problem, side: str) -> bool:
    """Whether an sdd on 16-bit elements is faster with the operand that is gathered along a side
    transposed, than with it as it lies."""
    (height, gathered), (rows, cols) = problem.block, (problem.rows, problem.cols)
    if side == "rows":
        height, gathered, rows, cols = gathered, height, cols, rows
    panel = max(height, _PANEL)
    mean = random_steps(rows, cols, problem.nnz, (height, gathered), panel=panel, across=1).mean
    k = problem.extent * problem.batch
    saved = _SAVED[gathered] * mean * div_up(rows, panel) * k
    return saved > copying(width(problem, side) * k)


def copying(elements: float) -> float:
    """Microseconds that transposing an operand of so many 16-bit elements takes."""
    return _COPIED * elements + _LAUNCH


def bytes_of(width: int, k: int, batch: int, batch_stride: int, itemsize: int) -> int:
    """Bytes of a transposed copy: ``width`` rows of ``k`` elements, ``batch`` times unless a matrix
    serves the whole batch (stride 0)."""
    matrices = batch if batch_stride else 1
    return matrices * width * div_up(k * itemsize, _ALIGNMENT) * _ALIGNMENT


def bytes_for_spmm(
    variant: Variant, stored: int, n: int, k: int, batch: int, batch_stride: int, itemsize: int
) -> int:
    """Bytes that a variant of dsd or dds transposes: of its dense operand, which has ``n`` columns,
    of the ``stored`` bytes of its values, or none."""
    if transposes(variant):
        if CONDENSED in variant.knobs:
            n, k = k, n
        return bytes_of(n, k, batch, batch_stride, itemsize)
    return stored if transposes_values(variant) else 0


def bytes_for_sdd(
    variant: Variant,
    shape: tuple[int, int],
    k: int,
    batch: int,
    strides: tuple[int, int],
    itemsize: int,
) -> int:
    """Bytes that a variant of sdd transposes: of the operand that it gathers.

    Args:
        variant: one that transposes.
        shape: ``(rows, cols)`` of the pattern.
        k, batch: as in the call.
        strides: of the batch, of the left operand and the right one.
        itemsize: bytes of an element.
    """
    side = 0 if variant.knob("g") == "rows" else 1
    return bytes_of(shape[side], k, batch, strides[side], itemsize)
