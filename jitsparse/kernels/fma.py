"""Family ``fma``: IEEE float32 on ordinary CUDA cores, fed by cp.async; Ampere and later.

Knobs as for ``mma``: ``b`` block, ``l`` layout, ``t`` tile (rows x columns x depth of a pipeline
stage), ``w`` warps (down x across the tile), ``s`` stages of the pipeline, ``c`` CTAs that an SM
should hold. A warp's part of the tile determines a thread's: 16 x 8 products of 64 x 64, 8 x 8 of
32 x 64 or 16 x 128, 8 x 4 of 8 x 128. A tile is as tall as a block. ``o`` = ``transposed``: the
operand that would be read in pieces of 32 bytes, eight elements, is copied transposed first
(:mod:`jitsparse.kernels.transpose`). ``k`` = ``split`` stands for split-K
(:mod:`jitsparse.kernels.split`): of the last tiles of an sdd, or of all tiles of a dsd or dds that
has few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jitsparse.jit import Candidate, Variant
from jitsparse.kernels import simt, split, tiled
from jitsparse.kernels.cuda import (
    Tile,
    ctas_per_sm,
    dividing_pays,
    parts_of_tile,
    ranked,
    time_to_the_end,
    typical_problems,
)
from jitsparse.kernels.legality import (
    before_ampere,
    capability,
    first_legal,
    too_large,
    too_many_tiles,
    too_much_shared_memory,
)
from jitsparse.kernels.problem import TYPICAL_BLOCKS, Priority, Problem
from jitsparse.kernels.roles import is_flipped, is_k_contiguous, op_block
from jitsparse.kernels.tiled import Way, has_short_rows, template, ways

__all__ = ["candidates", "default_variants", "priority", "template"]


# By the height of a block as the kernel sees it, widest tile first. On an H200, threads with 8 x 8
# of the output and three CTAs per SM were faster than 16 x 8 and two (docs/performance.md): more
# warps hide more than fewer instructions save. An sdd of blocks of 128 is the exception. Stages of
# 32 need half the barriers of 16, and the shared memory of Hopper (_fitting).
_SPMM = {
    16: (Tile((16, 256, 16), (1, 2), 3, 6), Tile((16, 64, 16), (1, 2), 4, 8)),
    32: (Tile((32, 256, 32), (1, 4), 2, 3), Tile((32, 64, 16), (1, 2), 4, 6)),
    64: (Tile((64, 128, 32), (2, 2), 3, 3), Tile((64, 32, 16), (2, 1), 4, 6)),
    128: (Tile((128, 64, 32), (2, 2), 3, 3), Tile((128, 32, 16), (4, 1), 4, 3)),
}
# Of blocks of 8 rows, by the depth of a stage; and a narrow one.
_LOW = {
    8: Tile((8, 256, 8), (1, 2), 3, 8),
    16: Tile((8, 256, 16), (1, 2), 2, 6),
    32: Tile((8, 256, 32), (1, 2), 2, 3),
}
_LOW_NARROW = Tile((8, 128, 8), (1, 1), 6, 8)
_SDD = {
    8: (_LOW[32],),
    16: (Tile((16, 256, 16), (1, 4), 3, 4), Tile((16, 128, 16), (1, 2), 4, 6)),
    32: (Tile((32, 256, 32), (1, 4), 2, 3), Tile((32, 128, 16), (1, 2), 4, 5)),
    64: (Tile((64, 128, 32), (2, 2), 3, 3),),
    128: (Tile((128, 128, 16), (2, 2), 4, 2),),
}
# Where both operands are k-major, a copying thread needs a pointer for each block column, and
# registers for them: if there are many, one more CTA makes it spill.
_SDD_ALONG = _SDD | {32: (Tile((32, 128, 16), (1, 2), 3, 6),)}
_NARROW_SDD_ALONG = _SDD_ALONG | {
    32: (Tile((32, 256, 16), (1, 4), 3, 2), Tile((32, 128, 16), (1, 2), 4, 4)),
    64: (Tile((64, 128, 16), (2, 2), 3, 3),),
}

_DIVIDING_COSTS = 350
"""``costs`` of :func:`~jitsparse.kernels.cuda.dividing_pays`."""
_SAVED = {"dsd": 5.5e-7, "dds": 5.5e-7, "sdd": 1e-7}
"""Microseconds that a transposed copy saves for each element that tiles load of it, on an H200."""
_FIXED_COLUMNS = {(16, False): 96, (16, True): 0, (32, False): 26}
"""Fixed cost of a tile in columns, by its height and by whether both operands are k-major, where
there are two widths: derived from which is faster at 1024 and at 4096."""


def priority(problem: Problem) -> Priority:
    """Ahead of ``simt``, unless nearly all tiles of an sdd store nothing."""
    if simt.outruns_empty_tiles(problem, _SDD[problem.block[0]][0].shape):
        return Priority(4, "float32 on CUDA cores, after simt: most tiles store nothing")
    return Priority(2, "float32 on CUDA cores; the tile with the least waves of CTAs first")


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason."""
    tiles = ranked(problem, _tiles(problem, target))

    def of(tiles: Iterable[Tile], *, divides: bool) -> list[Candidate]:
        return tiled.candidates("fma", problem, tiles, divides, target, _ways, _refusal)

    whole = of(tiles, divides=False)
    divided = of(_to_divide(problem, tiles, target), divides=True)
    return [*divided, *whole] if _dividing_pays(problem, tiles[0]) else [*whole, *divided]


def _ways(problem: Problem, tile: Tile) -> list[Way]:
    """Whether to copy an operand, best first."""
    return ways(problem, tile, _SAVED[problem.op])


def _to_divide(problem: Problem, tiles: list[Tile], target: str) -> list[Tile]:
    """Tiles for splitting a product along k, best first."""
    if problem.op != "sdd":
        # Wide tiles would spill, and few columns are what leaves CTAs idle.
        narrowest = min(tiles, key=lambda tile: tile.shape[1])
        return [narrowest] if parts_of_tile(problem, narrowest, "fma") > 1 else []
    # The number of parts follows from the CTAs that an SM really holds at a time.
    tiles = [
        replace(tile, ctas=max(1, min(tile.ctas, _ctas_per_sm(problem, tile, True, target))))
        for tile in tiles
    ]
    return sorted(tiles, key=lambda tile: time_to_the_end(problem, tile, _fixed(problem, tile)))


def _dividing_pays(problem: Problem, tile: Tile) -> bool:
    """Whether a product is faster with split tiles than with whole ones."""
    return problem.op != "sdd" or dividing_pays(problem, tile, _DIVIDING_COSTS)


def _fixed(problem: Problem, tile: Tile) -> int:
    return _FIXED_COLUMNS.get((tile.shape[0], problem.layout == "nt"), 0)


def _tiles(problem: Problem, target: str) -> tuple[Tile, ...]:
    if problem.op == "sdd":
        height, width = problem.block
        along = _NARROW_SDD_ALONG if width < height else _SDD_ALONG
        # A right operand with short rows may be copied to be k-major.
        k_major = problem.layout[1] == "t" or has_short_rows(problem)
        table = along if problem.layout[0] == "n" and k_major else _SDD
        return _fitting(problem, table[height], target)
    height, depth = op_block(problem.op, problem.block, problem.layout)
    if height == 8:
        # Of a k-major dense operand a stage has rows as long as it is deep. But two warps transpose
        # no more than 16 columns of a k-major block.
        call = problem.op, problem.layout
        deepest = 32 if is_k_contiguous(*call) and is_flipped(*call) else 16
        return _fitting(problem, (_LOW[min(depth, deepest)], _LOW_NARROW), target)
    tiles: tuple[Tile, ...] = _SPMM[height]
    if depth < 32:
        tiles = tuple(_shallow(tile, depth) for tile in tiles)
    tiles = _fitting(problem, tiles, target)
    shallow = depth < 32 and is_k_contiguous(problem.op, problem.layout)
    if height == 128 and (capability(target) < 90 or shallow):
        # Code for older GPUs needs a few registers more than three CTAs of the first tile leave; so
        # does a shallow slab that is k-major.
        tiles = (replace(tiles[0], ctas=2), *tiles[1:])
    return tiles


def _fitting(problem: Problem, tiles: tuple[Tile, ...], target: str) -> tuple[Tile, ...]:
    """Tiles, with shallow stages if shared memory does not hold as many CTAs as it should."""
    return tuple(
        tile if tile.ctas <= _ctas_per_sm(problem, tile, False, target) else _shallow(tile)
        for tile in tiles
    )


def _ctas_per_sm(problem: Problem, tile: Tile, divides: bool, target: str) -> int:
    return ctas_per_sm(_shared_memory(problem, tile, divides), target)


def _shallow(tile: Tile, depth: int = 16) -> Tile:
    """The tile with stages of 16, or of blocks that are only 8 deep: one more of these, which are
    half as long."""
    if tile.shape[2] <= depth:
        return tile
    if tile == _LOW[32]:
        return _LOW[depth]
    return replace(tile, shape=(*tile.shape[:2], depth), stages=3 if depth == 16 else 4)


def _refusal(problem: Problem, tile: Tile, divides: bool, target: str) -> str | None:
    if problem.dtype != "f32":
        return f"dtype {problem.dtype}: this family multiplies IEEE float32"
    return (
        too_large(problem)
        or too_many_tiles(problem, tile.shape[:2])
        or (split.too_many_panels(problem, tile.shape[0]) if divides else None)
        or before_ampere(target)
        or too_much_shared_memory(_shared_memory(problem, tile, divides), target)
    )


def _shared_memory(problem: Problem, tile: Tile, divides: bool) -> int:
    """Bytes of shared memory of a CTA: kSharedBytes of spmm_fma.cuh and sdd_fma.cuh."""
    tile_m, tile_n, tile_k = tile.shape
    metadata = 16 * (16 + 4)
    if problem.op == "sdd":
        metadata = 16 * (tile_n // problem.block[1]) + divides * split.BYTES_OF_TAIL
    return tile.stages * (tile_m + tile_n) * tile_k * 4 + metadata


def default_variants(target: str) -> Iterator[Variant]:
    """What calls choose for square blocks, and for the gradient of a small weight.

    The former with many columns or a long k, and but for blocks of 8 with few or a short one.
    """
    problems = (
        *typical_problems(("f32",), (8, *TYPICAL_BLOCKS)),
        *typical_problems(("f32",), TYPICAL_BLOCKS, extent=16),
        *(
            replace(each, rows=1024, cols=1024, nnz=each.nnz // 16)
            for each in typical_problems(("f32",), TYPICAL_BLOCKS)
            if each.op == "sdd"
        ),
    )
    yield from first_legal(candidates, problems, target)
