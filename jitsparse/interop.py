"""Converting BSR matrices of torch and of SciPy to values on a pattern, and back.

SciPy's matrices in other formats have no blocks: :mod:`jitsparse.entries` gathers their elements
into blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jitsparse.checks import as_block_size
from jitsparse.entries import from_coo
from jitsparse.errors import ArgumentError, PatternError
from jitsparse.pattern import Pattern

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import bsr_array

__all__ = ["from_bsr", "from_numpy", "from_scipy", "refuse_array", "to_bsr", "to_scipy"]


def from_bsr(tensor: Tensor) -> tuple[Tensor, Pattern]:
    """Values and pattern of :meth:`BlockSparse.from_bsr <jitsparse.BlockSparse.from_bsr>`."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            f"from_bsr takes a torch tensor, got {type(tensor).__name__}; from_scipy takes "
            "scipy's matrices"
        )
    if tensor.layout is not torch.sparse_bsr or tensor.dim() != 2:
        remedy = "convert with tensor.to_sparse_bsr(block_size)"
        if tensor.layout is torch.sparse_bsr:
            remedy = "take the matrices of a batch one by one"
        raise ArgumentError(
            f"from_bsr takes a 2-d tensor of layout torch.sparse_bsr, got {tensor.layout} of "
            f"shape {tuple(tensor.shape)}; {remedy}"
        )
    values = tensor.values()
    pattern = Pattern(
        tuple(tensor.shape), values.shape[1:], tensor.crow_indices(), tensor.col_indices()
    )
    return values, pattern


def to_bsr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch BSR tensor of whole blocks in row-major order, sharing all three tensors."""
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        # Without ``device`` it would be on torch's default device.
        return torch.sparse_bsr_tensor(crow, col, values, size=shape, device=values.device)


def from_scipy(
    matrix: Any, block_size: int | Sequence[int] | None = None
) -> tuple[Tensor, Pattern]:
    """Values and pattern of :meth:`BlockSparse.from_scipy <jitsparse.BlockSparse.from_scipy>`."""
    block = None if block_size is None else as_block_size(block_size)
    _check_scipy(matrix, block)
    if matrix.format == "bsr" and block in (None, tuple(matrix.blocksize)):
        return _from_scipys_blocks(matrix)
    return from_coo(*_elements(matrix), matrix.shape, block)  # type: ignore[arg-type]  # checked


def _check_scipy(matrix: Any, block: tuple[int, int] | None) -> None:
    name, form = type(matrix).__name__, getattr(matrix, "format", None)
    if not isinstance(form, str) or not hasattr(matrix, "tocoo"):
        raise ArgumentError(
            f"from_scipy takes an array or a matrix of scipy.sparse, got {name}; of what NumPy "
            "has, from_dense(torch.from_numpy(x), block_size=32)"
        )
    if len(matrix.shape) != 2:
        raise ArgumentError(f"from_scipy takes a matrix, got {name} of shape {matrix.shape}")
    if matrix.dtype.kind in "iub":
        raise ArgumentError(
            f"values must be floating-point, got {name} of {matrix.dtype}; convert with "
            "matrix.astype('float32')"
        )
    if block is None and form != "bsr":
        raise ArgumentError(
            f"from_scipy takes the blocks of a bsr_array as they are, and a {name} has none; say "
            "which: from_scipy(matrix, block_size=32)"
        )


def _elements(matrix: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of what a SciPy matrix stores."""
    if hasattr(matrix, "indptr") and len(matrix.indices) != matrix.indptr[-1]:
        # Spare capacity at the end, which tocoo would turn into elements.
        matrix = matrix.copy()
        matrix.prune()
    entries = matrix.tocoo()
    rows, cols, values = (from_numpy(each) for each in (entries.row, entries.col, entries.data))
    return rows, cols, values


def _from_scipys_blocks(matrix: Any) -> tuple[Tensor, Pattern]:
    try:
        as_block_size(matrix.blocksize)
    except PatternError as error:
        raise PatternError(
            f"{error}. from_scipy(matrix, block_size=32) puts its elements into other blocks"
        ) from None
    if not matrix.has_sorted_indices:
        matrix = matrix.sorted_indices()
    # SciPy allows spare capacity at the end. It edits its indices in place (eliminate_zeros, say),
    # and a pattern never changes.
    stored = slice(matrix.indptr[-1])
    crow, col = (from_numpy(each).clone() for each in (matrix.indptr, matrix.indices[stored]))
    if crow.dtype != col.dtype:
        crow, col = crow.long(), col.long()
    return from_numpy(matrix.data[stored]), Pattern(matrix.shape, matrix.blocksize, crow, col)


def to_scipy(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> bsr_array:
    """A SciPy matrix of whole blocks in row-major order, sharing values on the CPU.

    Raises:
        ArgumentError: if SciPy has no such dtype.
        ImportError: SciPy is not installed.
    """
    try:
        from scipy.sparse import bsr_array
    except ImportError as error:
        raise ImportError(
            f"to_scipy needs SciPy ({error}): pip install 'jitsparse[interop]'"
        ) from error

    if values.dtype not in (torch.float64, torch.float32):
        raise ArgumentError(
            f"scipy.sparse has no {values.dtype}; convert with a.to(torch.float32) first"
        )
    data = values.detach().cpu().numpy()
    # Copies, since SciPy edits them in place and other matrices may have the same pattern.
    indices, indptr = (each.to("cpu", copy=True).numpy() for each in (col, crow))
    return bsr_array((data, indices, indptr), shape=shape, copy=False)


def refuse_array(call: str, operand: object) -> None:
    """Raise TypeError with a remedy if the operand is a NumPy array or a SciPy matrix.

    Their own errors would be about ufuncs and dtype object.
    """
    # If there is one, its library has been imported.
    numpy, sparse = sys.modules.get("numpy"), sys.modules.get("scipy.sparse")
    name = type(operand).__name__
    if sparse is not None and sparse.issparse(operand):
        raise TypeError(
            f"{call} takes a Tensor, got {name}; convert with torch.from_numpy(x.toarray()), or "
            "multiply in SciPy, with a.to_scipy()"
        )
    if numpy is not None and isinstance(operand, numpy.ndarray):
        raise TypeError(f"{call} takes a Tensor, got {name}; convert with torch.from_numpy(x)")


def from_numpy(array: np.ndarray) -> Tensor:
    """An array as a tensor: sharing its memory, or a copy where torch cannot share it."""
    import numpy as np

    try:
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except TypeError as error:
        raise ArgumentError(
            f"torch has no {array.dtype}; convert with matrix.astype(...)"
        ) from error
