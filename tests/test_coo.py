"""Single elements become blocks: those of any shape, summed where they meet, and never others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import jitsparse as js
from jitsparse.errors import ArgumentError, PatternError

BLOCKS = [8, (8, 32), (64, 16), (128, 128)]
SHAPES = [(64, 128), (100, 37), (1, 300), (129, 8)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

from_coo = js.BlockSparse.from_coo


def elements(shape: tuple[int, int], n: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Rows, columns and values; every third is where another one is."""
    generator = torch.Generator().manual_seed(n)
    rows, cols = (torch.randint(extent, (n,), generator=generator) for extent in shape)
    again = torch.randint(max(n, 1), (n // 3,), generator=generator)
    rows[: n // 3], cols[: n // 3] = rows[again], cols[again]
    return [rows, cols, torch.randn(n, generator=generator, dtype=torch.float64).to(dtype)]


def summed(rows: Tensor, cols: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """The dense matrix by another way, at the precision of sums."""
    dense = np.zeros(shape, np.float64 if values.dtype is torch.float64 else np.float32)
    wide = values.detach().to(torch.promote_types(values.dtype, torch.float32))
    np.add.at(dense, (rows.numpy(), cols.numpy()), wide.numpy())
    return torch.from_numpy(dense).to(values.dtype)


# -- where elements are, and what they add up to -------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_elements_are_where_they_were(
    shape: tuple[int, int], block: Any, dtype: torch.dtype, device: str
) -> None:
    rows, cols, values = elements(shape, 200, dtype)
    a = from_coo(*(each.to(device) for each in (rows, cols, values)), shape, block)
    assert (a.shape, a.dtype, a.device.type) == (shape, dtype, device)
    assert a.block_size == (block if isinstance(block, tuple) else (block, block))
    expected = summed(rows, cols, values, shape)
    if device == "cpu":  # where elements of one place are added in their order
        assert torch.equal(a.to_dense(), expected)
    torch.testing.assert_close(a.to_dense().cpu(), expected)
    mask = torch.zeros(a.pattern.grid, dtype=torch.bool)
    mask[rows // a.block_size[0], cols // a.block_size[1]] = True
    assert torch.equal(a.pattern.to_mask().cpu(), mask)
    again = js.BlockSparse.from_dense(a.to_dense(), block, mask)
    assert torch.equal(a.values, again.values), "zeros past the edge"
    assert a.pattern == again.pattern


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_elements(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 150), st.integers(1, 150)))
    sides = st.sampled_from(js.checks.BLOCK_SIZES)
    block = data.draw(st.tuples(sides, sides))
    places = st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1))
    drawn = data.draw(st.lists(st.tuples(places, st.integers(-9, 9)), max_size=30))
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    rows, cols = (torch.tensor([at[axis] for at, _ in drawn], dtype=dtype) for axis in (0, 1))
    values = torch.tensor([value for _, value in drawn], dtype=torch.float32)
    a = from_coo(rows, cols, values, shape, block)
    assert torch.equal(a.to_dense(), summed(rows, cols, values, shape))
    assert a.nnz_blocks == len({(r // block[0], c // block[1]) for (r, c), _ in drawn})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(0, 0), (0, 20), (20, 0), (20, 30)])
def test_no_elements(shape: tuple[int, int], device: str) -> None:
    nowhere = torch.zeros(0, dtype=torch.int64, device=device)
    values = torch.zeros(0, device=device, requires_grad=True)
    a = from_coo(nowhere, nowhere, values, shape, (8, 16))
    assert (a.shape, a.nnz_blocks) == (shape, 0)
    a.to_dense().sum().backward()
    assert values.grad is not None
    assert values.grad.shape == (0,)


def test_zeros_are_stored() -> None:
    rows, cols = torch.tensor([0, 20, 20]), torch.tensor([0, 0, 0])
    a = from_coo(rows, cols, torch.tensor([0.0, 1.0, -1.0]), (24, 24), 8)
    assert a.pattern.to_mask().tolist() == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert not a.values.any()


@pytest.mark.parametrize("extent", [2**31 - 1, 2**31, 2**32 + 100])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_matrix_longer_than_its_indices_can_say(dtype: torch.dtype, extent: int) -> None:
    rows, cols = torch.tensor([3], dtype=dtype), torch.tensor([2000], dtype=dtype)
    wide = js.BlockSparse.from_coo(rows, cols, torch.ones(1), (8, extent), 128)
    tall = js.BlockSparse.from_coo(cols, rows, torch.ones(1), (extent, 8), 128)
    assert wide.pattern.col_indices.tolist() == tall.pattern.row_indices.tolist() == [15]


def test_int32_and_int64_may_be_mixed_and_strided() -> None:
    rows, cols, values = elements((50, 60), 40)
    wanted = from_coo(rows, cols, values, (50, 60), 8)
    apart = [torch.stack([each, each], 1)[:, 0] for each in (rows.int(), cols, values)]
    got = from_coo(*apart, (50, 60), 8)
    assert got.pattern == wanted.pattern
    assert torch.equal(got.values, wanted.values)


def test_the_matrix_may_be_larger_than_any_dense_one() -> None:
    side = 1 << 33
    rows = torch.tensor([0, side - 1, side - 1])
    a = from_coo(rows, rows, torch.ones(3), (side, side), 128)
    assert a.pattern.col_indices.tolist() == [0, side // 128 - 1]
    assert a.values.sum() == 3
    assert a.values[1, 127, 127] == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_same_elements_give_the_same_bits(dtype: torch.dtype, device: str) -> None:
    """With so many in one place, and so many in all, that threads would share the work."""
    rows, cols, values = (each.to(device) for each in elements((40, 40), 200_000, dtype))
    first = from_coo(rows, cols, values, (40, 40), 8)
    for _ in range(5):
        assert torch.equal(from_coo(rows, cols, values, (40, 40), 8).values, first.values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_finer_than_their_dtype(dtype: torch.dtype) -> None:
    """One by one, ones would add up to 2048 in float16 and to 256 in bfloat16."""
    nowhere = torch.zeros(4096, dtype=torch.int64)
    assert from_coo(nowhere, nowhere, torch.ones(4096, dtype=dtype), (8, 8), 8).values.sum() == 4096
    tensor = torch.sparse_coo_tensor(
        torch.zeros(2, 4096), torch.ones(4096, dtype=dtype), (8, 8), check_invariants=True
    )
    assert js.BlockSparse.from_sparse(tensor, 8).values.sum() == 4096


def test_autocast_changes_nothing() -> None:
    for dtype in DTYPES:
        coordinates = elements((50, 60), 40, dtype)
        wanted = from_coo(*coordinates, (50, 60), 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = from_coo(*coordinates, (50, 60), 8)
        assert torch.equal(got.values, wanted.values)


# -- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_reach_every_element(device: str) -> None:
    rows, cols, values = (each.to(device) for each in elements((20, 30), 40))
    weights = torch.randn(20, 30, dtype=torch.float64, device=device)
    values.requires_grad_()
    (from_coo(rows, cols, values, (20, 30), (8, 16)).to_dense() * weights).sum().backward()
    assert torch.equal(values.grad, weights[rows, cols])


@pytest.mark.parametrize("device", DEVICES)
def test_derivatives(device: str) -> None:
    rows, cols, values = (each.to(device) for each in elements((20, 30), 12))

    def made(values: Tensor) -> Tensor:
        return from_coo(rows, cols, values, (20, 30), 8).values.sin()

    values.requires_grad_()
    assert torch.autograd.gradcheck(made, (values,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(made, (values,), fast_mode=True)


def test_transforms_and_modes_are_gone_from_the_pattern() -> None:
    rows, cols, values = elements((20, 30), 12)
    kept = []

    def loss(values: Tensor) -> Tensor:
        a = from_coo(rows, cols, values, (20, 30), 8)
        kept.append(a.pattern)
        return (a @ torch.ones(30, dtype=torch.float64)).sum()

    assert torch.equal(torch.func.grad(loss)(values), torch.ones(12, dtype=torch.float64))
    many = torch.stack([values, 2 * values])
    torch.testing.assert_close(torch.func.vmap(loss)(many), many.sum(1))
    with torch.inference_mode():
        loss(values)
    for pattern in kept:
        a = js.BlockSparse(
            torch.ones(pattern.values_shape, dtype=torch.float64), pattern
        ).requires_grad_()
        a.to_dense().sum().backward()
        assert a.grad is not None


# -- errors ---------------------------------------------------------------------------------------

ROWS, COLS, VALUES = torch.tensor([0, 19]), torch.tensor([29, 1]), torch.ones(2)

WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "list": (
        lambda: from_coo([0], COLS, VALUES, (20, 30), 8),
        PatternError,
        "rows is a tensor, got list",
    ),
    "sparse": (
        lambda: from_coo(ROWS, COLS.to_sparse(), VALUES, (20, 30), 8),
        PatternError,
        "cols is a tensor, got Tensor (torch.sparse_coo)",
    ),
    "index dtype": (
        lambda: from_coo(ROWS, COLS.float(), VALUES, (20, 30), 8),
        PatternError,
        "cols is 1-d and int32 or int64, got shape (2,) and torch.float32",
    ),
    "index shape": (
        lambda: from_coo(ROWS[None], COLS, VALUES, (20, 30), 8),
        PatternError,
        "rows is 1-d and int32 or int64, got shape (1, 2) and torch.int64",
    ),
    "lengths": (
        lambda: from_coo(ROWS, COLS[:1], VALUES, (20, 30), 8),
        PatternError,
        "rows and cols have one entry for each element, on one device; got 2 on cpu and 1 on cpu",
    ),
    "no data": (
        lambda: from_coo(ROWS.to("meta"), COLS.to("meta"), VALUES.to("meta"), (20, 30), 8),
        PatternError,
        "BlockSparse.from_coo(...).to('meta')",
    ),
    "row": (
        lambda: from_coo(ROWS, COLS, VALUES, (19, 30), 8),
        PatternError,
        "element 1 is at (19, 1), and the matrix has 19 x 30 elements",
    ),
    "column": (
        lambda: from_coo(ROWS, COLS, VALUES, (20, 29), 8),
        PatternError,
        "element 0 is at (0, 29), and the matrix has 20 x 29 elements",
    ),
    "negative": (
        lambda: from_coo(ROWS - 1, COLS, VALUES, (20, 30), 8),
        PatternError,
        "element 0 is at (-1, 29)",
    ),
    "shape": (
        lambda: from_coo(ROWS, COLS, VALUES, 20, 8),
        PatternError,
        "shape is a pair (rows, cols)",
    ),
    "block": (
        lambda: from_coo(ROWS, COLS, VALUES, (20, 30), 7),
        PatternError,
        "block size 7 is not",
    ),
    "grid": (
        lambda: from_coo(ROWS, COLS, VALUES, (1 << 35, 30), 8),
        PatternError,
        "block indices are 32-bit",
    ),
    "values list": (
        lambda: from_coo(ROWS, COLS, [1.0, 2.0], (20, 30), 8),
        ArgumentError,
        "values is a tensor, got list",
    ),
    "int": (
        lambda: from_coo(ROWS, COLS, ROWS, (20, 30), 8),
        ArgumentError,
        "or bfloat16, got torch.int64; convert with .to(torch.float32)",
    ),
    "bool": (
        lambda: from_coo(ROWS, COLS, ROWS > 0, (20, 30), 8),
        ArgumentError,
        "or bfloat16, got torch.bool; convert with .to(torch.float32)",
    ),
    "complex": (
        lambda: from_coo(ROWS, COLS, VALUES.to(torch.complex64), (20, 30), 8),
        ArgumentError,
        "values must be float64, float32, float16 or bfloat16, got torch.complex64",
    ),
    "8 bits": (
        lambda: from_coo(ROWS, COLS, VALUES.to(torch.float8_e5m2), (20, 30), 8),
        ArgumentError,
        "values must be float64, float32, float16 or bfloat16, got torch.float8_e5m2",
    ),
    "values length": (
        lambda: from_coo(ROWS, COLS, VALUES[:1], (20, 30), 8),
        ArgumentError,
        "values has one entry for each of rows and cols, on their device: shape (2,) on cpu; got "
        "(1,) on cpu",
    ),
    "values shape": (
        lambda: from_coo(ROWS, COLS, VALUES[:, None], (20, 30), 8),
        ArgumentError,
        "shape (2,) on cpu; got (2, 1) on cpu",
    ),
    "values device": (
        lambda: from_coo(ROWS, COLS, VALUES.to("meta"), (20, 30), 8),
        ArgumentError,
        "shape (2,) on cpu; got (2,) on meta",
    ),
    "dense": (
        lambda: js.BlockSparse.from_sparse(torch.eye(8), 8),
        ArgumentError,
        "from_sparse takes a sparse torch tensor, got Tensor; from_dense takes dense ones",
    ),
    "no tensor": (
        lambda: js.BlockSparse.from_sparse(np.eye(8), 8),
        ArgumentError,
        "from_sparse takes a sparse torch tensor, got ndarray",
    ),
    "vector": (
        lambda: js.BlockSparse.from_sparse(torch.ones(8).to_sparse(), 8),
        ArgumentError,
        "from_sparse takes a matrix of two sparse dimensions, got shape (8,) with 1 of them",
    ),
    "hybrid": (
        lambda: js.BlockSparse.from_sparse(torch.ones(8, 8).to_sparse(1), 8),
        ArgumentError,
        "got shape (8, 8) with 1 of them",
    ),
    "batch": (
        lambda: js.BlockSparse.from_sparse(torch.ones(2, 8, 8).to_sparse_csr(), 8),
        ArgumentError,
        "take the matrices of a batch one by one",
    ),
    "sparse int": (
        lambda: js.BlockSparse.from_sparse(torch.eye(8, dtype=torch.int32).to_sparse(), 8),
        ArgumentError,
        "or bfloat16, got torch.int32; convert with .to(torch.float32)",
    ),
}


@pytest.mark.parametrize(("call", "error", "says"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_explained(
    call: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        call()


@pytest.mark.gpu
def test_devices_must_agree() -> None:
    with pytest.raises(PatternError, match="2 on cpu and 2 on cuda:0"):
        from_coo(ROWS, COLS.cuda(), VALUES, (20, 30), 8)
    with pytest.raises(ArgumentError, match=re.escape("(2,) on cuda:0; got (2,) on cpu")):
        from_coo(ROWS.cuda(), COLS.cuda(), VALUES, (20, 30), 8)


# -- torch's sparse tensors -----------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda dense: dense.to_sparse(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "bsr": lambda dense: dense.to_sparse_bsr((4, 8)),
    "bsc": lambda dense: dense.to_sparse_bsc((4, 8)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors(layout: str, dtype: torch.dtype, device: str) -> None:
    dense = summed(*elements((100, 40), 90, dtype), (100, 40)).to(device)
    a = js.BlockSparse.from_sparse(LAYOUTS[layout](dense), (16, 8))
    assert torch.equal(a.to_dense(), dense)
    assert (a.device, a.block_size) == (dense.device, (16, 8))


def test_sparse_tensors_have_gradients() -> None:
    rows, cols, values = elements((20, 30), 12)
    places = torch.stack([rows, cols])

    def of_coo(values: Tensor) -> Tensor:
        tensor = torch.sparse_coo_tensor(places, values, (20, 30), check_invariants=True)
        return js.BlockSparse.from_sparse(tensor, 8).values

    def of_csr(values: Tensor) -> Tensor:
        crow, col = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
        tensor = torch.sparse_csr_tensor(crow, col, values, (2, 2), check_invariants=True)
        return js.BlockSparse.from_sparse(tensor, 8).values

    assert torch.autograd.gradcheck(of_coo, (values.clone().requires_grad_(),))
    assert torch.autograd.gradcheck(of_csr, (values[:3].clone().requires_grad_(),))
    half = summed(rows, cols, values.half(), (20, 30)).requires_grad_()
    for layout in ("coo", "csr", "csc"):
        half.grad = None
        a = js.BlockSparse.from_sparse(LAYOUTS[layout](half), 8)
        a.values.float().square().sum().backward()
        assert torch.equal(half.grad, 2 * half.detach())


# -- SciPy's formats ------------------------------------------------------------------------------

FORMATS = ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("form", FORMATS)
def test_formats_of_scipy(form: str, kind: str, block: Any, dtype: str) -> None:
    scipy = pytest.importorskip("scipy.sparse")
    rows, cols, values = (each.numpy() for each in elements((100, 37), 90))
    given = scipy.coo_array((values.astype(dtype), (rows, cols)), shape=(100, 37))
    matrix = getattr(scipy, f"{form}_{kind}")(given)
    before = matrix.toarray()
    a = js.BlockSparse.from_scipy(matrix, block)
    assert a.to_dense().dtype is getattr(torch, dtype)
    assert np.array_equal(a.to_dense().numpy(), before)
    a.values.fill_(7)
    assert np.array_equal(matrix.toarray(), before), "copied"


def test_elements_of_scipy_in_one_place_are_summed() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    rows, cols, values = (each.numpy() for each in elements((100, 37), 90))
    matrix = scipy.coo_array((values, (rows, cols)), shape=(100, 37))
    got = js.BlockSparse.from_scipy(matrix, 8).to_dense().numpy()
    np.testing.assert_allclose(got, matrix.toarray(), rtol=1e-14)
    assert matrix.nnz == 90, "it is left as it was"


def test_blocks_of_scipy_may_become_other_ones() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    a = js.random((64, 96), (16, 32), 0.5)
    matrix = a.to_scipy()
    assert js.BlockSparse.from_scipy(matrix, (16, 32)).values.data_ptr() == a.values.data_ptr()
    for block in (8, (32, 16), 64):
        other = js.BlockSparse.from_scipy(matrix, block)
        assert torch.equal(other.to_dense(), a.to_dense())
        assert other.values.data_ptr() != a.values.data_ptr()
    fine = scipy.bsr_array(matrix.toarray(), blocksize=(4, 4))
    with pytest.raises(PatternError, match=r"\(4, 4\) is not supported.*block_size=32"):
        js.BlockSparse.from_scipy(fine)
    assert torch.equal(js.BlockSparse.from_scipy(fine, 32).to_dense(), a.to_dense())


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
def test_room_at_the_end_is_no_element(form: str) -> None:
    scipy = pytest.importorskip("scipy.sparse")
    dense = js.random((64, 64), 16, 0.5).to_dense()
    matrix = getattr(scipy, f"{form}_array")(dense.numpy())
    matrix.data = np.concatenate([matrix.data, matrix.data[:3]])
    matrix.indices = np.concatenate([matrix.indices, matrix.indices[:3]])
    stored = len(matrix.indices)
    assert torch.equal(js.BlockSparse.from_scipy(matrix, 8).to_dense(), dense)
    assert len(matrix.indices) == stored, "it is left as it was"


def test_what_from_scipy_refuses() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    for matrix, block, says in (
        (scipy.csr_array((20, 30)), None, "a csr_array has none; say which: from_scipy(matrix, bl"),
        (np.eye(8), 8, "scipy.sparse, got ndarray; of what NumPy has, from_dense(torch.from_numpy"),
        (torch.eye(8), None, "from_scipy takes an array or a matrix of scipy.sparse, got Tensor"),
        (scipy.csr_array((8, 8), dtype=np.int64), 8, "csr_array of int64; convert with matrix.as"),
        (scipy.coo_matrix((8, 8), dtype=bool), 8, "of bool; convert with matrix.astype('float32')"),
        (scipy.bsr_array(np.eye(8, dtype=np.uint8), blocksize=(8, 8)), None, "bsr_array of uint8"),
        (scipy.csr_array((8, 8), dtype=np.complex64), 8, "bfloat16, got torch.complex64"),
        (scipy.csr_array((8, 8), dtype=np.longdouble), 8, "torch has no float"),
    ):
        with pytest.raises(ArgumentError, match=re.escape(says)):
            js.BlockSparse.from_scipy(matrix, block)
    with pytest.raises(PatternError, match="block size 7 is not supported"):
        js.BlockSparse.from_scipy(scipy.csr_array((20, 30)), 7)


def test_a_vector_of_scipy_is_refused() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    try:
        vector = scipy.coo_array(np.ones(8))
    except ValueError:
        pytest.skip("this SciPy has matrices only")
    if vector.ndim != 1:
        pytest.skip("this SciPy has matrices only")
    with pytest.raises(
        ArgumentError, match=re.escape("takes a matrix, got coo_array of shape (8,)")
    ):
        js.BlockSparse.from_scipy(vector, 8)
