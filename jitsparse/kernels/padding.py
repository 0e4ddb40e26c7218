"""Operands padded to multiples of 16 bytes, for kernels that copy that much at a time.

On a GPU all families except ``simt`` do. For an unaligned product, such as that of a layer with
50257 outputs or of a matrix at an unaligned address, they get copies of its dense operands, each
padded with a few zeros, and the padding is cut off the result. That takes memory of their size and
some launches, and for all but small products is 2 to 17 times as fast as ``simt``
(docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jitsparse.kernels import simt
from jitsparse.kernels.operands import layout_of
from jitsparse.kernels.roles import is_flipped
from jitsparse.layout import div_up

if TYPE_CHECKING:
    from jitsparse.jit import Candidate, Variant
    from jitsparse.kernels.problem import Problem

__all__ = ["dds", "dsd", "in_order", "microseconds", "needs", "sdd"]

_ALIGNMENT = 16
_FIXED = 20.0
_BYTES = 2.5e6
"""Microseconds that the launches take, most of them on the host, and bytes copied per microsecond,
on an H200."""

_RATES = {"f16": 150e6, "bf16": 150e6, "tf32": 80e6, "f32": 30e6, "f64": 30e6}
"""Operations per microsecond of the families that need copies."""


# -- products on copies -------------------------------------------------------------------------
#
# ``run`` is the operation with the chosen kernel. A letter is that of
# :func:`~jitsparse.kernels.operands.layout_of`; the copy has the same.


def dsd(
    run: Callable[..., Tensor],
    letter: str,
    values: Tensor,
    index: Tensor,
    dense: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
) -> Tensor:
    """As ``jitsparse::dsd``."""
    m, k = (cols, rows) if transposed else (rows, cols)
    n, size = dense.shape[-1], dense.itemsize
    deep = _multiple(k, size) if letter == "t" else k
    dense = _filled_up(dense, letter, deep, _multiple(n, size))
    rows, cols = (deep, m) if transposed else (m, deep)
    return _cut(run(_begun(values), index, dense, rows, cols, transposed), m, n)


def dds(
    run: Callable[..., Tensor],
    letter: str,
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
) -> Tensor:
    """As ``jitsparse::dds``."""
    m, k = (rows, cols) if transposed else (cols, rows)
    n, size = dense.shape[-2], dense.itemsize
    deep, tall = (_multiple(k, size), n) if letter == "n" else (k, _multiple(n, size))
    wide = _multiple(m, size)
    dense = _filled_up(dense, letter, tall, deep)
    if bias is not None:
        bias = _filled_up(bias[None], "n", 1, wide)[0]
    rows, cols = (wide, deep) if transposed else (deep, wide)
    out = run(dense, _begun(values), index, rows, cols, transposed, bias, activation)
    return _cut(out, n, m)


def sdd(
    run: Callable[..., Tensor],
    letters: str,
    left: Tensor,
    right: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    *blocks: int,
) -> Tensor:
    """As ``jitsparse::sdd``; ``letters`` are those of both operands.

    Nothing has to be cut off: past the edge, blocks hold the zeros that the copies have there.
    """
    k, size = left.shape[-1], left.itemsize
    tall = _multiple(rows, size) if letters[0] == "t" else rows
    wide = _multiple(cols, size) if letters[1] == "n" else cols
    deep = k if letters == "tn" else _multiple(k, size)
    left = _filled_up(left, letters[0], tall, deep)
    right = _filled_up(right, letters[1], deep, wide)
    return run(left, right, index, tall, wide, *blocks)


def _multiple(extent: int, itemsize: int) -> int:
    unit = _ALIGNMENT // itemsize
    return div_up(extent, unit) * unit


def _filled_up(dense: Tensor, letter: str, rows: int, cols: int) -> Tensor:
    """The matrix padded with zeros to these extents; itself if it needs no copy."""
    if letter == "t":
        return _filled_up(dense.mT, "n", cols, rows).mT
    *batch, height, width = dense.shape
    if (height, width) == (rows, cols) and _is_aligned(dense):
        return dense
    copy = dense.new_empty(*batch, rows, cols)
    copy[..., :height, :width].copy_(dense)
    if width < cols:
        copy[..., width:].zero_()
    if height < rows:
        copy[..., height:, :].zero_()
    return copy


def _is_aligned(dense: Tensor) -> bool:
    _, _, ld, _, batch_stride = layout_of(dense)
    return not (dense.data_ptr() | (ld | batch_stride) * dense.itemsize) % _ALIGNMENT


def _begun(values: Tensor) -> Tensor:
    """Values at a multiple of 16 bytes, copied if necessary."""
    return values.clone() if values.data_ptr() % _ALIGNMENT else values


def _cut(out: Tensor, rows: int, cols: int) -> Tensor:
    if out.shape[-2:] == (rows, cols):
        return out
    # A view of some rows would be contiguous, too, but a Function must not return a view.
    return out[..., :rows, :cols].clone(memory_format=torch.contiguous_format)


# -- whether that pays --------------------------------------------------------------------------


def needs(variant: Variant) -> bool:
    """Whether a variant for a GPU needs copies to run an unaligned call."""
    return variant.family != "simt"


def in_order(problem: Problem, candidates: Sequence[Candidate]) -> list[Candidate]:
    """GPU candidates for an unaligned problem: ``simt`` goes first where copies take longer."""
    what = "operands are not 16-byte aligned"
    if _pay(problem):
        return [
            replace(each, why=f"{each.why}; {what}, so it runs on copies that are")
            if needs(each.variant)
            else each
            for each in candidates
        ]
    return [
        *(
            replace(each, why=f"{what}, and copies that are would take longer to make")
            for each in candidates
            if not needs(each.variant)
        ),
        *(each for each in candidates if needs(each.variant)),
    ]


def _pay(problem: Problem) -> bool:
    if problem.dtype not in _RATES:
        return False
    stored = problem.nnz * problem.block[0] * problem.block[1]
    operations = 2 * stored * problem.extent * problem.batch
    return simt.microseconds(problem) > microseconds(problem) + operations / _RATES[problem.dtype]


def microseconds(problem: Problem) -> float:
    """Time to copy all dense operands and the result, reads and writes included."""
    elements = sum(_sides(problem)) * problem.extent * problem.batch
    return _FIXED + 2 * elements * problem.itemsize / _BYTES


def _sides(problem: Problem) -> tuple[int, int]:
    """Sides of the sparse matrix as multiplied, the result's first; for an sdd as stored."""
    if problem.op != "sdd" and is_flipped(problem.op, problem.layout):
        return problem.cols, problem.rows
    return problem.rows, problem.cols
