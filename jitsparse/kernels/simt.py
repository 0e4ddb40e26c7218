"""Family ``simt``: ordinary CUDA cores, any dtype, any block size, any alignment.

The fallback that is always correct, and the only family for float64.

Knobs: ``b`` block, ``l`` layout, ``t`` tile (rows x columns that a CTA computes).
"""

from __future__ import annotations

from collections.abc import Iterator

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.kernels.cuda import cta_tile_context, cuda_template, knobs, typical_problems
from jitsparse.kernels.legality import before_ampere, first_legal
from jitsparse.kernels.problem import Priority, Problem
from jitsparse.kernels.roles import op_block

__all__ = ["candidates", "default_variants", "priority", "template"]

_MAX_SIDE = 64
"""Each of the 8 x 16 threads that compute a tile then owns 8 x 4 elements: what registers hold."""


def priority(problem: Problem) -> Priority:
    """After all others: it is legal wherever the dtype exists."""
    return Priority(3, "always legal, and slower than tensor cores")


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; only bfloat16 before sm80 is refused."""
    # tf32 permits less than float32 precision but does not ask for it.
    dtype = "f32" if problem.dtype == "tf32" else problem.dtype
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
    """What calls choose in float64, and for small unaligned products such as these of float32."""
    problems = (
        *typical_problems(("f32",), (8,)),
        *typical_problems(("f64",), (32,)),
    )
    yield from first_legal(candidates, problems, target)


def template(variant: Variant) -> Template:
    """The template that a variant is rendered from."""
    return cuda_template("simt", variant.op, cta_tile_context)
