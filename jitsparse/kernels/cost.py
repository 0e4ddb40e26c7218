"""The cost model: predicts how long a variant takes, so that the quickest is chosen.

It covers products on Hopper in blocks of 16 and more for which families compete: dsd and dds on
16-bit elements, in TF32 and in IEEE float32, and sdd in the latter two. (In 16 bits an sdd
has one family and few variants, and rules are within 5 % of the best.) The time is a sum over the
parts of a product's work, each an amount times a price: :mod:`~jitsparse.kernels.cost_of_spmm` and
:mod:`~jitsparse.kernels.cost_of_sdd` compute the amounts.

The prices are microseconds, a row for each kind of kernel (:mod:`jitsparse.kernels.price_table`).
:mod:`jitsparse.bench.fitting` fits them to times measured by ``jitsparse bench --suite hopper
--section choice --json``; docs/performance.md says how often the model's choice is the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from jitsparse.kernels import cost_of_sdd, cost_of_spmm, padding, thin, transpose
from jitsparse.kernels.price_table import GPUS, prices_of

if TYPE_CHECKING:
    from jitsparse.jit import Candidate, Variant
    from jitsparse.kernels.problem import Problem

__all__ = [
    "PARTS",
    "breakdown",
    "covers",
    "extras",
    "first_choices",
    "kind",
    "knows",
    "microseconds",
    "parts",
    "quickest_first",
]

PARTS = ("start", "tile", "step", "dense", "product", "block", "shared", "memory")

_IN_32_BITS = ("tf32", "f32")
_DTYPES = {
    "dsd": ("bf16", "f16", *_IN_32_BITS),
    "dds": ("bf16", "f16", *_IN_32_BITS),
    "sdd": _IN_32_BITS,
}
"""Dtypes that the model covers, by operation."""

_WORTH_A_COPY = 1.03
"""Factor by which a variant that needs memory for a copy of an operand has to be faster. (With
1.05, and for the workspace of split-K, too, which takes 52 MB at most, the choice was within 5 % of
the best for 0.897 of the held-out products on an H100 and 0.919 on an H200, instead of 0.902 and
0.922.)"""


def covers(problem: Problem, target: str) -> bool:
    """Whether the model covers a problem on a target."""
    return target == "sm90a" and problem.dtype in _DTYPES[problem.op] and min(problem.block) >= 16


def quickest_first(
    problem: Problem, candidates: Sequence[Candidate], gpu: str = GPUS[0]
) -> list[Candidate]:
    """Candidates by expected time, those without a price last.

    The reason of a priced candidate becomes its expected time. The copy of an operand has to be
    worth its memory. ``thin`` has prices in 16 bits only, and goes first where it needs none. For
    an unaligned problem on a GPU, ``simt`` goes first where copying all operands does not pay.
    """
    expected = [(microseconds(problem, each.variant, gpu), each) for each in candidates]
    known = [(us, each) for us, each in expected if us is not None]

    def worth(pair: tuple[float, Candidate]) -> float:
        us, each = pair
        return us * _WORTH_A_COPY if transpose.transposes(each.variant) else us

    unpriced = [each for us, each in expected if us is None]
    ranked = [
        *(each for each in unpriced if thin.is_quickest(problem, each.variant)),
        *(
            replace(each, why=f"the cost model expects {us:.1f} us on an {gpu}")
            for us, each in sorted(known, key=worth)
        ),
        *(each for each in unpriced if not thin.is_quickest(problem, each.variant)),
    ]
    unaligned = problem.device == "cuda" and not problem.aligned
    return padding.in_order(problem, ranked) if unaligned else ranked


def first_choices(
    candidates: Callable[[Problem, str], list[Candidate]], problems: Iterable[Problem], target: str
) -> list[Variant]:
    """The quickest legal candidates of these problems on each of the table's GPUs, each once."""
    found = []
    for problem in problems:
        legal = [each for each in candidates(problem, target) if each.refused is None]
        found += [each.variant for gpu in GPUS for each in quickest_first(problem, legal, gpu)[:1]]
    return list(dict.fromkeys(found))


def microseconds(problem: Problem, variant: Variant, gpu: str = GPUS[0]) -> float | None:
    """The expected time; None if the model has no price for the problem or the kind."""
    costs = breakdown(problem, variant, gpu)
    return sum(costs.values()) if costs else None


def breakdown(problem: Problem, variant: Variant, gpu: str = GPUS[0]) -> dict[str, float]:
    """Microseconds of each part; empty if the model has no price for the problem or the kind."""
    if not knows(problem, variant):
        return {}
    prices = prices_of(kind(problem, variant), gpu)
    if prices is None:
        return {}
    amounts = parts(problem, variant)
    costs = {
        part: price * amount
        for part, price, amount in zip(PARTS, prices, amounts, strict=True)
        if price
    }
    if not problem.aligned and padding.needs(variant):
        costs["padding"] = padding.microseconds(problem)
    return costs | extras(problem, variant, amounts)


def knows(problem: Problem, variant: Variant) -> bool:
    """Whether the model has prices for a variant of a problem."""
    return covers(problem, variant.target) and _model_of(problem).knows(problem, variant)


def kind(problem: Problem, variant: Variant) -> str:
    """Key of a variant's row of prices: ``"wgmma.32.s64.across.n128"``, for instance.

    If its group has a table of its own, the key begins with the group's name:
    ``"tf32.wgmma.64.s64.along.n256"``, ``"f32.sdd.simt.64"``.
    """
    name = _model_of(problem).kind(problem, variant)
    if problem.op == "sdd":
        return f"{problem.dtype}.sdd.{name}"
    return f"{problem.dtype}.{name}" if problem.dtype in _IN_32_BITS else name


def parts(problem: Problem, variant: Variant) -> tuple[float, ...]:
    """The amount of each of :data:`PARTS` in a product."""
    return _model_of(problem).parts(problem, variant)


def extras(problem: Problem, variant: Variant, amounts: Sequence[float]) -> dict[str, float]:
    """Microseconds of costs that not all products have, for one with these amounts."""
    return _model_of(problem).extras(problem, variant, amounts)


class _Model(Protocol):
    """Interface of a module that computes the amounts for some operations."""

    def knows(self, problem: Problem, variant: Variant) -> bool:
        """Whether a variant may have prices."""

    def kind(self, problem: Problem, variant: Variant) -> str:
        """As :func:`kind`, within a table."""

    def parts(self, problem: Problem, variant: Variant) -> tuple[float, ...]:
        """As :func:`parts`."""

    def extras(
        self, problem: Problem, variant: Variant, amounts: Sequence[float]
    ) -> dict[str, float]:
        """As :func:`extras`."""


def _model_of(problem: Problem) -> _Model:
    return cost_of_sdd if problem.op == "sdd" else cost_of_spmm
