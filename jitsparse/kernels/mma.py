"""Family ``mma``: tensor cores through mma.sync, fed by cp.async; Ampere and later.

Knobs: ``b`` block, ``l`` layout, ``t`` tile (rows x columns x depth of a pipeline stage), ``w``
warps (down x across the tile), ``s`` stages of the pipeline, ``c`` CTAs that an SM should hold.
``o`` = ``transposed``: the operand that would be read in pieces of 16 bytes is copied transposed
first (:mod:`jitsparse.kernels.transpose`). ``k`` = ``split`` stands for split-K
(:mod:`jitsparse.kernels.split`): of the last tiles of an sdd, or of all tiles of a dsd or dds that
has few.

The best tiles were measured on an H200 (docs/performance.md). Small blocks need many warps to hide
the latency of many short steps. Large ones need a product to move few bytes through shared memory,
which favours warps of 64 x 64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from jitsparse.jit import Candidate, Variant
from jitsparse.kernels import simt, split, tiled
from jitsparse.kernels.cuda import (
    Tile,
    ctas_per_sm,
    dividing_pays,
    parts_of_tile,
    ranked,
    tile_count,
    time_to_the_end,
    typical_problems,
    walked,
    waves,
)
from jitsparse.kernels.legality import (
    before_ampere,
    first_legal,
    too_large,
    too_many_tiles,
    too_much_shared_memory,
)
from jitsparse.kernels.problem import TYPICAL_BLOCKS, Priority, Problem
from jitsparse.kernels.roles import is_k_contiguous, op_block
from jitsparse.kernels.tiled import Way, template, ways

__all__ = ["candidates", "default_variants", "priority", "template"]

_DTYPES = ("bf16", "f16", "tf32", "f64")

# Tiles of dsd and dds by the height of a block as the kernel sees it, widest first.
_SPMM_16_BIT = {
    8: (
        Tile((128, 256, 128), (8, 2), 2, 1),
        Tile((128, 128, 64), (8, 1), 3, 2),
        Tile((128, 64, 64), (8, 1), 3, 2),
        Tile((128, 32, 64), (8, 1), 3, 2),
        Tile((128, 16, 64), (8, 1), 3, 2),
    ),
    16: (
        Tile((128, 256, 64), (8, 2), 3, 1),
        Tile((128, 128, 64), (4, 2), 3, 2),
        Tile((128, 64, 64), (4, 1), 3, 2),
        Tile((128, 32, 64), (4, 1), 3, 2),
        Tile((128, 16, 64), (4, 1), 3, 2),
    ),
    32: (
        Tile((128, 256, 128), (4, 4), 2, 1),
        Tile((128, 128, 64), (2, 4), 3, 2),
        Tile((128, 64, 64), (4, 1), 3, 2),
        Tile((128, 32, 64), (4, 1), 3, 2),
        Tile((128, 16, 64), (4, 1), 3, 2),
    ),
    64: (
        Tile((64, 256, 64), (1, 4), 2, 2),
        Tile((64, 128, 64), (1, 4), 4, 2),
        Tile((64, 64, 64), (2, 2), 4, 2),
        Tile((64, 32, 64), (4, 1), 4, 3),
        Tile((64, 16, 64), (4, 1), 4, 3),
    ),
    128: (
        Tile((128, 128, 64), (2, 2), 3, 2),
        Tile((128, 64, 64), (4, 1), 3, 2),
        Tile((128, 32, 64), (4, 1), 4, 2),
        Tile((128, 16, 64), (4, 1), 4, 2),
    ),
}
_SPMM_32_BIT = {
    8: (
        Tile((128, 256, 64), (8, 2), 2, 1),
        Tile((128, 128, 32), (4, 2), 3, 2),
        Tile((128, 32, 32), (4, 1), 3, 2),
    ),
    16: (Tile((128, 128, 32), (4, 2), 3, 1), Tile((128, 32, 32), (4, 1), 3, 2)),
    32: (Tile((128, 128, 32), (4, 2), 3, 1), Tile((128, 32, 32), (4, 1), 3, 2)),
    64: (Tile((64, 128, 32), (1, 4), 3, 2), Tile((64, 32, 32), (4, 1), 4, 2)),
    128: (Tile((128, 128, 32), (2, 4), 3, 1), Tile((128, 32, 32), (4, 1), 4, 2)),
}
# Multiplying doubles takes so long that what tiles load matters less than that all warps of a CTA
# have as much to do: a tile is as tall as a block (32, at 0.25: 0.69 of cuBLAS, in panels of 128
# rows 0.51). Only block rows of 8 share a panel.
_SPMM_64_BIT = {
    8: (Tile((128, 64, 16), (4, 1), 3, 2), Tile((128, 16, 32), (8, 1), 2, 2)),
    16: (Tile((16, 128, 32), (1, 4), 2, 3), Tile((16, 16, 16), (1, 1), 6, 8)),
    32: (Tile((32, 128, 32), (1, 4), 2, 2), Tile((32, 16, 32), (2, 1), 4, 4)),
    64: (Tile((64, 128, 32), (2, 2), 2, 2), Tile((64, 16, 32), (4, 1), 3, 3)),
    128: (Tile((128, 64, 32), (2, 2), 2, 2), Tile((128, 16, 32), (4, 1), 3, 2)),
}
# Tiles of sdd by the height of a block. The wide tile of a height needs rows that fill it.
_SDD_16_BIT = {
    8: (Tile((128, 128, 64), (4, 2), 3, 2),),
    16: (Tile((128, 128, 64), (2, 4), 3, 2),),
    32: (Tile((32, 256, 64), (1, 4), 3, 2), Tile((128, 128, 64), (2, 4), 3, 2)),
    64: (Tile((64, 256, 64), (1, 4), 2, 2), Tile((64, 128, 64), (1, 4), 4, 2)),
    128: (Tile((128, 128, 64), (2, 2), 3, 2),),
}
_SDD_32_BIT = {
    8: (Tile((128, 128, 32), (4, 2), 3, 2),),
    16: (Tile((128, 128, 32), (2, 4), 3, 2),),
    32: (Tile((128, 128, 32), (2, 4), 3, 2),),
    64: (Tile((64, 128, 32), (1, 4), 3, 2),),
    128: (Tile((128, 128, 32), (2, 4), 3, 2),),
}
_SDD_64_BIT = {
    8: (Tile((128, 64, 16), (2, 2), 3, 2), Tile((128, 128, 16), (2, 4), 3, 1)),
    16: (Tile((16, 128, 16), (1, 4), 3, 4),),
    32: (Tile((32, 128, 16), (1, 4), 3, 3),),
    64: (Tile((64, 128, 16), (1, 4), 3, 2),),
    128: (Tile((128, 128, 16), (2, 4), 4, 1),),
}
_Table = Mapping[int, tuple[Tile, ...]]
_SPMM: Mapping[int, _Table] = {2: _SPMM_16_BIT, 4: _SPMM_32_BIT, 8: _SPMM_64_BIT}
_SDD: Mapping[int, _Table] = {2: _SDD_16_BIT, 4: _SDD_32_BIT, 8: _SDD_64_BIT}

# Whether tiles are split along k, and which, was fitted to times on an H200 (docs/performance.md):
# for 118 sdd the choice takes 1.007 times the time of the best on average, for 108 dds with 16 to
# 256 columns 1.018 times.
_DIVIDING_SDD = {2: 1100, 4: 650}
"""``costs`` of :func:`~jitsparse.kernels.cuda.dividing_pays`, by bytes of an element: in TF32 a
wave takes twice as long per element of k. (H100, 84 TF32 sdd of less than a wave: split-K is
1.06 to 9.5 times as fast from 746 on, and 0.95 to 1.12 times up to 644.)"""
_FIXED_OF_SDD = 64
"""``fixed`` of :func:`~jitsparse.kernels.cuda.time_to_the_end`."""
_SAVED, _SAVED_IF_ALL_STORED = 6e-7, 2.7e-8
"""Microseconds that a transposed copy saves for each element that tiles load of it, on an H200. In
an sdd of blocks of 8 rows it is at most the second, divided by the share of the tiles that is
stored: where much is, multiplying takes as long as loading."""
_MAX_DIVIDED_COLUMNS = 64
"""Columns of the widest split tile of a dsd or dds: few columns are what leaves CTAs idle."""
_DIVIDING = 16000 * 128
"""Cost of storing parts and adding them, in products of an SM."""
_FIXED = 16
"""Cost of a CTA's sparse operand, in columns."""


def priority(problem: Problem) -> Priority:
    """Ahead of ``simt``, unless nearly all tiles of an sdd store nothing."""
    if simt.outruns_empty_tiles(problem, _tiles(problem)[0].shape):
        return Priority(4, "tensor cores, after simt: most tiles store nothing")
    return Priority(
        1, "tensor cores; the tile that keeps the CTAs of a GPU busy for least time first"
    )


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason."""
    tiles = _ranked(problem)
    to_divide = _to_divide(problem, target)

    def of(tiles: Iterable[Tile], *, divides: bool) -> list[Candidate]:
        return tiled.candidates("mma", problem, tiles, divides, target, _ways, _refusal)

    whole, divided = of(tiles, divides=False), of(to_divide, divides=True)
    if to_divide and _dividing_pays(problem, to_divide[0], _fitting(problem, tiles, False, target)):
        return [*divided, *whole]
    return [*whole, *divided]


def _ranked(problem: Problem) -> list[Tile]:
    """Tiles for a problem, best first."""
    tiles = _tiles(problem)
    if problem.dtype != "f64":
        return ranked(problem, tiles)
    if problem.op == "sdd":
        return list(tiles)  # the second is for blocks that are wider than the first
    # CTAs of an SM share tensor cores that one of them keeps busy.
    return sorted(tiles, key=lambda tile: _time(problem, replace(tile, ctas=1), divides=False))


def _ways(problem: Problem, tile: Tile) -> list[Way]:
    """Whether to copy an operand, best first."""
    if problem.itemsize != 2:
        return [[]]
    saved = _SAVED
    if problem.op == "sdd" and problem.block[0] == 8:
        computed = tile_count(problem, tile.shape) * math.prod(tile.shape[:2])
        stored = max(1, problem.nnz) * math.prod(problem.block)
        saved = min(_SAVED, _SAVED_IF_ALL_STORED * computed / stored)
    return ways(problem, tile, saved)


def _fitting(problem: Problem, tiles: Iterable[Tile], divides: bool, target: str) -> list[Tile]:
    """Tiles that fit an SM's shared memory, each with the number of CTAs that an SM really holds.

    The numbers of parts and of rounds follow from it.
    """
    fitting = []
    for tile in tiles:
        fit = ctas_per_sm(_shared_memory(problem, tile, divides), target)
        if fit:
            fitting.append(replace(tile, ctas=min(tile.ctas, fit)))
    return fitting


def _to_divide(problem: Problem, target: str) -> list[Tile]:
    """Tiles that may be split along k, best first."""
    if problem.dtype not in _DTYPES or problem.dtype == "f64":
        return []  # parts are in float32
    tiles = _fitting(problem, _tiles(problem), True, target)
    if problem.op == "sdd":
        return sorted(tiles, key=lambda tile: time_to_the_end(problem, tile, _FIXED_OF_SDD))
    narrow = [
        tile
        for tile in tiles
        if tile.shape[1] <= _MAX_DIVIDED_COLUMNS and parts_of_tile(problem, tile, "mma") > 1
    ]
    return sorted(narrow, key=lambda tile: _time(problem, tile, divides=True))


def _dividing_pays(problem: Problem, divided: Tile, whole: Sequence[Tile]) -> bool:
    """Whether a split tile is faster than the first of the whole ones."""
    if problem.op == "sdd":
        return dividing_pays(problem, whole[0], _DIVIDING_SDD[problem.itemsize])
    by_dividing = _time(problem, divided, divides=True) + _DIVIDING
    return by_dividing < _time(problem, whole[0], divides=False)


def _time(problem: Problem, tile: Tile, divides: bool) -> float:
    """Time of a dsd or dds, in products of an SM, with tiles split or whole."""
    tile_m, tile_n, _ = tile.shape
    parts = parts_of_tile(problem, tile, "mma") if divides else 1
    rounds = math.ceil(waves(problem, tile) * parts)
    return rounds * tile.ctas * tile_m * walked(problem, tile) / parts * (tile_n + _FIXED)


def _tiles(problem: Problem) -> tuple[Tile, ...]:
    itemsize = problem.itemsize
    if problem.op == "sdd":
        height, width = problem.block
        tiles = tuple(tile for tile in _SDD[itemsize][height] if tile.shape[1] >= width)
        if itemsize == 8 and width == 8:
            # A copying thread has a pointer for each block column, and registers for no more CTAs.
            return tuple(replace(tile, ctas=min(tile.ctas, 2)) for tile in tiles)
        return tiles
    height, depth = op_block(problem.op, problem.block, problem.layout)
    tiles = _SPMM[itemsize][height]
    if itemsize == 8:
        return tiles
    if height == 8 and depth > 32:
        return tiles[1:]  # the widest would spill registers, and deep blocks need no deep stages
    if height == 16 and is_k_contiguous(problem.op, problem.layout):
        # The dense operand arrives in rows of 32 bytes, so requests limit L2, not bytes: sharing
        # them among more columns gains nothing, and an SM runs two narrower tiles (10 to 15 %).
        return tiles[1:]
    return tiles


def _refusal(problem: Problem, tile: Tile, divides: bool, target: str) -> str | None:
    if problem.dtype not in _DTYPES:
        return f"dtype {problem.dtype}: tensor cores multiply {', '.join(_DTYPES)}"
    return (
        too_large(problem)
        or too_many_tiles(problem, tile.shape[:2])
        or (split.too_many_panels(problem, tile.shape[0]) if divides else None)
        or before_ampere(target)
        or too_much_shared_memory(_shared_memory(problem, tile, divides), target)
    )


def _shared_memory(problem: Problem, tile: Tile, divides: bool) -> int:
    """Bytes of shared memory of a CTA: kSharedBytes of spmm_mma.cuh and sdd_mma.cuh."""
    (tile_m, tile_n, tile_k), (warps_m, warps_n) = tile.shape, tile.warps
    itemsize = problem.itemsize
    pipeline = tile.stages * (tile_m + tile_n) * tile_k * itemsize
    if problem.op == "sdd":
        rows = min(tile_m // warps_m, max(16, problem.block[0]))
        cols = min(tile_n // warps_n, problem.block[1])
        metadata = 16 * (tile_n // problem.block[1]) + divides * split.BYTES_OF_TAIL
        staged = warps_m * warps_n * rows * (cols * itemsize + 16)
        return max(pipeline, staged) + metadata
    height, depth = op_block(problem.op, problem.block, problem.layout)
    slots, group = max(1, tile_k // depth), tile_m // height
    rings = 16 * slots * (16 + 4 * group)
    rows, cols = tile_m // warps_m, tile_n // warps_n
    if problem.op == "dds":
        rows, cols = cols, rows
    return max(pipeline + rings, warps_m * warps_n * rows * (cols * itemsize + 16))


def default_variants(target: str) -> Iterator[Variant]:
    """What calls choose before Hopper for square blocks, and on Hopper for blocks of 8 and float64.

    Also with few columns, and for bf16 with a short k.
    """
    problems = (
        *typical_problems(("bf16",), (8, *TYPICAL_BLOCKS)),
        *typical_problems(("bf16", "tf32"), (32, 128), extent=16),
        *typical_problems(("bf16",), (32, 128), extent=64),
        *(
            each
            for each in typical_problems(("bf16",), TYPICAL_BLOCKS, extent=512)
            if each.op == "sdd"
        ),
        *typical_problems(("f16", "tf32", "f64"), (32, 128)),
    )
    yield from first_legal(candidates, problems, target)
