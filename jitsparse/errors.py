"""The exceptions that jitsparse defines.

    JitsparseError
    ├── PatternError(ValueError)         an invalid pattern: indices, shape, block size, dtype
    ├── ArgumentError(ValueError)        operands that do not fit: shape, blocks, dtype, device
    ├── PinError(ValueError)             a pinned variant that does not exist or is not legal here
    ├── ConfigError(ValueError)          an illegal setting or template
    ├── UnsupportedProblem(NotImplementedError)   no kernel family covers this problem
    ├── ToolchainError(RuntimeError)     no kernel can be built or used here: no compiler, no room
    │   └── CompilerNotFound             no C++ compiler, or no ninja
    ├── CompileError(RuntimeError)       a template did not compile; carries the first error
    ├── CacheMiss(RuntimeError)          a kernel is not cached and must not be compiled here
    ├── UntrustedCache(RuntimeError)     a cache directory that other users can write to
    ├── UnwritableCache(OSError)         a cache that cannot be changed as requested
    ├── BundleError(RuntimeError)        a bundle of kernels that cannot be read or written
    └── LaunchError(RuntimeError)        a compiled kernel reported a failure

A message says what was requested, what was found and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "BundleError",
    "CacheMiss",
    "CompileError",
    "CompilerNotFound",
    "ConfigError",
    "JitsparseError",
    "LaunchError",
    "PatternError",
    "PinError",
    "ToolchainError",
    "UnsupportedProblem",
    "UntrustedCache",
    "UnwritableCache",
]


class JitsparseError(Exception):
    """Root of all jitsparse errors."""


class PatternError(JitsparseError, ValueError):
    """A pattern that is not a valid block-sparse pattern."""


class ArgumentError(JitsparseError, ValueError):
    """Operands that do not fit the operation or each other: shape, block size, dtype or device."""


class PinError(JitsparseError, ValueError):
    """A pinned variant that does not exist or is not legal for the problem."""


class ConfigError(JitsparseError, ValueError):
    """An illegal setting of the environment or the program, or an illegal template or context."""


class UnsupportedProblem(JitsparseError, NotImplementedError):
    """No kernel family covers the problem."""


class ToolchainError(JitsparseError, RuntimeError):
    """Kernels cannot be built or used here: no usable compiler, no space, a bad path or library.

    The message names what was searched, and what to do.
    """


class CompilerNotFound(ToolchainError):
    """There is no C++ compiler, or no ninja: calls on a CPU then run on plain torch."""


class CompileError(JitsparseError, RuntimeError):
    """A template that does not compile or cannot be rendered.

    Attributes:
        variant: name of the variant that was being built.
        log_path: file holding the compiler's whole output.
        source_path: the rendered source.
        command: shell command that reproduces the failure.
    """

    def __init__(
        self,
        message: str,
        *,
        variant: str = "",
        log_path: str = "",
        source_path: str = "",
        command: str = "",
    ) -> None:
        super().__init__(message)
        self.variant = variant
        self.log_path = log_path
        self.source_path = source_path
        self.command = command


class CacheMiss(JitsparseError, RuntimeError):
    """A kernel that is not in the cache at a moment when nothing may be compiled."""


class UntrustedCache(JitsparseError, RuntimeError):
    """A cache directory that other users can write to, and so choose which code is run."""


class UnwritableCache(JitsparseError, OSError):
    """A cache that cannot be changed as requested: it is read-only, or there is no space."""


class BundleError(JitsparseError, RuntimeError):
    """A bundle of compiled kernels that cannot be written, or a file that is not a bundle."""


class LaunchError(JitsparseError, RuntimeError):
    """A kernel that was launched and reported a failure."""
