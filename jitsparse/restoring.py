"""Functions that the pickle of a pattern or a matrix calls, in ``torch.load`` too.

``torch.load`` reads only tensors and what is registered as safe: these two check everything in a
file. This module imports neither torch nor modules that do, so that torch can be told as soon as
both it and the package are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitsparse.imports import upon_import

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
        PatternError: they are not, or cannot be checked.
    """
    from jitsparse.errors import PatternError
    from jitsparse.pattern import Pattern

    if _is_loading_legacy():
        raise PatternError(
            "a pattern cannot be loaded from torch's legacy file format, which brings the data of "
            "tensors after all that is made of them: save it with torch.save's default, "
            "_use_new_zipfile_serialization=True"
        )
    return Pattern(shape, block_size, crow_indices, col_indices)


def restore_matrix(values: Tensor, pattern: Pattern, transposed: bool) -> BlockSparse:
    """The matrix, if the values fit the pattern.

    Raises:
        ArgumentError: they do not.
    """
    from jitsparse.sparse import BlockSparse

    matrix = BlockSparse(values, pattern)
    return matrix.T if transposed else matrix


def _is_loading_legacy() -> bool:
    """Whether torch is reading a file whose tensors are uninitialised memory so far."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        called = frame.f_globals.get("__name__"), frame.f_code.co_name
        if called == ("torch.serialization", "_legacy_load"):
            return True
    return False


def allow() -> None:
    """Have ``torch.load(..., weights_only=True)`` call these functions.

    Now if torch is imported, else when it is, since a program may use no name of this package
    before it loads a file.
    """
    upon_import("torch", _tell)


def _tell() -> None:
    serialization = getattr(sys.modules["torch"], "serialization", None)
    if serialization is not None:  # torch is not in the middle of its own import
        serialization.add_safe_globals([restore_pattern, restore_matrix])
