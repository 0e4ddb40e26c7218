"""What torch's ``FlopCounterMode`` counts for the registered operations.

Two for each product with a stored element, none for the zeros between blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from jitsparse.imports import upon_import

__all__ = ["register"]

Shape = Sequence[int]


def register() -> None:
    """Tell torch, once, when its counter is imported; call it after registering the operations.

    Importing the counter imports Triton in a CUDA build, 155 ms.
    """
    upon_import("torch.utils.flop_counter", _tell)


def _tell() -> None:
    from torch.utils.flop_counter import register_flop_formula

    for name, formula in (("dsd", _dsd), ("dds", _dds), ("sdd", _sdd)):
        register_flop_formula(getattr(torch.ops.jitsparse, name))(formula)


def _dsd(values: Shape, index: Shape, dense: Shape, *_: Any, **__: Any) -> int:
    return 2 * math.prod(values) * math.prod(dense[:-2]) * dense[-1]


def _dds(dense: Shape, values: Shape, *_: Any, **__: Any) -> int:
    return 2 * math.prod(values) * math.prod(dense[:-1])


def _sdd(left: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * math.prod(out_shape) * math.prod(left[:-2]) * left[-1]
