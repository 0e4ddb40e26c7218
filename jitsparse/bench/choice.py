"""Measuring choices: every legal variant of many products, and how far off the chosen one is."""

from __future__ import annotations

import random
import statistics
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

import torch

from jitsparse import calls
from jitsparse.bench.cases import Case, expert_case, make_operands
from jitsparse.bench.extents import Extents
from jitsparse.bench.report import Table
from jitsparse.bench.section import Outcome, Section
from jitsparse.bench.timing import estimate, interleave
from jitsparse.compilation import compile_variants
from jitsparse.jit import load
from jitsparse.kernels import cost, registry
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.problem import product_problem
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.panels import PANEL
from jitsparse.tune import HOPELESS, legal_candidates

if TYPE_CHECKING:
    from jitsparse.jit import Candidate

__all__ = ["FITTED", "HELD_OUT", "choice_section"]

FITTED, HELD_OUT = "fitted", "held out"
"""The halves of the cases: the cost model may have seen the first, never the second."""

_Shape = tuple[int, int, int]
"""Rows, columns of the product, and columns of the sparse operand."""

_BLOCKS = (16, 32, 64, 128)
_DENSITIES = (0.1, 0.25, 0.5)
_LAYERS = (("dds", "nn"), ("dds", "nt"))
"""A layer's gradient of its input, and its forward pass."""
_DSD_AND_DDS = (("dsd", "nn"), ("dsd", "tn"), *_LAYERS)

_PATTERNS = ("random", "random", "banded", "powerlaw")
"""Random patterns are twice as frequent."""
_CLUSTERED = (("banded", (0.1, 0.25, 0.5)), ("diagonal", (0.125, 0.5)), ("causal", (0.5,)))
"""Patterns of clustered blocks, and densities: most steps of a panel are full of blocks."""


def choice_section(device: torch.device, extents: Extents) -> Section:
    """The section of a sample of products, the same in every run."""
    return Section(
        "choice",
        "the chosen variant beside the best legal one",
        list(_sample(device, extents)),
        _measure,
        [
            "Pins and tuned tables are left aside. A row of the data is a variant; times the best "
            "= its time over the least of its case. Variants that take more than "
            f"{HOPELESS:.0f} times as long are left out.",
            f"The cost model may have been fitted on cases called {FITTED}, on others never.",
        ],
        prepare=_prepare,
        summary=_summary,
    )


def _sample(device: torch.device, extents: Extents) -> Iterator[Case]:
    """Sample the combinations, in random order; shapes are those of the sparse operand.

    After these come some with few columns and both operands contiguous along k, as in the forward
    pass of a layer: more families compete there. Then the products of other sections (headline
    products, layers, mixtures of experts) and those on patterns of clustered blocks. Some on random
    patterns, and the gradients of layers' weights, come in TF32 and IEEE float32, too.
    """
    dtype = "bf16" if device.type == "cuda" else "f32"
    everything = list(
        product(
            ("dsd", "dds", "sdd"),
            LAYOUTS[:3],
            _BLOCKS,
            (0.05, 0.1, 0.25, 0.5),
            extents.choices,
            _PATTERNS,
        )
    )
    random.Random(0).shuffle(everything)
    sample = list(dict.fromkeys(everything))[: extents.chosen]
    shapes = [
        (rows, columns, cols)
        for (rows, cols), columns in product(extents.few_choices, extents.few_columns)
    ]
    few = list(product(("dds",), ("nt",), _BLOCKS, _DENSITIES, shapes, ("random",)))
    random.Random(0).shuffle(few)
    random_ones = [each for each in everything if each[0] != "sdd" and each[-1] == "random"]
    random_sdd = [each for each in everything if each[0] == "sdd" and each[-1] == "random"]
    in_32_bits = dict.fromkeys(
        [
            *random_ones[: extents.chosen_in_32_bits],
            *few[: extents.few_chosen_in_32_bits],
            *random_sdd[: extents.sdd_chosen_in_32_bits],
            *_weight_gradients(extents),
        ]
    )
    sample += few[: extents.few_chosen]
    sample += _headlines(extents)
    sample += _clustered(extents)
    samples = [(dtype, dict.fromkeys(sample))]
    if device.type == "cuda":
        samples += [("tf32", in_32_bits), ("f32", in_32_bits)]
    for name, products in samples:
        for op, layout, block, density, (rows, extent, cols), pattern in products:
            size = {
                "dsd": (rows, extent, cols),
                "dds": (extent, rows, cols),
                "sdd": (rows, cols, extent),
            }[op]
            yield Case(op, size, (block, block), density, name, device, pattern, layout)
    for shape, block, (op, layout) in product(
        extents.experts + extents.more_experts,
        (32, 64, 128),
        _DSD_AND_DDS,
    ):
        yield expert_case(op, layout, shape, block, dtype, device)


def _headlines(extents: Extents) -> Iterator[tuple[str, str, int, float, _Shape, str]]:
    """Dsd and dds of the sections products and linear, except those of few tokens."""
    squares = [(size, size, size) for size in extents.products]
    layers = [
        (rows, tokens, cols)
        for (rows, cols), tokens in product(extents.layers, extents.tokens)
        if tokens > max(extents.few_columns)
    ]
    for shapes, ops in ((squares, _DSD_AND_DDS), (layers, _LAYERS)):
        for shape, (op, layout), block, density in product(shapes, ops, _BLOCKS, _DENSITIES):
            yield op, layout, block, density, shape, "random"


def _weight_gradients(extents: Extents) -> Iterator[tuple[str, str, int, float, _Shape, str]]:
    """Sdd of the section linear, except those of the most tokens, which take longest."""
    for (rows, cols), tokens, block, density in product(
        extents.layers, sorted(extents.tokens)[:-1], _BLOCKS, _DENSITIES[:2]
    ):
        yield "sdd", "tn", block, density, (rows, tokens, cols), "random"


def _clustered(extents: Extents) -> Iterator[tuple[str, str, int, float, _Shape, str]]:
    """Dsd and dds in blocks that can share the steps of a panel, on patterns where they do."""
    smaller = [block for block in _BLOCKS if block < PANEL]
    for size, (op, layout), block in product(extents.clustered, _DSD_AND_DDS, smaller):
        for pattern, densities in _CLUSTERED:
            for density in densities:
                yield op, layout, block, density, (size, size, size), pattern


def _half(case: Case) -> str:
    """The half of a case, by what is measured, so that it is the same in every sample."""
    return (FITTED, HELD_OUT)[zlib.crc32(repr(sorted(case.facts.items())).encode()) % 2]


def _prepare(cases: Sequence[Case]) -> None:
    """Compile what will be measured, all at once."""
    problems = [
        product_problem(
            case.op,
            case.device.type,
            case.dtype,
            case.block,
            case.layout,
            case.size,
            case.density,
        ).rounded()
        for case in cases
    ]
    variants = [each.variant for problem in problems for each in legal_candidates(problem)]
    for outcome in compile_variants(dict.fromkeys(variants)):
        if outcome.error is not None:
            raise outcome.error


def _measure(case: Case, seconds: float) -> Outcome:
    with float32_as(case.dtype, case.device.type), torch.no_grad():
        operands = make_operands(case)
        copies = [
            calls.catch(case.op, *operands.arguments(case.op, i)) for i in range(operands.copies)
        ]
        problem = copies[0].problem
        candidates = legal_candidates(problem)
        legal = [each.variant for each in candidates]
        turns = {each.variant.name: _turns(copies, each) for each in candidates}
        first = {name: estimate(turn, case.device) for name, turn in turns.items()}
        gpu = registry.priced_as(case.device.type)
        chosen, limit = legal[0].name, HOPELESS * min(first.values())
        close = {
            name: turn for name, turn in turns.items() if first[name] <= limit or name == chosen
        }
        timings = interleave(close, case.device, seconds=seconds)
    best = min(timing.median for timing in timings.values())
    return Outcome(
        [
            {
                **case.facts,
                "stored": operands.pattern.nnz_blocks,
                "profile": f"{problem.profile:04x}",
                "half": _half(case),
                "variant": each.name,
                "us": 1e6 * timings[each.name].median,
                "predicted us": cost.microseconds(problem, each, gpu),
                "times the best": timings[each.name].median / best,
                "chosen": each.name == chosen,
            }
            for each in legal
            if each.name in timings
        ],
        timings=timings,
    )


def _turns(copies: Sequence[calls.Call], candidate: Candidate) -> Callable[[int], object]:
    kernel = load(candidate.template, candidate.variant)
    return lambda i: copies[i % len(copies)].run(kernel)


def _summary(table: Table) -> Table:
    """How good the choices are, by operation and half."""
    chosen = [row for row in table.rows if row["chosen"]]
    groups: dict[tuple[str, str], list[float]] = {}
    for row in chosen:
        for op in (row["op"], "all"):
            groups.setdefault((op, row["half"]), []).append(row["times the best"])
    rows = [
        {
            "op": op,
            "half": half,
            "cases": len(times),
            "within 5 %": sum(each <= 1.05 for each in times) / len(times),
            "within 15 %": sum(each <= 1.15 for each in times) / len(times),
            "median": statistics.median(times),
            "worst": max(times),
        }
        for (op, half), times in sorted(groups.items())
    ]
    return Table(table.title, list(rows[0]), rows)
