"""What ``mma`` and ``fma`` share: the variants of a :class:`~jitsparse.kernels.cuda.Tile`.

In blocks with a side of 8, such a variant may copy an operand first, of which a block needs but
eight adjacent elements of a row: :mod:`jitsparse.kernels.transpose` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.jit.template import Context
from jitsparse.kernels import transpose
from jitsparse.kernels.cuda import Tile, cuda_template, tile_context, tile_count, walked
from jitsparse.kernels.roles import is_k_contiguous, op_block
from jitsparse.layout import div_up

if TYPE_CHECKING:
    from jitsparse.kernels.problem import Problem

__all__ = ["Way", "candidates", "has_short_rows", "template", "ways"]

Way = list[tuple[str, str]]
"""Knobs of a variant besides those of its tile and split-K: to copy an operand, or none."""


def candidates(
    family: str,
    problem: Problem,
    tiles: Iterable[Tile],
    divides: bool,
    target: str,
    ways: Callable[[Problem, Tile], list[Way]],
    refusal: Callable[[Problem, Tile, bool, str], str | None],
) -> list[Candidate]:
    """Variants of a family with these tiles, in their order, split along k or whole.

    Args:
        family: ``"mma"`` or ``"fma"``.
        problem: what is multiplied.
        tiles: best first.
        divides: whether they are split along k.
        target: compilation target.
        ways: the family's ways for a problem and a tile, best first.
        refusal: why the family has no kernel for (problem, tile, divides, target), or None.
    """
    found = []
    for tile in tiles:
        refused = refusal(problem, tile, divides, target)
        for way in ways(problem, tile):
            variant = tile.variant(family, problem, target, divides, *way)
            found.append(Candidate(variant, template(variant), refused))
    return found


def template(variant: Variant) -> Template:
    """The template that a variant of either family is rendered from."""
    return cuda_template(variant.family, variant.op, _context)


def _context(variant: Variant) -> Context:
    return dict(tile_context(variant)) | transpose.context(variant)


def ways(problem: Problem, tile: Tile, saved: float) -> list[Way]:
    """To copy an operand, and not to, the better first; the latter alone without short rows.

    Args:
        problem: what is multiplied.
        tile: of the variant.
        saved: microseconds that a copy saves for each element of the operand that tiles load.
    """
    if not has_short_rows(problem):
        return [[]]
    sides = problem.rows, problem.cols
    _, side = sides if problem.op == "sdd" else op_block(problem.op, sides, problem.layout)
    elements = side * problem.extent * problem.batch
    in_16_bits = 2 * elements if problem.dtype == "f32" else elements
    pays = saved * _loaded(problem, tile) > transpose.copying(in_16_bits)
    return [[transpose.KNOB], []] if pays else [[], [transpose.KNOB]]


def has_short_rows(problem: Problem) -> bool:
    """Whether a block needs but eight adjacent elements of a row of an operand.

    Of 16-bit ones memory then delivers half of its bandwidth, of 32-bit ones L2 a quarter of a line
    per request; a transposed copy has long rows.
    """
    op, layout = problem.op, problem.layout
    if op == "sdd":
        return problem.block[1] == 8 and layout[1] == "n"
    return op_block(op, problem.block, layout)[1] == 8 and is_k_contiguous(op, layout)


def _loaded(problem: Problem, tile: Tile) -> float:
    """Elements that tiles load of the operand with short rows."""
    k = problem.extent * problem.batch
    if problem.op == "sdd":
        return tile_count(problem, tile.shape) * tile.shape[1] * k
    m, _ = op_block(problem.op, (problem.rows, problem.cols), problem.layout)
    return walked(problem, tile) * div_up(m, tile.shape[0]) * k
