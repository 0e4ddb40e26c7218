"""Family ``thin``: dsd and dds with few columns, as in serving a few tokens; Ampere and later.

Such a product is as fast as its values are read. The kernels need stored blocks to be k-major, as
in the forward pass of a linear layer and in a matrix times a vector. In 16 bits they multiply on
tensor cores, and the dense operand has to be k-major, too; in float32 and float64 on CUDA cores, in
full precision.

Knobs: ``b`` block, ``l`` layout, ``t`` tile (rows x columns that a CTA computes).
"""

from __future__ import annotations

from collections.abc import Iterator

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.kernels.cuda import cta_tile_context, cuda_template, knobs, typical_problems
from jitsparse.kernels.legality import (
    before_ampere,
    low_blocks,
    too_large,
)
from jitsparse.kernels.problem import TYPICAL_BLOCKS, Priority, Problem
from jitsparse.kernels.roles import is_flipped, is_k_contiguous
from jitsparse.layout import div_up
from jitsparse.panels import SMS

__all__ = ["candidates", "default_variants", "priority", "template"]

_TILES = {
    2: ((16, 8), (32, 16), (32, 32), (16, 32)),
    4: ((16, 1), (8, 1), (16, 8), (8, 8), (16, 16), (8, 16)),
    8: ((16, 1), (8, 1), (16, 8), (8, 8)),
}
"""By the size of an element, the narrower first: the first that holds all columns loads nothing in
vain. On CUDA cores also the taller first, which load less of the dense operand for each row. In
float64 more columns are slower, in twice the registers."""

_ENOUGH_CTAS = 64
"""CTAs that read about half as fast as the memory of an H200 is. With fewer, families that divide
a long k are expected to be faster; products of so few rows were not timed."""


def priority(problem: Problem) -> Priority:
    """Ahead of all others for few columns, otherwise of ``simt`` only.

    Where there is a cost model (:mod:`jitsparse.kernels.cost`), it decides in 16 bits.
    """
    few = _few(problem)
    if few == 0:
        return Priority(3, "too few rows, or a dense operand that lies across: values wait")
    if problem.extent > few:
        return Priority(3, f"more than {few} columns: multiplying takes longer than reading values")
    return Priority(-1, f"at most {few} columns: reading the values is what takes the time")


def on_cuda_cores(problem: Problem) -> bool:
    """Whether it multiplies in full precision, where rules and not prices rank its variants."""
    return problem.itemsize > 2


def is_quickest(problem: Problem, variant: Variant) -> bool:
    """Whether a variant of this family is the quickest of all without being priced."""
    return variant.family == "thin" and on_cuda_cores(problem) and problem.extent <= _few(problem)


def _few(problem: Problem) -> int:
    """Columns up to which reading the values dominates the time: measured beside other families."""
    if not on_cuda_cores(problem):
        return 32
    if _ctas(problem, 8) < _ENOUGH_CTAS:
        return 0
    height = problem.block[0]
    if not is_k_contiguous(problem.op, problem.layout):
        # Neighbouring lanes then read the dense operand from different cache lines.
        return 8 if problem.itemsize == 4 or height == 8 else 0
    if problem.itemsize == 8:
        return 16 if height <= 16 else 8
    return 32 if height <= 32 else 16


def _ctas(problem: Problem, height: int) -> int:
    """CTAs of tiles of a height that hold all columns."""
    return div_up(problem.rows, height) * problem.batch


def wasteful(problem: Problem, variant: Variant) -> bool:
    """Whether a narrower tile of as many rows holds all columns.

    The wider one was never the fastest: 1.16 to 1.68 times the time of the best, in 14 products.
    """
    rows, width = variant.ints("t")
    return any(
        rows == height and problem.extent <= narrower < width for height, narrower in _TILES[2]
    )


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason."""
    if problem.op == "sdd":
        return []
    found = []
    tiles = _TILES[problem.itemsize]
    widest = max(width for _, width in tiles)

    def later(tile: tuple[int, int]) -> tuple[bool, bool]:
        short_of_ctas = on_cuda_cores(problem) and tile[0] > 8 and _ctas(problem, tile[0]) < SMS
        return tile[1] < min(problem.extent, widest), short_of_ctas

    for tile in sorted(tiles, key=later):
        variant = Variant(problem.op, "thin", target, problem.full_dtype, knobs(problem, t=tile))
        refused = _refusal(problem, tile, target)
        found.append(Candidate(variant, template(variant), refused))
    return found


def _refusal(problem: Problem, tile: tuple[int, int], target: str) -> str | None:
    return (
        _across(problem, tile)
        or _on_tensor_cores(problem)
        or too_large(problem)
        or before_ampere(target)
    )


def _across(problem: Problem, tile: tuple[int, int]) -> str | None:
    """Why the shape or the layouts keep a lane from reading along k, or None."""
    if problem.block[0] < tile[0]:
        return f"block of {problem.block[0]} rows: a tile has {tile[0]}, all of one block row"
    if is_flipped(problem.op, problem.layout):
        return f"layout {problem.layout}: stored blocks must be contiguous along k"
    if tile[1] == 1 and not is_k_contiguous(problem.op, problem.layout):
        return f"layout {problem.layout}: a tile of one column reads 16 bytes along k"
    return None


def _on_tensor_cores(problem: Problem) -> str | None:
    """What else keeps words that a lane has read from being its fragments, or None."""
    if on_cuda_cores(problem):
        return None
    if not is_k_contiguous(problem.op, problem.layout):
        return f"layout {problem.layout}: the dense operand must be contiguous along k"
    return low_blocks(problem)


def default_variants(target: str) -> Iterator[Variant]:
    """What the forward pass of a layer chooses for up to 8, 16 and 32 tokens; in float32 also what
    a matrix times a vector does."""
    from jitsparse.kernels import cost  # it imports this module

    problems = (
        problem
        for dtype, extents in (("bf16", (8, 16, 32)), ("f32", (1, 8, 16)))
        for extent in extents
        for problem in typical_problems((dtype,), TYPICAL_BLOCKS, extent=extent)
        if extent <= _few(problem)
    )

    # Short blocks have one tile for 16 and for 32 columns.
    yield from cost.first_choices(candidates, problems, target)


def template(variant: Variant) -> Template:
    """The template that a variant is rendered from."""
    source = "thin" if variant.dtype in ("bf16", "f16") else "thin_fma"
    return cuda_template(source, variant.op, cta_tile_context)
