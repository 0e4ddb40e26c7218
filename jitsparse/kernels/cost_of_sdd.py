"""The work of a 32-bit sdd on Hopper, for the cost model (:mod:`jitsparse.kernels.cost`):

======== ===========================================================================================
part     amount
======== ===========================================================================================
start    one: launching, filling the pipeline, the end of the last tile
tile     tiles that a CTA computes one after another, parts of split-K tiles included
step     stages of the busiest CTA
dense    elements of both operands that the busiest SM loads
product  multiplications of its tiles, including those whose results are not stored
block    elements that an SM stores on average, partial sums of split-K included
shared   elements of both operands that an SM loads on average. For ``fma`` and ``mma``, whose mean
         is close to the maximum, CTAs launched per SM instead: many may find no tile
memory   elements that go through DRAM at least once
======== ===========================================================================================

Two more costs are the same for all kinds: ``copy``, for a variant of ``wgmma`` that transposes an
operand (:mod:`jitsparse.kernels.transpose`), and ``sums``, for one that uses split-K
(:mod:`jitsparse.kernels.split`).

Every pattern is treated as a random one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jitsparse.kernels import split, transpose
from jitsparse.kernels.cost_of_spmm import ADDED, ADDING, FEW_TILES, most_of
from jitsparse.kernels.cuda import tile_count
from jitsparse.layout import div_up
from jitsparse.panels import SMS
from jitsparse.traits import random_steps

if TYPE_CHECKING:
    from jitsparse.jit import Variant
    from jitsparse.kernels.problem import Problem

__all__ = ["FAMILIES", "extras", "kind", "knows", "parts"]

FAMILIES = ("wgmma", "mma", "fma", "simt")
"""Families that have prices."""

_MANY_TILES = 2
"""Tiles per CTA of family wgmma above which products have prices of their own."""

_SIMT_CTAS = 4
"""CTAs of family simt that run on an SM at once, roughly."""

_STAGE = 32
"""Extent along k of a stage of family wgmma."""


class _Amounts(NamedTuple):
    """The parts that each family computes in a way of its own."""

    tile: float
    step: float
    dense: float
    product: float
    shared: float
    partial: float = 0  # elements of partial sums


def knows(problem: Problem, variant: Variant) -> bool:
    """Whether a variant may have prices."""
    return variant.family in FAMILIES


def kind(problem: Problem, variant: Variant) -> str:
    """Key of a row of prices: ``"wgmma.64.along.rows.split"``, for instance."""
    left, right = problem.layout[0] == "n", problem.layout[1] == "t"  # along k
    if variant.family == "simt":
        return f"simt.{min(variant.ints('t'))}"
    if variant.family != "wgmma":
        # Blocks taller than wide have tiles of their own along k, which were never timed.
        wide = problem.block[1] >= problem.block[0]
        lie = ("across", "either", "along" if wide else "either")[left + right]
        divided = ".split" if split.splits(variant) else ""
        return f"{variant.family}.{problem.block[0]}.n{variant.ints('t')[1]}.{lie}{divided}"
    side, way = variant.knob("g"), ""
    if split.splits(variant):
        # Tiles that might have been split, and are not, are as wide as possible.
        way = ".split" if _parts_of_sums(problem, variant) > 1 else ".wide"
    elif _widest_tiles(problem, side)[0] > _MANY_TILES * SMS:
        way = ".many"
    # The gathered operand is k-major, or is transposed to be.
    other = "along" if (right if side == "rows" else left) else "across"
    return f"wgmma.{problem.block[side == 'cols']}.{other}.{side}{way}"


def parts(problem: Problem, variant: Variant) -> tuple[float, ...]:
    """The amount of each part in a product, see the table above."""
    reckon = {"wgmma": _of_wgmma, "simt": _of_simt}.get(variant.family, _of_tiles)
    tile, step, dense, product, shared, partial = reckon(problem, variant)
    stored = problem.nnz * math.prod(problem.block)
    memory = (problem.rows + problem.cols) * _length(problem) + stored
    return 1.0, tile, step, dense, product, (stored + partial) / SMS, shared, memory


def extras(problem: Problem, variant: Variant, amounts: Sequence[float]) -> dict[str, float]:
    """Microseconds of costs that not all products have."""
    costs = {}
    if transpose.transposes(variant):
        elements = transpose.width(problem, variant.knob("g")) * _length(problem)
        costs["copy"] = transpose.copying(2 * elements)
    divided = _parts_of_sums(problem, variant)
    if divided > 1:
        costs["sums"] = ADDING + ADDED * divided * problem.nnz * math.prod(problem.block)
    return costs


def _length(problem: Problem) -> int:
    """Number of products summed for each element."""
    return problem.extent * problem.batch


def _parts_of_sums(problem: Problem, variant: Variant) -> int:
    """Number of parts into which a variant of family wgmma splits sums."""
    stored = problem.nnz * math.prod(problem.block)
    if variant.family != "wgmma" or not split.splits(variant):
        return 1
    return split.parts_of_sdd(variant, stored, problem.extent, problem.batch)[0]


def _widest_tiles(problem: Problem, side: str) -> tuple[float, int, float]:
    """Tiles of family wgmma at full width, rows of a panel, and columns that all panels gather.

    Rows are along the side that is not gathered.
    """
    (height, gathered), rows, cols = problem.block, problem.rows, problem.cols
    if side == "rows":
        height, gathered, rows, cols = gathered, height, cols, rows
    panel = max(64, height)
    panels, widest = div_up(rows, panel), 256 if panel > 64 else 512
    block = height, gathered
    columns = random_steps(rows, cols, problem.nnz, block, panel=panel, across=1).mean * gathered
    # The last tile of a panel is half empty.
    tiles = panels * max(1.0, columns / widest + (columns > widest) / 2)
    return tiles, panel, panels * columns


def _of_wgmma(problem: Problem, variant: Variant) -> _Amounts:
    """Tiles of a panel, as wide as keeps all CTAs busy, or of full width if sums may be split."""
    side = variant.knob("g")
    tiles, panel, columns = _widest_tiles(problem, side)
    block = problem.block[side == "cols"]
    divided = _parts_of_sums(problem, variant)
    stages = div_up(problem.extent, _STAGE) * problem.batch / divided
    rounds = most_of(tiles / SMS) if divided == 1 else 1
    if split.splits(variant):
        busiest = rounds * columns / tiles
    else:
        busiest = max(columns / SMS, block)
        busiest = math.ceil(busiest / block) * block if rounds < FEW_TILES else busiest
    return _Amounts(
        rounds,
        rounds * stages,
        (rounds * panel + busiest) * stages * _STAGE,
        panel * busiest * stages * _STAGE,
        (tiles * panel + columns) / SMS * stages * _STAGE,
    )


def _of_simt(problem: Problem, variant: Variant) -> _Amounts:
    """Tiles that each lie in one block."""
    height, width = variant.ints("t")
    tiles = problem.nnz * math.prod(problem.block) / (height * width)
    rounds, k = most_of(tiles / (SMS * _SIMT_CTAS)), _length(problem)
    busiest = most_of(tiles / SMS)
    return _Amounts(
        rounds,
        rounds * k,
        busiest * (height + width) * k,
        busiest * height * width * k,
        tiles / SMS * (height + width) * k,
    )


def _of_tiles(problem: Problem, variant: Variant) -> _Amounts:
    """Tiles of ``fma`` and ``mma``, one per CTA; the last ones may be split along k."""
    (height, width, depth), ctas = variant.ints("t"), variant.ints("c")[0]
    at_once = SMS * ctas
    tiles = tile_count(problem, variant.ints("t"))
    launched: float = div_up(problem.rows, height) * div_up(problem.cols, width)
    stages = div_up(problem.extent, depth) * problem.batch
    partial = 0.0
    if split.splits(variant):
        full, rest = divmod(tiles / at_once, 1)
        # The facts of a pattern do not tell how full the last of several rounds is.
        rest = at_once * (rest if full < FEW_TILES else 0.5)
        divided, of_rest = split.parts_of_tail(rest, at_once, stages)
        rounds, steps = full + (rest > 0), full * stages + of_rest * (rest > 0)
        busiest = tiles / SMS
        partial = rest * divided * height * width if divided > 1 else 0
        most = problem.nnz * problem.block[1] / width + problem.rows / height
        launched = min(launched, most) + split.MAX_ROUNDS * at_once
    else:
        rounds, busiest = most_of(tiles / at_once), most_of(tiles / SMS)
        steps = rounds * stages
    return _Amounts(
        rounds,
        steps,
        busiest * (height + width) * stages * depth,
        busiest * height * width * stages * depth,
        launched / SMS,
        partial,
    )
