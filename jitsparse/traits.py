"""What a pattern tells the choice of a kernel, in one number that is part of a call's key.

From the top bits: the size classes of rows and columns, 9 bits each, and of stored blocks, 8 bits,
then the profile.

Size classes are quarters of an octave: patterns of nearly the same size share a choice, and a new
one costs a dictionary lookup. With whole octaves the choice was measurably worse
(docs/performance.md). Rows and columns have twice as many classes: *ragged* sizes, not a multiple
of :data:`LINE`, are kept apart, since the rows of a dense operand contiguous along them begin
within cache lines.

The profile says how the pattern differs from a random one. The Hopper and mma kernels walk panels
of 128 rows, in slabs of 64 columns or in whole blocks where these are larger, and a product's time
depends on the *steps* of a panel: slabs that hold a block. In a random pattern, their mean over the
panels follows from sizes and density, and so does the longest panel. The patterns of real programs
differ in two ways, along the rows and along the columns:

clustering
    Blocks are close together, so panels have fewer steps. A band is an example.
skew
    Some panels are much longer than others. Rows of power-law length are an example. Counted in
    block columns rather than slabs, since dense patterns fill all slabs.

Each is the base-2 logarithm of the ratio to a random pattern, quantized to 16 bins and represented
by the middle of its bin; the lowest bin counts as 0, since chance alone reaches it. The four bin
numbers are hexadecimal digits: clustering and skew of the rows, then of the columns.

Traits only serve to prefer one kernel to another: no result depends on them. They travel as an
attribute of a pattern's packed index, not in the operations' arguments: a compiled graph would hold
these, and be recompiled for each layer with different ones. The tensor itself passes through
autograd, compiled graphs and vmap. Where a copy arrives in its place, or the pattern was made where
the host cannot read it, there are no traits: the operation then knows only the sizes, and assumes a
random pattern.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from jitsparse.layout import div_up
from jitsparse.panels import PANEL, SLAB

__all__ = [
    "FACTS",
    "LINE",
    "TRAITS",
    "Side",
    "Steps",
    "attach_traits",
    "attached_traits",
    "density",
    "describe",
    "measure",
    "of_class",
    "of_side",
    "pack",
    "profile_by",
    "profile_of",
    "random_steps",
    "side_class",
    "side_of",
    "size_class",
    "sizes_of",
    "slab_columns",
    "transposed",
    "without_profile",
]

TRAITS = "_jitsparse_traits"
"""Name of the attribute."""

LINE = 64
"""16-bit elements in a cache line."""

_RAGGED = 4 * LINE
"""Sizes above which the largest of a class is a multiple of :data:`LINE`."""

_COPIED = 8
"""16-bit elements of the smallest copy: a size that is not a multiple of it is not aligned."""

_CLUSTERING = (0.0, *(quarters / 4 for quarters in range(2, 17)))
_SKEW = (0.0, *(eighths / 8 for eighths in (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)))
"""Where the bins of both begin, as binary logarithms. Skew is finer: the longest panel can be all
that a CTA does. 95 of 100 random patterns are within 0.06."""

FACTS = 3
"""Number of facts of a side that determine its part of a profile."""

_MAX_TABLE_BYTES = 1 << 24


class Side(NamedTuple):
    """A profile along rows or columns, as binary logarithms.

    Attributes:
        clustering: by how much panels are shorter than a random pattern's.
        skew: by how much the longest exceeds the mean, more than a random pattern's does.
    """

    clustering: float
    skew: float


class Steps(NamedTuple):
    """Steps per panel: the mean over all, and those of the longest."""

    mean: float
    longest: float


def attach_traits(index: Tensor, traits: int) -> Tensor:
    """Attach traits to an index, 0 for none; returns the index."""
    setattr(index, TRAITS, traits)
    return index


def attached_traits(index: Tensor) -> int:
    """The traits on an index, or 0."""
    return getattr(index, TRAITS, 0)


def size_class(size: int) -> int:
    """The class of a size from 0 to 2^63.

    The largest size of a class is 4, 5, 6 or 7 times a power of two, or less than 4.
    """
    below = max(size, 1) - 1
    shift = max(below.bit_length() - 3, 0)
    return 4 * shift + (below >> shift)


def of_class(number: int) -> int:
    """The largest size of a class."""
    shift = max(number // 4 - 1, 0)
    return (number - 4 * shift + 1) << shift


def side_class(size: int) -> int:
    """The class of a number of rows or columns.

    The largest of a ragged class is 8 less than that of a size class: ragged, too, and aligned to
    16 bytes.
    """
    if size > _RAGGED and size % LINE:
        return 2 * size_class(size + _COPIED) + 1
    return 2 * size_class(size)


def of_side(number: int) -> int:
    """The largest number of rows or columns of a class."""
    return of_class(number // 2) - number % 2 * _COPIED


def pack(rows: int, cols: int, nnz: int, profile: int = 0) -> int:
    """The traits of a pattern with these numbers of rows, columns and blocks."""
    return side_class(rows) << 33 | side_class(cols) << 24 | size_class(nnz) << 16 | profile


def sizes_of(traits: int) -> tuple[int, int, int]:
    """Rows, columns and blocks, each rounded up to the largest of its class."""
    return of_side(traits >> 33), of_side(traits >> 24 & 511), of_class(traits >> 16 & 255)


def profile_of(traits: int) -> int:
    """The profile."""
    return traits & 0xFFFF


def without_profile(traits: int) -> int:
    """The traits of a random pattern of the same sizes."""
    return traits & ~0xFFFF


def transposed(traits: int) -> int:
    """The traits of the transposed pattern."""
    rows, cols = traits >> 33, traits >> 24 & 511
    sizes = cols << 33 | rows << 24 | traits & 255 << 16
    return sizes | (traits & 255) << 8 | traits >> 8 & 255


def side_of(profile: int, side: str) -> Side:
    """What a profile says of ``"rows"`` or ``"cols"``."""
    digits = profile >> (8 if side == "rows" else 0)
    return Side(_middle(digits >> 4 & 15, _CLUSTERING), _middle(digits & 15, _SKEW))


def _middle(step: int, begins: Sequence[float]) -> float:
    """The middle of a bin; the first counts as 0, and the last has no end."""
    if step in (0, len(begins) - 1):
        return begins[step]
    return (begins[step] + begins[step + 1]) / 2


def describe(profile: int) -> str:
    """A profile as ratios, to append to a line of text; empty for a random pattern."""
    return "".join(
        f", {word} of {side} {2**value:.1f}"
        for side in ("rows", "cols")
        for word, value in zip(("clustering", "skew"), side_of(profile, side), strict=True)
        if value
    )


def density(rows: int, depth: int, nnz: int, block: tuple[int, int]) -> float:
    """Share of a matrix that ``nnz`` blocks cover, at most 1 whatever its edges."""
    return min(1.0, nnz * math.prod(block) / (rows * depth))


def slab_columns(block: tuple[int, int]) -> int:
    """Block columns of a slab, or 1 where a block is at least as deep."""
    return max(1, SLAB // block[1])


def random_steps(
    rows: int, depth: int, nnz: int, block: tuple[int, int], *, panel: int = PANEL, across: int
) -> Steps:
    """Steps of a random pattern.

    Args:
        rows, depth: of the matrix, in elements.
        nnz: stored blocks.
        block: ``(height, depth)`` of a block.
        panel: rows of a panel.
        across: block columns of a step.
    """
    share = density(rows, depth, nnz, block)
    places = max(1.0, panel / block[0]) * across
    # 1 - (1 - share) ** places, also for shares too small to change 1 - share.
    wanted = -math.expm1(places * math.log1p(-share)) if share < 1 else 1.0
    slabs = depth / (block[1] * across)
    # How far the largest of so many binomial variables is from the mean.
    beyond = math.sqrt(2 * math.log(div_up(rows, panel)) * slabs * wanted * (1 - wanted))
    return Steps(slabs * wanted, slabs * wanted + beyond)


def measure(row: Tensor, col: Tensor, shape: tuple[int, int], block: tuple[int, int]) -> int:
    """The profile of a pattern. Reads six numbers on the host, at once.

    Args:
        row, col: ``(nnz,)`` block coordinates, at least one.
        shape: ``(rows, cols)`` of the matrix, in elements.
        block: ``(block_rows, block_cols)``.
    """
    row, col = row.long(), col.long()
    sides = (row, col, shape, block), (col, row, shape[::-1], block[::-1])
    facts = torch.stack([fact for side in sides for fact in _facts(*side)]).tolist()
    return profile_by(facts, row.numel(), shape, block)


def profile_by(
    facts: Sequence[int], nnz: int, shape: tuple[int, int], block: tuple[int, int]
) -> int:
    """The profile of a pattern, from :data:`FACTS` of the rows and of the columns.

    Args:
        facts: for each side, over panels of consecutive rows: steps of all, in slabs; block
            columns of all, and of the longest.
        nnz, shape, block: as for :func:`measure`; at least one block.
    """
    along_rows = _digits(facts[:FACTS], nnz, shape, block)
    return along_rows << 8 | _digits(facts[FACTS:], nnz, shape[::-1], block[::-1])


def _facts(
    major: Tensor, minor: Tensor, shape: tuple[int, int], block: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps of all panels; block columns of all, and of the longest."""
    columns = _panels(major, minor, shape, block, 1)
    return (
        _panels(major, minor, shape, block, slab_columns(block)).sum(),
        columns.sum(),
        columns.max(),
    )


def _panels(
    major: Tensor, minor: Tensor, shape: tuple[int, int], block: tuple[int, int], across: int
) -> Tensor:
    """Steps of each panel, of ``across`` block columns each."""
    slabs = div_up(shape[1], block[1] * across)
    panels = div_up(shape[0], max(PANEL, block[0]))
    slab = major // max(1, PANEL // block[0]) * slabs + minor // across
    if panels * slabs <= _MAX_TABLE_BYTES:
        # Four times as fast as sorting, at 2048 and at 8192 blocks per side.
        table = slab.new_zeros(panels * slabs, dtype=torch.bool)
        table[slab] = True
        return table.view(panels, slabs).sum(1)
    slab = slab.sort().values
    opens = slab.new_ones(slab.shape)
    opens[1:] = slab[1:] != slab[:-1]
    return slab.new_zeros(panels).scatter_add_(0, slab // slabs, opens)


def _digits(facts: Sequence[int], nnz: int, shape: tuple[int, int], block: tuple[int, int]) -> int:
    """Clustering and skew of a side."""
    steps, columns, longest = facts
    panels = div_up(shape[0], max(PANEL, block[0]))
    random = random_steps(*shape, nnz, block, across=slab_columns(block))
    random_columns = random_steps(*shape, nnz, block, across=1)
    clustering = random.mean * panels / steps
    skew = longest * panels / columns / (random_columns.longest / random_columns.mean)
    return _digit(clustering, _CLUSTERING) << 4 | _digit(skew, _SKEW)


def _digit(ratio: float, steps: Sequence[float]) -> int:
    return max(bisect.bisect(steps, math.log2(ratio)) - 1, 0)
