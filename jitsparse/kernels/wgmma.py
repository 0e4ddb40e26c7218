"""Family ``wgmma``: Hopper's warpgroup tensor cores, for blocks of 64 and 128.

Knobs: ``b`` block, ``l`` layout, ``t`` tile (rows x columns x depth of a pipeline stage), ``g``
warpgroups across the tile, ``s`` stages of the pipeline, ``c`` CTAs that an SM should hold.

A tile is one block row high. Measurements are in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.jit.template import Context
from jitsparse.kernels.cuda import (
    cuda_template,
    knobs,
    op_block,
    operand_context,
    relative_time,
    typical_problems,
)
from jitsparse.kernels.problem import Problem

__all__ = ["candidates", "default_variants", "rank", "template"]

_DTYPES = ("bf16", "f16")
_BLOCKS = (64, 128)
_NARROWEST = 128


@dataclass(frozen=True)
class Tile:
    """One way to divide the work: columns of a tile and the values of the knobs g, s and c."""

    columns: int
    groups: int
    stages: int
    ctas: int

    def variant(self, problem: Problem, target: str) -> Variant:
        """The variant of a problem that works like this."""
        values = knobs(
            problem,
            t=(_height(problem), self.columns, 64),
            g=(self.groups,),
            s=(self.stages,),
            c=(self.ctas,),
        )
        return Variant(problem.op, "wgmma", target, problem.dtype, values)


# By the height of a block, as the kernel sees it.
_SPMM_TILES = {
    64: (Tile(256, 2, 4, 1), Tile(128, 1, 4, 2)),
    128: (Tile(256, 1, 4, 1), Tile(128, 1, 3, 2)),
}
# The deep pipeline of one CTA an SM is for patterns with fewer blocks than the GPU has SMs.
_SDD_TILES = {
    64: (Tile(128, 1, 4, 2),),
    128: (Tile(256, 1, 4, 1), Tile(128, 1, 3, 2), Tile(128, 1, 4, 1)),
}


def rank(problem: Problem) -> int:
    """Before ``mma`` where a tile is filled; after it where its narrower tiles fit better."""
    return 0 if problem.op == "sdd" or problem.extent >= _NARROWEST else 2


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason."""
    table = _SDD_TILES if problem.op == "sdd" else _SPMM_TILES
    tiles = sorted(
        table.get(_height(problem), table[64]),
        key=lambda tile: relative_time(problem, _height(problem), tile.columns, tile.ctas),
    )
    found = []
    for tile in tiles:
        variant = tile.variant(problem, target)
        found.append(Candidate(variant, template(variant), _refusal(problem, target)))
    return found


def _height(problem: Problem) -> int:
    if problem.op == "sdd":
        return problem.block[0]
    return op_block(problem.op, problem.block, problem.layout)[0]


def _refusal(problem: Problem, target: str) -> str | None:
    if target != "sm90a":
        return f"target {target}: wgmma exists on sm90a only"
    if problem.dtype not in _DTYPES:
        return f"dtype {problem.dtype}: this family multiplies {' and '.join(_DTYPES)}"
    if not set(problem.block) <= set(_BLOCKS):
        block = "x".join(map(str, problem.block))
        return f"block {block}: both sides must be {' or '.join(map(str, _BLOCKS))}"
    if not problem.aligned:
        return (
            "an operand is not 16-byte aligned: pointers, strides and contiguous extents of the "
            "dense operands must be multiples of 8 elements"
        )
    return None


def default_variants(target: str) -> Iterator[Variant]:
    """What calls choose for square blocks and many columns."""
    for problem in typical_problems(_DTYPES, _BLOCKS):
        first = candidates(problem, target)[0]
        if first.refused is None:
            yield first.variant


def template(variant: Variant) -> Template:
    """What a variant is rendered from."""
    return cuda_template("wgmma", variant.op, context)


def context(variant: Variant) -> Context:
    """The names that the templates use."""
    return operand_context(variant) | {
        "tile_n": variant.ints("t")[1],
        "groups_n": variant.ints("g")[0],
        "stages": variant.ints("s")[0],
        "min_ctas": variant.ints("c")[0],
    }
