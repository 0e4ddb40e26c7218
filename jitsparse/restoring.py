"""What the pickle of a pattern or a matrix calls, also in ``torch.load``, which reads no more than
tensors and what it has been told is safe: these two check all that a file brings.

This module imports neither torch nor others of the package, so that torch can be told as soon as
both it and the package are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
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
    """Have ``torch.load(..., weights_only=True)`` call these functions: now if torch is imported,
    or else when it is, since a program may use no name of this package before it loads a file."""
    serialization = getattr(sys.modules.get("torch"), "serialization", None)
    if serialization is not None:
        serialization.add_safe_globals([restore_pattern, restore_matrix])
    elif "torch" not in sys.modules:
        sys.meta_path.insert(0, _UponTorch())


class _UponTorch(MetaPathFinder):
    """Finds torch as it would be found anyway, until it is imported, and has that told.

    To look for torch is not to import it: ``importlib.util.find_spec("torch")`` asks as well.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((each for each in found if each is not None), None)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                # A new list: a thread that is going through this one would pass over a finder.
                sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
                allow()

            loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
