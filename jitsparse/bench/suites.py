"""Grids of products: the published ones, and the sections that measure them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from jitsparse.bench.cases import Case
from jitsparse.bench.peers import PEERS
from jitsparse.bench.products import measure
from jitsparse.bench.section import Section

__all__ = ["GRIDS", "RATIO_NOTE", "Axes", "cases", "cube", "products", "rates_note", "square"]


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
    layouts: Sequence[str] = ("nn",)


def cube(size: int) -> tuple[int, int, int]:
    """``(m, n, k)``, all the same."""
    return size, size, size


def square(*sides: int) -> tuple[tuple[int, int], ...]:
    """Block sizes of equal sides."""
    return tuple((side, side) for side in sides)


GRIDS: dict[str, tuple[Axes, ...]] = {
    "cpu": (
        Axes(blocks=square(8, 16, 32, 64, 128)),
        Axes(dtypes=("bf16",), blocks=square(32, 64, 128)),
    ),
    "portable": (
        Axes(
            dtypes=("bf16",),
            sizes=(cube(4096), cube(8192)),
            blocks=square(16, 32, 64, 128),
        ),
    ),
    "patterns": (
        Axes(blocks=square(32), densities=(0.25,), patterns=("random", "banded", "diagonal")),
    ),
}
"""Suites of one section, whose grids' axes may be replaced."""


def cases(axes: Axes, device: torch.device) -> Iterator[Case]:
    """The cases of a grid, the operation varying slowest and the density fastest."""
    for op, layout, dtype, size, block, pattern, density in product(
        axes.ops,
        axes.layouts,
        axes.dtypes,
        axes.sizes,
        axes.blocks,
        axes.patterns,
        axes.densities,
    ):
        yield Case(op, size, block, density, dtype, device, pattern, layout)


def products(
    name: str,
    grids: Sequence[Axes],
    device: torch.device,
    *,
    title: str = "",
    peers: Sequence[str] = PEERS,
    notes: Sequence[str] = (),
    views: Sequence[tuple[str, str]] = (),
) -> Section:
    """The section of the products of grids, each case once."""
    return Section(
        name,
        title or name,
        list(dict.fromkeys(case for axes in grids for case in cases(axes, device))),
        lambda case, seconds: measure(case, seconds=seconds, peers=peers).outcome(),
        [f"{rates_note(device)} {RATIO_NOTE}", *notes],
        views,
    )


def rates_note(device: torch.device) -> str:
    """What the rates of a table are."""
    unit = "TFLOP/s" if device.type == "cuda" else "GFLOP/s"
    return f"Rates in {unit}; useful rate = 2 M N K density / time."


RATIO_NOTE = (
    "ratio to dense = useful rate over torch's dense rate in the same run, so the product beats "
    "dense where the density is below the ratio."
)
