"""Block-sparse matrices and their conversions."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import jitsparse as js
from jitsparse.errors import ArgumentError, PatternError

SIDES = st.sampled_from(js.checks.BLOCK_SIZES)
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])


@st.composite
def matrices(draw: st.DrawFn, whole: bool = False) -> js.BlockSparse:
    """Any shape, block size, density and dtype, empty ones included."""
    block = draw(SIDES), draw(SIDES)
    grid = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    cut = (0, 0) if whole else (draw(st.integers(0, 7)), draw(st.integers(0, 7)))
    shape = tuple(max(0, g * b - c) for g, b, c in zip(grid, block, cut, strict=True))
    density = draw(st.sampled_from([0.0, 0.4, 1.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    return js.random(shape, block, density, dtype=draw(DTYPES), generator=generator)


@given(matrices())
@settings(max_examples=50, deadline=None)
def test_dense_round_trip_is_exact(a: js.BlockSparse) -> None:
    dense = a.to_dense()
    assert dense.shape == a.shape
    assert dense.is_contiguous()
    again = js.BlockSparse.from_dense(dense, a.pattern.block_size, a.pattern.to_mask())
    assert again.pattern == a.pattern
    assert torch.equal(again.values, a.values)
    found = js.BlockSparse.from_dense(dense, a.pattern.block_size)
    assert torch.equal(found.to_dense(), dense)
    assert torch.equal(a.T.to_dense(), dense.T)
    assert a.T.shape == a.shape[::-1]


def test_to_dense_puts_blocks_where_the_pattern_says() -> None:
    pattern = js.Pattern((20, 30), (8, 16), torch.tensor([0, 1, 1, 3]), torch.tensor([1, 0, 1]))
    values = torch.arange(1, 1 + 3 * 128, dtype=torch.float64).view(3, 8, 16)
    dense = js.BlockSparse(values, pattern).to_dense()
    expected = torch.zeros(24, 32, dtype=torch.float64)
    expected[0:8, 16:32] = values[0]
    expected[16:24, 0:16] = values[1]
    expected[16:24, 16:32] = values[2]
    assert torch.equal(dense, expected[:20, :30])


def test_from_dense_keeps_the_blocks_that_hold_something() -> None:
    dense = torch.zeros(20, 30)
    dense[19, 0] = float("nan")
    dense[7, 29] = 1e-45  # the smallest subnormal
    dense[0, 0] = -0.0
    a = js.BlockSparse.from_dense(dense, (8, 16))
    assert a.pattern.to_mask().tolist() == [[0, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize("shape", [(0, 16), (16, 0), (0, 0)])
def test_from_dense_of_nothing_is_differentiable(shape: tuple[int, int]) -> None:
    dense = torch.randn(shape, requires_grad=True)
    (js.BlockSparse.from_dense(dense, 8) @ torch.randn(shape[1], 2)).sum().backward()
    assert dense.grad is not None
    assert dense.grad.shape == shape


def test_from_dense_refuses_what_is_no_matrix_or_mask() -> None:
    with pytest.raises(ArgumentError, match=re.escape("takes a matrix, got shape (3,)")):
        js.BlockSparse.from_dense(torch.zeros(3), 8)
    with pytest.raises(PatternError, match="got a mask of shape"):
        js.BlockSparse.from_dense(torch.zeros(16, 16), 8, torch.ones(3, 2, dtype=torch.bool))


@given(matrices(whole=True))
@settings(max_examples=40, deadline=None)
def test_bsr_round_trip_shares_memory(a: js.BlockSparse) -> None:
    bsr = a.to_bsr()
    assert bsr.layout is torch.sparse_bsr
    assert bsr.values().data_ptr() == a.values.data_ptr()
    assert bsr.crow_indices().data_ptr() == a.pattern.crow_indices.data_ptr()
    again = js.BlockSparse.from_bsr(bsr)
    assert again.values.data_ptr() == a.values.data_ptr()
    assert again.pattern.crow_indices.data_ptr() == a.pattern.crow_indices.data_ptr()
    assert again.pattern == a.pattern
    torch.sparse_bsr_tensor(  # torch's own check of the invariants
        bsr.crow_indices(), bsr.col_indices(), bsr.values(), bsr.shape, check_invariants=True
    )
    if a.values.numel() and a.dtype is torch.float32:
        assert torch.equal(bsr.to_dense(), a.to_dense())


def test_bsr_of_torch_is_taken_over() -> None:
    dense = torch.randn(64, 96) * (torch.rand(4, 6) < 0.5).repeat_interleave(
        16, 0
    ).repeat_interleave(16, 1)
    bsr = dense.to_sparse_bsr((16, 32))  # int64 indices
    a = js.BlockSparse.from_bsr(bsr)
    assert a.values.data_ptr() == bsr.values().data_ptr()
    assert torch.equal(a.to_dense(), dense)


def test_a_transposed_matrix_converts_as_it_is_read() -> None:
    a = js.random((32, 48), (8, 16), 0.5)
    bsr = a.T.to_bsr()
    assert bsr.values().shape[1:] == (16, 8)
    assert torch.equal(js.BlockSparse.from_bsr(bsr).to_dense(), a.to_dense().T)
    scipy = pytest.importorskip("scipy.sparse")
    assert isinstance(a.T.to_scipy(), scipy.bsr_array)
    assert np.array_equal(a.T.to_scipy().toarray(), a.to_dense().T.numpy())


def test_formats_of_whole_blocks_refuse_an_edge() -> None:
    a = js.random((30, 48), (8, 16), 0.5)
    for convert in (a.to_bsr, a.to_scipy, a.T.to_bsr):
        with pytest.raises(ArgumentError, match=re.escape("build the matrix with shape (32, 48)")):
            convert()


def test_bsr_stays_where_it_is_under_another_default_device() -> None:
    a = js.random((64, 64), 16, 0.5)
    with torch.device("meta"):
        assert a.to_bsr().device == a.values.device


def test_from_bsr_refuses_other_layouts() -> None:
    with pytest.raises(ArgumentError, match=r"layout torch\.sparse_bsr, got torch\.strided"):
        js.BlockSparse.from_bsr(torch.zeros(16, 16))
    with pytest.raises(ArgumentError, match=r"torch\.sparse_bsc"):
        js.BlockSparse.from_bsr(torch.zeros(16, 16).to_sparse_bsc(8))
    with pytest.raises(PatternError, match="8, 16, 32, 64, 128"):
        js.BlockSparse.from_bsr(torch.ones(16, 16).to_sparse_bsr(4))


def test_scipy_cannot_edit_a_pattern() -> None:
    pytest.importorskip("scipy")
    pattern = js.Pattern.random((64, 64), 16, 0.5)
    a, other = (js.BlockSparse(torch.randn(pattern.values_shape), pattern) for _ in range(2))
    theirs = a.to_scipy()
    mine = js.BlockSparse.from_scipy(theirs)
    theirs.data[0] = 0
    wanted = other.to_dense(), torch.tensor(theirs.toarray())
    theirs.eliminate_zeros()
    assert theirs.indptr[-1] < pattern.nnz_blocks
    for each in (pattern, mine.pattern):
        assert each == js.Pattern.from_mask(each.to_mask(), 16, (64, 64))
        assert each.crow_indices[-1] == each.nnz_blocks
    assert torch.equal(other.to_dense(), wanted[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scipy_round_trip_shares_values(dtype: torch.dtype) -> None:
    scipy = pytest.importorskip("scipy.sparse")
    a = js.random((64, 96), (16, 32), 0.5, dtype=dtype)
    matrix = a.to_scipy()
    assert matrix.shape == (64, 96)
    assert np.shares_memory(matrix.data, a.values.numpy())
    assert not np.shares_memory(matrix.indices, a.pattern.col_indices.numpy())
    assert np.array_equal(matrix.toarray(), a.to_dense().numpy())
    again = js.BlockSparse.from_scipy(matrix)
    assert again.values.data_ptr() == a.values.data_ptr()
    assert again.pattern == a.pattern
    old = scipy.bsr_matrix(a.to_dense().numpy(), blocksize=(8, 8))
    assert torch.equal(js.BlockSparse.from_scipy(old).to_dense(), a.to_dense())
    assert a.requires_grad_().to_scipy().shape == (64, 96)


def test_scipy_may_have_room_at_the_end() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    a = js.random((64, 64), 16, 0.5)
    matrix = a.to_scipy()
    matrix.data = np.concatenate([matrix.data, np.ones((3, 16, 16), np.float32)])
    matrix.indices = np.concatenate([matrix.indices, np.zeros(3, np.int32)])
    assert isinstance(matrix, scipy.bsr_array)
    again = js.BlockSparse.from_scipy(matrix)
    assert torch.equal(again.values, a.values)
    assert again.pattern == a.pattern


def test_scipy_takes_and_gives_what_it_can() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    with pytest.raises(ArgumentError, match=r"convert with a.to\(torch.float32\)"):
        js.random((16, 16), 8, 0.5, dtype=torch.bfloat16).to_scipy()
    twice = scipy.bsr_array((np.ones((2, 8, 8)), np.array([1, 1]), np.array([0, 2])), shape=(8, 16))
    with pytest.raises(PatternError, match="1 is followed by 1"):
        js.BlockSparse.from_scipy(twice)


def test_scipys_arrays_that_torch_cannot_hold_are_copied() -> None:
    pytest.importorskip("scipy.sparse")
    a = js.random((64, 96), (16, 32), 0.5)
    part: dict[str, Any] = {"data": a.to_scipy().data, "indices": a.to_scipy().indices}

    def matrix(**other: Any) -> Any:
        indptr = other.pop("indptr", a.to_scipy().indptr)
        data, indices = ({**part, **other}[name] for name in ("data", "indices"))
        # SciPy's constructor makes some of them alike; anybody may set them later.
        made = a.to_scipy()
        made.data, made.indices, made.indptr = data, indices, indptr
        return made

    read_only = part["data"].copy()
    read_only.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (
            matrix(data=read_only),
            matrix(data=part["data"][::-1].copy()[::-1]),
            matrix(data=part["data"].astype(part["data"].dtype.newbyteorder())),
            matrix(indptr=a.to_scipy().indptr.astype(np.int64)),
        ):
            assert torch.equal(js.BlockSparse.from_scipy(each).to_dense(), a.to_dense())
    with pytest.raises(ArgumentError, match="torch has no "):
        js.BlockSparse.from_scipy(matrix(data=part["data"].astype(np.longdouble)))


def test_the_mask_may_be_elsewhere_than_the_matrix() -> None:
    mask = torch.tensor([[True, False], [False, True]])
    there = js.BlockSparse.from_dense(torch.empty(32, 32, device="meta"), 16, mask)
    assert there.pattern.device.type == there.values.device.type == "meta"
    assert there.values.shape == (2, 16, 16)
    for dense, other in ((torch.empty(32, 32, device="meta"), None), (torch.ones(32, 32), mask)):
        with pytest.raises(PatternError, match="mask on the meta device has no data"):
            js.BlockSparse.from_dense(dense, 16, None if other is None else other.to("meta"))


def test_blocks_in_the_order_of_scipys_conversions() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    dense = np.random.default_rng(0).standard_normal((64, 64))
    dense[np.random.default_rng(1).random((64, 64)) > 0.01] = 0
    matrix = scipy.csr_array(dense).tobsr((16, 16))
    assert not matrix.has_sorted_indices
    assert np.array_equal(js.BlockSparse.from_scipy(matrix).to_dense().numpy(), dense)
    assert not matrix.has_sorted_indices, "it is left as it was"


def test_conversions_are_differentiable() -> None:
    a = js.random((20, 30), (8, 16), 0.7, dtype=torch.float64)
    mask = a.pattern.to_mask()

    def there_and_back(values: torch.Tensor) -> torch.Tensor:
        dense = js.BlockSparse(values, a.pattern).T.to_dense().T
        return js.BlockSparse.from_dense(dense.exp(), (8, 16), mask).values

    values = a.values.clone().requires_grad_()
    assert torch.autograd.gradcheck(there_and_back, (values,), fast_mode=True)
    assert torch.autograd.gradgradcheck(there_and_back, (values,), fast_mode=True)


def test_what_a_tensor_has() -> None:
    a = js.random((20, 30), 8, 0.5)
    assert (a.dtype, a.device, a.shape, a.requires_grad, a.grad) == (
        torch.float32,
        torch.device("cpu"),
        (20, 30),
        False,
        None,
    )
    assert a.requires_grad_() is a
    a.T.to_dense().sum().backward()
    assert a.grad is not None
    assert a.grad.shape == a.values.shape
    # Nothing past the edge of the matrix has a gradient.
    assert (
        a.grad.sum()
        == js.BlockSparse.from_dense(torch.ones(20, 30), 8, a.pattern.to_mask()).values.sum()
    )
    detached = a.T.detach()
    assert not detached.requires_grad
    assert detached.transposed
    assert detached.values.data_ptr() == a.values.data_ptr()
    wide = a.T.to(torch.float64)
    assert wide.dtype == torch.float64
    assert wide.transposed
    assert wide.pattern is a.pattern
    assert a.to("cpu") is a
    assert a.cpu() is a
    assert a.to("meta", torch.float16).pattern.device.type == "meta"
    copy = a.T.clone()
    assert copy.transposed
    assert copy.pattern is a.pattern
    assert torch.equal(copy.values, a.values)
    assert copy.values.data_ptr() != a.values.data_ptr()
    (gradient,) = torch.autograd.grad(copy.values.sum(), a.values)
    assert torch.equal(gradient, torch.ones_like(a.values))


@pytest.mark.gpu
def test_matrices_move_to_a_gpu_and_back() -> None:
    a = js.random((20, 30), (8, 16), 0.5).T
    there = a.cuda()
    assert there.device == a.cuda(0).device == torch.device("cuda", 0)
    assert there.transposed
    assert there.pattern.device == there.device
    assert torch.equal(there.cpu().values, a.values)


def test_transposing_shares_the_values() -> None:
    a = js.random((20, 30), (8, 16), 0.5)
    assert a.T.values is a.values
    assert a.T.pattern is a.pattern
    assert a.T.transposed
    assert not a.T.T.transposed
    assert a.T.T.shape == a.shape


def test_values_must_fit_the_pattern() -> None:
    pattern = js.Pattern.random((32, 32), 8, 0.5)
    for values, says in [
        (torch.zeros(7, 8, 8), "has 8 blocks of 8 x 8, so values has shape (8, 8, 8); got (7,"),
        (torch.zeros(8, 8, 8, dtype=torch.int32), "float64, float32, float16 or bfloat16, got"),
        (torch.zeros(8, 8, 8, device="meta"), "values are on meta and the pattern on cpu"),
    ]:
        with pytest.raises(ArgumentError, match=re.escape(says)):
            js.BlockSparse(values, pattern)


def test_a_dtype_is_none_by_its_name() -> None:
    for make in (
        lambda: js.random((32, 32), 8, 0.5, dtype="float32"),
        lambda: js.nn.BlockSparseLinear(32, 32, 8, density=0.5, dtype="float32"),
    ):
        with pytest.raises(ArgumentError, match="or bfloat16, got 'float32'"):
            make()


def test_values_that_are_not_contiguous_are_copied() -> None:
    pattern = js.Pattern.random((32, 32), 8, 0.5)
    values = torch.randn(8, 8, 8).mT
    a = js.BlockSparse(values, pattern)
    assert a.values.is_contiguous()
    assert torch.equal(a.values, values)
    a.values = -values
    assert a.values.is_contiguous()
    assert torch.equal(a.values, -values)


def test_random_follows_its_generator_and_clears_the_edge() -> None:
    def draw() -> js.BlockSparse:
        return js.random((20, 30), (8, 16), 1.0, generator=torch.Generator().manual_seed(3))

    a = draw()
    assert torch.equal(a.values, draw().values)
    assert int((a.values != 0).sum()) == 20 * 30
    # 600 standard normal numbers: the mean square is 1 with standard deviation .058; six of them.
    assert abs(float((a.values**2).sum()) / 600 - 1) < 0.35


def test_random_draws_on_the_device_of_its_generator() -> None:
    """Then the same seed gives the same matrix wherever it is to be."""
    states = []
    for device in ("cpu", "meta"):
        generator = torch.Generator().manual_seed(3)
        assert (
            js.random((64, 64), 16, 0.5, device=device, generator=generator).device.type == device
        )
        states.append(generator.get_state())
    assert torch.equal(*states)


def test_print_shows_the_matrix_as_it_is_read() -> None:
    pattern = js.Pattern((20, 30), (8, 16), torch.tensor([0, 1, 1, 3]), torch.tensor([1, 0, 1]))
    a = js.BlockSparse(torch.zeros(3, 8, 16), pattern).requires_grad_()
    facts = "nnz_blocks=3, density=50.0%, dtype=torch.float32, device=cpu"
    assert str(a) == (
        f"BlockSparse(shape=(20, 30), block_size=(8, 16), {facts}, requires_grad=True)\n.#\n..\n##"
    )
    assert str(a.T.detach()) == (
        f"BlockSparse(shape=(30, 20), block_size=(16, 8), {facts}, transposed=True)\n..#\n#.#"
    )


def test_copies_and_pickles() -> None:
    a = js.random((20, 30), 8, 0.5).T
    for again in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert again.transposed
        assert torch.equal(again.to_dense(), a.to_dense())
        assert again.values.data_ptr() != a.values.data_ptr()


@pytest.mark.parametrize("imports", ["torch, jitsparse", "jitsparse, torch"])
def test_a_file_is_loaded_without_trusting_it(imports: str, tmp_path: Path) -> None:
    """``torch.load`` reads weights only, unless told otherwise; whichever is imported first."""
    a = js.random((20, 30), 8, 0.5).T
    file = tmp_path / "a.pt"
    torch.save({"matrix": a, "pattern": a.pattern}, file)
    code = (
        f"import sys, {imports}\n"
        "loaded = torch.load(sys.argv[1])\n"
        "assert loaded['matrix'].pattern is loaded['pattern'], 'one pattern, as it was saved'\n"
        "torch.save(loaded['matrix'].to_dense(), sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)
    assert torch.equal(torch.load(file), a.to_dense())


def test_a_file_cannot_bring_what_kernels_must_not_read(tmp_path: Path) -> None:
    a = js.random((64, 64), 16, 0.5)
    a.pattern.col_indices[0] = 1000
    torch.save(a, tmp_path / "pattern.pt")
    with pytest.raises(js.PatternError, match="1000"):
        torch.load(tmp_path / "pattern.pt")
    a = js.random((64, 64), 16, 0.5)
    object.__setattr__(a, "values", a.values[1:])
    torch.save(a, tmp_path / "values.pt")
    with pytest.raises(js.ArgumentError, match="7, 16, 16"):
        torch.load(tmp_path / "values.pt")


def test_a_file_whose_tensors_come_last_is_refused(tmp_path: Path) -> None:
    """What a pattern would be judged by is uninitialised memory then."""
    a = js.random((64, 64), 16, 0.5)
    for saved in (a, a.pattern, js.nn.BlockSparseLinear(64, 64, 16, density=0.5)):
        torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
        with pytest.raises(js.PatternError, match="legacy file format"):
            torch.load(tmp_path / "a.pt", weights_only=False)
    torch.save(a.values, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(torch.load(tmp_path / "a.pt"), a.values)


def test_values_that_do_not_fit_cannot_be_put_in() -> None:
    """A kernel would look for blocks where there are none."""
    a = js.random((64, 64), 32, 0.5)
    for wrong in (a.values[:1], a.values.reshape(-1, 16, 32), a.values.to("meta")):
        with pytest.raises(js.ArgumentError):
            a.values = wrong
    a.values = 2 * a.values
    for name in ("pattern", "shape", "transposed"):
        with pytest.raises(AttributeError, match="build another"):
            setattr(a, name, getattr(a, name))


def test_what_is_no_strided_tensor_is_refused() -> None:
    a = js.random((32, 32), 16, 0.5)
    with pytest.raises(ArgumentError, match="from_bsr takes a torch tensor, got int"):
        js.BlockSparse.from_bsr(1)
    with pytest.raises(ArgumentError, match=r"torch\.sparse_coo"):
        js.BlockSparse(a.values.to_sparse(), a.pattern)


def test_a_matrix_is_no_parameter() -> None:
    """A module would take it for a plain attribute: neither trained nor saved."""
    with pytest.raises(js.ArgumentError, match=r"nn\.Parameter\(a\.values\)"):
        torch.nn.Parameter(js.random((64, 64), 16, 0.5))  # type: ignore[arg-type]


def test_multiples() -> None:
    a = js.random((64, 90), 16, 0.5).T.requires_grad_()
    dense = a.to_dense()
    for got, wanted in (
        (2 * a, 2 * dense),
        (a / 2, dense / 2),
        (-a, -dense),
        (torch.tensor(3.0) * a, 3 * dense),
    ):
        torch.testing.assert_close(got.to_dense(), wanted)
        assert got.requires_grad
    assert (a * math.inf).values.isnan().sum() == 0
    for other in (torch.ones(90, 64), "2", a):
        with pytest.raises(TypeError):
            a * other  # type: ignore[operator]


def test_fake_tensors_have_no_data_to_check() -> None:
    with FakeTensorMode():
        pattern = js.Pattern((32, 32), 16, torch.tensor([0, 1, 2]), torch.tensor([0, 1]))
        assert "no data" in str(js.BlockSparse(torch.randn(2, 16, 16), pattern))


def test_facts_of_the_matrix_as_it_is_read() -> None:
    a = js.random((40, 96), (8, 16), 0.5)
    assert (a.ndim, a.block_size, a.T.block_size) == (2, (8, 16), (16, 8))
    assert (a.nnz_blocks, a.density) == (15, 0.5)
    a.requires_grad = True
    assert a.values.requires_grad
    assert a.T.requires_grad


@pytest.mark.parametrize("flipped", [(False, False), (False, True), (True, False), (True, True)])
def test_sums_have_the_blocks_of_both(flipped: tuple[bool, bool]) -> None:
    shape, block = (40, 90), (8, 16)

    def made(transposed: bool) -> js.BlockSparse:
        if transposed:
            return js.random(shape[::-1], block[::-1], 0.4, dtype=torch.float64).T
        return js.random(shape, block, 0.4, dtype=torch.float64)

    a, b = (made(each).requires_grad_() for each in flipped)
    assert torch.equal((a + b).to_dense(), a.to_dense() + b.to_dense())
    assert torch.equal((a - b).to_dense(), a.to_dense() - b.to_dense())
    assert (a + b).nnz_blocks == (_read(a) | _read(b)).nnz_blocks
    assert (a + a).pattern is a.pattern
    (a - b).to_dense().sum().backward()
    assert torch.equal(js.BlockSparse(a.grad, a.pattern).to_dense() != 0, _stored(a))
    assert b.grad is not None


def _read(a: js.BlockSparse) -> js.Pattern:
    return a.pattern.T if a.transposed else a.pattern


def _stored(a: js.BlockSparse) -> torch.Tensor:
    """Elements of stored blocks, of the matrix as it is stored."""
    return js.BlockSparse(torch.ones_like(a.values), a.pattern).to_dense() != 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 96), (50, 70)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_norms_of_blocks(device: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Of what is inside of the matrix, and finer than its dtype."""
    pattern = js.Pattern.random(shape, (16, 32), 0.7, device=device)
    # Squares of these overflow in float16.
    values = (5000 * torch.randn(pattern.values_shape)).to(device, dtype)
    a = js.BlockSparse(values, pattern)
    norms, exact = a.block_norms(), a.to_dense().double()
    assert norms.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    padded = torch.nn.functional.pad(exact, (0, -shape[1] % 32, 0, -shape[0] % 16))
    blocks = padded.view(-1, 16, padded.shape[1] // 32, 32).transpose(1, 2)
    wanted = blocks[pattern.row_indices.long(), pattern.col_indices.long()].norm(dim=(1, 2))
    torch.testing.assert_close(norms.double(), wanted, rtol=1e-5, atol=0)
    assert torch.equal(a.T.block_norms(), norms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_norms_of_blocks_whose_squares_leave_the_range(scale: float, dtype: torch.dtype) -> None:
    """They would be ties of zero or infinity, among which the wrong blocks are chosen."""
    values = torch.tensor([1.0, 4.0, 2.0]).view(3, 1, 1).expand(3, 8, 8) * scale
    pattern = js.Pattern.from_indices(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 8, (16, 16))
    norms = js.BlockSparse(values.to(dtype), pattern).block_norms()
    wanted = torch.tensor([8.0, 32.0, 16.0]) * scale
    torch.testing.assert_close(norms, wanted, rtol=torch.finfo(dtype).eps, atol=0)


def test_norms_of_blocks_have_gradients() -> None:
    values = torch.randn(3, 8, 8, dtype=torch.float64, requires_grad=True)
    pattern = js.Pattern.from_mask(torch.tensor([[True, False], [True, True]]), 8, (13, 11))
    assert torch.autograd.gradcheck(lambda v: js.BlockSparse(v, pattern).block_norms(), values)


def test_sums_of_other_matrices_are_refused() -> None:
    a = js.random((64, 64), 32, 0.5)
    for other, says in (
        (js.random((64, 64), 16, 0.5), "b is (64, 64) in blocks of (16, 16) on cpu; build one"),
        (js.random((96, 64), 32, 0.5).T, "b is (64, 96) in blocks of (32, 32) on cpu"),
        (js.random((64, 64), (16, 32), 0.5).T, "b is (64, 64) in blocks of (32, 16) on cpu"),
        (a.to("meta"), "in blocks of (32, 32) on meta; move one of them with .to()"),
    ):
        for sign, combine in (("+", operator.add), ("-", operator.sub)):
            with pytest.raises(ArgumentError, match=re.escape(says)) as caught:
                combine(a, other)
            asked = f"a {sign} b takes operands of one shape, block size and device; a is (64, 64)"
            assert str(caught.value).startswith(asked)
    with pytest.raises(TypeError):
        a + 1  # type: ignore[operator]


def test_functions_of_torch() -> None:
    a = js.random((40, 96), (8, 16), 0.5)
    x, y, bias = torch.randn(96, 5), torch.randn(5, 40), torch.randn(40)
    for multiply in (torch.matmul, torch.mm, lambda p, q: p @ q):
        assert torch.equal(multiply(a, x), js.dsd(a, x))
        assert torch.equal(multiply(y, a), js.dds(y, a))
    assert torch.equal(y.matmul(a), js.dds(y, a))
    assert torch.equal(torch.nn.functional.linear(x.T, a, bias=bias), js.linear(x.T, a, bias))
    assert torch.equal(torch.mv(a, vec=x[:, 0]), a @ x[:, 0])
    assert torch.equal(torch.sparse.mm(a, x), a @ x)
    for function in (torch.add, lambda p, q: torch.einsum("ij,jk->ik", p, q)):
        with pytest.raises(TypeError, match=r"^torch\..* takes no BlockSparse.*; .*a\.to_dense"):
            function(a, x)
    with pytest.raises(AttributeError, match=r"is no Tensor and has no dim\(\); .*a\.to_dense"):
        torch.nn.init.xavier_uniform_(a)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        a.colour  # noqa: B018
    with pytest.raises(TypeError, match=r"^torch\.nn\.functional\.relu takes no BlockSparse"):
        torch.nn.functional.relu(a)


EQUIVALENTS = {
    **dict.fromkeys(("t()", "transpose()", "mT"), "a.T"),
    "half()": "a.to(torch.float16)",
    "bfloat16()": "a.to(torch.bfloat16)",
    "float()": "a.to(torch.float32)",
    "double()": "a.to(torch.float64)",
    "size()": "a.shape",
    "dim()": "a.ndim",
    "numel()": "math.prod(a.shape)",
    **dict.fromkeys(("matmul()", "mm()", "mv()"), "a @ x"),
    "add()": "a + b",
    "sub()": "a - b",
    "mul()": "2 * a",
    "div()": "a / 2",
    "neg()": "-a",
}


@pytest.mark.parametrize(("missing", "use"), EQUIVALENTS.items(), ids=EQUIVALENTS)
def test_what_a_matrix_has_in_place_of_what_a_tensor_has(missing: str, use: str) -> None:
    a, x = js.random((32, 16), 8, 0.5), torch.randn(16, 3)
    says = re.escape(f"has no {missing}; use {use}")
    with pytest.raises(AttributeError, match=rf"{says}(, .*)?\. What leaves zeros zero"):
        getattr(a, missing.removesuffix("()"))
    eval(use, {"a": a, "b": a, "x": x, "torch": torch, "math": math})


def test_what_a_matrix_lacks_without_an_equivalent() -> None:
    a = js.random((32, 16), 8, 0.5)
    for name, said in (("relu", "relu()"), ("grad_fn", "grad_fn")):
        with pytest.raises(AttributeError, match=re.escape(f"has no {said}. What leaves zeros")):
            getattr(a, name)


@pytest.mark.parametrize(
    ("call", "use"),
    [
        (lambda a: torch.add(a, a), "torch.add takes no BlockSparse; use a + b, if both are"),
        (lambda a: torch.sub(a, a), "torch.sub takes no BlockSparse; use a - b, if both are"),
        (lambda a: torch.mul(a, 2), "torch.mul takes no BlockSparse; use 2 * a, if the factor is"),
        (lambda a: torch.t(a), "torch.t takes no BlockSparse; use a.T."),
        (lambda a: torch.relu(a), "torch.relu takes no BlockSparse. torch.matmul, mm, mv"),
    ],
)
def test_what_a_matrix_has_in_place_of_functions_of_torch(
    call: Callable[[js.BlockSparse], object], use: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(use)}"):
        call(js.random((32, 16), 8, 0.5))


def test_functions_of_torch_take_what_they_take_of_tensors() -> None:
    a, x = js.random((32, 16), 8, 0.5), torch.randn(16, 3)
    for call in (
        lambda: torch.mm(a, x[:, 0]),
        lambda: torch.mm(a, x.expand(2, 16, 3)),
        lambda: torch.mm(x[:, 0], a.T),
        lambda: torch.mv(a, x),
        lambda: torch.mv(x, a),
        lambda: torch.sparse.mm(a, x[:, 0]),
    ):
        with pytest.raises(js.ArgumentError, match=r"torch\..*m[mv] takes .*torch.matmul takes"):
            call()


def test_a_dtype_that_values_cannot_have() -> None:
    """Whether or not zeros past an edge have to be written in it."""
    for shape in ((5, 5), (16, 24)):
        with pytest.raises(js.ArgumentError, match=r"values must be float64, .* got torch\.float8"):
            js.random(shape, 8, 1.0).to(torch.float8_e5m2)


def test_operands_that_a_product_cannot_have() -> None:
    a, x = js.random((16, 16), 8, 0.5), torch.randn(16, 16)
    for call, remedy in (
        (lambda: a @ a, "to_dense"),
        (lambda: torch.matmul(a, a), "to_dense"),
        (lambda: a @ x.to_sparse(), "to_dense"),
        (lambda: x.to_sparse() @ a, "to_dense"),
        (lambda: js.dsd(x, x), "from_dense"),
        (lambda: js.dsd(x.to_sparse(), x), "from_sparse"),
        (lambda: js.dsd(x, a), "sparse operand is the first one of dsd"),
        (lambda: js.linear(a, x), "second one of dds and linear"),
    ):
        with pytest.raises(js.ArgumentError, match=remedy):
            call()


def test_a_matrix_is_no_array() -> None:
    np = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"is no array; .*to_dense.*to_scipy"):
        np.asarray(js.random((16, 16), 8, 0.5))


def test_another_class_may_have_functions_of_a_matrix() -> None:
    class Other:
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func

    assert torch.add(js.random((16, 16), 8, 0.5), Other()) is torch.add


def test_other_values_are_read_alike() -> None:
    """And so are other blocks: both are as stored, whichever way the matrix is read."""
    a = js.random((128, 128), 32, 0.5, generator=torch.Generator().manual_seed(1))
    for each in (a, a.T):
        assert torch.equal(each.with_values(each.values.relu()).to_dense(), each.to_dense().relu())
        assert torch.equal(each.with_pattern(each.pattern).to_dense(), each.to_dense())
        strongest = each.pattern.take(each.block_norms().topk(3).indices)
        norms = each.with_pattern(strongest).block_norms()
        assert torch.equal(norms.sort().values, each.block_norms().topk(3).values.flip(0))
    with pytest.raises(js.ArgumentError, match="has 8 blocks"):
        a.with_values(a.values[:3])


def test_padding_stays_none_in_another_dtype() -> None:
    """Where it may be infinite."""
    pattern = js.Pattern.from_mask(torch.ones(1, 1, dtype=torch.bool), 16, (10, 10))
    values = torch.full((1, 16, 16), 1e6)
    values[:, :10, :10] = 1
    half = js.BlockSparse(values, pattern).to(torch.float16)
    assert torch.equal(
        half @ torch.ones(10, 3, dtype=torch.float16), torch.full((10, 3), 10.0).half()
    )


def test_keywords_of_torchs_functions() -> None:
    a, x = js.random((32, 16), 8, 0.5), torch.randn(16, 3)
    assert torch.equal(torch.mm(a, mat2=x), a @ x)
    assert torch.equal(x.T.mm(mat2=a.T), x.T @ a.T)
    assert torch.equal(torch.linalg.matmul(a, x), a @ x)
    with pytest.raises(TypeError, match=r"torch\.matmul takes no out beside a BlockSparse"):
        torch.matmul(a, x, out=torch.empty(32, 3))
