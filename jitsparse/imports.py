"""Calling functions as soon as other code has imported a module.

This module imports neither torch nor others of the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["upon_import"]


def upon_import(name: str, function: Callable[[], object]) -> None:
    """Call a function when a module has been imported, or now if it already is."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Upon(name, function))


class _Upon(MetaPathFinder):
    """Finds a module as usual until it is imported, and calls a function then.

    Finding a module is not importing it: ``importlib.util.find_spec("torch")`` asks as well.
    """

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self._name, self._function = name, function

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((each for each in found if each is not None), None)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                # A new list: a thread iterating over this one would skip a finder.
                sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
                self._function()

            loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
