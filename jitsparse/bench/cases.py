"""What is measured: one product of one pattern, and the data it is measured on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jitsparse.bench.timing import copies_beyond_l2
from jitsparse.errors import ArgumentError
from jitsparse.pattern import Pattern
from jitsparse.sparse import BlockSparse

__all__ = ["DTYPES", "OPERATIONS", "PATTERNS", "Case", "Operands", "make_operands"]

OPERATIONS = ("dsd", "dds", "sdd")
PATTERNS = ("random", "banded", "diagonal")
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "tf32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


@dataclass(frozen=True)
class Case:
    """One product to measure.

    Attributes:
        op: ``dsd``, ``dds`` or ``sdd``.
        size: ``(m, n, k)`` of the product ``(m, k) @ (k, n)``.
        block: ``(block_rows, block_cols)`` of the sparse operand or result.
        density: share of its blocks that are stored.
        dtype: a key of :data:`DTYPES`; ``tf32`` is float32 with TF32 allowed, for the peers too.
        device: where it runs.
        pattern: ``random`` (uniform, the headline), ``banded`` or ``diagonal``.
    """

    op: str
    size: tuple[int, int, int]
    block: tuple[int, int]
    density: float
    dtype: str
    device: torch.device
    pattern: str = "random"

    @property
    def sparse_shape(self) -> tuple[int, int]:
        """Shape of the sparse operand, or of the sparse result."""
        m, n, k = self.size
        return {"dsd": (m, k), "dds": (k, n), "sdd": (m, n)}[self.op]

    def useful_flops(self, pattern: Pattern) -> float:
        """2 M N K times the density that the pattern really has."""
        return 2.0 * math.prod(self.size) * pattern.density


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


def make_operands(case: Case, seed: int = 0) -> Operands:
    """Standard normal data: power draw, and with it a GPU's clock, depends on the bits.

    Raises:
        ArgumentError: an operation or pattern that does not exist.
    """
    if case.op not in OPERATIONS:
        raise ArgumentError(f"there is no operation {case.op!r}; there are {', '.join(OPERATIONS)}")
    generator = torch.Generator(case.device).manual_seed(seed)
    dtype, (m, n, k) = DTYPES[case.dtype], case.size
    pattern = _pattern(case, generator)
    dense_elements = {"dsd": k * n, "dds": m * k, "sdd": m * k + k * n}[case.op]
    bytes_each = dtype.itemsize * (dense_elements + pattern.nnz_blocks * math.prod(case.block))
    copies = range(copies_beyond_l2(bytes_each, case.device))

    def normal(*shape: int) -> list[Tensor]:
        draw = [torch.randn(shape, generator=generator, device=case.device) for _ in copies]
        return [tensor.to(dtype) for tensor in draw]

    values = normal(pattern.nnz_blocks, *case.block)
    return Operands(
        pattern,
        [BlockSparse(v, pattern) for v in values],
        normal(m, k) if case.op != "dsd" else [],
        normal(k, n) if case.op != "dds" else [],
    )


def _pattern(case: Case, generator: torch.Generator) -> Pattern:
    shape, block = case.sparse_shape, case.block
    if case.pattern == "random":
        return Pattern.random(shape, block, case.density, generator=generator, device=case.device)
    rows, cols = (-(-extent // b) for extent, b in zip(shape, block, strict=True))
    row = torch.arange(rows, device=case.device)[:, None] / rows
    col = torch.arange(cols, device=case.device) / cols
    if case.pattern == "banded":
        # A band of half-width w covers 1 - (1 - w)^2 of the unit square.
        mask = (row - col).abs() < 1 - math.sqrt(1 - case.density)
    elif case.pattern == "diagonal":
        squares = max(1, round(1 / case.density))
        mask = (row * squares).floor() == (col * squares).floor()
    else:
        raise ArgumentError(
            f"there is no pattern {case.pattern!r}; there are {', '.join(PATTERNS)}"
        )
    return Pattern.from_mask(mask, block, shape)
