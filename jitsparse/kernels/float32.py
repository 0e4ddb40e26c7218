"""How torch multiplies float32 on a GPU: in full precision or as TF32."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["float32_arithmetic", "float32_as"]

# torch 2.9 and later. Of the two ways to set it, the older one refuses to answer once the newer one
# has been used. The public property takes 0.9 us per call, this 0.1.
_fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", None)


def float32_arithmetic() -> str:
    """Name of the arithmetic that torch's float32 matmul precision asks for on a GPU."""
    if _fp32_precision is not None:
        return "tf32" if _fp32_precision("cuda", "matmul") == "tf32" else "f32"
    return "f32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@contextmanager
def float32_as(dtype: str) -> Iterator[None]:
    """Have torch multiply float32 on a GPU as TF32 for ``"tf32"``, in full precision otherwise."""
    ask: Callable[[str], None]
    if _fp32_precision is not None:
        matmul: Any = torch.backends.cuda.matmul
        ask, before = functools.partial(setattr, matmul, "fp32_precision"), matmul.fp32_precision
        names = "tf32", "ieee"
    else:
        ask, before = torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()
        names = "high", "highest"
    ask(names[0] if dtype == "tf32" else names[1])
    try:
        yield
    finally:
        ask(before)
