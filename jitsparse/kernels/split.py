"""Split-K: CTAs share sums over k, since few tiles and a long k would leave most of a GPU idle.

A weight gradient of 1024 x 1024 in blocks of 128 at a density of a quarter is 16 tiles of an sdd,
however many tokens it sums over; 64 tokens through a layer of 4096 outputs are 32 tiles of a dds.
Variants with the knob ``k`` = ``split`` store partial sums in a workspace, and a second kernel adds
them, always in the same order. The kernel, which knows its tiles, decides how many parts there are;
this module says how many there can be.

An sdd of ``fma`` or ``mma`` splits only its last tiles, those that are fewer than the CTAs that a
GPU has at a time (``csrc/cuda/kernels/sdd_tail.cuh``). A dsd or dds of these families has exactly
as many parts as this module says.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jitsparse.jit import Variant
from jitsparse.kernels.roles import op_block
from jitsparse.layout import div_up
from jitsparse.panels import PANEL, SLAB, SMS

if TYPE_CHECKING:
    from jitsparse.kernels.problem import Problem

__all__ = [
    "BYTES_OF_TAIL",
    "DIVIDE_THE_TAIL",
    "KNOB",
    "MAX_ELEMENTS",
    "MAX_ROUNDS",
    "most_parts",
    "most_parts_of_problem",
    "most_parts_of_steps",
    "parts_of_problem",
    "parts_of_product",
    "parts_of_sdd",
    "parts_of_tail",
    "parts_of_tiles",
    "pays_in_sdd",
    "splits",
    "too_many_panels",
    "walked_k",
]

KNOB = ("k", "split")

_TILE = 128 * 256
"""Elements of the largest tile (``GatherShape`` of ``csrc/abi.h``)."""

_MIN_SLABS = 8
"""Minimum number of slabs of a part: starting and storing cost as much as two."""

_MAX_PARTS = 16

MAX_ELEMENTS = SMS // 2 * _TILE
"""Stored elements of a result above which its sums are not split."""

_MIN_K = {"fma": 128, "mma": 256}
"""Minimum extent of k that a part of a dsd or dds tile walks, by family."""

DIVIDE_THE_TAIL = tuple(_MIN_K)
"""Families whose sdd splits only its last tiles."""

MAX_ROUNDS, _MAX_PANELS = 3, 512
_STAGES_TO_START = 2
BYTES_OF_TAIL = 4 * (_MAX_PANELS + 9)
"""Bytes of shared memory; as in ``csrc/cuda/kernels/sdd_tail.cuh``, like the three above."""

_MIN_SLABS_THAT_PAY, _ENOUGH_SLABS = 64, 128
_ELEMENTS_A_SLAB = 4096
"""A part costs what its elements cost to write and to read, and saves some of the sum's slabs."""


def splits(variant: Variant) -> bool:
    """Whether a variant may split its sums."""
    return KNOB in variant.knobs


def pays_in_sdd(problem: Problem) -> bool:
    """Whether an sdd is faster with split-K.

    Measured on an H200: 1.2 to 2.6 times as fast where this says so, except for 0.98 where many
    tiles are narrow; 0.55 to 1.03 times elsewhere.
    """
    slabs = problem.batch * div_up(problem.extent, SLAB)
    elements = problem.nnz * problem.block[0] * problem.block[1]
    return slabs >= _MIN_SLABS_THAT_PAY and elements <= _ELEMENTS_A_SLAB * min(slabs, _ENOUGH_SLABS)


def parts_of_sdd(variant: Variant, elements: int, k: int, batch: int) -> tuple[int, int]:
    """The most parts into which an sdd may split its sums, and bytes of workspace for them.

    For families that split only the last tiles, the first is the CTAs at a time instead: the split
    tiles make up to three times as many parts.

    Args:
        variant: one that splits sums.
        elements: stored elements of the result.
        k: length of a sum.
        batch: number of sums that are added up.
    """
    if variant.family in DIVIDE_THE_TAIL:
        at_once = SMS * variant.ints("c")[0]
        tile_m, tile_n, tile_k = variant.ints("t")
        # A tile has at least one block, and a part at least one stage.
        blocks, stages = elements // math.prod(variant.ints("b")), div_up(k, tile_k) * batch
        slots = min(MAX_ROUNDS * at_once, blocks * stages)
        return at_once, 4 * slots * tile_m * tile_n
    parts = most_parts(elements, k, batch) if elements <= MAX_ELEMENTS else 1
    return parts, 4 * parts * elements if parts > 1 else 0


def parts_of_tail(tiles: float, at_once: int, stages: int) -> tuple[int, int]:
    """Parts of each of the last tiles of an sdd of ``fma`` or ``mma``, and the time they take.

    The time is in stages of a CTA.

    Args:
        tiles: number of tiles in the last round.
        at_once: CTAs that a GPU has at a time.
        stages: number of stages of a whole tile.
    """
    best, least = 1, stages + _STAGES_TO_START
    for rounds in range(1, MAX_ROUNDS + 1):
        parts = min(int(rounds * at_once / max(1.0, tiles)), stages)
        time = rounds * (div_up(stages, max(1, parts)) + _STAGES_TO_START)
        if time < least:
            best, least = max(1, parts), time
    return best, least


def too_many_panels(problem: Problem, height: int) -> str | None:
    """Every CTA of an sdd that splits its last tiles counts the tiles of all panels."""
    panels = div_up(problem.rows, height)
    if problem.op == "sdd" and panels > _MAX_PANELS:
        most = f"the last tiles of at most {_MAX_PANELS} are divided"
        return f"{panels} panels of {height} rows: {most}"
    return None


def most_parts(elements: int, k: int, batch: int) -> int:
    """The most parts into which a sum may be split; the workspace holds as many.

    Args:
        elements: stored elements of the result.
        k: length of a sum.
        batch: number of sums that are added up.
    """
    tiles = div_up(elements, _TILE)
    return max(1, min(SMS // tiles, batch * div_up(k, SLAB) // _MIN_SLABS, _MAX_PARTS))


def parts_of_product(
    variant: Variant, m: int, n: int, k: int, batch: int, stored: int
) -> tuple[int, int]:
    """Parts into which a dsd or dds splits the steps of a tile, and bytes of workspace for them.

    For ``wgmma`` it is the most parts that there may be.

    Args:
        variant: one that splits steps.
        m, n, k, batch: as for :func:`most_parts_of_steps`.
        stored: elements of all blocks.
    """
    tile_m, tile_n, _ = variant.ints("t")
    if variant.family in _MIN_K:
        rows, cols = variant.ints("b")
        height, _ = op_block(variant.op, (rows, cols), variant.knob("l"))
        tiles = div_up(m, tile_m) * div_up(n, tile_n) * batch
        walked = walked_k(k, stored / (m * k), tile_m // height)
        parts = parts_of_tiles(variant.family, tiles, SMS * variant.ints("c")[0], walked)
    else:
        parts = most_parts_of_steps(m, n, k, batch, tile_n)
    return parts, 4 * parts * batch * m * n if parts > 1 else 0


def parts_of_tiles(family: str, tiles: int, at_once: int, walked: float) -> int:
    """Number of parts into which ``fma`` or ``mma`` splits each tile of a dsd or dds.

    Args:
        family: one of the two.
        tiles: total number of tiles.
        at_once: CTAs that a GPU has at a time.
        walked: extent of k that a tile walks on average.
    """
    # A third of 768 may be a little less than 256 in floating point.
    whole = int(walked * (1 + 1e-9))
    return max(1, min(at_once // max(1, tiles), whole // _MIN_K[family], _MAX_PARTS))


def walked_k(k: int, density: float, block_rows: int) -> float:
    """Extent of k that any of ``block_rows`` block rows of a random pattern stores on average."""
    return k * float(1 - (1 - min(1.0, density)) ** block_rows)


def most_parts_of_steps(m: int, n: int, k: int, batch: int, width: int) -> int:
    """The most parts into which a dsd or dds may split its steps; the workspace holds as many.

    Args:
        m, n, k: rows and columns of the result in the role of ``op_block``, and length of a sum.
        batch: number of results.
        width: columns of a tile.
    """
    tiles = div_up(m, PANEL) * div_up(n, width) * batch
    return max(1, min(SMS // max(1, tiles), div_up(k, SLAB) // _MIN_SLABS, _MAX_PARTS))


def most_parts_of_problem(problem: Problem, width: int) -> int:
    """As :func:`most_parts_of_steps`, for a problem and tiles of ``width`` columns."""
    m, k = op_block(problem.op, (problem.rows, problem.cols), problem.layout)
    return most_parts_of_steps(m, problem.extent, k, problem.batch, width)


def parts_of_problem(problem: Problem, variant: Variant) -> int:
    """As :func:`parts_of_product`, for a problem and without the workspace."""
    m, k = op_block(problem.op, (problem.rows, problem.cols), problem.layout)
    stored = problem.nnz * math.prod(problem.block)
    parts, _ = parts_of_product(variant, m, problem.extent, k, problem.batch, stored)
    return parts
