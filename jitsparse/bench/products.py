"""Measuring products: a case in, a row of a table out; and the suites that are published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from jitsparse.bench.cases import Case, Operands, make_operands
from jitsparse.bench.peers import DENSE, OURS, STK, TORCH_BSR, contestants
from jitsparse.bench.report import Table
from jitsparse.bench.timing import Timing, interleave
from jitsparse.explain import explain

__all__ = ["SUITES", "Axes", "Measurement", "cases", "measure", "product_table"]


@dataclass(frozen=True)
class Axes:
    """A grid of cases: every combination is one.

    Attributes are those of :class:`~jitsparse.bench.cases.Case`, each with several values.
    """

    ops: Sequence[str] = ("dsd", "dds", "sdd")
    dtypes: Sequence[str] = ("f32",)
    sizes: Sequence[tuple[int, int, int]] = ((2048, 2048, 2048),)
    blocks: Sequence[tuple[int, int]] = ((32, 32),)
    densities: Sequence[float] = (0.1, 0.25, 0.5)
    patterns: Sequence[str] = ("random",)


def _cube(size: int) -> tuple[int, int, int]:
    return size, size, size


def _square(*sides: int) -> tuple[tuple[int, int], ...]:
    return tuple((side, side) for side in sides)


SUITES: dict[str, tuple[Axes, ...]] = {
    "cpu": (
        Axes(blocks=_square(8, 16, 32, 64, 128)),
        Axes(dtypes=("bf16",), blocks=_square(32, 64, 128)),
    ),
    "portable": (
        Axes(
            dtypes=("bf16",),
            sizes=(_cube(4096), _cube(8192)),
            blocks=_square(16, 32, 64, 128),
        ),
    ),
    "patterns": (
        Axes(blocks=_square(32), densities=(0.25,), patterns=("random", "banded", "diagonal")),
    ),
}
"""Grids behind the tables of docs/performance.md."""


def cases(axes: Axes, device: torch.device) -> Iterator[Case]:
    """The cases of a grid, the operation varying slowest and the density fastest."""
    for op, dtype, size, block, pattern, density in product(
        axes.ops, axes.dtypes, axes.sizes, axes.blocks, axes.patterns, axes.densities
    ):
        yield Case(op, size, block, density, dtype, device, pattern)


@dataclass(frozen=True)
class Measurement:
    """A case and how long everyone took for it.

    Attributes:
        case: what was measured.
        density: share of the blocks that the pattern really stores.
        variant: the kernel that jitsparse used.
        flops: useful operations of a call.
        timings: contestant to time.
        absent: contestant to the reason why it has no time.
    """

    case: Case
    density: float
    variant: str
    flops: float
    timings: dict[str, Timing]
    absent: dict[str, str]

    def rate(self, name: str) -> float:
        """Useful operations a second; for the dense product, all of its operations."""
        flops = self.flops / self.density if name == DENSE and self.density else self.flops
        return flops / self.timings[name].median

    def ratio(self, name: str) -> float | None:
        """Our rate over another's, turn by turn; None where it is absent."""
        if name not in self.timings:
            return None
        faster = self.timings[OURS].times_faster_than(self.timings[name])
        # The dense product computes more than what is useful.
        return faster * self.density if name == DENSE else faster

    def row(self) -> dict[str, object]:
        """The row of the table; GFLOP/s on a CPU, TFLOP/s on a GPU."""
        m, n, k = self.case.size
        scale = 1e-12 if self.case.device.type == "cuda" else 1e-9
        return {
            "op": self.case.op,
            "dtype": self.case.dtype,
            "size": f"{m}" if m == n == k else f"{m}x{n}x{k}",
            "block": "x".join(map(str, self.case.block)),
            "pattern": self.case.pattern,
            "density": self.case.density,
            "us": 1e6 * self.timings[OURS].median,
            "useful rate": scale * self.rate(OURS),
            "dense rate": scale * self.rate(DENSE),
            "ratio to dense": self.ratio(DENSE),
            f"times {TORCH_BSR}": self.ratio(TORCH_BSR),
            f"times {STK}": self.ratio(STK),
            "variant": self.variant,
            "stored": self.density,
        }


def measure(case: Case, *, seconds: float = 2.0, seed: int = 0) -> Measurement:
    """Time jitsparse and its peers on one case, in turns.

    Args:
        case: what to measure.
        seconds: rough time to spend, compiling not counted.
        seed: of the data.

    Raises:
        ArgumentError: the case names something that does not exist.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.dtype == "tf32" else "highest")
    try:
        with torch.no_grad():
            operands = make_operands(case, seed)
            calls, absent = contestants(case, operands)
            timings = interleave(calls, case.device, seconds=seconds)
            variant = _variant(case, operands)
    finally:
        torch.set_float32_matmul_precision(before)
    flops = case.useful_flops(operands.pattern)
    return Measurement(case, operands.pattern.density, variant, flops, timings, absent)


def _variant(case: Case, operands: Operands) -> str:
    """The variant that the case ran; where there is no compiler, that it ran none."""
    if case.op == "dsd":
        explanation = explain("dsd", operands.sparse[0], operands.right[0])
    elif case.op == "dds":
        explanation = explain("dds", operands.left[0], operands.sparse[0])
    else:
        explanation = explain("sdd", operands.left[0], operands.right[0], operands.pattern)
    return explanation.variant if explanation.cached else "plain torch (no compiler)"


def product_table(
    title: str,
    todo: Sequence[Case],
    *,
    seconds: float,
    on_case: Callable[[Case], None] = lambda case: None,
) -> Table:
    """Measure cases and write them down, the ones that we lose too.

    Args:
        title: of the table.
        todo: what to measure.
        seconds: rough time for each.
        on_case: called before each.
    """
    done = []
    for case in todo:
        on_case(case)
        done.append(measure(case, seconds=seconds))
    rows = [measurement.row() for measurement in done]
    # A column that no row fills says less than the note below the table.
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    columns.remove("stored")  # the density that rounding to blocks left, for JSON
    missing: dict[tuple[str, str], set[str]] = {}
    for measurement in done:
        for name, reason in measurement.absent.items():
            what = f"{measurement.case.op} {measurement.case.dtype}"
            missing.setdefault((name, reason), set()).add(what)
    notes = [
        f"{name} is absent from {', '.join(sorted(what))}: {reason}."
        for (name, reason), what in missing.items()
    ]
    unit = "TFLOP/s" if todo[0].device.type == "cuda" else "GFLOP/s"
    notes.insert(
        0,
        f"Rates in {unit}; useful rate = 2 M N K density / time; ratio to dense = useful rate over "
        "torch's dense rate in the same run, so the product beats dense where the density is below "
        "the ratio.",
    )
    return Table(title, columns, rows, notes)
