"""The work of a dsd or dds on Hopper, for the cost model (:mod:`jitsparse.kernels.cost`):

======== ===========================================================================================
part     amount
======== ===========================================================================================
start    one: launching, filling the pipeline, the end of the last tile
tile     tiles that a CTA computes one after another
step     steps of the busiest CTA; a step is what one load of the dense operand serves
dense    elements of the dense operand that it loads
product  multiplications of its blocks
block    elements of stored blocks that it loads, from L2, while all CTAs load at once
shared   elements of the dense operand that an SM loads on average, which all load through L2
memory   elements that go through DRAM at least once
======== ===========================================================================================

Three more costs are the same for all kinds: ``copy``, for a variant that transposes an operand
(:mod:`jitsparse.kernels.transpose`); ``sums``, for adding the parts of a split-K tile
(:mod:`jitsparse.kernels.split`); and ``lines``, for TMA where rows of the dense operand begin
within cache lines, so that each row of a box is two requests.

The mean and the largest number of steps of a panel are those of a random pattern of this density,
corrected by the pattern's profile (:mod:`jitsparse.traits`). The steps of the busiest CTA follow
from the rasterization order of csrc/cuda/kernels/spmm_order.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitsparse.kernels import split, thin, transpose
from jitsparse.kernels.cuda import CONDENSED
from jitsparse.kernels.roles import is_flipped, is_k_contiguous, op_block
from jitsparse.layout import div_up
from jitsparse.panels import PAIRED, PAIRED_AMONG, PANEL, SMS, TRIPLED_AMONG
from jitsparse.traits import LINE, Steps, density, random_steps, side_of, slab_columns

if TYPE_CHECKING:
    from jitsparse.jit import Variant
    from jitsparse.kernels.problem import Problem

__all__ = [
    "ADDED",
    "ADDING",
    "FAMILIES",
    "FEW_TILES",
    "extras",
    "kind",
    "knows",
    "most_of",
    "parts",
]

FAMILIES = ("wgmma", "thin", "mma", "fma")
"""Families that have prices."""

_THIN_CTAS = 4
"""CTAs of family thin that run on an SM at once, roughly."""

_TWO_AN_SM = 0.5
"""Tiles per CTA of family thin up to which SMs have two CTAs at most: the time is then a CTA's own
chain of steps, and not what L2 and DRAM deliver."""

FEW_TILES = 3
"""Tiles per CTA below which it matters that their number is whole."""

_MANY_ITEMS = 2
"""Tiles per CTA above which products have prices of their own: for sizes of 4096 and 8192 the
choice is within 5 % of the best in 0.974 of the cases, without them in 0.897."""

_SET = 16
"""Neighbouring CTAs in a set, and panels in a group of tiles, see
csrc/cuda/kernels/spmm_order.cuh. Kernels also have groups of 8 to 64: modelling these would change
the variant of 27 of 2160 random products, by prices fitted without them."""
_MANY_ROUNDS = 8
"""Tiles per CTA above which all sets are whole, see csrc/cuda/kernels/spmm_stages.cuh."""

_NARROWEST = {"bf16": 64, "f16": 64, "tf32": 128}
"""Columns of the narrowest tiles of ``wgmma``, by dtype."""

_LINES = 6e-4
"""Microseconds that TMA takes for one more request: the median of 32 timings of ``wgmma`` on an
H200, half of which are between 4e-4 and 8e-4."""

ADDING, ADDED = 1.5, 2e-6
"""Microseconds of adding the parts of split-K: in any case, and for each element of a part."""

_DENSE = 3
"""Position of ``dense`` among the parts."""


def knows(problem: Problem, variant: Variant) -> bool:
    """Whether a variant may have prices: its family has some, and it is not ruled out."""
    if variant.family == "thin" and thin.on_cuda_cores(problem):
        return False
    return variant.family in FAMILIES and not _wasteful(problem, variant)


def _wasteful(problem: Problem, variant: Variant) -> bool:
    """Whether a narrower tile holds all columns, or condensing leaves no block column out."""
    if variant.family == "thin":
        return thin.wasteful(problem, variant)
    if variant.family != "wgmma" or problem.dtype not in _NARROWEST:  # or refused
        return False
    # Never the fastest for 413 products of 8 to 256 columns, and up to 1.8 times as slow.
    width = variant.ints("t")[1]
    if width > _NARROWEST[problem.dtype] and 2 * problem.extent <= width:
        return True
    if CONDENSED not in variant.knobs:
        return False
    condensed, plain = (_steps_of(problem, variant, condensed=each) for each in (True, False))
    return condensed.mean >= plain.mean


def extras(problem: Problem, variant: Variant, amounts: Sequence[float]) -> dict[str, float]:
    """Microseconds of costs that not all products have, for one with these amounts."""
    costs = {}
    rows, depth = _size(problem)
    copied = 0
    if transpose.transposes(variant):
        # As if all matrices of a batch were distinct, which a problem does not say.
        copied = depth * problem.extent * problem.batch
    elif transpose.transposes_values(variant):
        copied = problem.nnz * math.prod(problem.block)
    if copied:
        costs["copy"] = transpose.copying(copied * (2 if problem.dtype == "tf32" else 1))
    divided = _parts_of_steps(problem, variant)
    if divided > 1:
        costs["sums"] = ADDING + ADDED * divided * rows * problem.extent * problem.batch
    if variant.family == "wgmma" and depth % LINE and _lies_along(problem, variant):
        costs["lines"] = _LINES * amounts[_DENSE] / variant.ints("t")[2]
    return costs


def _parts_of_steps(problem: Problem, variant: Variant) -> int:
    """Number of parts into which a variant splits the steps of a tile."""
    return split.parts_of_problem(problem, variant) if split.splits(variant) else 1


def _lies_along(problem: Problem, variant: Variant) -> bool:
    """Whether a variant reads the dense operand, or its transposed copy, contiguously along k."""
    return is_k_contiguous(problem.op, problem.layout) != transpose.transposes(variant)


def _size(problem: Problem) -> tuple[int, int]:
    """Rows and depth of the sparse operand in the role of :func:`op_block`."""
    return op_block(problem.op, (problem.rows, problem.cols), problem.layout)


def kind(problem: Problem, variant: Variant) -> str:
    """Key of a row of prices: ``"wgmma.32.s64.across.n128"``, for instance."""
    height, _ = op_block(problem.op, problem.block, problem.layout)
    tile = variant.ints("t")
    lies = "along" if _lies_along(problem, variant) else "across"
    if variant.family == "wgmma":
        # Slabs of 32 have a kind for blocks of 32 rows alone; taller blocks keep their own kind.
        slab = tile[2] if height == 32 else 64
        # Narrow tiles have more stages; wide ones of 32 rows read the dense operand from registers
        # (spmm_wgmma_small.cuh).
        way = "tall" if tile[0] > PANEL else f"n{tile[1]}"
        # TMA takes longer for columns past the edge than for others.
        if 2 * problem.extent <= tile[1]:
            way += ".few"
        elif split.splits(variant):
            way += ".split"
        elif _items(problem, variant) > _MANY_ITEMS:
            way += ".many"
        condensed = ".condensed" if CONDENSED in variant.knobs else ""
        return f"wgmma.{height}.s{slab}.{lies}.{way}{condensed}"
    if variant.family == "thin":
        # Its tiles lie inside a block row, whatever its height. Where a tile does not hold all
        # columns, all tiles but the first read values that are in L2.
        again = ".again" if problem.extent > tile[1] else ""
        two = ".two" if _items(problem, variant) <= _TWO_AN_SM else ""
        return f"thin.{min(height, 64)}.t{tile[0]}x{tile[1]}{again}{two}"
    divided = ".split" if split.splits(variant) else ""
    warps = math.prod(variant.ints("w"))
    return f"{variant.family}.{height}.{lies}.w{warps}.n{tile[1]}{divided}"


def parts(problem: Problem, variant: Variant) -> tuple[float, ...]:
    """The amount of each part in a product, see the table above."""
    rows, depth = _size(problem)
    block = op_block(problem.op, problem.block, problem.layout)
    columns = problem.extent * problem.batch
    share_stored = density(rows, depth, problem.nnz, block)
    tile = variant.ints("t")
    ctas = _ctas(variant)

    steps, longest = _steps_of(problem, variant, condensed=CONDENSED in variant.knobs)
    panels, tiles_across = _tiles(problem, variant)
    divided = _parts_of_steps(problem, variant)
    items = _items(problem, variant)
    share = items / divided
    rounds = most_of(items)
    at_once = _grid(panels * tiles_across) if variant.family == "wgmma" else SMS * ctas
    most = _busiest(steps, longest, panels, tiles_across, at_once)
    busiest = max(share * steps, most / divided)

    together = min(1.0, items)
    dense = _across(problem, variant) * block[1] * tile[1]
    blocks = busiest / steps * share_stored * depth * tile[0]
    return (
        1.0,
        rounds,
        busiest,
        busiest * dense,
        blocks * tile[1],
        blocks * together,
        share * ctas * steps * dense,
        (depth + rows) * columns + share_stored * rows * depth,
    )


def most_of(tiles: float) -> float:
    """The largest number of tiles of any CTA, or SM, given the mean."""
    return math.ceil(tiles) if tiles < FEW_TILES else tiles + 0.5


def _ctas(variant: Variant) -> int:
    """CTAs that run on an SM at once, roughly."""
    if variant.family in ("mma", "fma"):
        return variant.ints("c")[0]
    return _THIN_CTAS if variant.family == "thin" else 1


def _grid(tiles: int) -> int:
    """CTAs of family wgmma: whole sets of neighbours, if that gives no CTA one tile more, see
    csrc/cuda/kernels/spmm_stages.cuh."""
    sets = SMS // _SET * _SET
    rounds = div_up(tiles, sets)
    return sets if rounds > _MANY_ROUNDS or rounds == div_up(tiles, SMS) else SMS


def _tiles(problem: Problem, variant: Variant) -> tuple[int, int]:
    """Number of panels, and of tiles in each."""
    rows, _ = _size(problem)
    tile = variant.ints("t")
    return div_up(rows, tile[0]), div_up(problem.extent, tile[1]) * problem.batch


def _items(problem: Problem, variant: Variant) -> float:
    """Tiles, or parts of split-K tiles, that a CTA computes on average."""
    tiles = math.prod(_tiles(problem, variant))
    return tiles * _parts_of_steps(problem, variant) / (SMS * _ctas(variant))


def _across(problem: Problem, variant: Variant) -> int:
    """Block columns per step: several if a stage is deeper than a block."""
    _, block_depth = op_block(problem.op, problem.block, problem.layout)
    return max(1, variant.ints("t")[2] // block_depth) if variant.family == "wgmma" else 1


def _steps_of(problem: Problem, variant: Variant, *, condensed: bool) -> Steps:
    """Mean and largest number of steps of a variant's panels, condensed or not."""
    block = op_block(problem.op, problem.block, problem.layout)
    count = _condensed_steps if condensed else _steps
    panel, across = variant.ints("t")[0], _across(problem, variant)
    return count(problem, block, _size(problem), panel, across)


def _steps(
    problem: Problem, block: tuple[int, int], size: tuple[int, int], panel: int, across: int
) -> Steps:
    """Mean and largest number of steps of a panel."""
    rows, depth = size
    side = side_of(problem.profile, "cols" if is_flipped(problem.op, problem.layout) else "rows")
    random = random_steps(rows, depth, problem.nnz, block, panel=panel, across=across)
    all_of_them = depth / (block[1] * across)
    # The minimum is all blocks side by side.
    fewest = density(rows, depth, problem.nnz, block) * all_of_them
    # Panels and slabs are as far on the way there as those that the profile describes.
    columns = slab_columns(block)
    slabs = random_steps(rows, depth, problem.nnz, block, across=columns)
    most = math.log2(slabs.mean / (fewest * across / columns))
    way = min(1.0, side.clustering / most) if most > 0 else 0.0
    mean = random.mean * (fewest / random.mean) ** way
    if block[0] == PAIRED and panel > PAIRED and across == 1 and not side.clustering:
        mean -= _shared_by_choice(
            panel // PAIRED, rows // block[0], all_of_them, fewest / all_of_them
        )
    mean = max(mean, fewest)
    longest = mean * random.longest / random.mean * 2**side.skew
    return Steps(mean, max(mean, min(longest, all_of_them)))


def _condensed_steps(
    problem: Problem, block: tuple[int, int], size: tuple[int, int], panel: int, across: int
) -> Steps:
    """As :func:`_steps`, for steps of the next ``across`` block columns, the last half full."""
    columns = _steps(problem, block, size, panel, 1)
    missing, slabs = (across - 1) / 2, size[1] / (block[1] * across)
    return Steps(*(min((each + missing) / across, slabs) for each in columns))


def _shared_by_choice(down: int, rows: int, columns: float, share: float) -> float:
    """Block columns that the two or three rows of a panel share above chance.

    The rows were chosen for it (:mod:`jitsparse.pairs`). The result is in standard deviations of
    what a random row shares with another, or with two others. The numbers were fitted to patterns
    of 4 to 256 rows and 16 to 256 columns, densities of 0.05 to 0.75.
    """
    among = min(rows, PAIRED_AMONG if down == 2 else TRIPLED_AMONG)
    if among <= down:
        return 0.0
    if down == 2:
        return (0.16 + 0.33 * math.log2(among)) * share * (1 - share) * math.sqrt(columns)
    by_two = 1 - (1 - share) ** 2
    deviation = math.sqrt(share * (1 - share) * by_two * (1 - by_two) * columns)
    return max(0.0, -0.42 + 0.61 * math.log2(among)) * deviation


def _busiest(mean: float, longest: float, panels: int, columns: int, at_once: int) -> float:
    """Steps of the busiest CTA.

    The length of panels is modelled as a power of their rank, the one that gives the right mean.
    Tiles are listed in groups of panels, column by column in a group, and the second round is
    dealt out backwards: a CTA with the longest panel gets a short one next. The rest is dealt out
    evenly, except for the last round, which may leave some CTAs out.
    """
    power = longest / mean - 1
    tiles = panels * columns
    group = min(_SET, panels)

    def length(number: int) -> float:
        rank = number // (group * columns) * group + number % group
        share = 1 - min(rank, panels - 1) / panels
        return longest * math.pow(share, power) if number < tiles else 0.0

    dealt = 2 * at_once
    some = (0, group // 2, at_once // 2, at_once - 1)
    two = max(length(cta) + length(dealt - 1 - cta) for cta in some)
    if tiles <= dealt:
        return two
    begun = min(panels, group * math.ceil(dealt / (group * columns)))
    mean_of_begun = panels / begun * mean * (1 - math.pow(1 - begun / panels, power + 1))
    left = (tiles * mean - dealt * mean_of_begun) / (tiles - dealt)
    rounds = tiles / at_once
    return two + (rounds - 2) * left + (math.ceil(rounds) - rounds) * length(tiles - 1)
