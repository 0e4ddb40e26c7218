"""Scratch memory that CPU kernels pack operands into, kept for the next call to find.

One pointer for all of them, to at most one block of memory (``csrc/cpu/parallel.h``): as large as
the largest call needed, up to 64 MB. Concurrent calls allocate their own.
"""

from __future__ import annotations

import ctypes

__all__ = ["SCRATCH_WORD"]

_word = ctypes.c_void_p()

SCRATCH_WORD = ctypes.addressof(_word)
"""Address of the pointer, for the workspace of a call."""
