"""Block-sparse matrices for PyTorch with kernels compiled on first use.

>>> import torch, jitsparse as js
>>> a = js.random((256, 128), block_size=32, density=0.25)
>>> (a @ torch.randn(128, 10)).shape
torch.Size([256, 10])

Importing compiles nothing, prints nothing, writes nothing and makes no CUDA context. Torch
itself is imported, and the operations are registered, when the first public name is used: so
``jitsparse doctor`` can say what is wrong with a torch that cannot be imported, and commands that
need no torch start at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from jitsparse import restoring
from jitsparse.errors import (
    ArgumentError,
    BundleError,
    CacheMiss,
    CompileError,
    CompilerNotFound,
    ConfigError,
    JitsparseError,
    LaunchError,
    PatternError,
    PinError,
    ToolchainError,
    UnsupportedProblem,
    UntrustedCache,
    UnwritableCache,
)
from jitsparse.jit import cache_info, clear_cache, first_use, pin

if TYPE_CHECKING:
    from jitsparse import nn
    from jitsparse.explain import explain
    from jitsparse.functional import dds, dsd, linear, sdd
    from jitsparse.pattern import Pattern
    from jitsparse.sparse import BlockSparse, random
    from jitsparse.tune import tune
    from jitsparse.warmup import warmup

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BlockSparse",
    "BundleError",
    "CacheMiss",
    "CompileError",
    "CompilerNotFound",
    "ConfigError",
    "JitsparseError",
    "LaunchError",
    "Pattern",
    "PatternError",
    "PinError",
    "ToolchainError",
    "UnsupportedProblem",
    "UntrustedCache",
    "UnwritableCache",
    "cache_info",
    "clear_cache",
    "dds",
    "dsd",
    "explain",
    "first_use",
    "linear",
    "nn",
    "pin",
    "random",
    "sdd",
    "tune",
    "warmup",
]

_MODULES = {
    "explain": ("explain",),
    "functional": ("dds", "dsd", "linear", "sdd"),
    "pattern": ("Pattern",),
    "sparse": ("BlockSparse", "random"),
    "tune": ("tune",),
    "warmup": ("warmup",),
}
"""Modules that import torch, and the public names that they define."""


class _Package(ModuleType):
    """This package, three of whose functions are named like the module that defines them."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing a submodule binds it here under its name, which is the function's.
        if isinstance(value, ModuleType) and name in _MODULES.get(name, ()):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
restoring.allow()

if not TYPE_CHECKING:  # or type checkers would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name in __all__:
            package = sys.modules[__name__]
            for module, names in _MODULES.items():
                loaded = importlib.import_module(f"{__name__}.{module}")
                for each in names:
                    setattr(package, each, getattr(loaded, each))
            importlib.import_module(f"{__name__}.nn")
            return vars(package)[name]
        if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        special = (name for name in globals() if name.startswith("__"))
        return sorted({*special, *__all__, "errors", "jit"})
