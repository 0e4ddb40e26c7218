"""Family ``simt``: ordinary CUDA cores, any dtype, any block size, any alignment.

The fallback that is always correct.

Knobs: ``b`` block, ``l`` layout, ``t`` tile (rows x columns that a CTA computes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.kernels.cuda import cta_tile_context, cuda_template, knobs, typical_problems
from jitsparse.kernels.legality import before_ampere, first_legal
from jitsparse.kernels.problem import Priority, Problem
from jitsparse.kernels.roles import op_block
from jitsparse.layout import div_up

__all__ = [
    "candidates",
    "default_variants",
    "microseconds",
    "outruns_empty_tiles",
    "priority",
    "template",
]

_MAX_SIDE = 64
"""Each of the 8 x 16 threads that compute a tile then owns 8 x 4 elements: what registers hold."""

_RATE, _RATE_LOW, _STEP = 17e6, 5e6, 0.13
"""Operations per microsecond on an H200, in blocks of 8 rows (of an sdd a side of 8) the second,
and microseconds for each element that a row sums."""
_EMPTY_CTA = 1e-3
"""Microseconds of a CTA that finds nothing to do, on an H200."""


def microseconds(problem: Problem) -> float:
    """Rough time of a product on an H200."""
    stored = problem.nnz * problem.block[0] * problem.block[1]
    operations = 2 * stored * problem.extent * problem.batch
    if problem.op == "sdd":
        summed, height = float(problem.extent * problem.batch), min(problem.block)
    else:
        rows, _ = op_block(problem.op, (problem.rows, problem.cols), problem.layout)
        height, _ = op_block(problem.op, problem.block, problem.layout)
        summed = stored / rows
    return max(operations / (_RATE_LOW if height == 8 else _RATE), _STEP * summed)


def outruns_empty_tiles(problem: Problem, tile: Sequence[int]) -> bool:
    """Whether an sdd takes less time than a grid of such tiles does to find that nearly all store
    nothing, in float64 or in blocks with a side of 8. (For others, the cost model knows.)"""
    if problem.op != "sdd" or (min(problem.block) > 8 and problem.dtype != "f64"):
        return False
    ctas = div_up(problem.rows, tile[0]) * div_up(problem.cols, tile[1])
    return ctas * _EMPTY_CTA > microseconds(problem)


def priority(problem: Problem) -> Priority:
    """After all others: it is legal wherever the dtype exists."""
    return Priority(3, "always legal, and slower than tensor cores")


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; only bfloat16 before sm80 is refused."""
    dtype = problem.full_dtype
    refused = before_ampere(target) if dtype == "bf16" else None
    found = []
    for tile in _tiles(problem):
        variant = Variant(problem.op, "simt", target, dtype, knobs(problem, t=tile))
        found.append(Candidate(variant, template(variant), refused))
    return found


def _tiles(problem: Problem) -> list[tuple[int, int]]:
    if problem.op == "sdd":
        return [(min(problem.block[0], _MAX_SIDE), min(problem.block[1], _MAX_SIDE))]
    height, _ = op_block(problem.op, problem.block, problem.layout)
    rows = min(height, _MAX_SIDE)
    wide, narrow = (rows, 64), (rows, 16)
    return [narrow, wide] if problem.extent <= 16 else [wide, narrow]


def default_variants(target: str) -> Iterator[Variant]:
    """Some of what serves small unaligned products, and what calls choose before Ampere."""
    problems = (
        *typical_problems(("f32",), (8,)),
        *typical_problems(("f64",), (32,)),
    )
    yield from first_legal(candidates, problems, target)


def template(variant: Variant) -> Template:
    """The template that a variant is rendered from."""
    return cuda_template("simt", variant.op, cta_tile_context)
