"""The CPU kernels themselves, called through the raw ABI: every target that this machine runs, and
the AMX kernels on emulated tiles.

What a caller can do with them (shapes, strides, batches) is tried for the machine's own target in
``test_functional.py``; here every register tile is, on every target.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import cases
import pytest
import torch
from torch import Tensor

from jitsparse import jit
from jitsparse.kernels import abi, cpu
from jitsparse.kernels.problem import LESS_PRECISE, Problem
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.reference import ACTIVATIONS
from jitsparse.schedule import build_index

EMULATION = Path(__file__).parent / "emulation"
CSRC = Path(abi.__file__).parents[1] / "csrc"

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
TIGHT = "JITSPARSE_TEST_TIGHT" in os.environ
"""Whether nothing lies around operands, for test_cpu_memory.py."""
SHARES = int(os.environ.get("JITSPARSE_TEST_TIGHT", "1"))
"""How many targets share the kernels of :func:`covering` there, which compile for long."""

BLOCKS = (8, 16, 32, 64, 128)
TARGETS = ("amx", "avx512bf16", "avx512", "avx2", "generic")


def runnable() -> list[str]:
    """Targets of this machine, best first."""
    return list(TARGETS[TARGETS.index(jit.cpu_target()) :])


def native(dtype: str) -> list[str]:
    """Those for whose ``vec`` a dtype has kernels of its own, best first."""
    return [
        target
        for target in runnable()
        if target != "amx" and (dtype == "bf16" or target != "avx512bf16")
    ]


def problem(op: str, dtype: str, block: tuple[int, int], layout: str) -> Problem:
    return Problem(op, "cpu", dtype, block, layout, True, 512, 512, 64, 512, 1)


def tile_of(variant: jit.Variant) -> str:
    """The register tile as it stands in a name."""
    return next(knob + value for knob, value in variant.knobs if knob in "rv")


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
        and tile in (None, tile_of(candidate.variant))
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
        _, height, width = self.values.shape
        full = self.values.new_zeros(rows, cols, height, width)
        full[self.mask] = self.values
        full = full.permute(0, 2, 1, 3).reshape(rows * height, cols * width)
        return full[: self.shape[0], : self.shape[1]].contiguous()


def blocks(
    mask: Tensor, block: tuple[int, int], dtype: torch.dtype, cut: tuple[int, int] = (0, 0)
) -> Blocks:
    """Random blocks where ``mask`` is true, ``cut`` rows and columns of which lie outside."""
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
    activation: str | None = None,
    threads: int = 2,
    margin: int = 5,
) -> Tensor:
    """Call a dsd or dds kernel on a batch; what surrounds its output must stay as it is."""
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
    below, beside = (0, 0) if TIGHT else (1, margin)
    room = torch.full((batch, shape[0] + below, shape[1] + beside), -7.0).to(dense.dtype)
    words = dict(
        values=sparse.values.data_ptr(),
        index=sparse.index.data_ptr(),
        dense=dense.data_ptr(),
        out=room.data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        workspace=0,
        rows=rows,
        cols=cols,
        nnz=len(sparse.values),
        n=n,
        dense_ld=ld,
        dense_batch_stride=dense.stride(0),
        out_ld=room.stride(1),
        out_batch_stride=room.stride(0),
        batch=batch,
        activation=ACTIVATIONS.index(activation),
        parts=1,
        context=threads,
    )
    run(*(words[name] for name in abi.SPMM_WORDS))
    assert (room[:, shape[0] :] == -7).all()
    assert (room[:, :, shape[1] :] == -7).all()
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
        workspace=0,
        rows=pattern.shape[0],
        cols=pattern.shape[1],
        nnz=len(out),
        k=left.shape[2],
        left_ld=left_ld,
        left_batch_stride=left.stride(0),
        right_ld=right_ld,
        right_batch_stride=right.stride(0),
        batch=left.shape[0],
        parts=1,
        context=threads,
    )
    run(*(words[name] for name in abi.SDD_WORDS))
    return out


def dense_operand(shape: tuple[int, int, int], letter: str, dtype: torch.dtype) -> Tensor:
    """A batch of matrices in a sea of NaN, which spoils every result that it gets into."""
    batch, rows, cols = shape if letter == "n" else (shape[0], shape[2], shape[1])
    inside = torch.randn(batch, rows, cols).to(dtype)
    # Of a single row or column the strides would not say which layout it is.
    if not TIGHT or 1 in (rows, cols):
        room = torch.full((batch, rows + 2, cols + 3), float("nan"), dtype=dtype)
        inside = room[:, 1:-1, 1 : cols + 1].copy_(inside)
    return inside if letter == "n" else inside.mT


def judge_blocks(got: Blocks, left: Tensor, right: Tensor, products: float = 0) -> None:
    """Hold the blocks of an sdd, whose products have a relative precision, against float64."""
    # A batch is summed over like k.
    left, right = left.double().transpose(0, 1).flatten(1), right.double().flatten(0, 1)
    exact, size = left @ right, left.abs() @ right.abs()
    stored = Blocks(torch.ones_like(got.values), got.mask, got.shape).dense().bool()
    allowed = (2 * (left.shape[1] + 8) * cases.accumulator(got.values.dtype) + products) * size
    cases._judge(got.dense(), exact * stored, allowed)


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
        judge_blocks(got, left, right)
        whole = (len(mask) * got.values.shape[1], mask.shape[1] * got.values.shape[2])
        past = Blocks(got.values, mask, whole).dense()
        assert not past[rows:].any()
        assert not past[:, cols:].any()
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
    for activation in ACTIVATIONS:
        got = multiply(run, sparse, dense, bias=bias, activation=activation)
        cases.check_product(got, dense, matrix, bias, activation)


# -- right on every target, with every tile -------------------------------------------------------


def covering(target: str) -> Iterator[tuple[str, str, tuple[int, int], str, str]]:
    """Every op with every layout and tile, and over these every dtype and block edge."""
    tiles_only = target in ("amx", "emulated")
    pairs_only = tiles_only or target == "avx512bf16"
    dtypes = ("bf16",) if pairs_only else tuple(DTYPES)
    tiles = cpu._AMX_TILES if tiles_only else cpu._VEC_TILES[target]
    count = TARGETS.index("amx" if tiles_only else target)
    for shift, op in enumerate(("dsd", "dds", "sdd")):
        for position, layout in enumerate(LAYOUTS):
            rows, cols = tiles[(position + shift) % len(tiles)]
            # Tall enough for the tile on both sides, since a layout may flip the block.
            least = 16 * rows if tiles_only and rows > 1 else rows
            edges = [edge for edge in BLOCKS if edge >= least]
            block = edges[count % len(edges)], edges[(2 * count + 1) % len(edges)]
            yield op, dtypes[(count + shift) % len(dtypes)], block, layout, f"r{rows}x{cols}"
            count += 1
    # The one whose vectors are rows of blocks, in blocks of one tile and of several.
    tile = cpu._AMX_ROW_TILE if tiles_only else cpu._ROW_TILE.get(target)
    for position, dtype in enumerate(dtypes) if tile else ():
        width = tile[1] * (16 if tiles_only else cpu._lanes(target, dtype))
        fitting = [edge for edge in BLOCKS if edge % width == 0]
        for edge in (fitting[0], fitting[-1]):
            for height in BLOCKS if tiles_only else BLOCKS[position : position + 1]:
                yield "dds", dtype, (height, edge), "nn", "v{}x{}".format(*tile)


@pytest.mark.parametrize("target", [*TARGETS, "emulated"])
def test_kernels_are_right(target: str) -> None:
    if target not in (*runnable(), "emulated"):
        pytest.skip(f"this processor does not run {target}")
    if target == "emulated" and "amx" in runnable():
        pytest.skip("this processor has tiles, on which the same kernels run")
    shared = (*TARGETS, "emulated").index(target)
    for op, dtype, block, layout, tile in [*covering(target)][shared % SHARES :: SHARES]:
        run = kernel(op, target, dtype, block, layout, tile)
        torch.manual_seed(0)
        for cut, extent in (((0, 0), 48), ((5, 3), 21), ((1, 7), 1), ((7, 2), 130)):
            try:
                check(run, cut, extent)
            except Exception as error:
                where = f"{run.variant} with {cut} cut off, extent {extent}"
                raise AssertionError(where) from error


# -- the same whatever the circumstances ----------------------------------------------------------


@pytest.mark.parametrize("target", ["native", "emulated"])
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_results_do_not_depend_on_the_number_of_threads(op: str, target: str) -> None:
    target = native("bf16")[0] if target == "native" else target
    torch.manual_seed(0)
    # One crowded block row and column, many thin ones: a share of the rows is no share of the work.
    mask = torch.rand(24, 20) < 0.1
    mask[3] = mask[:, 5] = True
    run = kernel(op, target, "bf16", (16, 16), "nn")
    sparse = blocks(mask, (16, 16), torch.bfloat16, (3, 1))
    rows, cols = sparse.shape
    sizes = {"dsd": ((2, cols, 300), None), "dds": ((2, 300, rows), None)}
    left, right = sizes.get(op, ((2, rows, 300), (2, 300, cols)))
    operands = [dense_operand(shape, "n", torch.bfloat16) for shape in (left, right) if shape]
    results = [
        sample(run, *operands, sparse, threads)
        if op == "sdd"
        else multiply(run, sparse, *operands, threads=threads)
        for threads in (1, 2, 3, 7, 32, 2)
    ]
    assert all(torch.equal(results[0], result) for result in results[1:])


@pytest.mark.parametrize("target", native("f32")[:2])
@pytest.mark.parametrize(
    ("op", "layout", "block"),
    [
        ("dsd", "nn", (32, 64)),
        ("dsd", "tn", (64, 32)),
        ("dds", "nn", (32, 64)),
        ("dds", "tn", (64, 32)),
        ("sdd", "nn", (32, 32)),
        ("sdd", "tn", (64, 32)),
    ],
)
def test_panels_packed_beside_multiplying(
    op: str, layout: str, block: tuple[int, int], target: str
) -> None:
    """Several strips or slices, of which some are packed so, and some at an edge are not.

    A slice of an sdd is larger than a cache here, so that threads have columns.
    """
    torch.manual_seed(0)
    run = kernel(op, target, "f32", block, layout)
    mask = torch.rand(7, 40) < 0.2
    mask[2] = False
    mask[4] = mask[:, 9] = True
    for cut, extent in (((0, 0), 448), ((0, 0), 439), ((1, 3), 448)):
        sparse = blocks(mask, block, torch.float32, cut)
        matrix, (rows, cols) = sparse.dense(), sparse.shape
        if op == "sdd":
            extent += 1200
            left = dense_operand((1, rows, extent), layout[0], torch.float32)
            right = dense_operand((1, extent, cols), layout[1], torch.float32)
            results = [sample(run, left, right, sparse, threads) for threads in (2, 1, 3, 4)]
            judge_blocks(Blocks(results[0], mask, sparse.shape), left, right)
        else:
            matrix = matrix.mT if layout[0 if op == "dsd" else 1] == "t" else matrix
            shape = (2, matrix.shape[1], extent) if op == "dsd" else (2, extent, matrix.shape[0])
            dense = dense_operand(shape, layout[1 if op == "dsd" else 0], torch.float32)
            results = [multiply(run, sparse, dense, threads=threads) for threads in (2, 1, 3)]
            cases.check_product(results[0], *((matrix, dense) if op == "dsd" else (dense, matrix)))
        assert all(torch.equal(results[0], result) for result in results[1:])


def both_ways() -> Iterator[tuple[str, str, str]]:
    """Op, target and tile: elements of blocks times vectors, and rows of blocks as vectors."""
    for target in native("f32"):
        for op in ("dsd", "dds"):
            yield op, target, "r{}x{}".format(*cpu._VEC_TILES[target][0])
        if target in cpu._ROW_TILE:
            yield "dds", target, "v{}x{}".format(*cpu._ROW_TILE[target])


@pytest.mark.parametrize(("op", "target", "tile"), [*both_ways()])
def test_large_outputs_are_written_past_the_caches(op: str, target: str, tile: str) -> None:
    """One thread writes what its cache cannot keep in another way than eight threads do."""
    torch.manual_seed(0)
    run = kernel(op, target, "f32", (32, 64), "nn", tile)
    sparse = blocks(torch.rand(17, 9) < 0.3, (32, 64), torch.float32)
    dense = torch.randn(1, 576, 544)  # either operand: S is 544 x 576
    results = [
        multiply(run, sparse, dense, threads=threads, margin=margin)
        for threads, margin in ((1, 32), (1, 1), (8, 32))
    ]
    assert results[0].nbytes > 1 << 20
    operands = (sparse.dense(), dense) if op == "dsd" else (dense, sparse.dense())
    cases.check_product(results[0], *operands)
    assert all(torch.equal(results[0], result) for result in results[1:])


@pytest.mark.parametrize("op", ["dsd", "dds"])
@pytest.mark.parametrize(
    ("target", "dtype"), [("native", "f32"), ("native", "bf16"), ("emulated", "bf16")]
)
def test_long_sums_in_narrow_strips(op: str, target: str, dtype: str) -> None:
    """Beyond so many rows of the dense operand, strips are narrower than the register tile."""
    target = native(dtype)[0] if target == "native" else target
    torch.manual_seed(0)
    mask = torch.rand(1, 700) < 0.02
    run = kernel(op, target, dtype, (32, 128), "nt" if op == "dds" else "nn")
    sparse = blocks(mask, (32, 128), DTYPES[dtype])
    shape = (1, sparse.shape[1], 70) if op == "dsd" else (1, 70, sparse.shape[1])
    dense = dense_operand(shape, "n", DTYPES[dtype])
    operands = (sparse.dense(), dense) if op == "dsd" else (dense, sparse.dense().mT)
    cases.check_product(multiply(run, sparse, dense), *operands)


@pytest.mark.parametrize("extent", [1, 6, 40])
def test_long_sums_in_low_strips(extent: int) -> None:
    """The same where rows of blocks are the vectors."""
    target = native("f32")[0]
    torch.manual_seed(0)
    run = kernel("dds", target, "f32", (128, 32), "nn")
    sparse = blocks(torch.rand(1500, 1) < 0.02, (128, 32), torch.float32)
    dense = torch.randn(1, extent, sparse.shape[0])
    cases.check_product(multiply(run, sparse, dense), dense, sparse.dense())


@pytest.mark.parametrize("rest", [8, 16, 24, 32, 40])
@pytest.mark.parametrize(("dtype", "block"), [("f32", 8), ("bf16", 8), ("bf16", 16)])
def test_the_last_part_is_packed_in_squares_that_fit(dtype: str, block: int, rest: int) -> None:
    """A k-contiguous operand is packed 512 deep at a time, in squares of up to 16 pairs."""
    if rest % block:
        pytest.skip("no whole blocks")
    run = kernel("dds", native(dtype)[0], dtype, (block, block), "nn")
    torch.manual_seed(0)
    mask = torch.rand((512 + rest) // block, 5) < 0.5
    sparse = blocks(mask, (block, block), DTYPES[dtype])
    dense = torch.randn(1, 90, sparse.shape[0], dtype=DTYPES[dtype])
    result = multiply(run, sparse, dense, threads=1)  # in a strip of two tiles, one after the other
    cases.check_product(result, dense, sparse.dense())


@pytest.mark.parametrize("target", ["amx", "emulated"])
@pytest.mark.parametrize(
    ("op", "block", "layout"),
    [
        ("sdd", (64, 32), "nt"),
        ("sdd", (128, 16), "nn"),
        ("dds", (32, 32), "nn"),
        ("dds", (128, 64), "nn"),
    ],
)
def test_tiles_are_read_where_they_lie(
    op: str, block: tuple[int, int], layout: str, target: str
) -> None:
    """Where no edge cuts them; also where one cuts the last rows, or a sum is added up in two."""
    if target not in (*runnable(), "emulated"):
        pytest.skip(f"this processor does not run {target}")
    torch.manual_seed(0)
    run = kernel(op, target, "bf16", block, layout)
    for cut, extent in (((0, 0), 64), ((5, 0), 64), ((0, 3), 2080)):
        check(run, cut, extent)


@pytest.mark.parametrize("target", ["native", "emulated"])
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_nothing_to_sum(op: str, target: str) -> None:
    """Without blocks the output is the epilogue of zero; without a shared axis blocks are zero."""
    target = native("bf16")[0] if target == "native" else target
    run = kernel(op, target, "bf16", (16, 16), "nn")
    if op == "sdd":
        pattern = blocks(torch.ones(2, 2).bool(), (16, 16), torch.bfloat16)
        nothing = torch.empty(1, 32, 0, dtype=torch.bfloat16), torch.empty(1, 0, 32).bfloat16()
        left = nothing[0].as_strided((1, 32, 0), (0, 1 << 20, 1))
        right = nothing[1].as_strided((1, 0, 32), (0, 1 << 20, 1))
        assert not sample(run, left, right, pattern).any()
        return
    empty = blocks(torch.zeros(2, 2).bool(), (16, 16), torch.bfloat16)
    dense = torch.randn(1, 32, 32).bfloat16()
    if op == "dsd":
        assert not multiply(run, empty, dense).any()
    else:
        bias = torch.randn(32).bfloat16()
        assert torch.equal(multiply(run, empty, dense, bias=bias), bias.expand(1, 32, 32))


# -- the epilogue ---------------------------------------------------------------------------------


def identity_product(target: str, dtype: str, row: Tensor, activation: str | None = None) -> Tensor:
    """``activation(row)``, out of a dds kernel: x I with one column of x that is not zero."""
    run = kernel("dds", target, dtype, (8, 8), "nn")
    eye = Blocks(torch.eye(8, dtype=DTYPES[dtype])[None], torch.ones(1, 1).bool(), (8, 8))
    x = torch.zeros(1, len(row), 8, dtype=DTYPES[dtype])
    x[0, :, 0] = row
    return multiply(run, eye, x, activation=activation)[0, :, 0]


@pytest.mark.parametrize("target", native("f32"))
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations_in_single_precision(activation: str, target: str) -> None:
    inside = torch.linspace(-6, 6, 100_001)
    got = identity_product(target, "f32", inside, activation)
    exact = {
        "relu": lambda x: x.clamp(min=0),
        "gelu": lambda x: 0.5 * x * torch.erfc(-x / math.sqrt(2)),
        "silu": lambda x: x / (1 + torch.exp(-x)),
    }[activation]
    # Relative, so in the tails too, where 1 + erf(x) would leave no digit.
    error = ((got.double() - exact(inside.double())) / exact(inside.double())).abs()
    assert error[exact(inside.double()) != 0].max() < 12 * torch.finfo(torch.float32).eps
    if activation == "gelu":  # whose results have no normal numbers past -13
        last = torch.linspace(-15, -12.5, 10_001)
        tail = identity_product(target, "f32", last, activation)
        assert (tail - exact(last.double())).abs().max() < torch.finfo(torch.float32).tiny
        assert not tail[last < -13.2].any()
    if activation == "silu":  # whose denominators are infinite past -88.72
        last = torch.linspace(-90, -80, 10_001)
        tail = identity_product(target, "f32", last, activation)
        error = (tail.double() / exact(last.double()) - 1).abs()
        assert error[last > -88.7].max() < 12 * torch.finfo(torch.float32).eps
        assert not tail[last < -88.8].any()
    least, infinity = torch.finfo(torch.float32).min, float("inf")
    far = torch.tensor([-infinity, least, -100, -20, 0, 20, 100, 1e30, infinity, float("nan")])
    first, *got = identity_product(target, "f32", far, activation)
    assert torch.equal(torch.stack(got[3:8]), far[4:9])
    assert all(abs(each) < 1e-7 for each in got[:3])
    assert got[8].isnan()
    # As of torch's own: infinity times zero.
    assert first == 0 if activation == "relu" else first.isnan()


@pytest.mark.parametrize(
    ("dtype", "target"), [(dtype, each) for dtype in ("f16", "bf16") for each in native(dtype)]
)
def test_every_16_bit_value_is_read_and_rounded_like_torch(dtype: str, target: str) -> None:
    """But for subnormals where the processor multiplies bfloat16: those count as zero."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    if target == "avx512bf16":
        least = torch.finfo(torch.bfloat16).tiny
        subnormal = every[(every != 0) & (every.abs() < least)]
        assert not identity_product(target, dtype, subnormal).any()
        every = every[(every == 0) | ~(every.abs() < 2**9 * least)]
    finite = every[every.isfinite()]
    assert torch.equal(
        identity_product(target, dtype, every)[~every.isnan()], every[~every.isnan()]
    )
    assert identity_product(target, dtype, every[every.isnan()]).isnan().all()
    # Sums of two neighbours in size need rounding, ties among them.
    run = kernel("dds", target, dtype, (8, 8), "nn")
    ones = Blocks(torch.ones(1, 8, 8).to(finite.dtype), torch.ones(1, 1).bool(), (8, 8))
    x = torch.zeros(1, len(finite), 8, dtype=finite.dtype)
    x[0, :, 0] = finite
    x[0, :, 1] = finite * 2**-6
    x[0, :, 2] = finite * 2**-9
    exact = x[0].double().sum(-1)
    rounded = exact.float().to(finite.dtype)
    assert (exact.float().double() == exact).double().mean() > 0.9
    got = multiply(run, ones, x)[0, :, 0]
    certain = (exact.float().double() == exact) & rounded.isfinite()
    assert torch.equal(got[certain], rounded[certain])


# -- what Python says of the kernels --------------------------------------------------------------


def test_words_are_the_members_of_the_structs() -> None:
    text = (CSRC / "abi.h").read_text()
    for name, words in (("SpmmArgs", abi.SPMM_WORDS), ("SddArgs", abi.SDD_WORDS)):
        found = re.search(rf"struct {name} {{(.*?)}};", text, re.DOTALL)
        assert found
        body = re.sub(r"//.*", "", found[1])
        members = [
            member
            for line in body.split(";")
            for member in re.sub(r"^\s*(const )?(void|int32|int64)\*?", "", line).split(",")
        ]
        assert tuple(member.strip() for member in members if member.strip()) == words
    for code, activation in enumerate(ACTIVATIONS):
        name = "Identity" if activation is None else activation.capitalize()
        assert re.search(rf"k{name} = {code}\b", text)


def test_every_problem_has_a_kernel_on_every_target() -> None:
    for target, op, dtype, rows, cols, layout in itertools.product(
        TARGETS, ("dsd", "dds", "sdd"), (*DTYPES, *LESS_PRECISE), BLOCKS, BLOCKS, LAYOUTS
    ):
        offered = cpu.candidates(problem(op, dtype, (rows, cols), layout), target)
        best = next(each for each in offered if not each.refused)
        on_tiles = {"bf16": "amx"}
        if min(rows, cols) >= 32:
            on_tiles["f32"] = "split"
        if min(rows, cols) >= 16:
            on_tiles |= dict.fromkeys(LESS_PRECISE, "split")
        wanted = on_tiles.get(dtype, "vec") if target == "amx" else "vec"
        assert best.variant.family == wanted
        full = dtype in LESS_PRECISE and wanted == "vec"
        assert best.variant.dtype == ("f32" if full else dtype)
        assert len({each.variant for each in offered}) == len(offered)


def test_refusals_say_why() -> None:
    offered = cpu.candidates(problem("dsd", "f32", (8, 8), "nn"), "amx")
    reasons = {each.variant.name: each.refused for each in offered}
    assert reasons["dsd.amx.amx.f32.b8x8.lnn.r2x2"] == "dtype f32: AMX tiles multiply bf16"
    assert reasons["dsd.split.amx.f32.b8x8.lnn.r1x4"] == (
        "block 8x8: vec is faster unless both sides are at least 32"
    )
    assert reasons["dsd.vec.avx512.f32.b8x8.lnn.r16x1"] == (
        "16 rows of registers do not divide blocks that are 8 high"
    )
    assert reasons["dsd.vec.avx512.f32.b8x8.lnn.r8x3"] is None
    offered = cpu.candidates(problem("dsd", "bf16", (32, 32), "nn"), "avx2")
    assert offered[0].refused == "target avx2: needs AMX tiles for bfloat16"
    assert {each.variant.target for each in offered if not each.refused} == {"avx2", "generic"}


@pytest.mark.parametrize("dtype", LESS_PRECISE)
def test_more_precision_than_torch_asks_for_is_legal(dtype: str) -> None:
    """So a pin of a kernel in float32 satisfies every call in float32."""
    offered = cpu.candidates(problem("dsd", dtype, (32, 32), "nn"), "amx")
    legal = [each.variant for each in offered if not each.refused]
    assert [variant.dtype for variant in legal if variant.family == "split"] == [dtype, "f32"]
    assert {variant.dtype for variant in legal if variant.family == "vec"} == {"f32"}


@pytest.mark.parametrize("target", ["amx", "avx512bf16"])
def test_other_dtypes_share_the_kernels_of_avx512(target: str) -> None:
    for dtype in (*DTYPES, *LESS_PRECISE):
        offered = cpu.candidates(problem("dsd", dtype, (32, 32), "nn"), target)
        vec = next(each.variant for each in offered if each.variant.family == "vec")
        assert vec.target == ("avx512bf16" if dtype == "bf16" else "avx512")


@pytest.mark.parametrize("target", TARGETS)
def test_default_table(target: str) -> None:
    table = list(cpu.default_variants(target))
    assert len(set(table)) == len(table)
    assert {variant.op for variant in table} == {"dsd", "dds", "sdd"}
    assert {variant.dtype for variant in table} == {
        *DTYPES,
        *(LESS_PRECISE if target == "amx" else ()),
    }
    for variant in table:
        assert jit.Variant.parse(variant.name) == variant
        assert cpu.template(variant).source.is_file()


@pytest.mark.parametrize("op", ["dsd", "dds"])
def test_the_last_row_of_blocks_is_somebodys_share(op: str) -> None:
    """Though it is empty, and what shares leave over is as much as it weighs."""
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[4] = mask[:, 4] = False
    run = kernel(op, native("f32")[0], "f32", (128, 128), "nn")
    sparse = blocks(mask, (128, 128), torch.float32)
    dense = torch.randn(1, 640, 16) if op == "dsd" else torch.randn(1, 16, 640)
    operands = (sparse.dense(), dense) if op == "dsd" else (dense, sparse.dense())
    for threads in (1, 17, 27, 31, 32):
        cases.check_product(multiply(run, sparse, dense, threads=threads), *operands)


@pytest.mark.parametrize(
    ("target", "dtype"), [("native", "f32"), ("native", "bf16"), ("emulated", "bf16")]
)
def test_infinities_stay_inside(target: str, dtype: str) -> None:
    """What lies past the edge is packed as zeros, of which infinity times makes no number."""
    target = native(dtype)[0] if target == "native" else target
    run = kernel("sdd", target, dtype, (16, 16), "nn")
    pattern = blocks(torch.ones(2, 2, dtype=torch.bool), (16, 16), DTYPES[dtype], (3, 5))
    left, right = (torch.randn(1, *shape).to(DTYPES[dtype]) for shape in ((29, 32), (32, 27)))
    left[0, 28], right[0, :, 26] = math.inf, math.inf
    got = Blocks(sample(run, left, right, pattern), pattern.mask, (32, 32)).dense()
    assert not got[29:].any()
    assert not got[:, 27:].any()
