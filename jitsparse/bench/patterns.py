"""Where the blocks of a benchmark's matrices are: the hard case, and the ones found in programs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from jitsparse.errors import ArgumentError
from jitsparse.layout import div_up
from jitsparse.pattern import Pattern

__all__ = ["PATTERNS", "make_pattern"]


def make_pattern(
    name: str,
    shape: tuple[int, int],
    block: tuple[int, int],
    density: float,
    generator: torch.Generator,
) -> Pattern:
    """A pattern made on the generator's device.

    Args:
        name: one of :data:`PATTERNS`.
        shape: of the matrix as stored, in elements.
        block: ``(block_rows, block_cols)``.
        density: share of the blocks that are stored; ``causal`` has its own.
        generator: for what is random about it.

    Raises:
        ArgumentError: a pattern that does not exist.
    """
    if name == "random":
        device = generator.device
        return Pattern.random(shape, block, density, generator=generator, device=device)
    if name not in _MASKS:
        raise ArgumentError(f"there is no pattern {name!r}; there are {', '.join(PATTERNS)}")
    rows, cols = (div_up(extent, b) for extent, b in zip(shape, block, strict=True))
    return Pattern.from_mask(_MASKS[name](rows, cols, density, generator), block, shape)


def _banded(rows: int, cols: int, density: float, generator: torch.Generator) -> Tensor:
    row = torch.arange(rows, device=generator.device)[:, None] / rows
    col = torch.arange(cols, device=generator.device) / cols
    # A band of half-width w covers 1 - (1 - w)^2 of the unit square.
    return (row - col).abs() < 1 - math.sqrt(1 - density)


def _diagonal(rows: int, cols: int, density: float, generator: torch.Generator) -> Tensor:
    """Squares along the diagonal, as in a mixture of experts."""
    squares = max(1, round(1 / density))
    row = torch.arange(rows, device=generator.device)[:, None] * squares // rows
    col = torch.arange(cols, device=generator.device) * squares // cols
    return row == col


def _causal(rows: int, cols: int, density: float, generator: torch.Generator) -> Tensor:
    """The lower triangle of blocks, diagonal included: a little over half, whatever the density."""
    return torch.ones(rows, cols, dtype=torch.bool, device=generator.device).tril()


def _powerlaw(rows: int, cols: int, density: float, generator: torch.Generator) -> Tensor:
    """The block row of rank r holds blocks in proportion to 1 / r, at random places.

    A row holds at most ``cols``; what the first rows have no room for goes to the others. As many
    blocks are stored as in a random pattern of the same density. Ranks are assigned at random.
    """
    device = generator.device
    total = round(density * rows * cols)
    weights = 1 / torch.arange(1, rows + 1, dtype=torch.float64, device=device)
    low = torch.zeros((), dtype=torch.float64, device=device)
    high = torch.full_like(low, float(rows * cols))  # the last row is full then
    for _ in range(100):
        middle = (low + high) / 2
        few = (middle * weights).clamp(max=cols).sum() < total
        low, high = torch.where(few, middle, low), torch.where(few, high, middle)
    # Rounding the sums rather than the terms keeps the total.
    ends = (high * weights).clamp(max=cols).cumsum(0).add(0.5).floor().long()
    counts = ends.diff(prepend=ends.new_zeros(1))
    counts = counts[torch.randperm(rows, generator=generator, device=device)]
    order = torch.rand(rows, cols, generator=generator, device=device).argsort(1)
    chosen = torch.arange(cols, device=device) < counts[:, None]
    return torch.zeros_like(chosen).scatter_(1, order, chosen)


_MASKS: dict[str, Callable[[int, int, float, torch.Generator], Tensor]] = {
    "banded": _banded,
    "diagonal": _diagonal,
    "causal": _causal,
    "powerlaw": _powerlaw,
}

PATTERNS = ("random", *_MASKS)
"""``random`` is uniform and the headline; ``diagonal`` is block-diagonal."""
