"""Transposed copies of operands, for kernels that need them k-major, or the opposite, MN-major.

Two kinds of kernels need an operand k-major (contiguous along k, the summed axis). An sdd gathers
blocks along one side: if the operand there is MN-major, as in the gradient of a weight, rows of a
block of 16 have 32 bytes, for which TMA takes as long as for 128, and ``mma`` and ``fma`` would
read blocks of 8 columns eight elements at a time. And wgmma reads TF32 from shared memory only if
it is k-major, dense operands and stored blocks alike. Other kinds need an MN-major operand: a dsd
or dds that condenses block columns gathers rows of the dense operand, and one whose blocks are 8
deep would read eight elements at a time of a k-major one. Variants with the knob ``o`` make a copy
in the workspace first: ``transposed`` of a dense operand, ``values`` of every stored block.
Measurements are in docs/performance.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitsparse.jit import Variant
from jitsparse.kernels.cuda import CONDENSED
from jitsparse.kernels.roles import cpp_bool
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
    "context",
    "copying",
    "pays",
    "transposes",
    "transposes_values",
    "width",
]

KNOB = ("o", "transposed")
VALUES_KNOB = ("o", "values")


_ALIGNMENT = 16
"""Rows of a transposed copy begin at multiples of this many bytes (``kernels/transpose.cuh``)."""

_PANEL = 64
"""Rows of an sdd's panel, unless blocks are taller (``GatherShape`` of ``csrc/abi.h``)."""

_SAVED = {16: 3.7e-6, 32: 1.65e-6}
_COPIED, _LAUNCH = 1.25e-6, 3.0
"""Microseconds on an H200: saved for each element of k where a block of this many columns is
gathered; copying, per 16-bit element; and the fixed cost of a copy."""

SHORT = tuple(_SAVED)
"""Block sizes that make short rows of 16-bit elements."""


def transposes(variant: Variant) -> bool:
    """Whether a variant transposes a dense operand."""
    return KNOB in variant.knobs


def transposes_values(variant: Variant) -> bool:
    """Whether a variant transposes each stored block."""
    return VALUES_KNOB in variant.knobs


def context(variant: Variant) -> dict[str, str]:
    """The names that templates use: what is copied first, and how the kernel then finds it."""
    if transposes_values(variant):
        return {"copy": "transpose_values"}
    if not transposes(variant):
        return {"copy": "no_copy"}
    if variant.op == "sdd":
        operand = ("left", "right")[_gathered(variant)]
        return {"copy": f"transpose_{operand}", f"{operand}_k_contiguous": cpp_bool(True)}
    across = _across(variant)
    way = "transpose_dense_across" if across else "transpose_dense"
    return {"copy": way, "dense_k_contiguous": cpp_bool(not across)}


def _across(variant: Variant) -> bool:
    """Whether a transposed copy of a dsd's or dds's dense operand is MN-major."""
    return variant.family != "wgmma" or CONDENSED in variant.knobs


def _gathered(variant: Variant) -> int:
    """Number of the operand of an sdd that is gathered: the right one except in ``wgmma``."""
    return 0 if ("g", "rows") in variant.knobs else 1


# -- sdd in wgmma -------------------------------------------------------------------------------


def width(problem: Problem, side: str) -> int:
    """Extent, other than k, of the operand that is gathered along a side."""
    return problem.rows if side == "rows" else problem.cols


def pays(problem: Problem, side: str) -> bool:
    """Whether a 16-bit sdd is faster if the operand gathered along a side is transposed first."""
    (height, gathered), (rows, cols) = problem.block, (problem.rows, problem.cols)
    if side == "rows":
        height, gathered, rows, cols = gathered, height, cols, rows
    panel = max(height, _PANEL)
    mean = random_steps(rows, cols, problem.nnz, (height, gathered), panel=panel, across=1).mean
    k = problem.extent * problem.batch
    saved = _SAVED[gathered] * mean * div_up(rows, panel) * k
    return saved > copying(width(problem, side) * k)


# -- what copies take ---------------------------------------------------------------------------


def copying(elements: float) -> float:
    """Microseconds that transposing an operand of ``elements`` 16-bit elements takes."""
    return _COPIED * elements + _LAUNCH


def bytes_of(width: int, k: int, batch: int, batch_stride: int, itemsize: int) -> int:
    """Bytes of a transposed copy: ``width`` rows of ``k`` elements, ``batch`` times unless one
    matrix serves the whole batch (stride 0)."""
    matrices = batch if batch_stride else 1
    return matrices * width * div_up(k * itemsize, _ALIGNMENT) * _ALIGNMENT


def bytes_for_spmm(
    variant: Variant, stored: int, n: int, k: int, batch: int, batch_stride: int, itemsize: int
) -> int:
    """Bytes of a dsd or dds variant's transposed copy: of its dense operand, which has ``n``
    columns, of the ``stored`` bytes of its values, or none."""
    if transposes(variant):
        if _across(variant):
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
    """Bytes of an sdd variant's transposed copy, that of the operand that it gathers.

    Args:
        variant: one that transposes.
        shape: ``(rows, cols)`` of the pattern.
        k, batch: as in the call.
        strides: batch strides of the left operand and the right one.
        itemsize: bytes of an element.
    """
    side = _gathered(variant)
    return bytes_of(shape[side], k, batch, strides[side], itemsize)
