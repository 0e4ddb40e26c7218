"""The trivial Triton kernel whose launch is the yardstick of host time on a GPU.

Alone in a module because Triton reads the kernel's source file, and because it may be missing.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["touch"]


@triton.jit  # type: ignore[untyped-decorator]
def touch(left, right, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = left + right, one program."""
    offsets = tl.arange(0, BLOCK)
    inside = offsets < n
    left_values = tl.load(left + offsets, mask=inside)
    right_values = tl.load(right + offsets, mask=inside)
    tl.store(out + offsets, left_values + right_values, mask=inside)
