"""float32 on AMX tiles: elements divided into bfloat16, on this machine's tiles or emulated.

Results are held against float64, and against those of multiply-adds: equal bits say which of the
two computed a product.
"""

from __future__ import annotations

import itertools
import subprocess
import sys

import cases
import pytest
import torch
from test_cpu_kernels import (
    TIGHT,
    Blocks,
    blocks,
    dense_operand,
    judge_blocks,
    kernel,
    multiply,
    native,
    runnable,
    sample,
)
from torch import Tensor

import jitsparse as js
from jitsparse import jit
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.problem import LESS_PRECISE
from jitsparse.kernels.roles import LAYOUTS

TARGET = "amx" if "amx" in runnable() and not TIGHT else "emulated"
"""Emulated tiles for test_cpu_memory.py, which sees what they read."""
PLAIN = "generic" if TARGET == "emulated" else native("f32")[0]
"""The target whose multiply-adds round as those of the kernels on tiles do."""
OPS = ("dsd", "dds", "sdd")
LEAST, END = 2.0**-130, 2.0**24
"""Magnitudes of elements that have planes: from the first on, below the second."""
TERMS = {
    "f32": ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)),
    "tf32": ((0, 0), (0, 1), (1, 0)),
    "bf32": ((0, 0),),
}
"""The products of planes that are summed up."""
PRECISION = {"f32": 0.0, "tf32": 2**-15, "bf32": 2**-7}
"""How far their sum may be from the product of two elements, relative to that."""


def kernels(
    op: str, block: tuple[int, int], layout: str, dtype: str = "f32"
) -> tuple[jit.Kernel, jit.Kernel]:
    """On tiles, and by multiply-adds."""
    by_tiles = kernel(op, TARGET, dtype, block, layout)
    assert by_tiles.variant.family == "split"
    assert by_tiles.variant.dtype == dtype
    return by_tiles, kernel(op, PLAIN, "f32", block, layout)


def compute(
    run: jit.Kernel, sparse: Blocks, operands: list[Tensor], bias: Tensor | None, threads: int
) -> Tensor:
    if run.variant.op == "sdd":
        return sample(run, *operands, sparse, threads)
    activation = None if bias is None else "silu"
    return multiply(run, sparse, *operands, bias=bias, activation=activation, threads=threads)


class Product:
    """Operands of a product, large enough for tiles unless said otherwise."""

    def __init__(
        self,
        op: str,
        block: tuple[int, int] = (32, 32),
        layout: str = "nn",
        *,
        cut: tuple[int, int] = (0, 0),
        extent: int = 320,
        batch: int = 2,
        grid: tuple[int, int] = (16, 15),
        density: float = 0.7,
        dtype: str = "f32",
    ) -> None:
        torch.manual_seed(0)
        self.op, self.layout, self.block, self.dtype = op, layout, block, dtype
        mask = torch.rand(grid) < density
        mask[1] = mask[:, 2] = False
        mask[3, 3] = True
        self.sparse = blocks(mask, block, torch.float32, cut)
        rows, cols = self.sparse.shape
        self.matrix = self.sparse.dense()
        if op != "sdd" and layout[0 if op == "dsd" else 1] == "t":
            self.matrix = self.matrix.mT
        if op == "sdd":
            shapes = [(batch, rows, extent), (batch, extent, cols)]
        elif op == "dsd":
            shapes = [(batch, self.matrix.shape[1], extent)]
        else:
            shapes = [(batch, extent, self.matrix.shape[0])]
        letters = layout[1:] if op == "dsd" else layout
        self.operands = [
            dense_operand(shape, letter, torch.float32)
            for shape, letter in zip(shapes, letters, strict=False)
        ]
        self.bias = torch.randn(self.matrix.shape[1]) if op == "dds" else None

    def on_tiles(self, threads: int = 2) -> Tensor:
        return compute(
            kernels(self.op, self.block, self.layout, self.dtype)[0],
            *(self.sparse, self.operands, self.bias, threads),
        )

    def by_multiply_adds(self) -> Tensor:
        return compute(
            kernels(self.op, self.block, self.layout, self.dtype)[1],
            *(self.sparse, self.operands, self.bias, 2),
        )

    def set(self, operand: int, place: float, element: float) -> None:
        """Write an element into a dense operand, or into the blocks, which come last."""
        if operand < len(self.operands):
            self.operands[operand][-1, int(place * 300), 100] = element
            return
        of_blocks = self.sparse.values.flatten()
        of_blocks[int(place * (len(of_blocks) - 1))] = element
        self.matrix = self.sparse.dense()

    def check(self, got: Tensor) -> None:
        products = PRECISION[self.dtype]
        if self.op == "sdd":
            stored = Blocks(got, self.sparse.mask, self.sparse.shape)
            judge_blocks(stored, *self.operands, products=products)
        elif self.op == "dsd":
            cases.check_product(got, self.matrix, *self.operands, products=products)
        else:
            activation = None if self.bias is None else "silu"
            cases.check_product(
                got, *self.operands, self.matrix, self.bias, activation, products=products
            )

    def error(self, got: Tensor, terms: int | None = None) -> float:
        """The mean square, in units of 2^-24 of the sum of magnitudes, of what a result without
        bias is from the exact one, or from the sum of the products of planes."""
        dense = self.operands[0][0]
        left, right = {
            "dsd": (self.matrix, dense),
            "dds": (dense, self.matrix),
            "sdd": (dense, self.operands[-1][0]),
        }[self.op]
        exact = left.double() @ right.double()
        if terms is not None:
            of_left, of_right = planes(left), planes(right)
            exact = sum(of_left[i] @ of_right[j] for i, j in TERMS[self.dtype][:terms])
        size = left.double().abs() @ right.double().abs()
        if self.op == "sdd":
            got = Blocks(got, self.sparse.mask, self.sparse.shape).dense()
        relative = (got.squeeze(0).double() - exact) / (size * 2**-24)
        return float(relative[(got != 0).squeeze(0)].square().mean().sqrt())


def planes(x: Tensor) -> list[Tensor]:
    """The three bfloat16 whose sum an element is, in float64; all but the last are rounded."""
    found, rest = [], x
    for half in (0x8000, 0x8000, 0):
        upper = (rest.contiguous().view(torch.int32) + half & -0x10000).view(torch.float32)
        found.append(upper.double())
        rest = rest - upper
    assert not rest.any()
    return found


def shapes(op: str, *, few: bool) -> list[tuple[tuple[int, int], int, int]]:
    """What is cut off, extent and batch: all of them or a few, one where watched."""
    if TIGHT:
        return [((5, 3), 65 if op == "sdd" else 301, 1)]
    found = [((0, 0), 320, 2), ((5, 3), 301, 2), ((1, 31), 1, 600), ((31, 2), 33, 18)]
    return found[1::2] if few or TARGET == "emulated" else found


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("layout", "block"),
    [*itertools.product(LAYOUTS, ((32, 32),)), ("nn", (64, 128)), ("tt", (128, 64))],
)
def test_right(op: str, layout: str, block: tuple[int, int]) -> None:
    rows, cols = (384, 384) if TIGHT else (640, 768)
    grid = rows // block[0], cols // block[1]
    for cut, extent, batch in shapes(op, few=layout in ("nt", "tn") or block != (32, 32)):
        product = Product(
            op, block, layout, cut=cut, extent=extent, batch=batch, grid=grid, density=0.9
        )
        got = product.on_tiles()
        product.check(got)
        assert not torch.equal(got, product.by_multiply_adds()), "not computed on tiles"


@pytest.mark.parametrize("op", OPS)
def test_no_farther_from_the_exact_result_than_multiply_adds(op: str) -> None:
    """So no product of planes is missing, the least of which is 3 in units of what is asserted."""
    product = Product(op, extent=1024 if TARGET == "amx" else 384, batch=1, grid=(20, 20))
    product.bias = None
    on_tiles = product.error(product.on_tiles())
    assert on_tiles < 1
    if TARGET == "amx":  # emulated tiles round like multiply-adds
        assert on_tiles <= product.error(product.by_multiply_adds())


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", LESS_PRECISE)
def test_the_products_of_planes_that_less_precision_takes(op: str, dtype: str) -> None:
    """All of them are summed up, and no others."""
    product = Product(op, extent=384, batch=1, grid=(20, 20), dtype=dtype)
    product.bias = None
    got, terms = product.on_tiles(), len(TERMS[dtype])
    assert product.error(got, terms) < 1
    assert product.error(got) > 2
    if terms > 1:
        assert product.error(got, terms - 1) > 10


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", LESS_PRECISE)
@pytest.mark.parametrize(
    ("layout", "block"), [("nn", (32, 32)), ("tt", (16, 64)), ("nt", (16, 16))]
)
def test_less_precision_is_right(op: str, dtype: str, layout: str, block: tuple[int, int]) -> None:
    grid = 640 // block[0], 768 // block[1]
    for (below, beside), extent, batch in shapes(op, few=True):
        cut, density = (below % block[0], beside % block[1]), 0.9
        of_product = dict(cut=cut, extent=extent, batch=batch, grid=grid, density=density)
        product = Product(op, block, layout, dtype=dtype, **of_product)
        got = product.on_tiles()
        product.check(got)
        assert not torch.equal(got, product.by_multiply_adds()), "not computed on tiles"


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("power", [-60, -66, -72, 20])
def test_tiny_and_large_results(op: str, power: int) -> None:
    """Down to subnormal ones."""
    product = Product(op)
    for operand in (product.sparse.values, *product.operands):
        operand *= 2.0**power
    product.matrix *= 2.0**power
    product.bias = None
    got = product.on_tiles()
    product.check(got)
    assert not torch.equal(got, product.by_multiply_adds()), "not computed on tiles"
    if power == -72:
        assert got.abs().max() < torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("op", OPS)
def test_the_same_on_any_number_of_threads(op: str) -> None:
    product = Product(op)
    first, *others = (product.on_tiles(threads) for threads in (1, 2, 3, 7, 2))
    assert all(torch.equal(first, other) for other in others)


def ends() -> Tensor:
    """Floats of every exponent that has planes, the first and the last of them among them."""
    torch.manual_seed(0)
    fraction = torch.randint(1 << 23, (154, 30), dtype=torch.int32)
    fraction[:, 0], fraction[:, 1] = 0, (1 << 23) - 1
    exponent = torch.arange(-130, 24, dtype=torch.int32)[:, None]
    found = torch.ldexp(1 + fraction.double() / (1 << 23), exponent).float().flatten()
    found = found[found < END]
    assert found.min() == LEAST
    assert found.max() < END
    return torch.cat([found, -found, torch.tensor([0.0])])


@pytest.mark.parametrize("op", ["dsd", "dds"])
@pytest.mark.parametrize("of_values", [False, True])
def test_an_element_is_the_sum_of_its_planes(op: str, of_values: bool) -> None:
    """A product with a matrix that has a single one in each row and column is exact."""
    elements = ends()
    size, extent = 512, 1024
    by_tiles, by_multiply_adds = kernels(op, (32, 32), "nn")
    ones = torch.eye(size)[torch.randperm(size)]
    matrix, dense = ones, torch.zeros(size, extent)
    if of_values:
        matrix, dense = torch.zeros(size, size), torch.cat([ones, ones], 1)
    where = matrix if of_values else dense
    where.flatten()[torch.randperm(where.numel())[: len(elements)]] = elements
    # Some sums that are not exact tell whether tiles computed the product.
    if of_values:
        dense[:, :32] = torch.randn(size, 32)
    else:
        matrix[:32] = torch.randn(32, size)
    if op == "dds":
        matrix = matrix.mT.contiguous()
    values = matrix.reshape(16, 32, 16, 32).transpose(1, 2).reshape(256, 32, 32).contiguous()
    sparse = Blocks(values, torch.ones(16, 16).bool(), (size, size))
    operand = (dense if op == "dsd" else dense.mT.contiguous())[None]
    got, other = (multiply(run, sparse, operand)[0] for run in (by_tiles, by_multiply_adds))
    exact = matrix.double() @ dense.double() if op == "dsd" else dense.mT.double() @ matrix.double()
    if op == "dds":
        got, other, exact = got.mT, other.mT, exact.mT
    inexact = (slice(None), slice(32)) if of_values else (slice(32),)
    assert not torch.equal(got[inexact], other[inexact]), "not computed on tiles"
    got[inexact] = exact[inexact] = 0
    assert torch.equal(got.double(), exact)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("extreme", [LEAST, END * (1 - 2**-24)])
def test_elements_that_have_planes_are_multiplied_on_tiles(
    op: str, operand: int, extreme: float
) -> None:
    product = Product(op)
    product.bias = None
    product.set(operand, 0.4, extreme)
    got = product.on_tiles()
    product.check(got)
    assert not torch.equal(got, product.by_multiply_adds())


OUTSIDE = {
    "infinity": float("inf"),
    "nan": float("nan"),
    "large": -END,
    "small": LEAST * (1 - 2**-19),
    "subnormal": 1e-42,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("operand", [0, 1])
def test_other_elements_are_multiplied_by_multiply_adds(op: str, kind: str, operand: int) -> None:
    """Of whichever operand, and wherever they are."""
    for place in (0.0, 1.0):
        product = Product(op)
        product.set(operand, place, OUTSIDE[kind])
        got, expected = product.on_tiles(), product.by_multiply_adds()
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert got.isnan().any() or kind != "nan"


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("dtype", LESS_PRECISE)
def test_other_elements_have_full_precision_whatever_is_asked_for(kind: str, dtype: str) -> None:
    for operand in (0, 1):
        product = Product("dsd", dtype=dtype)
        product.set(operand, 0.4, OUTSIDE[kind])
        got, expected = product.on_tiles(), product.by_multiply_adds()
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TERMS)
def test_small_products_are_computed_by_multiply_adds(op: str, dtype: str) -> None:
    product = Product(op, extent=7, batch=1, grid=(5, 6), density=0.3, dtype=dtype)
    assert torch.equal(product.on_tiles(), product.by_multiply_adds())


@pytest.mark.skipif(TARGET == "emulated", reason="this processor has no tiles")
@pytest.mark.parametrize("dtype", TERMS)
def test_a_linear_layer_and_its_gradients(dtype: str) -> None:
    torch.manual_seed(0)
    a = js.random((640, 608), 32, density=0.8)
    a.values.requires_grad_()
    x, bias = torch.randn(700, 608, requires_grad=True), torch.randn(640, requires_grad=True)
    weight, products = a.to_dense().detach(), PRECISION[dtype]
    with float32_as(dtype, "cpu"):
        assert f".split.amx.{dtype}." in js.explain("linear", x, a, bias).variant
        y = js.linear(x, a, bias)
        gradient = torch.randn_like(y)
        y.backward(gradient)
    cases.check_product(y.detach(), x.detach(), weight.mT, bias.detach(), products=products)
    cases.check_product(x.grad, gradient, weight, products=products)
    stored = weight.reshape(20, 32, 19, 32).any(3).any(1)
    of_values = Blocks(a.values.grad, stored, (640, 608))
    judge_blocks(of_values, gradient.mT[None], x.detach()[None], products=products)
    if dtype != "f32":
        exact = gradient.double() @ weight.double()
        assert ((x.grad - exact).norm() > 2**-20 * exact.norm()).item(), "full precision"


REFUSED = """
import ctypes, sys, torch
import jitsparse as js

class Stack(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

room = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.cast(room, ctypes.c_void_p), 0, len(room))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
a, x = js.random((640, 640), 32, density=0.8), torch.randn(640, 700)
try:
    js.dsd(a.to(torch.bfloat16), x.bfloat16())
    sys.exit("the tile registers were not refused")
except js.LaunchError as error:
    assert "tile registers" in str(error)
torch.testing.assert_close(js.dsd(a, x), a.to_dense() @ x, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.skipif(TARGET == "emulated", reason="this processor has no tiles")
def test_without_tile_registers_float32_is_multiplied_all_the_same() -> None:
    """Linux refuses them to a process with a signal stack too small to save them on."""
    ended = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
