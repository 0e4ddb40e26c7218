"""The numeric grid: which kernels are tried in which situations, on whatever device, and the judge.

``VARIANTS`` are the kernels: every pair of dtype and layout, and every block size, for each
operation. ``SITUATIONS`` are what can be done to a kernel once it is compiled: shapes that are no
multiple of the block, single rows, empty patterns, batches, strides. Each kernel meets all of
them, which costs little, as the compiler is the expensive part.

The judge is float64 arithmetic on the same inputs, with the bound that rounding allows: for a sum
of k products accumulated at precision u and stored at precision v,

    |computed - exact|  <=  2 (k + 8) u (|A| |B|) + v |exact| + smallest subnormal

An activation multiplies the first term by its steepest slope and adds a few roundings of its own
(``check_product``).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse import gathers, indexing, jit, panels
from jitsparse.compilation import compile_variants
from jitsparse.kernels import dispatch, registry
from jitsparse.kernels.choice import Key, choose, problem_of
from jitsparse.kernels.cuda import CSRC
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.layout import IndexLayout
from jitsparse.reference import ACTIVATIONS, activate

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BLOCKS = (
    *((32, 32), (64, 64), (16, 16), (128, 128), (8, 8), (8, 128), (64, 32), (16, 64)),
    *((128, 8), (32, 8), (16, 32), (128, 64), (8, 16), (64, 16), (32, 128), (8, 64)),
)


@dataclass(frozen=True)
class Variant:
    """What chooses a kernel."""

    op: str
    dtype: torch.dtype
    block: tuple[int, int]
    layout: str

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.op}-{name}-{self.block[0]}x{self.block[1]}-{self.layout}"


def _variants() -> Iterator[Variant]:
    pairs = list(itertools.product(DTYPES, LAYOUTS))
    for shift, op in zip((0, 5, 10), ("dsd", "dds", "sdd"), strict=True):
        for position, (dtype, layout) in enumerate(pairs):
            # Shifted, so that over the operations a block meets several dtypes and layouts.
            yield Variant(op, dtype, BLOCKS[(position + shift) % len(BLOCKS)], layout)


VARIANTS = tuple(_variants())


@dataclass(frozen=True)
class Situation:
    """One call of a kernel.

    Attributes:
        rows, cols: of the sparse matrix, in blocks, and what is added to it in elements.
        extent: n of dsd and dds, k of sdd.
        density: of the pattern; None: every second block row and column is empty.
        batch: batch dimensions.
        strided: how dense operands lie: ``packed``, ``padded`` (rows of a wider matrix),
            ``shifted`` (an offset that is not 16-byte aligned), ``gaps`` (no unit stride at all),
            ``permuted`` (batch dimensions in another order) or ``interleaved`` (as in a sequence
            of batches: the rows of a batch are further apart than the batches).
    """

    rows: tuple[int, int]
    cols: tuple[int, int]
    extent: int
    density: float | None = 0.5
    batch: tuple[int, ...] = ()
    strided: str = "packed"

    def __str__(self) -> str:
        batch = "x".join(map(str, self.batch)) or "0"
        return (
            f"{self.rows[0]}{self.rows[1]:+d}x{self.cols[0]}{self.cols[1]:+d}"
            f"-e{self.extent}-d{self.density}-batch{batch}-{self.strided}"
        )


SITUATIONS = (
    Situation((2, 0), (3, 0), 64),
    Situation((3, -3), (2, -5), 50),
    Situation((2, -1), (2, 0), 33, strided="padded"),
    Situation((2, 0), (2, -7), 48, strided="shifted"),
    Situation((3, 0), (2, -1), 17, strided="gaps"),
    Situation((2, 0), (2, 0), 40, batch=(3,)),
    Situation((2, -2), (2, -3), 19, batch=(2, 3), strided="padded"),
    Situation((2, 0), (3, 0), 16, batch=(2, 2), strided="permuted"),
    Situation((2, -5), (2, 0), 24, batch=(3,), strided="interleaved"),
    Situation((2, -3), (3, 0), 1),
    Situation((2, 0), (3, 0), 1, batch=(5,)),
    Situation((2, 0), (2, -1), 1, batch=(2, 3), strided="padded"),
    Situation((1, -7), (2, 0), 8),
    Situation((2, 0), (1, -7), 3, density=1.0),
    Situation((4, 0), (4, 0), 24, density=None),
    Situation((2, 0), (2, 0), 20, density=0.0),
    Situation((2, -4), (2, -4), 130, density=1.0),
    Situation((2, 0), (2, 0), 0),
    Situation((0, 0), (2, 0), 9),
    Situation((2, 0), (0, 0), 9),
    Situation((2, 0), (2, 0), 12, batch=(0,)),
)


def sparse(
    variant: Variant, situation: Situation, device: str, generator: torch.Generator
) -> js.BlockSparse:
    """The matrix of a situation, as stored."""
    grid = situation.rows[0], situation.cols[0]
    shape = (
        grid[0] * variant.block[0] + situation.rows[1],
        grid[1] * variant.block[1] + situation.cols[1],
    )
    if situation.density is None:
        mask = torch.rand(grid, generator=generator) < 0.7
        mask[1::2] = False
        mask[:, ::2] = False
        pattern = js.Pattern.from_mask(mask, variant.block, shape)
    else:
        pattern = js.Pattern.random(shape, variant.block, situation.density, generator=generator)
    values = torch.randn(pattern.values_shape, generator=generator)
    # Finite rubbish past the edge of the matrix, which must not be seen.
    return js.BlockSparse(values.to(device, variant.dtype), pattern.to(device))


def dense(
    shape: tuple[int, ...],
    layout: str,
    strided: str,
    dtype: torch.dtype,
    device: str,
    generator: torch.Generator,
) -> Tensor:
    """A dense operand of a shape whose last (``n``) or last but one (``t``) axis is contiguous."""
    data = torch.randn(shape, generator=generator).to(device, dtype)
    return dense_like(data.mT, strided).mT if layout == "t" else dense_like(data, strided)


def dense_like(data: Tensor, strided: str) -> Tensor:
    """``data`` in a storage of its own, laid out as asked."""
    *batch, rows, cols = data.shape
    if strided == "padded":
        room = data.new_full((*batch, rows + 1, cols + 16), float("nan"))[..., :rows, 8 : 8 + cols]
    elif strided == "shifted":
        room = data.new_full((data.numel() + 1,), float("nan"))[1:].view(data.shape)
    elif strided == "gaps":
        room = data.new_full((*batch, 2 * rows, 3 * cols), float("nan"))[..., ::2, ::3]
    elif strided == "interleaved":
        room = data.new_empty((rows, *batch, cols)).movedim(0, -2)
    elif strided == "permuted" and len(batch) == 2:
        room = data.new_empty((batch[1], batch[0], rows, cols)).transpose(0, 1)
    else:
        room = data.new_empty(data.shape)
    return room.copy_(data)


def run(variant: Variant, situation: Situation, device: str, seed: int = 0) -> None:
    """Call the operation of a variant in a situation and hold the result against float64."""
    generator = torch.Generator().manual_seed(seed)
    stored = sparse(variant, situation, device, generator)
    extent, strided = situation.extent, situation.strided
    make = dict(strided=strided, dtype=variant.dtype, device=device, generator=generator)
    left_letter, right_letter = variant.layout
    if variant.op == "dsd":
        a = stored.T if left_letter == "t" else stored
        b = dense((*situation.batch, a.shape[1], extent), right_letter, **make)
        check_product(js.dsd(a, b), a.to_dense(), b)
    elif variant.op == "dds":
        b = stored.T if right_letter == "t" else stored
        a = dense((*situation.batch, extent, b.shape[0]), left_letter, **make)
        check_product(js.dds(a, b), a, b.to_dense())
        bias = torch.randn(b.shape[1], generator=generator).to(device, variant.dtype)
        for activation in ACTIVATIONS:
            out = js.linear(a, b.T, bias, activation)
            check_product(out, a, b.to_dense(), bias, activation)
    else:
        rows, cols = stored.shape
        a = dense((*situation.batch, rows, extent), left_letter, **make)
        b = dense((*situation.batch, extent, cols), right_letter, **make)
        check_sdd(js.sdd(a, b, stored.pattern), a, b)


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """So small that sums of products are exact in any order."""
    return torch.randint(-2, 3, shape).to(dtype)


def selected(request: pytest.FixtureRequest, test: Callable[..., None]) -> list[dict[str, Any]]:
    """Parameters of each selected case of a test of the requesting file."""
    return [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and getattr(item, "originalname", None) == test.__name__
    ]


def compile_grid(device: str, variants: Iterable[Variant]) -> None:
    """Compile every kernel that some variants of the grid run, in parallel."""
    wanted: dict[jit.Variant, None] = {}

    class Chosen(Exception):
        """Raised where a kernel would be loaded."""

    def note(key: Key) -> None:
        choice = choose(problem_of(key), registry.target_of(device, key[1]))
        wanted[choice.candidate.variant] = None
        raise Chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_kernels", {})
        patch.setattr(dispatch, "select", note)
        for variant in variants:
            for situation in SITUATIONS:
                with contextlib.suppress(Chosen):
                    run(variant, situation, device)
    for outcome in compile_variants(wanted):
        if outcome.error is not None:
            raise outcome.error


def host_library(source: str, folder: Path) -> ctypes.CDLL:
    """C++ that includes headers of kernels, compiled for this processor."""
    path, library = folder / "source.cpp", folder / "library.so"
    path.write_text(source)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-I", CSRC, path, "-o", library]
    subprocess.run([*map(str, command)], check=True)
    return ctypes.CDLL(str(library))


def accumulator(dtype: torch.dtype) -> float:
    """Precision at which products of a dtype are summed."""
    return torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps


def check_product(
    got: Tensor,
    left: Tensor,
    right: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    products: float | None = None,
) -> None:
    """``got`` is ``activation(left @ right + bias)`` to within rounding, and contiguous.

    Args:
        products: relative precision of a product, where it is not exact in the accumulator (TF32).
    """
    dtype = got.dtype
    left, right = left.double(), right.double()
    exact = left @ right
    size = left.abs() @ right.abs()
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    k = left.shape[-1]
    # No activation is steeper than 1.13; evaluating one costs a few roundings of its argument.
    allowed = 2 * (k + 8) * accumulator(dtype) * size
    if products is not None:
        allowed += products * size
    code = ACTIVATIONS.index(activation)
    result = activate(exact, code)
    allowed = (1.13 if code else 1.0) * allowed + (16 * accumulator(dtype) * size if code else 0)
    _judge(got, result, allowed)


def check_sdd(
    got: js.BlockSparse, left: Tensor, right: Tensor, *, products: float | None = None
) -> None:
    """``got`` holds the blocks of ``left @ right`` summed over the batch, zero past the edge."""
    batched = left.double() @ right.double()
    size = left.double().abs() @ right.double().abs()
    rows, cols = batched.shape[-2:]
    batch = left.shape[:-2].numel()
    exact = batched.reshape(batch, rows, cols).sum(0)
    size = size.reshape(batch, rows, cols).sum(0)
    terms = left.shape[-1] * batch
    allowed = 2 * (terms + 8) * accumulator(got.dtype) * size
    if products is not None:
        allowed += products * size
    blocks = [
        js.BlockSparse.from_dense(each, got.pattern.block_size, got.pattern.to_mask()).values
        for each in (exact, allowed)
    ]
    _judge(got.values, *blocks)
    check_past_edge(got)


def infinite(x: Tensor, axis: int) -> Tensor:
    """``x`` with one entry of the axis infinite throughout, lying in memory as ``x`` does."""
    entry = torch.arange(x.shape[axis], device=x.device) == x.shape[axis] // 2
    return x.masked_fill_(entry.view(-1, *[1] * (-1 - axis)), float("inf"))


def apart(stored: js.BlockSparse, *, transposed: bool, columns: bool) -> Tensor:
    """Which rows (or columns) of the matrix, as it is multiplied, have nothing to do with the one
    in the middle of its columns (or rows): no block is stored there."""
    mask, (rows, cols) = stored.pattern.to_mask(), stored.pattern.block_size
    rows_of = mask.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
    whole = rows_of[: stored.shape[0], : stored.shape[1]]
    whole = whole.T if transposed != columns else whole
    return ~whole[:, whole.shape[1] // 2]


def check_sdd_variants(
    names: list[str], dtype: str, left: Tensor, right: Tensor, pattern: js.Pattern
) -> None:
    """Each of these variants is right, and repeatable bit by bit."""
    products = 2**-9 if dtype == "tf32" else None
    with float32_as(dtype, "cuda"):
        for name in names:
            with js.pin(f"sdd={name}"):
                first, second = (js.sdd(left, right, pattern) for _ in range(2))
            check_sdd(first, left, right, products=products)
            assert torch.equal(first.values, second.values)


def gpu_index(pattern: js.Pattern) -> Tensor:
    """What a pattern on the CPU would have for its index on a GPU."""
    layout = IndexLayout(*pattern.grid, pattern.nnz_blocks, pattern.block_size, panels=True)
    index = torch.empty(layout.size, dtype=torch.int32)
    function = jit.load(registry.template_of(registry.INDEX), registry.INDEX)
    indexing.fill(function, layout, (pattern.crow_indices, pattern.col_indices), index)
    return index


def share_columns(patch: pytest.MonkeyPatch) -> None:
    """Give an sdd tiles of two panels wherever two store the same columns. By their cost only far
    larger patterns have them. The compiled function, which has the other costs, is not called."""
    patch.setattr(indexing, "_function", lambda: None)
    for module in (panels, gathers):
        patch.setattr(module, "SMS", 1)
    patch.setattr(gathers, "FIXED_OF_TWO", -(1 << 20))


@contextlib.contextmanager
def never_waiting() -> Iterator[None]:
    """Whatever waits for the GPU is an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def check_past_edge(got: js.BlockSparse) -> None:
    """An sdd writes zeros past the edge of the matrix, whatever its operands hold."""
    whole = torch.ones(got.shape, dtype=got.dtype, device=got.device)
    inside = js.BlockSparse.from_dense(whole, got.pattern.block_size, got.pattern.to_mask())
    assert not got.values[inside.values == 0].any(), "zeros past the edge of the matrix"


def _judge(got: Tensor, exact: Tensor, allowed: Tensor) -> None:
    assert got.shape == exact.shape
    assert got.is_contiguous()
    info = torch.finfo(got.dtype)
    allowed = allowed + info.eps * exact.abs() + info.smallest_normal * info.eps
    excess = (got.double() - exact).abs() - allowed
    assert not got.isnan().any()
    assert not (excess > 0).any(), (
        f"{int((excess > 0).sum())} of {excess.numel()} entries are off, the worst by "
        f"{float(((got.double() - exact).abs() / allowed).max()):.2f} times what rounding allows"
    )
