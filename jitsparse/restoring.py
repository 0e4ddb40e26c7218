"""What the pickle of a pattern or a matrix calls, also in ``torch.load``, which reads no more than
tensors and what it has been told is safe: these two judge all that a file brings.

This module imports neither torch nor others of the package, so that torch can be told as soon as
the package is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from jitsparse.pattern import Pattern
    from jitsparse.sparse import BlockSparse

__all__ = ["allow", "restore_matrix", "restore_pattern"]


def restore_pattern(
    shape: Sequence[int], block_size: Sequence[int], crow_indices: Tensor, col_indices: Tensor
) -> Pattern:
    """The pattern, if the indices are legal.

    Raises:
        PatternError: they are not.
    """
    from jitsparse.pattern import Pattern

    return Pattern(shape, block_size, crow_indices, col_indices)


def restore_matrix(values: Tensor, pattern: Pattern, transposed: bool) -> BlockSparse:
    """The matrix, if the values fit the pattern.

    Raises:
        ArgumentError: they do not.
    """
    from jitsparse.sparse import BlockSparse

    matrix = BlockSparse(values, pattern)
    return matrix.T if transposed else matrix


def allow() -> None:
    """Have ``torch.load(..., weights_only=True)`` call these functions, if torch is imported."""
    serialization = getattr(sys.modules.get("torch"), "serialization", None)
    if serialization is not None:
        serialization.add_safe_globals([restore_pattern, restore_matrix])
