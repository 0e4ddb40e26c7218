"""BSR matrices of torch and of SciPy: what they hold as values on a pattern, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jitsparse.errors import ArgumentError
from jitsparse.pattern import Pattern

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import bsr_array

__all__ = ["from_bsr", "from_scipy", "to_bsr", "to_scipy"]


def from_bsr(tensor: Tensor) -> tuple[Tensor, Pattern]:
    """What :meth:`BlockSparse.from_bsr <jitsparse.BlockSparse.from_bsr>` makes a matrix of."""
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
    """A torch BSR tensor of whole blocks in row-major order, which shares all three."""
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        # Without a device it would be torch's default one.
        return torch.sparse_bsr_tensor(crow, col, values, size=shape, device=values.device)


def from_scipy(matrix: Any) -> tuple[Tensor, Pattern]:
    """What :meth:`BlockSparse.from_scipy <jitsparse.BlockSparse.from_scipy>` makes a matrix of."""
    if getattr(matrix, "format", None) != "bsr":
        raise ArgumentError(
            f"from_scipy takes a scipy.sparse bsr_array or bsr_matrix, got "
            f"{type(matrix).__name__}; convert with matrix.tobsr(blocksize=(32, 32))"
        )
    if not matrix.has_sorted_indices:
        matrix = matrix.sorted_indices()
    # SciPy allows for room at the end. It edits its indices in place (eliminate_zeros, say), and a
    # pattern never changes.
    stored = slice(matrix.indptr[-1])
    crow, col = (_from_numpy(each).clone() for each in (matrix.indptr, matrix.indices[stored]))
    if crow.dtype != col.dtype:
        crow, col = crow.long(), col.long()
    return _from_numpy(matrix.data[stored]), Pattern(matrix.shape, matrix.blocksize, crow, col)


def to_scipy(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> bsr_array:
    """A SciPy matrix of whole blocks in row-major order, which shares values on the CPU.

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
    # Its own, since SciPy edits them in place and the pattern may be that of other matrices.
    indices, indptr = (each.to("cpu", copy=True).numpy() for each in (col, crow))
    return bsr_array((data, indices, indptr), shape=shape, copy=False)


def _from_numpy(array: np.ndarray) -> Tensor:
    """An array as a tensor: in its memory, or in a copy where torch cannot have it so."""
    import numpy as np

    try:
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except TypeError as error:
        raise ArgumentError(
            f"torch has no {array.dtype}; convert with matrix.astype(...)"
        ) from error
