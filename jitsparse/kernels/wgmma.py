"""Family ``wgmma``: Hopper's warpgroup tensor cores, fed by TMA.

16-bit elements in blocks of 16 and more; TF32 in blocks of 32 and more.

Knobs: ``b`` block, ``l`` layout, ``o`` the operand of which a transposed copy is made first, if any
(:mod:`jitsparse.kernels.transpose`), ``k`` how k is walked, if not slab after slab: ``split`` for
split-K (:mod:`jitsparse.kernels.split`), ``condensed`` if a stage of a dsd or dds holds the next
block columns that its panel stores, wherever they are (as TC-GNN condenses columns, Wang et al.,
2023). dsd and dds also have ``t``, tile (rows x columns x depth of a pipeline stage); sdd has
``g``, the side along which blocks are gathered, whose operand may be transposed. The index decides
how wide an sdd's tiles are, to suit its pattern. Measurements are in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.jit.template import Context
from jitsparse.kernels import cost, split, transpose
from jitsparse.kernels.cuda import (
    CONDENSED,
    cuda_template,
    knobs,
    operand_context,
    typical_problems,
)
from jitsparse.kernels.legality import (
    low_blocks,
    too_large,
    too_much_stored,
)
from jitsparse.kernels.problem import TYPICAL_BLOCKS, Priority, Problem
from jitsparse.kernels.roles import cpp_bool, is_flipped, is_k_contiguous, op_block
from jitsparse.panels import PANEL, SLAB, TALL_PANEL, has_condensed, has_tall
from jitsparse.traits import side_of

__all__ = ["candidates", "default_variants", "priority", "template"]

_DTYPES = ("bf16", "f16", "tf32")
_WIDTHS = {"bf16": (256, 128, 64), "f16": (256, 128, 64), "tf32": (256, 128)}
"""Widths of a tile in columns, by dtype."""


def priority(problem: Problem) -> Priority:
    """Ahead of all others. (Where the cost model has prices, it decides.)"""
    return Priority(0, "Hopper's own tensor cores and TMA")


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason."""
    if problem.op == "sdd":
        variants = [
            Variant("sdd", "wgmma", target, problem.dtype, (*knobs(problem), *way))
            for way in _ways(problem)
        ]
    else:
        variants = [
            Variant(problem.op, "wgmma", target, problem.dtype, (*knobs(problem, t=tile), *way))
            for tile in _tiles(problem)
            for way in _ways_of_tile(problem, tile)
        ]
    refused = _refusal(problem, target)
    return [Candidate(variant, template(variant), refused) for variant in variants]


def _ways(problem: Problem) -> list[tuple[tuple[str, str], ...]]:
    """Knobs of an sdd other than block and layout, best first."""
    as_they_lie = [(("g", side),) for side in _gathered(problem)]
    sides = _transposed(problem)
    transposed = [(("g", side), transpose.KNOB) for side in sides]
    pays = as_they_lie and transposed and transpose.pays(problem, sides[0])
    ways = [*transposed, *as_they_lie] if pays else [*as_they_lie, *transposed]
    divided = [(*way, split.KNOB) for way in ways]
    return [*divided, *ways] if split.pays_in_sdd(problem) else [*ways, *divided]


def _transposed(problem: Problem) -> list[str]:
    """Sides along which blocks may be gathered from a transposed copy, best first.

    Empty if an operand is k-major. Otherwise TMA would read it in short rows, or wgmma not at all.
    """
    sides = _gathered(problem) or ["cols", "rows"]
    if any(_lies_along_k(problem, side) for side in sides):
        return []
    if problem.dtype != "tf32":
        sides = [side for side in sides if problem.block[side == "cols"] in transpose.SHORT]
    return sorted(sides, key=lambda side: transpose.width(problem, side))


def _gathered(problem: Problem) -> list[str]:
    """Sides along which blocks may be gathered without a transposed copy, best first.

    The operand there should be k-major, and has to be for TF32.
    """
    if problem.dtype == "tf32":
        return [side for side in ("cols", "rows") if _lies_along_k(problem, side)]
    if problem.block[0] >= 64:
        return ["cols"]
    rows_lie, cols_lie = (_lies_along_k(problem, side) for side in ("rows", "cols"))
    # If the blocks of long and short rows were gathered, tiles would differ widely in length.
    rows, cols = (side_of(problem.profile, side).skew for side in ("rows", "cols"))
    skewed = rows - cols >= 0.5
    rows_first = rows_lie > cols_lie or (rows_lie == cols_lie and skewed)
    return ["rows", "cols"] if rows_first else ["cols", "rows"]


def _lies_along_k(problem: Problem, side: str) -> bool:
    """Whether the operand that is gathered along a side is k-major."""
    return problem.layout[0] == "n" if side == "rows" else problem.layout[1] == "t"


def _tiles(problem: Problem) -> list[tuple[int, int, int]]:
    """Tiles that suit the block of a dsd or dds: rows, columns, depth of a stage."""
    widths = _WIDTHS.get(problem.dtype, ())
    tiles = [(PANEL, width, slab) for width in widths for slab in _slabs(problem)]
    if problem.dtype != "tf32" and has_tall(*op_block(problem.op, problem.block, problem.layout)):
        tiles.append((TALL_PANEL, 256, SLAB))
    return tiles


def _ways_of_tile(problem: Problem, tile: tuple[int, int, int]) -> list[list[tuple[str, str]]]:
    """Knobs of a dsd or dds other than block, layout and tile."""
    ways = _condensing(problem) if _may_condense(problem, tile) else [_transposing(problem)]
    return [*ways, [split.KNOB]] if _may_split(problem, tile) else ways


def _may_split(problem: Problem, tile: tuple[int, int, int]) -> bool:
    """Whether several CTAs may share the steps of each tile."""
    if problem.dtype == "tf32" or tile[0] != PANEL:
        return False
    return split.most_parts_of_problem(problem, tile[1]) > 1


def _may_condense(problem: Problem, tile: tuple[int, int, int]) -> bool:
    """Whether a slab may hold arbitrary block columns."""
    _, depth = op_block(problem.op, problem.block, problem.layout)
    return problem.dtype != "tf32" and tile[0] == PANEL and has_condensed(depth)


def _condensing(problem: Problem) -> list[list[tuple[str, str]]]:
    """Knobs of a dsd or dds with plain slabs, and of one that condenses.

    If the dense operand is k-major, condensed block columns would be boxes of short rows.
    """
    lies_along_k = is_k_contiguous(problem.op, problem.layout)
    return [[], [CONDENSED, transpose.KNOB] if lies_along_k else [CONDENSED]]


def _slabs(problem: Problem) -> tuple[int, ...]:
    """Depths of a stage, best first."""
    if problem.dtype == "tf32":
        return (32,)
    _, depth = op_block(problem.op, problem.block, problem.layout)
    if depth != 32:
        return (64,)
    # A slab of one block column loads nothing in vain. But if the dense operand is k-major, its
    # rows are then 64 bytes, and TMA takes as long for those as for 128.
    return (64, 32) if is_k_contiguous(problem.op, problem.layout) else (32, 64)


def _refusal(problem: Problem, target: str) -> str | None:
    if target != "sm90a":
        return f"target {target}: wgmma exists on sm90a only"
    if problem.dtype not in _DTYPES:
        return f"dtype {problem.dtype}: this family multiplies {' and '.join(_DTYPES)}"
    if problem.dtype == "tf32":
        refused = _refusal_of_tf32(problem)
    else:
        refused = low_blocks(problem)
    # Transposed blocks have 32 rows, and had at least as many before.
    return refused or too_large(problem) or too_much_stored(problem)


def _refusal_of_tf32(problem: Problem) -> str | None:
    """Why TF32 blocks are refused for which no kernel was written, or None."""
    rows, cols = problem.block
    if min(rows, cols) < 32:
        return f"block {rows}x{cols}: for tf32 both sides must be at least 32"
    return None


def _transposing(problem: Problem) -> list[tuple[str, str]]:
    """The knob for transposing in a TF32 dsd or dds that needs it.

    It does if neither operand can be read from shared memory as TF32, or if blocks are too short
    to be read from registers.
    """
    op, layout = problem.op, problem.layout
    if problem.dtype != "tf32" or not is_flipped(op, layout):
        return []
    if op_block(op, problem.block, layout)[0] < 64:
        return [transpose.VALUES_KNOB]
    return [] if is_k_contiguous(op, layout) else [transpose.KNOB]


def default_variants(target: str) -> Iterator[Variant]:
    """What calls choose for square blocks and many columns.

    For bf16 and TF32 also with 256 columns, and for blocks of 16 also where few are stored.
    """
    problems = (
        *typical_problems(("bf16", "f16"), TYPICAL_BLOCKS),
        *(replace(p, nnz=p.nnz // 5) for p in typical_problems(("bf16", "f16"), (16,))),
        *typical_problems(("bf16",), TYPICAL_BLOCKS, extent=256),
        *typical_problems(("tf32",), (32, 64, 128)),
        *typical_problems(("tf32",), (32, 64, 128), extent=256),
    )
    yield from cost.first_choices(candidates, problems, target)


def template(variant: Variant) -> Template:
    """The template that a variant is rendered from."""
    source = "wgmma"
    if variant.op != "sdd":
        rows, cols = variant.ints("b")
        if variant.dtype == "tf32":
            source = "wgmma_tf32"
        elif op_block(variant.op, (rows, cols), variant.knob("l"))[0] < 64:
            source = "wgmma_small"
    return cuda_template(source, variant.op, context)


def context(variant: Variant) -> Context:
    """The names that the templates use."""
    names = operand_context(variant) | transpose.context(variant) | _of_split(variant)
    if variant.op == "sdd":
        return names | {"gather_rows": cpp_bool(variant.knob("g") == "rows")}
    panel, tile_n, slab = variant.ints("t")
    return names | {
        "values_transposed": cpp_bool(transpose.transposes_values(variant)),
        "panel": panel,
        "tile_n": tile_n,
        "slab": slab,
        "condensed": cpp_bool(CONDENSED in variant.knobs),
    }


def _of_split(variant: Variant) -> dict[str, str | int | bool]:
    splits = split.splits(variant)
    launch = "launch_with_maps_and_sum" if splits else "launch_with_maps"
    return {"split": cpp_bool(splits), "launch": launch}
