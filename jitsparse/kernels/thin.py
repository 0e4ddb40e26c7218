"""Family ``thin``: dsd and dds with few columns, as in serving a few tokens; Ampere and later.

Such a product is as fast as its values are read. The kernel needs stored blocks and the dense
operand to be k-major, as in the forward pass of a linear layer.

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

__all__ = ["candidates", "default_variants", "priority", "template"]

_DTYPES = ("bf16", "f16")
_FEW = 32
"""Columns up to which reading the values dominates the time."""

_TILES = ((16, 8), (32, 16), (32, 32), (16, 32))
"""The narrower first: the first that holds all columns loads nothing in vain."""


def priority(problem: Problem) -> Priority:
    """Ahead of all others for few columns, otherwise of ``simt`` only.

    Where there is a cost model (:mod:`jitsparse.kernels.cost`), it decides.
    """
    if problem.extent > _FEW:
        return Priority(
            2, f"more than {_FEW} columns: multiplying takes longer than reading values"
        )
    return Priority(-1, f"at most {_FEW} columns: reading the values is what takes the time")


def wasteful(problem: Problem, variant: Variant) -> bool:
    """Whether a narrower tile of as many rows holds all columns.

    The wider one was never the fastest: 1.16 to 1.68 times the time of the best, in 14 products.
    """
    rows, width = variant.ints("t")
    return any(rows == height and problem.extent <= narrower < width for height, narrower in _TILES)


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason."""
    if problem.op == "sdd":
        return []
    found = []
    for tile in sorted(_TILES, key=lambda tile: tile[1] < min(problem.extent, _FEW)):
        variant = Variant(problem.op, "thin", target, problem.dtype, knobs(problem, t=tile))
        refused = _refusal(problem, tile, target)
        found.append(Candidate(variant, template(variant), refused))
    return found


def _refusal(problem: Problem, tile: tuple[int, int], target: str) -> str | None:
    if problem.dtype not in _DTYPES:
        return f"dtype {problem.dtype}: this family multiplies {' and '.join(_DTYPES)}"
    return (
        low_blocks(problem) or _across(problem, tile) or too_large(problem) or before_ampere(target)
    )


def _across(problem: Problem, tile: tuple[int, int]) -> str | None:
    """Why the shape or the layouts keep a lane from reading along k, or None."""
    if problem.block[0] < tile[0]:
        return f"block of {problem.block[0]} rows: a tile has {tile[0]}, all of one block row"
    if is_flipped(problem.op, problem.layout):
        return f"layout {problem.layout}: stored blocks must be contiguous along k"
    if not is_k_contiguous(problem.op, problem.layout):
        return f"layout {problem.layout}: the dense operand must be contiguous along k"
    return None


def default_variants(target: str) -> Iterator[Variant]:
    """What the forward pass of a layer chooses for up to 8, 16 and 32 tokens."""
    from jitsparse.kernels import cost  # it imports this module

    problems = (
        problem
        for extent in (8, 16, _FEW)
        for problem in typical_problems(("bf16",), TYPICAL_BLOCKS, extent=extent)
    )

    # Short blocks have one tile for 16 and for 32 columns.
    yield from cost.first_choices(candidates, problems, target)


def template(variant: Variant) -> Template:
    """The template that a variant is rendered from."""
    return cuda_template("thin", variant.op, cta_tile_context)
