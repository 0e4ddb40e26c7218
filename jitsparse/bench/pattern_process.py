"""A process that makes patterns of several sizes and prints their median seconds as JSON.

For each size, those of a pattern, and of its index alone with torch operations
(:mod:`jitsparse.indexing`)::

    python -m jitsparse.bench.pattern_process cuda
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch

import jitsparse as js
from jitsparse import jit
from jitsparse.bench.timing import settle
from jitsparse.kernels import registry
from jitsparse.schedule import build_index

LAYOUTS = ((4096, 64), (8192, 128), (8192, 32), (8192, 16))
"""Sizes and blocks."""

DENSITY = 0.25
PATTERNS = 16
"""The median is that of the second half."""


def main(device_name: str) -> None:
    """Measure on a device."""
    device = torch.device(device_name)
    if device.type == "cuda":
        jit.load(registry.template_of(registry.INDEX), registry.INDEX)
    print(json.dumps([seconds(device, *layout) for layout in LAYOUTS]))


def seconds(device: torch.device, size: int, block: int) -> tuple[float, float]:
    """Time random patterns, each with a different number of blocks, until the device is done."""
    whole, index_alone = [], []
    for number in range(PATTERNS):
        density = DENSITY + number * (block / size) ** 2
        drawn = js.Pattern.random((size, size), block, density)
        crow, col = (each.to(device) for each in (drawn.crow_indices, drawn.col_indices))
        settle(device)
        start = time.perf_counter()
        pattern = js.Pattern((size, size), block, crow, col)
        settle(device)
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        build_index(crow, col, pattern.grid[1], pattern.block_size)
        settle(device)
        index_alone.append(time.perf_counter() - start)
    half = PATTERNS // 2
    return statistics.median(whole[half:]), statistics.median(index_alone[half:])


if __name__ == "__main__":
    main(*sys.argv[1:])
