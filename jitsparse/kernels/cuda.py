"""What the CUDA families share: roles of the operands, templates, limits of a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitsparse.jit import Template, Variant
from jitsparse.jit.template import Context
from jitsparse.kernels import abi, roles, split
from jitsparse.kernels.problem import Problem, typical_problem
from jitsparse.layout import div_up
from jitsparse.panels import SMS

__all__ = [
    "CONDENSED",
    "CSRC",
    "TEMPLATES",
    "Tile",
    "cta_tile_context",
    "ctas_per_sm",
    "cuda_template",
    "dividing_pays",
    "knobs",
    "operand_context",
    "parts_of_tile",
    "ranked",
    "shared_memory_limit",
    "tile_context",
    "tile_count",
    "time_to_the_end",
    "typical_problems",
    "walked",
    "waves",
]

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
TEMPLATES = ROOT / "templates"

ELEMENTS = {"f64": "F64", "f32": "F32", "tf32": "Tf32", "f16": "F16", "bf16": "Bf16"}
"""The C++ element type of each dtype (``csrc/cuda/tile/element.cuh``)."""

CONDENSED = ("k", "condensed")
"""The knob of a dsd or dds whose slabs are the next block columns that a panel needs."""

_SHARED_MEMORY = {
    "sm80": 166912,
    "sm86": 101376,
    "sm87": 166912,
    "sm88": 101376,
    "sm89": 101376,
    "sm120": 101376,
    "sm121": 101376,
}
"""Bytes of shared memory that a CTA may have, by compute capability (CUDA programming guide,
technical specifications, which does not list 8.8: the least of its generation); 232448 since
Hopper, except for the entries here."""


def shared_memory_limit(target: str) -> int:
    """Bytes of shared memory that a CTA may use on a target."""
    return _SHARED_MEMORY.get(target.rstrip("af"), 232448)


def ctas_per_sm(shared_memory: int, target: str) -> int:
    """CTAs that the shared memory of an SM holds. The hardware reserves 1024 bytes for each; one
    CTA alone may use all but its own reservation."""
    return (shared_memory_limit(target) + 1024) // (shared_memory + 1024)


def operand_context(variant: Variant) -> dict[str, str | int | bool]:
    """The template names that follow from op, dtype, block and layout."""
    return roles.operand_names(variant, ELEMENTS)


def cta_tile_context(variant: Variant) -> Context:
    """As :func:`operand_context`, with the tile of a kernel that has no other knobs."""
    tile_m, tile_n = variant.ints("t")
    return operand_context(variant) | {"tile_m": tile_m, "tile_n": tile_n}


def cuda_template(family: str, op: str, context: Callable[[Variant], Context]) -> Template:
    """The template of a family for an operation."""
    kernel = "sdd" if op == "sdd" else "spmm"
    return Template(
        name=f"{kernel}_{family}",
        source=TEMPLATES / f"{kernel}_{family}.cu.jinja",
        language="cuda",
        include_dirs=(CSRC,),
        arguments=len(abi.words_of(op)),
        context=context,
    )


def knobs(problem: Problem, **values: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """The knobs of a variant: block and layout of the problem, then ``values``."""
    numbers = {"b": problem.block, **values}
    text = {letter: "x".join(map(str, value)) for letter, value in numbers.items()}
    return (("b", text.pop("b")), ("l", problem.layout), *text.items())


@dataclass(frozen=True)
class Tile:
    """One way to divide the work of warps fed by cp.async: the values of the knobs t, w, s, c."""

    shape: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    ctas: int

    def variant(
        self, family: str, problem: Problem, target: str, divides: bool, *others: tuple[str, str]
    ) -> Variant:
        """The variant of a problem with this tile, which may be split along k, and other knobs."""
        values = knobs(problem, t=self.shape, w=self.warps, s=(self.stages,), c=(self.ctas,))
        divided = [split.KNOB] if divides else []
        return Variant(problem.op, family, target, problem.dtype, (*values, *others, *divided))


def tile_context(variant: Variant) -> Context:
    """The names that templates use for the variant of a :class:`Tile`."""
    tile_m, tile_n, tile_k = variant.ints("t")
    warps_m, warps_n = variant.ints("w")
    launch = "launch"
    if split.splits(variant):
        launch = "launch_and_sum_tail" if variant.op == "sdd" else "launch_and_sum"
    return operand_context(variant) | {
        "tile_m": tile_m,
        "tile_n": tile_n,
        "tile_k": tile_k,
        "warps_m": warps_m,
        "warps_n": warps_n,
        "stages": variant.ints("s")[0],
        "min_ctas": variant.ints("c")[0],
        "split": roles.cpp_bool(split.splits(variant)),
        "launch": launch,
    }


_FIXED_COLUMNS = 96
"""Cost of a CTA's sparse operand and its barriers, in columns of its dense one."""


def tile_count(problem: Problem, tile: Sequence[int]) -> float:
    """Number of such tiles in a problem; for an sdd, as many as a random pattern leads to."""
    tile_m, tile_n, *_ = tile
    if problem.op == "sdd":
        block_rows, block_cols = problem.block
        density = min(1.0, problem.nnz * block_rows * block_cols / (problem.rows * problem.cols))
        # Block columns that any row of a panel stores; the last tile is half empty.
        merged = split.walked_k(problem.cols, density, tile_m // block_rows) / block_cols
        together = tile_n / block_cols
        tiles = problem.rows / tile_m * (merged / together + (together - 1) / (2 * together))
        return float(min(tiles, div_up(problem.rows, tile_m) * div_up(problem.cols, tile_n)))
    rows = problem.cols if roles.is_flipped(problem.op, problem.layout) else problem.rows
    return div_up(rows, tile_m) * div_up(problem.extent, tile_n) * problem.batch


def parts_of_tile(problem: Problem, tile: Tile, family: str) -> int:
    """Parts into which a dsd or dds of ``fma`` or ``mma`` splits such tiles, if it does."""
    at_once = SMS * tile.ctas
    return split.parts_of_tiles(
        family, int(tile_count(problem, tile.shape)), at_once, walked(problem, tile)
    )


def walked(problem: Problem, tile: Tile) -> float:
    """Extent of k that a tile of a dsd or dds walks on average, for a random pattern."""
    rows, k = roles.op_block(problem.op, (problem.rows, problem.cols), problem.layout)
    height, _ = roles.op_block(problem.op, problem.block, problem.layout)
    density = problem.nnz * math.prod(problem.block) / (rows * k)
    return split.walked_k(k, density, tile.shape[0] // height)


def waves(problem: Problem, tile: Tile) -> float:
    """Tiles of a problem divided by the CTAs that a GPU has at a time."""
    return tile_count(problem, tile.shape) / (SMS * tile.ctas)


def dividing_pays(problem: Problem, tile: Tile, costs: float) -> bool:
    """Whether an sdd is faster with its last tiles split along k.

    Args:
        problem: a problem of an sdd.
        tile: the tile with the fewest waves while all are whole.
        costs: cost of storing parts and adding them, in k of a wave.
    """
    full, rest = divmod(waves(problem, tile), 1)
    # The facts of a pattern do not tell how full its last wave is, if there are several.
    idle = 1 - rest if full <= 1 else 0.5
    return idle * problem.extent * problem.batch > costs


def time_to_the_end(problem: Problem, tile: Tile, fixed: float) -> float:
    """Relative time of tiles that keep a GPU busy to the end.

    Each costs as much as ``fixed`` columns in addition to its own. Only ranks the tiles of one
    problem.
    """
    tile_m, tile_n, _ = tile.shape
    return tile_count(problem, tile.shape) * tile_m * (tile_n + fixed)


def _relative_time(problem: Problem, tile: Tile) -> float:
    """Waves of CTAs times the work of one; only ranks the tiles of one problem."""
    (tile_m, tile_n, _), ctas = tile.shape, tile.ctas
    return float(math.ceil(waves(problem, tile)) * ctas * tile_m * (tile_n + _FIXED_COLUMNS))


def ranked(problem: Problem, tiles: Sequence[Tile]) -> list[Tile]:
    """Tiles for a problem, best first."""
    return sorted(tiles, key=lambda tile: _relative_time(problem, tile))


_TYPICAL_LAYOUTS = {"dsd": ("nn", "tn"), "dds": ("nn", "nt"), "sdd": ("nn", "nt", "tn")}
"""Layouts that contiguous operands lead to, forward and backward."""


def typical_problems(
    dtypes: tuple[str, ...], blocks: tuple[int, ...], extent: int = 4096
) -> Iterator[Problem]:
    """Problems that represent those of programs: square blocks in a 4096 x 4096 matrix."""
    for dtype in dtypes:
        for op, layouts in _TYPICAL_LAYOUTS.items():
            for block in blocks:
                for layout in layouts:
                    yield typical_problem(op, "cuda", dtype, block, layout, extent)
