"""The CPU kernels themselves, called through the raw ABI: every target that this machine runs, and the
AMX kernels on emulated tiles where it has none.

What a caller can do with them (shapes, strides, batches) is tried for the machine's own target in
``test_functional.py``; here every register tile is, on every target.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import cases
import pytest
import torch
from torch import Tensor

from jitsparse import jit
from jitsparse.jit import Variant
from jitsparse.kernels import abi, cpu
from jitsparse.kernels.problem import Problem
from jitsparse.schedule import build_index

EMULATION = Path(__file__).parent / "emulation"
CSRC = Path(abi.__file__).parents[1] / "csrc"

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
BLOCKS = (8, 16, 32, 64, 128)
LAYOUTS = ("nn", "nt", "tn", "tt")
TARGETS = ("amx", "avx512", "avx2", "generic")


def runnable() -> list[str]:
    """Targets of this machine, best first."""
    return list(TARGETS[TARGETS.index(jit.cpu_target()) :])


def problem(op: str, dtype: str, block: tuple[int, int], layout: str) -> Problem:
    return Problem(op, "cpu", dtype, block, layout, True, 512, 512, 64, 512, 1)


def kernel(
    op: str, target: str, dtype: str, block: tuple[int, int], layout: str, tile: str | None = None
) -> jit.Kernel:
    """The compiled kernel of a target. ``emulated`` is the amx family on tiles in plain C++."""
    offered = "amx" if target == "emulated" else target
    variant = next(
        candidate.variant
        for candidate in cpu.candidates(problem(op, dtype, block, layout), offered)
        if not candidate.refused
        and candidate.variant.target == offered
        and tile in (None, candidate.variant.knob("r"))
    )
    template = cpu.template(variant)
    if target == "emulated":
        # Emulated tiles are found first, and any processor runs them.
        variant = dataclasses.replace(variant, target="generic")
        template = dataclasses.replace(template, include_dirs=(EMULATION, *template.include_dirs))
    return jit.load(template, variant)


# -- calling a kernel -----------------------------------------------------------------------------


@dataclasses.dataclass
class Blocks:
    """A sparse matrix with its packed index."""

    values: Tensor
    mask: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        crow = torch.zeros(len(self.mask) + 1, dtype=torch.int32)
        crow[1:] = self.mask.sum(1).cumsum(0)
        self.col = self.mask.nonzero()[:, 1].to(torch.int32)
        block = tuple(self.values.shape[1:])
        self.index = build_index(crow, self.col, self.mask.shape[1], block)

    def dense(self) -> Tensor:
        rows, cols = self.mask.shape
        nnz, height, width = self.values.shape
        full = self.values.new_zeros(rows, cols, height, width)
        full[self.mask] = self.values
        full = full.permute(0, 2, 1, 3).reshape(rows * height, cols * width)
        return full[: self.shape[0], : self.shape[1]].contiguous()


def blocks(
    mask: Tensor, block: tuple[int, int], dtype: torch.dtype, cut: tuple[int, int] = (0, 0)
) -> Blocks:
    """Random blocks where ``mask`` is true; ``cut`` rows and columns of the last ones stand outside."""
    shape = (mask.shape[0] * block[0] - cut[0], mask.shape[1] * block[1] - cut[1])
    return Blocks(torch.randn(int(mask.sum()), *block).to(dtype), mask, shape)


def leading(matrix: Tensor) -> tuple[str, int]:
    """Layout letter and leading dimension of a matrix."""
    return ("n", matrix.stride(-2)) if matrix.stride(-1) == 1 else ("t", matrix.stride(-1))


def multiply(
    run: jit.Kernel,
    sparse: Blocks,
    dense: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str = "identity",
    threads: int = 2,
) -> Tensor:
    """Call a dsd or dds kernel on a batch. The output has room around it, which must stay as it is."""
    op, layout = run.variant.op, run.variant.knob("l")
    transposed = layout[0 if op == "dsd" else 1] == "t"
    letter, ld = leading(dense)
    assert letter == layout[1 if op == "dsd" else 0]
    rows, cols = sparse.shape
    batch = dense.shape[0]
    if op == "dsd":
        n, shape = dense.shape[2], (cols if transposed else rows, dense.shape[2])
    else:
        n, shape = dense.shape[1], (dense.shape[1], rows if transposed else cols)
    room = torch.full((batch, shape[0] + 1, shape[1] + 5), -7.0).to(dense.dtype)
    words = dict(
        values=sparse.values.data_ptr(),
        index=sparse.index.data_ptr(),
        dense=dense.data_ptr(),
        out=room.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        rows=rows,
        cols=cols,
        nnz=len(sparse.values),
        n=n,
        dense_ld=ld,
        dense_batch_stride=dense.stride(0),
        out_ld=room.stride(1),
        out_batch_stride=room.stride(0),
        batch=batch,
        activation=abi.ACTIVATIONS[activation],
        context=threads,
    )
    run(*(words[name] for name in abi.SPMM_WORDS))
    assert (room[:, shape[0] :] == -7).all() and (room[:, :, shape[1] :] == -7).all()
    return room[:, : shape[0], : shape[1]].contiguous()


def sample(
    run: jit.Kernel, left: Tensor, right: Tensor, pattern: Blocks, threads: int = 2
) -> Tensor:
    """Call an sdd kernel on a batch; returns the blocks."""
    (left_letter, left_ld), (right_letter, right_ld) = leading(left), leading(right)
    assert left_letter + right_letter == run.variant.knob("l")
    out = torch.full_like(pattern.values, -7)
    words = dict(
        left=left.data_ptr(),
        right=right.data_ptr(),
        index=pattern.index.data_ptr(),
        out=out.data_ptr(),
        rows=pattern.shape[0],
        cols=pattern.shape[1],
        nnz=len(out),
        k=left.shape[2],
        left_ld=left_ld,
        left_batch_stride=left.stride(0),
        right_ld=right_ld,
        right_batch_stride=right.stride(0),
        batch=left.shape[0],
        context=threads,
    )
    run(*(words[name] for name in abi.SDD_WORDS))
    return out


def dense_operand(shape: tuple[int, int, int], letter: str, dtype: torch.dtype) -> Tensor:
    """A batch of matrices in a sea of NaN, which spoils every result that it gets into."""
    batch, rows, cols = shape if letter == "n" else (shape[0], shape[2], shape[1])
    room = torch.full((batch, rows + 2, cols + 3), float("nan"), dtype=dtype)
    inside = room[:, 1:-1, 1 : cols + 1]
    inside.copy_(torch.randn(batch, rows, cols))
    return inside if letter == "n" else inside.mT


def check(run: jit.Kernel, cut: tuple[int, int], extent: int, batch: int = 2) -> None:
    """Hold a kernel against float64, on a pattern with an empty row and column of blocks."""
    op, layout = run.variant.op, run.variant.knob("l")
    dtype = DTYPES[run.variant.dtype]
    mask = torch.rand(4, 5) < 0.6
    mask[1] = False
    mask[:, 2] = False
    mask[3, 4] = True
    sparse = blocks(mask, run.variant.ints("b"), dtype, cut)
    rows, cols = sparse.shape
    if op == "sdd":
        left = dense_operand((batch, rows, extent), layout[0], dtype)
        right = dense_operand((batch, extent, cols), layout[1], dtype)
        got = Blocks(sample(run, left, right, sparse), mask, sparse.shape)
        exact = (left.double() @ right.double()).sum(0)
        size = (left.double().abs() @ right.double().abs()).sum(0)
        stored = Blocks(torch.ones_like(sparse.values), mask, sparse.shape).dense().bool()
        allowed = 2 * (batch * extent + 8) * cases.accumulator(dtype) * size
        cases._judge(got.dense(), exact * stored, allowed)
        past = Blocks(
            got.values,
            mask,
            (mask.shape[0] * got.values.shape[1], mask.shape[1] * got.values.shape[2]),
        )
        assert not past.dense()[rows:].any() and not past.dense()[:, cols:].any()
        return
    matrix = sparse.dense()
    if layout[0 if op == "dsd" else 1] == "t":
        matrix = matrix.mT
    if op == "dsd":
        dense = dense_operand((batch, matrix.shape[1], extent), layout[1], dtype)
        cases.check_product(multiply(run, sparse, dense), matrix, dense)
        return
    dense = dense_operand((batch, extent, matrix.shape[0]), layout[0], dtype)
    bias = torch.randn(matrix.shape[1]).to(dtype)
    for activation in (None, "relu", "gelu", "silu"):
        got = multiply(run, sparse, dense, bias=bias, activation=activation or "identity")
        cases.check_product(got, dense, matrix, bias, activation)


# -- right on every target, with every tile -------------------------------------------------------


def covering(target: str) -> Iterator[tuple[str, str, tuple[int, int], str, str]]:
    """Every op with every tile, and over these every dtype, layout and block edge."""
    dtypes = ("bf16",) if target in ("amx", "emulated") else tuple(DTYPES)
    tiles = {"amx": cpu._AMX_TILES, "emulated": cpu._AMX_TILES}.get(target) or cpu._VEC_TILES[
        target
    ]
    count = TARGETS.index("amx" if target == "emulated" else target)
    for shift, op in enumerate(("dsd", "dds", "sdd")):
        for position, (rows, cols) in enumerate(tiles):
            for layout in LAYOUTS[(position + shift) % 2 :: 2]:
                # Tall enough for the tile on both sides, since a layout may flip the block.
                least = 16 * rows if target in ("amx", "emulated") and rows > 1 else rows
                edges = [edge for edge in BLOCKS if edge >= least]
                block = edges[count % len(edges)], edges[(2 * count + 1) % len(edges)]
                yield op, dtypes[count % len(dtypes)], block, layout, f"{rows}x{cols}"
                count += 1


@pytest.mark.parametrize("target", [*TARGETS, "emulated"])
def test_kernels_are_right(target: str) -> None:
    if target not in (*runnable(), "emulated"):
        pytest.skip(f"this processor does not run {target}")
    for op, dtype, block, layout, tile in covering(target):
        run = kernel(op, target, dtype, block, layout, tile)
        torch.manual_seed(0)
        for cut, extent in (((0, 0), 48), ((5, 3), 21), ((1, 7), 1), ((0, 2), 70), ((7, 1), 130)):
            try:
                check(run, cut, extent)
            except Exception as error:
                where = f"{run.variant} with {cut} cut off, extent {extent}"
                raise AssertionError(where) from error
