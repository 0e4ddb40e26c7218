"""The facts of a call that choose its kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from jitsparse.layout import div_up
from jitsparse.traits import describe, of_class, of_side, side_class, size_class

__all__ = [
    "LESS_PRECISE",
    "TYPICAL_BLOCKS",
    "Priority",
    "Problem",
    "dtype_on",
    "octave",
    "product_problem",
    "typical_problem",
]

_NAME = re.compile(
    r"(dsd|dds|sdd)\.(f64|f32|tf32|bf32|f16|bf16)\.b(8|16|32|64|128)x(8|16|32|64|128)\.l([nt]{2})\.a([01])"
    r"\.r(\d{1,10})\.c(\d{1,10})\.z(\d{1,10})\.e(\d{1,10})\.x(\d{1,10})"
    r"(?:\.p(?!0000)([0-9a-f]{4}))?",
    re.ASCII,
)


LESS_PRECISE = ("tf32", "bf32")
"""Dtypes of problems in float32 whose products may be less precise than that: as TF32, or as if
elements were rounded to bfloat16."""


def dtype_on(device: str, dtype: str) -> str:
    """The dtype of the problem that asks for ``dtype``: a GPU multiplies TF32 for ``bf32``."""
    return "tf32" if device == "cuda" and dtype == "bf32" else dtype


def octave(size: int) -> int:
    """The smallest power of two that is not less than ``size``."""
    return 1 << (size - 1).bit_length()


class Priority(NamedTuple):
    """Rank of a family's variants among those of other families.

    Attributes:
        rank: lower is earlier. What the cost model has prices for comes first, whatever its rank.
        why: the reason for or against it, for a human reader.
    """

    rank: int
    why: str


@dataclass(frozen=True)
class Problem:
    """The facts of a call from which a kernel family chooses.

    Sizes are rounded up, so that calls of nearly the same size share one choice. Use them to rank
    variants and to refuse what is too large, but not as exact sizes: no kernel may depend on those.

    Attributes:
        op: ``"dsd"``, ``"dds"`` or ``"sdd"``.
        device: ``"cpu"`` or ``"cuda"``.
        dtype: short name: f64, f32, f16, bf16, or tf32 or bf32 (float32 where torch's float32
            matmul precision allows it).
        block: ``(block_rows, block_cols)`` as stored.
        layout: one letter per operand, left then right, as in a variant's ``l`` knob: ``n`` as
            stored or last axis contiguous, ``t`` transposed.
        aligned: the pointers of values, dense operands and result, and the leading dimensions,
            batch strides and contiguous extents of dense operands, are multiples of 16 bytes. The
            bias may begin anywhere: kernels read it element by element.
        rows, cols: size of the sparse matrix as stored, in elements.
        nnz: number of stored blocks.
        extent: n for dsd and dds, k for sdd.
        batch: number of products in the call.
        profile: how the pattern differs from a random one (:mod:`jitsparse.traits`).
    """

    op: str
    device: str
    dtype: str
    block: tuple[int, int]
    layout: str
    aligned: bool
    rows: int
    cols: int
    nnz: int
    extent: int
    batch: int
    profile: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the operands."""
        return {"f64": 8, "f16": 2, "bf16": 2}.get(self.dtype, 4)

    @property
    def full_dtype(self) -> str:
        """The dtype in full precision: ``tf32`` and ``bf32`` permit less but do not ask for it."""
        return "f32" if self.dtype in LESS_PRECISE else self.dtype

    def rounded(self) -> Problem:
        """The problem with sizes rounded up as in those of calls.

        Sizes of the pattern become the largest of their class (:mod:`jitsparse.traits`), the
        others powers of two.
        """
        return replace(
            self,
            rows=of_side(side_class(self.rows)),
            cols=of_side(side_class(self.cols)),
            nnz=of_class(size_class(self.nnz)),
            extent=octave(self.extent),
            batch=octave(self.batch),
        )

    @property
    def name(self) -> str:
        """A readable, unique name, as ``dsd.bf16.b32x32.lnn.a1.r4096.c4096.z2048.e1024.x1``.

        It ends in ``.p`` and four digits unless the pattern is like a random one.
        """
        block = "x".join(map(str, self.block))
        return (
            f"{self.op}.{self.dtype}.b{block}.l{self.layout}.a{int(self.aligned)}"
            f".r{self.rows}.c{self.cols}.z{self.nnz}.e{self.extent}.x{self.batch}"
            f"{f'.p{self.profile:04x}' if self.profile else ''}"
        )

    @classmethod
    def parse(cls, name: str, device: str) -> Problem | None:
        """The problem with a given name on a device, or None if there is none."""
        match = _NAME.fullmatch(name)
        if match is None or dtype_on(device, match[2]) != match[2]:
            return None
        op, dtype, rows, cols, layout, aligned, *sizes, profile = match.groups()
        block = int(rows), int(cols)
        numbers = (*(int(n) for n in sizes), int(profile or "0", 16))
        return cls(op, device, dtype, block, layout, aligned == "1", *numbers)

    def describe(self) -> str:
        """Two lines for a human reader."""
        block = "x".join(map(str, self.block))
        return (
            f"{self.op} on {self.device}, {self.dtype}, blocks of {block}, layout {self.layout}, "
            f"{'' if self.aligned else 'not '}16-byte aligned\n"
            f"rows <= {self.rows}, cols <= {self.cols}, blocks <= {self.nnz}, "
            f"{'k' if self.op == 'sdd' else 'n'} <= {self.extent}, batch <= {self.batch}"
            f"{describe(self.profile)}"
        )


def product_problem(
    op: str,
    device: str,
    dtype: str,
    block: tuple[int, int],
    layout: str,
    size: tuple[int, int, int],
    density: float,
    aligned: bool = True,
) -> Problem:
    """The problem of a product ``(m, k) @ (k, n)``, with unrounded sizes.

    Args:
        op, device, dtype, block, layout, aligned: as in :class:`Problem`; see also
            :func:`dtype_on`.
        size: ``(m, n, k)``.
        density: share of the blocks that the sparse operand or result stores.
    """
    m, n, k = size
    if op == "dsd" and n == 1:
        # As its call does: the dds of the vector's row.
        op, layout = "dds", "n" + ("n" if layout[0] == "t" else "t")
        m, n = n, m
    # The matrix as read, then as stored.
    rows, cols = {"dsd": (m, k), "dds": (k, n), "sdd": (m, n)}[op]
    if {"dsd": layout[0], "dds": layout[1], "sdd": "n"}[op] == "t":
        rows, cols = cols, rows
    grid = div_up(rows, block[0]) * div_up(cols, block[1])
    nnz, extent = max(1, round(density * grid)), {"dsd": n, "dds": m, "sdd": k}[op]
    left, right = layout[0], layout[1]
    if op == "sdd":
        left = _letter(left, m, k)
    elif op == "dds" and 1 in (m, k):
        left = "n"  # of one column, too, which is contiguous, so a batch of them is one matrix
    if op != "dds":
        right = _letter(right, k, n)
    layout = left + right
    return Problem(
        *(op, device, dtype_on(device, dtype), block, layout, aligned),
        *(rows, cols, nnz, extent),
        batch=1,
    )


def _letter(asked: str, rows: int, cols: int) -> str:
    """The letter of a dense operand; an axis of one entry is never the contiguous one."""
    return "n" if rows == 1 else "t" if cols == 1 else asked


TYPICAL_BLOCKS = (16, 32, 64, 128)
"""Sides of the square blocks in the default table of most families."""


def typical_problem(
    op: str,
    device: str,
    dtype: str,
    block: int | tuple[int, int],
    layout: str,
    extent: int = 4096,
    *,
    aligned: bool = True,
) -> Problem:
    """A problem that represents the calls of programs: a quarter of the blocks of a square matrix.

    The matrix is 4096 x 4096, or 256 x 256 if not aligned, since larger ones choose what aligned
    ones do.
    """
    rows, cols = block if isinstance(block, tuple) else (block, block)
    side = 4096 if aligned else 256
    return Problem(
        op=op,
        device=device,
        dtype=dtype_on(device, dtype),
        block=(rows, cols),
        layout=layout,
        aligned=aligned,
        rows=side,
        cols=side,
        nnz=side // rows * (side // cols) // 4,
        extent=extent,
        batch=1,
    )
