"""Prices of the cost model's parts in microseconds, a row for each kind of kernel.

There is a table for each of :data:`GPUS`, which differ in how fast memory is, and so in which tiles
are the best.

:mod:`jitsparse.bench.fitting` writes the file from measured times.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

__all__ = ["GPUS", "OF_THEIR_OWN", "TABLE", "gpu_of", "group_of", "machines_of", "prices_of"]

TABLE = Path(__file__).with_name("costs.json")

GPUS = ("H200", "H100")
"""GPUs that were timed; the first one stands for those that were not."""

OF_THEIR_OWN = ("tf32.sdd", "f32.sdd", "tf32", "f32")
"""Groups of kinds that were timed together, whose kinds begin with their names; all others are of
dsd and dds in bfloat16 and float16."""

_MACHINES = {
    "H200": ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GH200 480GB"),
    "H100": ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"),
}


def gpu_of(machine: str) -> str | None:
    """The one of :data:`GPUS` that a machine of this name has, if any."""
    return next((gpu for gpu in GPUS if gpu in machine), None)


def machines_of(gpu: str) -> tuple[str, ...]:
    """Names of machines that have one of :data:`GPUS`, as reported by their drivers."""
    return _MACHINES[gpu]


def prices_of(kind: str, gpu: str) -> list[float] | None:
    """Prices of a kind, or if it was not timed, of its parent: ``"a.b"`` for ``"a.b.few"``."""
    prices = _table()[gpu]
    while kind and kind not in prices:
        kind = kind.rpartition(".")[0]
    return prices.get(kind)


def group_of(kind: str) -> str:
    """Name of the group that a kind is timed with."""
    return next((each for each in OF_THEIR_OWN if kind.startswith(f"{each}.")), "bf16")


@functools.cache
def _table() -> dict[str, dict[str, list[float]]]:
    gpus: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))["gpus"]
    prices: dict[str, dict[str, list[float]]] = {
        gpu: table["prices"] for gpu, table in gpus.items()
    }
    # Until a group is timed on every GPU, another GPU's times are the best available.
    every = {kind: row for each in prices.values() for kind, row in each.items()}
    for each in prices.values():
        missing = {*OF_THEIR_OWN} - {group_of(kind) for kind in each}
        each |= {kind: row for kind, row in every.items() if group_of(kind) in missing}
    return prices
