"""Family ``mma``: tensor cores through mma.sync, fed by cp.async; Ampere and later.

Knobs: ``b`` block, ``l`` layout, ``t`` tile (rows x columns x depth of a pipeline stage), ``w``
warps (down x across the tile), ``s`` stages of the pipeline, ``c`` CTAs that an SM should hold.
With ``k`` = ``split`` tiles are divided along k (:mod:`jitsparse.kernels.split`): the last ones of
an sdd, or all of a dsd or dds that has few.

Which tile is best was measured on an H200 (docs/performance.md). What decides is, for small blocks,
how many warps hide the latency of many short steps, and for large ones how few bytes a product
moves through shared memory, which favours warps of 64 x 64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.kernels import split
from jitsparse.kernels.cuda import (
    Tile,
    ctas_per_sm,
    cuda_template,
    dividing_pays,
    parts_of_tile,
    ranked,
    tile_context,
    time_to_the_end,
    typical_problems,
    walked,
    waves,
)
from jitsparse.kernels.legality import (
    before_ampere,
    first_legal,
    low_blocks,
    too_large,
    too_many_tiles,
    too_much_shared_memory,
)
from jitsparse.kernels.problem import TYPICAL_BLOCKS, Priority, Problem
from jitsparse.kernels.roles import is_k_contiguous, op_block

__all__ = ["candidates", "default_variants", "priority", "template"]

_BYTES = {"bf16": 2, "f16": 2, "tf32": 4}

# Products by the height of a block as the kernel sees it, widest tile first.
_SPMM_16_BIT = {
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
    16: (Tile((128, 128, 32), (4, 2), 3, 1), Tile((128, 32, 32), (4, 1), 3, 2)),
    32: (Tile((128, 128, 32), (4, 2), 3, 1), Tile((128, 32, 32), (4, 1), 3, 2)),
    64: (Tile((64, 128, 32), (1, 4), 3, 2), Tile((64, 32, 32), (4, 1), 4, 2)),
    128: (Tile((128, 128, 32), (2, 4), 3, 1), Tile((128, 32, 32), (4, 1), 4, 2)),
}
# sdd by the height of a block. The wide tile of a height wants rows that fill it.
_SDD_16_BIT = {
    16: (Tile((128, 128, 64), (2, 4), 3, 2),),
    32: (Tile((32, 256, 64), (1, 4), 3, 2), Tile((128, 128, 64), (2, 4), 3, 2)),
    64: (Tile((64, 256, 64), (1, 4), 2, 2), Tile((64, 128, 64), (1, 4), 4, 2)),
    128: (Tile((128, 128, 64), (2, 2), 3, 2),),
}
_SDD_32_BIT = {
    16: (Tile((128, 128, 32), (2, 4), 3, 2),),
    32: (Tile((128, 128, 32), (2, 4), 3, 2),),
    64: (Tile((64, 128, 32), (1, 4), 3, 2),),
    128: (Tile((128, 128, 32), (2, 4), 3, 2),),
}

# What decides whether tiles are divided, and which, is from times on an H200
# (docs/performance.md): of 118 sdd what is chosen takes 1.007 times the time of the best in the
# mean, of 108 dds with 16 to 256 columns 1.018 times.
_DIVIDING_SDD = {2: 1100, 4: 650}
"""As in :func:`~jitsparse.kernels.cuda.dividing_pays`, by bytes of an element: in TF32 a wave takes
twice as long for each of k. (H100, 84 sdd in TF32 of less than a wave: divided they take 1.06 to
9.5 times less from 746 on, and 0.95 to 1.12 times less up to 644.)"""
_FIXED_OF_SDD = 64
"""As in :func:`~jitsparse.kernels.cuda.time_to_the_end`."""
_MAX_DIVIDED_COLUMNS = 64
"""Of a dsd or dds: few columns are what leaves CTAs idle."""
_DIVIDING = 16000 * 128
"""What leaving parts and adding them takes, in products of an SM."""
_FIXED = 16
"""What a CTA spends on its sparse operand, in columns."""


def priority(problem: Problem) -> Priority:
    """Before ``simt`` always."""
    return Priority(
        1, "tensor cores; the tile that keeps the CTAs of a GPU busy for least time first"
    )


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason."""
    tiles = ranked(problem, _tiles(problem))
    to_divide = _to_divide(problem, target)
    whole = [_candidate(problem, tile, False, target) for tile in tiles]
    divided = [_candidate(problem, tile, True, target) for tile in to_divide]
    if to_divide and _dividing_pays(problem, to_divide[0], _fitting(problem, tiles, False, target)):
        return [*divided, *whole]
    return [*whole, *divided]


def _candidate(problem: Problem, tile: Tile, divides: bool, target: str) -> Candidate:
    variant = tile.variant("mma", problem, target, divides)
    return Candidate(variant, template(variant), _refusal(problem, tile, divides, target))


def _fitting(problem: Problem, tiles: Iterable[Tile], divides: bool, target: str) -> list[Tile]:
    """Those for which an SM has shared memory, with as many CTAs as it really has: how many parts
    there are, and how many rounds, follows from them."""
    fitting = []
    for tile in tiles:
        fit = ctas_per_sm(_shared_memory(problem, tile, divides), target)
        if fit:
            fitting.append(replace(tile, ctas=min(tile.ctas, fit)))
    return fitting


def _to_divide(problem: Problem, target: str) -> list[Tile]:
    """Tiles that may be divided, best first."""
    if problem.dtype not in _BYTES:
        return []
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
    """Whether a tile is faster divided than the first of these whole."""
    if problem.op == "sdd":
        return dividing_pays(problem, whole[0], _DIVIDING_SDD[_BYTES[problem.dtype]])
    by_dividing = _time(problem, divided, divides=True) + _DIVIDING
    return by_dividing < _time(problem, whole[0], divides=False)


def _time(problem: Problem, tile: Tile, divides: bool) -> float:
    """What a dsd or dds takes, in products of an SM, with tiles divided or whole."""
    tile_m, tile_n, _ = tile.shape
    parts = parts_of_tile(problem, tile, "mma") if divides else 1
    rounds = math.ceil(waves(problem, tile) * parts)
    return rounds * tile.ctas * tile_m * walked(problem, tile) / parts * (tile_n + _FIXED)


def _tiles(problem: Problem) -> tuple[Tile, ...]:
    wide = _BYTES.get(problem.dtype, 4) == 4
    if problem.op == "sdd":
        return (_SDD_32_BIT if wide else _SDD_16_BIT).get(problem.block[0], _SDD_16_BIT[16])
    height, _ = op_block(problem.op, problem.block, problem.layout)
    tiles = (_SPMM_32_BIT if wide else _SPMM_16_BIT).get(height, _SPMM_16_BIT[16])
    if height == 16 and is_k_contiguous(problem.op, problem.layout):
        # The dense operand arrives 32 bytes a row, so L2 answers requests, not bytes: sharing them
        # among more columns gains nothing and the narrower tile runs twice an SM (10 to 15 %).
        return tiles[1:]
    return tiles


def _refusal(problem: Problem, tile: Tile, divides: bool, target: str) -> str | None:
    if problem.dtype not in _BYTES:
        return f"dtype {problem.dtype}: tensor cores multiply {', '.join(_BYTES)}"
    return (
        low_blocks(problem)
        or too_large(problem)
        or too_many_tiles(problem, tile.shape[:2])
        or (split.too_many_panels(problem, tile.shape[0]) if divides else None)
        or before_ampere(target)
        or too_much_shared_memory(_shared_memory(problem, tile, divides), target)
    )


def _shared_memory(problem: Problem, tile: Tile, divides: bool) -> int:
    """Bytes that a CTA asks for: kSharedBytes of spmm_mma.cuh and sdd_mma.cuh."""
    (tile_m, tile_n, tile_k), (warps_m, warps_n) = tile.shape, tile.warps
    itemsize = _BYTES[problem.dtype]
    pipeline = tile.stages * (tile_m + tile_n) * tile_k * itemsize
    if problem.op == "sdd":
        rows = min(tile_m // warps_m, problem.block[0])
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
    """What calls choose before Hopper for square blocks; with few columns too, and for bf16 with a
    short k."""
    problems = (
        *typical_problems(("bf16",), TYPICAL_BLOCKS),
        *typical_problems(("bf16", "tf32"), (32, 128), extent=16),
        *typical_problems(("bf16",), (32, 128), extent=64),
        *(
            each
            for each in typical_problems(("bf16",), TYPICAL_BLOCKS, extent=512)
            if each.op == "sdd"
        ),
        *typical_problems(("f16", "tf32"), (32, 128)),
    )
    yield from first_legal(candidates, problems, target)


def template(variant: Variant) -> Template:
    """What a variant is rendered from."""
    return cuda_template("mma", variant.op, tile_context)
