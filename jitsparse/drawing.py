"""Drawing some of many numbers at random, for the blocks of a random pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["draw"]

_SHUFFLED = 1 << 24
"""Totals up to which all numbers are shuffled."""


def draw(total: int, count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """``count`` distinct numbers below ``total``, sorted; all choices equally likely.

    A few of very many are not drawn by shuffling all, which may not fit into memory.
    """
    make: dict[str, Any] = {"generator": generator, "device": device}
    if total <= _SHUFFLED or 4 * count > total or device.type == "meta":
        return torch.randperm(total, **make)[:count].sort().values
    # The numbers drawn until there are enough are a uniformly random set of their size, and so is a
    # random subset of them.
    drawn = torch.empty(0, dtype=torch.int64, device=device)
    while drawn.numel() < count:
        missing = count - drawn.numel()
        more = torch.randint(total, (missing + missing // 4 + 16,), **make)
        drawn = torch.cat([drawn, more]).unique()
    kept = torch.randperm(drawn.numel(), **make)[:count].sort().values
    return drawn[kept]
