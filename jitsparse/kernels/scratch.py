"""Where CPU kernels leave the memory that they pack operands to, for the next call to find.

One word for all of them, which knows of one block of memory at most (``csrc/cpu/parallel.h``): as
large as the largest call needed, up to 64 MB. Calls at the same time allocate theirs.
"""

from __future__ import annotations

import ctypes

__all__ = ["SCRATCH_WORD"]

_word = ctypes.c_void_p()

SCRATCH_WORD = ctypes.addressof(_word)
"""Address of the word, for the workspace of a call."""
