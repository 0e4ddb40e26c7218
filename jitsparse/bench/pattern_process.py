"""A process that makes patterns, and prints the median seconds of one as JSON: of a layout that has
come before, and of new ones. It has one thread, which is when a layout is recorded
(:mod:`jitsparse.recorded`)::

    python -m jitsparse.bench.pattern_process cuda
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable

import torch

import jitsparse as js
from jitsparse.bench.timing import settle

SIZE, BLOCK, BLOCKS = 4096, 64, 1024

PATTERNS = 16
"""Of which the second half is behind a median."""


def main(device_name: str) -> None:
    """Measure on a device."""
    device = torch.device(device_name)
    known, new = [BLOCKS] * PATTERNS, range(BLOCKS + 1, BLOCKS + 1 + PATTERNS)
    print(json.dumps([seconds(device, known), seconds(device, new)]))


def seconds(device: torch.device, counts: Iterable[int]) -> float:
    """Of random patterns of so many blocks each, until the device is done."""
    took = []
    for count in counts:
        drawn = js.Pattern.random((SIZE, SIZE), BLOCK, count * (BLOCK / SIZE) ** 2)
        crow, col = (each.to(device) for each in (drawn.crow_indices, drawn.col_indices))
        settle(device)
        start = time.perf_counter()
        js.Pattern((SIZE, SIZE), BLOCK, crow, col)
        settle(device)
        took.append(time.perf_counter() - start)
    return statistics.median(took[PATTERNS // 2 :])


if __name__ == "__main__":
    main(*sys.argv[1:])
