"""Block-sparse matrices for PyTorch with kernels compiled on first use.

>>> import torch, jitsparse as js
>>> a = js.random((256, 128), block_size=32, density=0.25)
>>> (a @ torch.randn(128, 10)).shape
torch.Size([256, 10])

Importing compiles nothing, prints nothing, writes nothing and makes no CUDA context.
"""

from __future__ import annotations

from jitsparse import nn
from jitsparse.errors import (
    ArgumentError,
    BundleError,
    CacheMiss,
    CompileError,
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
from jitsparse.explain import explain
from jitsparse.functional import dds, dsd, linear, sdd
from jitsparse.jit import cache_info, clear_cache, pin
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
    "linear",
    "nn",
    "pin",
    "random",
    "sdd",
    "tune",
    "warmup",
]
