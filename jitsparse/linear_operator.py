"""A matrix as an operator for SciPy's iterative solvers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jitsparse.errors import ArgumentError
from jitsparse.interop import from_numpy

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse.linalg import LinearOperator

    from jitsparse.sparse import BlockSparse

__all__ = ["linear_operator"]

_DTYPES = {torch.float64: "float64", torch.float32: "float32"}
"""Dtypes in which SciPy's solvers compute, and their names in NumPy."""


def linear_operator(matrix: BlockSparse) -> LinearOperator:
    """What :meth:`BlockSparse.to_linear_operator <jitsparse.BlockSparse.to_linear_operator>`
    returns."""
    try:
        from scipy.sparse.linalg import LinearOperator
    except ImportError as error:
        raise ImportError(
            f"to_linear_operator needs SciPy ({error}): pip install 'jitsparse[interop]'"
        ) from error

    if matrix.device.type != "cpu":
        raise ArgumentError(
            f"SciPy's solvers compute on the CPU, and the matrix is on {matrix.device}; move it: "
            "a.cpu().to_linear_operator()"
        )
    if matrix.dtype not in _DTYPES:
        raise ArgumentError(
            f"SciPy's solvers have no {matrix.dtype}; convert with a.to(torch.float32) first"
        )
    constant = matrix.detach()

    def forward(x: np.ndarray) -> np.ndarray:
        return _product(constant, x)

    def adjoint(x: np.ndarray) -> np.ndarray:
        return _product(constant.T, x)

    return LinearOperator(
        matrix.shape,
        matvec=forward,
        rmatvec=adjoint,
        matmat=forward,
        rmatmat=adjoint,
        dtype=_DTYPES[matrix.dtype],
    )


def _product(matrix: BlockSparse, x: np.ndarray) -> np.ndarray:
    """``matrix @ x`` for ``(k,)`` or ``(k, n)``, in the dtype of the matrix.

    Real and imaginary parts are multiplied separately.
    """
    import numpy as np

    if np.iscomplexobj(x):
        return _product(matrix, x.real) + 1j * _product(matrix, x.imag)
    operand = from_numpy(np.asarray(x, dtype=_DTYPES[matrix.dtype]))
    with torch.autocast("cpu", enabled=False):  # it would round operands
        return (matrix @ operand).numpy()
