"""Families of the CPU: ``vec``, vector code for every dtype, ``amx``, Intel's tiles for bf16, and
``split``, the same tiles for float32 whose elements are divided into bf16.

Knobs: ``b`` block, ``l`` layout, and the register tile: ``r``, rows of the sparse operand (in an
sdd, of the left one) x vectors of columns, or rows x columns of AMX tiles; or, for a dds whose
vectors are rows of blocks, ``v``, rows of the dense operand x vectors. A tile of vectors has to
leave registers for a row of vectors and one broadcast element; within that limit, wide tiles read
their broadcast elements less often, and tall ones their vectors.

A kernel runs on every machine whose instruction set includes its target's, so lesser targets are
candidates too, after the machine's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jitsparse.jit import Candidate, Template, Variant
from jitsparse.jit.template import Context
from jitsparse.kernels import abi
from jitsparse.kernels.problem import (
    LESS_PRECISE,
    TYPICAL_BLOCKS,
    Priority,
    Problem,
    typical_problem,
)
from jitsparse.kernels.roles import LAYOUTS, op_block, operand_names

__all__ = ["candidates", "default_variants", "priority", "template"]

_ROOT = Path(__file__).resolve().parent.parent

_VEC_TARGETS = ("avx512bf16", "avx512", "avx2", "generic")
"""Targets of ``vec``, each including the next. The first multiplies pairs of bfloat16; other dtypes
share the compiled kernels of the second."""

_VEC_TILES = {
    "avx512bf16": ((8, 3), (8, 2), (16, 1)),
    "avx512": ((8, 3), (8, 2), (16, 1)),
    "avx2": ((4, 3), (4, 2), (8, 1)),
    "generic": ((4, 3), (4, 2), (8, 1)),
}
"""Register tiles of ``vec``, the preferred one first (docs/performance.md). There are 32 registers
with AVX-512, 16 with AVX2 and SSE."""

_ROW_TILE = {"avx512": (14, 2), "avx2": (6, 2)}
"""The register tile of ``vec`` whose vectors are rows of blocks; plain C++ gains nothing by it."""

_VECTOR_BYTES = {"avx512": 64, "avx2": 32}

_AMX_ROW_TILE = (2, 2)
"""The counterpart for ``amx``, in tiles of 16 rows and 16 columns."""

_AMX_TILES = ((2, 2), (1, 4), (1, 2))
"""Register tiles of ``amx``, the preferred one first. Eight registers hold four sums, the operands
and nothing else."""

_PLANES = {"f32": 3, "tf32": 2, "bf32": 1, "bf16": 1}
"""How many bfloat16 an element is made of on AMX tiles (``csrc/cpu/planes.h``)."""

_VECTORS_OF_SPLIT = {
    ("dsd", "r"): _VEC_TILES["avx512"][1],
    ("dds", "r"): _VEC_TILES["avx512"][1],
    ("dds", "v"): _ROW_TILE["avx512"],
    ("sdd", "r"): _VEC_TILES["avx512"][0],
}
"""Register tiles with which ``split`` computes what it does not compute on tiles of AMX. The second
best of a dsd compiles 0.2 s faster."""

_OF_FLOAT32 = ("f32", *LESS_PRECISE)

_ELEMENTS = {"f64": "double", "f16": "Float16", "bf16": "BFloat16"} | dict.fromkeys(
    _OF_FLOAT32, "float"
)
"""The C++ element type of each dtype (``csrc/cpu/vec.h``)."""


def priority(problem: Problem) -> Priority:
    """The only module of its device."""
    return Priority(
        0, "the best instruction set of this processor, its preferred register tile first"
    )


def candidates(problem: Problem, target: str) -> list[Candidate]:
    """Variants for a problem, best first; refused ones with their reason.

    Args:
        problem: the facts of a call. Its ``aligned`` makes no difference on a CPU.
        target: the best instruction set to consider.
    """
    height = _height(problem)
    return [
        *_amx(problem, target, height),
        *_split(problem, target, height),
        *_vec(problem, target, height),
    ]


def _amx(problem: Problem, target: str, height: int) -> Iterator[Candidate]:
    unknown = None
    if problem.dtype != "bf16":
        unknown = f"dtype {problem.dtype}: AMX tiles multiply bf16"
    elif target != "amx":
        unknown = f"target {target}: needs AMX tiles for bfloat16"
    if problem.op == "dds":
        refused = unknown or _refusal_of_rows(problem, 16 * _AMX_ROW_TILE[1])
        yield _candidate(problem, "amx", "amx", _AMX_ROW_TILE, refused, knob="v")
    for tile in _AMX_TILES:
        refused = unknown
        if refused is None and height % (16 * tile[0]) and tile[0] > 1:
            refused = f"{tile[0]} tiles of 16 rows do not divide blocks that are {height} high"
        yield _candidate(problem, "amx", "amx", tile, refused)


def _split(problem: Problem, target: str, height: int) -> Iterator[Candidate]:
    refused = None
    if problem.dtype not in _OF_FLOAT32:
        refused = f"dtype {problem.dtype}: divides float32 into bf16"
    elif target != "amx":
        refused = f"target {target}: needs AMX tiles for bfloat16"
    elif min(problem.block) < (least := 32 if problem.dtype == "f32" else 16):
        rows, cols = problem.block
        refused = f"block {rows}x{cols}: vec is faster unless both sides are at least {least}"
    if problem.op == "dds":
        of_rows = refused or _refusal_of_rows(problem, 16 * _AMX_ROW_TILE[1])
        yield _candidate(problem, "split", "amx", _AMX_ROW_TILE, of_rows, knob="v")
    tall, low, *_ = _AMX_TILES
    yield _candidate(problem, "split", "amx", low if height % 32 else tall, refused)
    if problem.dtype in LESS_PRECISE:
        yield from _split(replace(problem, dtype="f32"), target, height)


def _vec(problem: Problem, target: str, height: int) -> Iterator[Candidate]:
    # An AMX machine has AVX-512 with bfloat16.
    best = "avx512bf16" if target == "amx" else target
    for each in _VEC_TARGETS[_VEC_TARGETS.index(best) :]:
        if each == "avx512bf16" and problem.dtype != "bf16":
            continue
        if problem.op == "dds" and each in _ROW_TILE:
            refused = _refusal_of_rows(problem, _ROW_TILE[each][1] * _lanes(each, problem.dtype))
            yield _candidate(problem, "vec", each, _ROW_TILE[each], refused, knob="v")
        for tile in _VEC_TILES[each]:
            refused = None
            if height % tile[0]:
                refused = f"{tile[0]} rows of registers do not divide blocks that are {height} high"
            yield _candidate(problem, "vec", each, tile, refused)


def _lanes(target: str, dtype: str) -> int:
    """Elements of a vector, in the type of the sums."""
    return _VECTOR_BYTES[target] // (8 if dtype == "f64" else 4)


def _refusal_of_rows(problem: Problem, width: int) -> str | None:
    """Why rows of blocks cannot be the vectors of a tile of this width, or None."""
    if problem.layout != "nn":
        return f"layout {problem.layout}: needs both operands as stored"
    if problem.block[1] % width:
        return f"{width} columns of registers do not divide blocks that are {problem.block[1]} wide"
    return None


def _candidate(
    problem: Problem,
    family: str,
    target: str,
    tile: tuple[int, int],
    refused: str | None,
    *,
    knob: str = "r",
) -> Candidate:
    in_full = family == "vec" and problem.dtype in LESS_PRECISE
    variant = Variant(
        op=problem.op,
        family=family,
        target=target,
        dtype="f32" if in_full else problem.dtype,
        knobs=(
            ("b", f"{problem.block[0]}x{problem.block[1]}"),
            ("l", problem.layout),
            (knob, f"{tile[0]}x{tile[1]}"),
        ),
    )
    return Candidate(variant, template(variant), refused)


def default_variants(target: str) -> Iterator[Variant]:
    """The first choice for every dtype, operation, square block and layout."""
    for dtype in _ELEMENTS:
        for op in ("dsd", "dds", "sdd"):
            for block in TYPICAL_BLOCKS:
                for layout in LAYOUTS:
                    problem = typical_problem(op, "cpu", dtype, block, layout)
                    chosen = next(c.variant for c in candidates(problem, target) if not c.refused)
                    if chosen.dtype == dtype:
                        yield chosen


def template(variant: Variant) -> Template:
    """The template that a variant is rendered from."""
    product = "sdd" if variant.op == "sdd" else "spmm"
    kernel = "dds_rows" if _tile_knob(variant) == "v" else product
    name = f"{kernel}_{variant.family}"
    return Template(
        name=name,
        source=_ROOT / "templates" / f"{name}.cpp.jinja",
        language="c++",
        include_dirs=(_ROOT / "csrc",),
        arguments=len(abi.words_of(variant.op)),
        context=_context,
    )


def _context(variant: Variant) -> Context:
    """The names that a template may use."""
    tile_rows, tile_cols = variant.ints(_tile_knob(variant))
    names = {"tile_rows": tile_rows, "tile_cols": tile_cols}
    if variant.family != "vec":
        names["planes"] = _PLANES[variant.dtype]
    if variant.family == "split":
        of_vectors = _VECTORS_OF_SPLIT[variant.op, _tile_knob(variant)]
        names |= {"vector_rows": of_vectors[0], "vector_cols": of_vectors[1]}
    return {**operand_names(variant, _ELEMENTS), **names}


def _tile_knob(variant: Variant) -> str:
    return "v" if "v" in dict(variant.knobs) else "r"


def _height(problem: Problem) -> int:
    """Height of a block as a kernel sees it; for an sdd, that of a block of its output."""
    if problem.op == "sdd":
        return problem.block[0]
    return op_block(problem.op, problem.block, problem.layout)[0]
