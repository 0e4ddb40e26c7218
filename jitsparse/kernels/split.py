"""Dividing the sums of an sdd among CTAs: few blocks and a long k would leave most of a GPU idle.

A weight gradient of 1024 x 1024 in blocks of 128 at a quarter is 16 tiles, however many tokens it
sums over. Variants with the knob ``k`` = ``split`` leave sums in parts in a workspace, and a second
kernel adds them, always in the same order. How many parts there are the kernel decides, which knows
its tiles; here is how many there can be.
"""

from __future__ import annotations

from jitsparse.jit import Variant
from jitsparse.kernels.cuda import SMS
from jitsparse.panels import SLAB

__all__ = ["KNOB", "MOST_ELEMENTS", "most_parts", "splits"]

KNOB = ("k", "split")

_TILE = 128 * 256
"""Elements of the largest tile (``csrc/cuda/kernels/sdd_wgmma.cuh``)."""

_FEWEST_SLABS = 8
"""Slabs that a part has at least: starting and storing cost as much as two."""

_MOST = 16

MOST_ELEMENTS = SMS // 2 * _TILE
"""Stored elements of a result above which its sums are not divided."""


def splits(variant: Variant) -> bool:
    """Whether a variant may divide its sums."""
    return KNOB in variant.knobs


def most_parts(elements: int, k: int, batch: int) -> int:
    """Into how many parts a sum may be divided; the workspace holds as many.

    Args:
        elements: stored elements of the result.
        k: length of a sum.
        batch: sums that are added up.
    """
    tiles = -(-elements // _TILE)
    return max(1, min(SMS // tiles, batch * -(-k // SLAB) // _FEWEST_SLABS, _MOST))
