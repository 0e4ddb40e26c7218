"""What is measured: one product of one pattern, and the data it is measured on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jitsparse.bench.patterns import make_pattern
from jitsparse.bench.timing import copies_beyond_l2
from jitsparse.errors import ArgumentError
from jitsparse.kernels.dispatch import DTYPE_OF as DTYPES
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.pattern import Pattern
from jitsparse.sparse import BlockSparse

__all__ = [
    "DTYPES",
    "OPERATIONS",
    "Case",
    "Operands",
    "block_name",
    "expert_case",
    "make_operands",
    "normal",
    "size_name",
]

OPERATIONS = ("dsd", "dds", "sdd")


@dataclass(frozen=True)
class Case:
    """One product to measure.

    Attributes:
        op: ``dsd``, ``dds`` or ``sdd``.
        size: ``(m, n, k)`` of the product ``(m, k) @ (k, n)``.
        block: ``(block_rows, block_cols)`` of the sparse operand as stored, or of the result.
        density: share of its blocks that are stored.
        dtype: a key of :data:`DTYPES`; ``tf32`` and ``bf32`` are float32 where torch's
            precision is ``"high"`` and ``"medium"``, for the peers too.
        device: where it runs.
        pattern: one of :data:`~jitsparse.bench.patterns.PATTERNS`.
        layout: one letter per operand, left then right, as in a variant's ``l`` knob: ``n`` as
            stored or last axis contiguous, ``t`` a transposed view of that.
    """

    op: str
    size: tuple[int, int, int]
    block: tuple[int, int]
    density: float
    dtype: str
    device: torch.device
    pattern: str = "random"
    layout: str = "nn"

    @property
    def facts(self) -> dict[str, object]:
        """What distinguishes the case from others, as its row of a table has it."""
        return {
            "op": self.op,
            "layout": self.layout,
            "dtype": self.dtype,
            "size": size_name(*self.size),
            "block": block_name(self.block),
            "pattern": self.pattern,
            "density": self.density,
        }

    @property
    def sparse_shape(self) -> tuple[int, int]:
        """Shape of the sparse operand as stored, or of the sparse result."""
        m, n, k = self.size
        rows, cols = {"dsd": (m, k), "dds": (k, n), "sdd": (m, n)}[self.op]
        return (cols, rows) if self.sparse_transposed else (rows, cols)

    @property
    def sparse_transposed(self) -> bool:
        """Whether the sparse operand is a transposed view."""
        return {"dsd": self.layout[0], "dds": self.layout[1], "sdd": "n"}[self.op] == "t"

    def useful_flops(self, pattern: Pattern) -> float:
        """2 M N K times the actual density of the pattern."""
        return 2.0 * math.prod(self.size) * pattern.density


def expert_case(
    op: str,
    layout: str,
    shape: tuple[int, int, int, int],
    block: int,
    dtype: str,
    device: torch.device,
) -> Case:
    """A block-diagonal product of a mixture of experts.

    Args:
        op, layout: sdd nt is the first layer, dsd nn the second, dsd tn a weight's gradient; dds nt
            and nn are the latter two transposed.
        shape: ``(tokens, hidden, ffn, experts)``.
        block: both sides of a block.
        dtype, device: as in :class:`Case`.
    """
    tokens, hidden, ffn, experts = shape
    wide = ffn * experts
    size = {
        ("sdd", "nt"): (tokens, wide, hidden),
        ("dsd", "nn"): (tokens, hidden, wide),
        ("dsd", "tn"): (wide, hidden, tokens),
        ("dds", "nt"): (hidden, tokens, wide),
        ("dds", "nn"): (hidden, wide, tokens),
    }[op, layout]
    return Case(op, size, (block, block), 1 / experts, dtype, device, "diagonal", layout)


@dataclass(frozen=True)
class Operands:
    """Data of a case, in as many copies as overflow the L2 cache.

    Attributes:
        pattern: one for all copies.
        sparse: sparse operands; for sdd only their pattern matters.
        left: dense left operands, ``(m, k)``; empty for dsd.
        right: dense right operands, ``(k, n)``; empty for dds.
    """

    pattern: Pattern
    sparse: list[BlockSparse]
    left: list[Tensor]
    right: list[Tensor]

    @property
    def copies(self) -> int:
        return len(self.sparse)

    def arguments(self, op: str, copy: int = 0) -> tuple[BlockSparse | Tensor | Pattern, ...]:
        """What an operation is called with."""
        if op == "dsd":
            return self.sparse[copy], self.right[copy]
        if op == "dds":
            return self.left[copy], self.sparse[copy]
        return self.left[copy], self.right[copy], self.pattern


def make_operands(case: Case, seed: int = 0) -> Operands:
    """Standard normal data: power draw, and with it a GPU's clock, depends on the bits.

    Raises:
        ArgumentError: an operation, layout or pattern that does not exist.
    """
    for what, value, legal in (
        ("operation", case.op, OPERATIONS),
        ("layout", case.layout, LAYOUTS),
    ):
        if value not in legal:
            raise ArgumentError(f"there is no {what} {value!r}; there are {', '.join(legal)}")
    generator = torch.Generator(case.device).manual_seed(seed)
    dtype, (m, n, k) = DTYPES[case.dtype], case.size
    pattern = make_pattern(case.pattern, case.sparse_shape, case.block, case.density, generator)
    dense_elements = {"dsd": k * n, "dds": m * k, "sdd": m * k + k * n}[case.op]
    bytes_each = dtype.itemsize * (dense_elements + pattern.nnz_blocks * math.prod(case.block))
    copies = range(copies_beyond_l2(bytes_each, case.device))

    sparse = []
    for _ in copies:
        values = normal(pattern.values_shape, "n", dtype, generator)
        stored = BlockSparse(values, pattern)
        sparse.append(stored.T if case.sparse_transposed else stored)
    left, right = case.layout[0], case.layout[1]
    return Operands(
        pattern,
        sparse,
        [normal((m, k), left, dtype, generator) for _ in copies] if case.op != "dsd" else [],
        [normal((k, n), right, dtype, generator) for _ in copies] if case.op != "dds" else [],
    )


def normal(
    shape: tuple[int, ...], letter: str, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Standard normal data, its last axis contiguous (``n``) or a transposed view (``t``)."""
    stored = (*shape[:-2], shape[-1], shape[-2]) if letter == "t" else shape
    data = torch.randn(stored, generator=generator, dtype=dtype, device=generator.device)
    return data.mT if letter == "t" else data


def block_name(block: tuple[int, int]) -> str:
    return "x".join(map(str, block))


def size_name(m: int, n: int, k: int) -> str:
    """``4096`` for a cube, else ``MxNxK``."""
    return f"{m}" if m == n == k else f"{m}x{n}x{k}"
