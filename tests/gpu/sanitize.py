"""Every candidate of every CUDA family once, at a small shape that meets every edge.

For compute-sanitizer, which slows kernels down so much that comparing results would take hours; the
results are compared in test_cuda_kernels.py. No test: run it from this folder, first alone, so that
compilers are not watched::

    export PYTHONPATH=.. PYTORCH_NO_CUDA_MEMORY_CACHING=1
    python sanitize.py
    compute-sanitizer --tool memcheck --kernel-name kns=kernel_entry python sanitize.py
    compute-sanitizer --tool racecheck --kernel-name kns=kernel_entry python sanitize.py wgmma thin

Arguments are the families, operations and dtypes to run, by default all. Whatever a kernel is given
is copied from the host, what it is to write too: initcheck knows of copies and of stores that it
watches, but of no store by TMA. The argument ``unwritten`` leaves that out for the operands, in
which initcheck must find errors then, or it does not see how they are read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import cases
import pytest
import torch
from test_cuda_kernels import DTYPES, grid, legal, problem
from torch import Tensor

import jitsparse as js
from jitsparse import indexing
from jitsparse.compilation import compile_variants
from jitsparse.jit import Variant
from jitsparse.kernels import allocate, dispatch, registry
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.roles import LAYOUTS, is_flipped
from jitsparse.kernels.split import splits
from jitsparse.schedule import build_index
from jitsparse.tune import legal_candidates

ROWS, COLS, EXTENT, LONG, DENSITY = 200, 648, 136, 1544, 0.4
"""Sizes; sums of the last are divided by kernels that can, two parts of which ``mma`` wants to have
256 stored."""

UNWRITTEN = "unwritten"


def wanted(name: str) -> bool:
    """Whether the arguments leave it in: they may name families, operations, dtypes."""

    def kind(each: str) -> tuple[bool, bool]:
        return each in registry.OPS, each in DTYPES

    of_its_kind = {each for each in sys.argv[1:] if each != UNWRITTEN and kind(each) == kind(name)}
    return not of_its_kind or name in of_its_kind


def main() -> None:
    patch = pytest.MonkeyPatch()  # which is undone by the end of the program
    cases.share_columns(patch)
    copy_from_host(patch)
    calls = [
        (op, dtype, block, layout, variant)
        for op, dtype, block in grid()
        for layout in LAYOUTS
        for variant in variants(op, dtype, block, layout)
        if wanted(variant.family) and wanted(op) and wanted(dtype)
    ]
    outcomes = compile_variants(dict.fromkeys(variant for *_, variant in calls))
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        raise failed[0].error or RuntimeError(failed[0].variant.name)
    for op, dtype, block, layout, variant in calls:
        with float32_as(dtype, "cuda"), js.pin(f"{op}={variant.name}"):
            call(op, DTYPES[dtype], block, layout, divided=splits(variant))
    torch.cuda.synchronize()
    print(f"{len(calls)} kernels ran")


def copy_from_host(patch: pytest.MonkeyPatch) -> None:
    """The index of a pattern, and NaN to what calls allocate."""
    allocated = allocate.on_current_gpu

    def filled(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        out = allocated(sizes, strides, dtype)
        whole = torch.empty(0, dtype=torch.uint8, device="cuda").set_(out.untyped_storage())
        whole.copy_(torch.full((whole.numel(),), 0xFF, dtype=torch.uint8))
        return out

    def index_of(
        crow: Tensor, col: Tensor, cols: int, block: tuple[int, int], _: object
    ) -> tuple[Tensor, None]:
        return build_index(crow.cpu(), col.cpu(), cols, block, panels=True).to(crow.device), None

    patch.setattr(indexing, "index_of", index_of)
    for module in (allocate, dispatch):
        patch.setattr(module, "on_current_gpu", filled)


def ones(*shape: int, dtype: torch.dtype) -> Tensor:
    if UNWRITTEN in sys.argv:
        return torch.empty(shape, dtype=dtype, device="cuda")
    return torch.ones(shape, dtype=dtype).to("cuda")


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
    values = ones(*pattern.values_shape, dtype=dtype)
    stored = js.BlockSparse(values, pattern)

    def dense(rows: int, cols: int, letter: str) -> Tensor:
        if letter == "n":
            return ones(2, rows, cols, dtype=dtype)
        return ones(2, cols, rows, dtype=dtype).mT

    if op == "dsd":
        a = stored.T if layout[0] == "t" else stored
        js.dsd(a, dense(a.shape[1], extent, layout[1]))
    elif op == "dds":
        b = stored.T if layout[1] == "t" else stored
        bias = ones(b.shape[1], dtype=dtype)
        js.linear(dense(extent, b.shape[0], layout[0]), b.T, bias, "gelu")
    else:
        js.sdd(dense(ROWS, extent, layout[0]), dense(extent, COLS, layout[1]), pattern)


if __name__ == "__main__":
    main()
