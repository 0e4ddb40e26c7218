"""Every candidate of every CUDA family once, at a small shape that meets every edge.

For compute-sanitizer, which slows kernels down so much that comparing results would take hours; the
results are compared in test_cuda_kernels.py. No test: run it from this folder, first alone, so that
compilers are not watched::

    export PYTHONPATH=..
    python sanitize.py
    compute-sanitizer --tool memcheck --kernel-name kns=kernel_entry python sanitize.py
    compute-sanitizer --tool racecheck --kernel-name kns=kernel_entry python sanitize.py wgmma thin

Arguments are the families and operations to run, by default all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import cases
import pytest
import torch
from test_cuda_kernels import DTYPES, grid, legal, problem

import jitsparse as js
from jitsparse.compilation import compile_variants
from jitsparse.jit import Variant
from jitsparse.kernels import registry
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.roles import LAYOUTS, is_flipped
from jitsparse.kernels.split import splits
from jitsparse.tune import legal_candidates

ROWS, COLS, EXTENT, LONG, DENSITY = 200, 648, 136, 1544, 0.4
"""Sizes; sums of the last are divided by kernels that can, two parts of which ``mma`` wants to have
256 stored."""


def wanted(name: str) -> bool:
    """Whether the arguments leave it in: they may name families, operations, or both."""
    of_its_kind = {
        each for each in sys.argv[1:] if (each in registry.OPS) == (name in registry.OPS)
    }
    return not of_its_kind or name in of_its_kind


def main() -> None:
    cases.share_columns(pytest.MonkeyPatch())  # which is undone by the end of the program
    calls = [
        (op, dtype, block, layout, variant)
        for op, dtype, block in grid()
        for layout in LAYOUTS
        for variant in variants(op, dtype, block, layout)
        if wanted(variant.family) and wanted(op)
    ]
    outcomes = compile_variants(dict.fromkeys(variant for *_, variant in calls))
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        raise failed[0].error or RuntimeError(failed[0].variant.name)
    for op, dtype, block, layout, variant in calls:
        with float32_as(dtype), js.pin(f"{op}={variant.name}"):
            call(op, DTYPES[dtype], block, layout, divided=splits(variant))
    torch.cuda.synchronize()
    print(f"{len(calls)} kernels ran")


def variants(op: str, dtype: str, block: tuple[int, int], layout: str) -> Iterator[Variant]:
    """Those of a small product, and those that divide the sums of a dsd or dds if they are long."""
    rows, cols = pattern_shape(op, layout, divided=True)
    stored = round(DENSITY * rows * cols / (block[0] * block[1]))
    long = replace(problem(op, dtype, block, layout), rows=rows, cols=cols, nnz=stored)
    yield from legal(op, dtype, block, layout)
    if op != "sdd":
        yield from (each.variant for each in legal_candidates(long) if splits(each.variant))


def pattern_shape(op: str, layout: str, divided: bool) -> tuple[int, int]:
    """Of the pattern. A dsd or dds sums over one of its sides, an sdd over the extent."""
    if not divided or op == "sdd":
        return ROWS, COLS
    return (LONG, ROWS) if is_flipped(op, layout) else (ROWS, LONG)


def call(op: str, dtype: torch.dtype, block: tuple[int, int], layout: str, divided: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    extent = LONG if divided and op == "sdd" else EXTENT
    size = pattern_shape(op, layout, divided)
    pattern = js.Pattern.random(size, block, DENSITY, generator=generator).to("cuda")
    values = torch.ones(pattern.values_shape, dtype=dtype, device="cuda")
    stored = js.BlockSparse(values, pattern)

    def dense(rows: int, cols: int, letter: str) -> torch.Tensor:
        shape = (2, rows, cols) if letter == "n" else (2, cols, rows)
        data = torch.ones(shape, dtype=dtype, device="cuda")
        return data if letter == "n" else data.mT

    if op == "dsd":
        a = stored.T if layout[0] == "t" else stored
        js.dsd(a, dense(a.shape[1], extent, layout[1]))
    elif op == "dds":
        b = stored.T if layout[1] == "t" else stored
        bias = torch.ones(b.shape[1], dtype=dtype, device="cuda")
        js.linear(dense(extent, b.shape[0], layout[0]), b.T, bias, "gelu")
    else:
        js.sdd(dense(ROWS, extent, layout[0]), dense(extent, COLS, layout[1]), pattern)


if __name__ == "__main__":
    main()
