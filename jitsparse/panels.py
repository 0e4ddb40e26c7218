"""How CUDA kernels cut a pattern: panels of block rows, and slabs of block columns.

Both the index of a pattern (:mod:`jitsparse.layout`) and the choice of a kernel depend on it;
this module does not import torch.
"""

from __future__ import annotations

__all__ = [
    "HOPPER_BLOCK",
    "MIN_DEPTH",
    "PAIRED",
    "PAIRED_AMONG",
    "PANEL",
    "SLAB",
    "SMS",
    "TALL_PANEL",
    "TRIPLED_AMONG",
    "has_condensed",
    "has_tall",
]

PANEL = 128
"""Rows (or columns) of a panel, in elements: the tile height of the tensor-core kernels."""

TALL_PANEL = 192
"""The same for the Hopper kernel with three warpgroups: any three block rows of 64."""

PAIRED = 64
"""Height of blocks for which a panel of :data:`PANEL` rows is any two block rows
(:mod:`jitsparse.pairs`): as high as what a warpgroup multiplies."""

PAIRED_AMONG = 128
"""Consecutive block rows that may be paired."""

TRIPLED_AMONG = 126
"""The same for three in a panel of :data:`TALL_PANEL` rows: a multiple of three, and even."""

SLAB = 64
"""Depth of a stage of the Hopper kernels, in elements."""

MIN_DEPTH = 32
"""Depth of the shallowest stage: one block of 32, or 32 elements of TF32."""

SMS = 132
"""Multiprocessors of the GPU that all of this is tuned for, an H100 or H200."""

HOPPER_BLOCK = 16
"""Smallest side of a block that the Hopper kernels take."""


def has_tall(extent: int, depth: int) -> bool:
    """Whether blocks of this height and depth have panels of :data:`TALL_PANEL` rows.

    A warpgroup multiplies one such block as it is, and none is deeper than a slab.
    """
    return extent == 64 and HOPPER_BLOCK <= depth <= SLAB


def has_condensed(depth: int) -> bool:
    """Whether a slab may have any block columns, not just adjacent ones.

    That is where blocks are less deep than the shallowest slab, so that every slab has several. (A
    slab of 32 is one block column of 32, and as fast as a condensed one of two.)
    """
    return HOPPER_BLOCK <= depth < MIN_DEPTH
