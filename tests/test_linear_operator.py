"""SciPy's solvers solve with a block-sparse matrix as with any other."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import jitsparse as js
from jitsparse.errors import ArgumentError

linalg = pytest.importorskip("scipy.sparse.linalg")

DTYPES = ["float64", "float32"]


def matrix(dtype: str = "float64") -> js.BlockSparse:
    """Of a shape that is no multiple of the block, and read in transposed order."""
    generator = torch.Generator().manual_seed(0)
    return js.random((90, 50), (16, 8), 0.4, dtype=getattr(torch, dtype), generator=generator).T


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype: str) -> None:
    a = matrix(dtype)
    dense, operator = a.to_dense().numpy(), a.to_linear_operator()
    assert isinstance(operator, linalg.LinearOperator)
    assert (operator.shape, operator.dtype) == ((50, 90), np.dtype(dtype))
    draw = np.random.default_rng(0)
    tolerance = {"rtol": 0, "atol": 1e-12 if dtype == "float64" else 1e-4}
    for columns in ((), (1,), (7,)):
        x, y = (draw.standard_normal((extent, *columns)) for extent in (90, 50))
        whole = (10 * x).astype(int)
        for given, factor, product in (
            (x, dense, operator @ x),
            (y, dense.T, operator.H @ y),
            (y, dense.T, operator.T @ y),
            (np.asfortranarray(x), dense, operator @ np.asfortranarray(x)),
            (x[::-1], dense, operator @ x[::-1]),
            (x + 1j * x[::-1], dense, operator @ (x + 1j * x[::-1])),
            (whole, dense, operator @ whole),
        ):
            np.testing.assert_allclose(product, factor @ given, **tolerance)
            assert product.real.dtype == np.dtype(dtype), "of the matrix, not of the operand"
    assert operator.matvec(np.ones(90)).shape == (50,)
    assert operator.rmatvec(np.ones((50, 1))).shape == (90, 1)
    assert operator.matmat(np.ones((90, 3))).shape == (50, 3)
    assert operator.rmatmat(np.ones((50, 3))).shape == (90, 3)


def test_operands_are_read_only_if_they_were() -> None:
    x = np.ones(90)
    x.setflags(write=False)
    wanted = matrix().to_dense().sum(1).numpy()
    np.testing.assert_allclose(matrix().to_linear_operator() @ x, wanted, atol=1e-12)


def spd(dtype: torch.dtype = torch.float64) -> js.BlockSparse:
    """The Laplacian of a chain, and some more on the diagonal."""
    n = 100
    here, next_one = torch.arange(n), torch.arange(n - 1)
    rows = torch.cat([here, next_one, next_one + 1])
    cols = torch.cat([here, next_one + 1, next_one])
    values = torch.cat([torch.full((n,), 2.5), torch.full((2 * n - 2,), -1.0)]).to(dtype)
    return js.BlockSparse.from_coo(rows, cols, values, (n, n), (8, 16))


@pytest.mark.parametrize("solver", ["cg", "gmres", "minres"])
def test_systems_are_solved(solver: str) -> None:
    a = spd()
    wanted = np.random.default_rng(0).standard_normal(100)
    found, failed = getattr(linalg, solver)(a.to_linear_operator(), a.to_dense().numpy() @ wanted)
    assert failed == 0
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)


def test_a_right_side_in_float64_of_a_matrix_in_float32() -> None:
    a = spd(torch.float32)
    wanted = np.random.default_rng(0).standard_normal(100)
    found, failed = linalg.cg(a.to_linear_operator(), spd().to_dense().numpy() @ wanted)
    assert failed == 0
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_found(dtype: str) -> None:
    a = matrix(dtype)
    tolerance = 1e-9 if dtype == "float64" else 1e-3
    start = np.random.default_rng(0).standard_normal(50).astype(dtype)
    found = linalg.svds(a.to_linear_operator(), k=4, v0=start, return_singular_vectors=False)
    wanted = np.linalg.svd(a.to_dense().numpy(), compute_uv=False)[:4]
    np.testing.assert_allclose(np.sort(found)[::-1], wanted, rtol=tolerance)
    symmetric = spd(getattr(torch, dtype))
    found = linalg.eigsh(
        symmetric.to_linear_operator(),
        k=4,
        v0=np.ones(100, dtype) + np.arange(100, dtype=dtype),
        return_eigenvectors=False,
    )
    wanted = np.linalg.eigvalsh(symmetric.to_dense().numpy())[-4:]
    np.testing.assert_allclose(np.sort(found), wanted, rtol=tolerance)


def test_no_gradients_and_no_autocast() -> None:
    a = matrix("float32").requires_grad_()
    x = np.random.default_rng(0).standard_normal(90).astype("float32")
    operator = a.to_linear_operator()
    expected = operator @ x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(operator @ x, expected)
    assert a.requires_grad
    assert a.grad is None


def test_values_are_shared() -> None:
    a = matrix()
    operator = a.to_linear_operator()
    expected = operator @ np.ones(90)
    a.values.mul_(2)
    np.testing.assert_allclose(operator @ np.ones(90), 2 * expected)


@pytest.mark.parametrize("shape", [(0, 20), (20, 0), (20, 30)])
def test_nothing_stored(shape: tuple[int, int]) -> None:
    operator = js.random(shape, 8, 0.0).to_linear_operator()
    assert np.array_equal(operator @ np.ones(shape[1]), np.zeros(shape[0]))
    assert np.array_equal(operator.H @ np.ones((shape[0], 2)), np.zeros((shape[1], 2)))


def test_what_solvers_cannot_take() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(ArgumentError, match=re.escape("convert with a.to(torch.float32)")):
            js.random((16, 16), 8, 0.5, dtype=dtype).to_linear_operator()
    with pytest.raises(ArgumentError, match=r"is on meta; move it: a\.cpu\(\)\.to_linear_operator"):
        js.random((16, 16), 8, 0.5).to("meta").to_linear_operator()
    with pytest.raises(ValueError, match=r"(?i)dimension mismatch"):
        matrix().to_linear_operator() @ np.ones(50)


@pytest.mark.gpu
def test_a_matrix_on_a_gpu_is_to_be_moved() -> None:
    with pytest.raises(ArgumentError, match=r"is on cuda:0; move it: a\.cpu\(\)"):
        js.random((16, 16), 8, 0.5).cuda().to_linear_operator()
