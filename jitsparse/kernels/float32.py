"""How torch is asked to multiply float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["float32_as", "float32_dtype"]

# torch 2.9 and later. Of the two ways to set it, the older one refuses to answer once the newer one
# has been used. The public property takes 0.9 us per call, this 0.1.
_fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", None)

_ON_CPU = {"tf32": "tf32", "bf16": "bf32"}
_ON_GPU = {"tf32": "tf32"}
_OLDER = {"tf32": "high", "bf32": "medium"}
"""The setting of all devices that asks for problems of a dtype, before torch 2.9."""


def float32_dtype(device: int) -> str:
    """The dtype of problems in float32, by what torch's float32 matmul precision asks for.

    That is ``"f32"``, ``"tf32"`` or, on a CPU, ``"bf32"``: elements rounded to bfloat16.

    Args:
        device: index of the GPU; -1 for the CPU.
    """
    if _fp32_precision is None:
        asked = torch.get_float32_matmul_precision()
        if device < 0:
            # Not "high", which is also what torch.backends.cuda.matmul.allow_tf32 sets.
            return "bf32" if asked == "medium" else "f32"
        return "f32" if asked == "highest" else "tf32"
    if device < 0:
        return _ON_CPU.get(_fp32_precision("mkldnn", "matmul"), "f32")
    return _ON_GPU.get(_fp32_precision("cuda", "matmul"), "f32")


@contextmanager
def float32_as(dtype: str, device: str) -> Iterator[None]:
    """Have torch multiply float32 as for problems of a dtype; in full precision by default.

    Args:
        dtype: of a problem on that device.
        device: ``"cpu"`` or ``"cuda"``; before torch 2.9 all devices follow.
    """
    if _fp32_precision is None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(_OLDER.get(dtype, "highest"))
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    on_gpu = device == "cuda"
    backend: Any = torch.backends.cuda if on_gpu else torch.backends.mkldnn
    names = {means: name for name, means in (_ON_GPU if on_gpu else _ON_CPU).items()}
    before = backend.matmul.fp32_precision
    backend.matmul.fp32_precision = names.get(dtype, "ieee")
    try:
        yield
    finally:
        # If it was inherited, it shall follow the setting of all devices again.
        backend.matmul.fp32_precision = "none"
        if backend.matmul.fp32_precision != before:
            backend.matmul.fp32_precision = before
