"""How torch's float32 matmul precision asks to multiply float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from jitsparse.kernels.problem import LESS_PRECISE

__all__ = ["float32_arithmetic", "float32_as"]

# torch 2.9 and later. Of the two ways to set it, the older one refuses to answer once the newer one
# has been used. The public property takes 0.9 us per call, this 0.1.
_fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", None)


_ON_CPU = {"tf32": "tf32", "bf16": "bf32", "high": "tf32", "medium": "bf32"}
"""The arithmetic that precisions of torch ask for on a CPU, by their newer and older names."""


def float32_arithmetic(device: int) -> str:
    """The dtype of problems in float32, by what torch's float32 matmul precision asks for.

    That is ``"f32"``, ``"tf32"`` or, on a CPU, ``"bf32"``: elements rounded to bfloat16.

    Args:
        device: index of the GPU; -1 for the CPU.
    """
    if _fp32_precision is None:
        asked = torch.get_float32_matmul_precision()
        if device < 0:
            return _ON_CPU.get(asked, "f32")
        return "f32" if asked == "highest" else "tf32"
    if device < 0:
        return _ON_CPU.get(_fp32_precision("mkldnn", "matmul"), "f32")
    return "tf32" if _fp32_precision("cuda", "matmul") == "tf32" else "f32"


@contextmanager
def float32_as(dtype: str) -> Iterator[None]:
    """Have torch multiply float32 as for problems of a dtype; in full precision by default.

    For ``"bf32"`` a GPU multiplies TF32.
    """
    if _fp32_precision is None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision({"tf32": "high", "bf32": "medium"}.get(dtype, "highest"))
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    on_gpu: Any = torch.backends.cuda.matmul
    on_cpu: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    asked = on_gpu.fp32_precision, on_cpu.fp32_precision
    on_gpu.fp32_precision = "tf32" if dtype in LESS_PRECISE else "ieee"
    on_cpu.fp32_precision = {"tf32": "tf32", "bf32": "bf16"}.get(dtype, "ieee")
    try:
        yield
    finally:
        on_gpu.fp32_precision, on_cpu.fp32_precision = asked
