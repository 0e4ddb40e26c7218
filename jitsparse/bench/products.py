"""Measuring products: a case in, the rows of a table out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jitsparse.bench.cases import Case, make_operands
from jitsparse.bench.peers import (
    BMM,
    DENSE,
    OURS,
    PEERS,
    STK,
    TORCH_BSR,
    TORCH_TUNED,
    contestants,
    variant_of,
)
from jitsparse.bench.section import Outcome
from jitsparse.bench.timing import Timing, interleave
from jitsparse.kernels.float32 import float32_as

__all__ = ["Measurement", "measure", "measure_beside", "rate_scale"]


@dataclass(frozen=True)
class Measurement:
    """A case and how long each contestant took for it.

    Attributes:
        case: what was measured.
        density: share of the blocks that the pattern actually stores.
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

    def rate(self, name: str) -> float | None:
        """Useful operations per second; for the dense product, all of its operations."""
        if name not in self.timings:
            return None
        flops = self.flops / self.density if name == DENSE and self.density else self.flops
        return flops * rate_scale(self.case.device) / self.timings[name].median

    def ratio(self, name: str) -> float | None:
        """Our rate over another's, turn by turn; None where it is absent."""
        if name not in self.timings:
            return None
        faster = self.timings[OURS].times_faster_than(self.timings[name])
        # The dense product computes more than what is useful.
        return faster * self.density if name == DENSE else faster

    def row(self) -> dict[str, object]:
        """The row of the table."""
        return {
            **self.case.facts,
            "us": 1e6 * self.timings[OURS].median,
            "useful rate": self.rate(OURS),
            "dense rate": self.rate(DENSE),
            "ratio to dense": self.ratio(DENSE),
            "bmm rate": self.rate(BMM),
            "ratio to bmm": self.ratio(BMM),
            f"times {TORCH_BSR}": self.ratio(TORCH_BSR),
            f"times {TORCH_TUNED}": self.ratio(TORCH_TUNED),
            f"times {STK}": self.ratio(STK),
            "variant": self.variant,
        }

    def outcome(self) -> Outcome:
        """The row, and the contestants missing from it."""
        about = f"{self.case.op} {self.case.dtype}"
        return Outcome([self.row()], about, self.absent, self.timings)


def measure(
    case: Case, *, seconds: float = 2.0, seed: int = 0, peers: Sequence[str] = PEERS
) -> Measurement:
    """Time jitsparse and its peers on one case, in turns.

    Args:
        case: what to measure.
        seconds: rough time to spend, compiling not counted.
        seed: of the data.
        peers: contestants beside jitsparse.

    Raises:
        ArgumentError: the case names something that does not exist.
    """
    with float32_as(case.dtype, case.device.type), torch.no_grad():
        operands = make_operands(case, seed)
        calls, absent = contestants(case, operands, peers)
        timings = interleave(calls, case.device, seconds=seconds)
        variant = variant_of(case.op, *operands.arguments(case.op))
    flops = case.useful_flops(operands.pattern)
    return Measurement(case, operands.pattern.density, variant, flops, timings, absent)


def measure_beside(case: Case, other: Case, name: str, *, seconds: float = 2.0) -> Outcome:
    """Time jitsparse on two cases of equally many useful operations, in turns.

    Args:
        case: what the row is about.
        other: what it is compared with: another dtype or another pattern.
        name: what the columns call the other.
        seconds: rough time to spend.
    """
    with float32_as(case.dtype, case.device.type), torch.no_grad():
        operands, beside = make_operands(case), make_operands(other)
        calls, absent = contestants(case, operands, (DENSE,))
        calls[name] = contestants(other, beside, ())[0][OURS]
        timings = interleave(calls, case.device, seconds=seconds)
        variant = variant_of(case.op, *operands.arguments(case.op))
    flops = case.useful_flops(operands.pattern)
    measured = Measurement(case, operands.pattern.density, variant, flops, timings, absent)
    row = {
        **case.facts,
        "us": 1e6 * timings[OURS].median,
        "useful rate": measured.rate(OURS),
        f"{name} rate": measured.rate(name),
        f"times {name}": measured.ratio(name),
        "ratio to dense": measured.ratio(DENSE),
        "variant": variant,
    }
    return Outcome([row], f"{case.op} {case.dtype}", absent, timings)


def rate_scale(device: torch.device) -> float:
    """From operations per second to TFLOP/s on a GPU, GFLOP/s on a CPU."""
    return 1e-12 if device.type == "cuda" else 1e-9
