"""Drawing some of many numbers at random, as the blocks of a random pattern are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["draw"]

_SHUFFLED = 1 << 24
"""Numbers of which all are shuffled."""


def draw(total: int, count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """``count`` different numbers below ``total`` in order, all choices equally likely.

    Few of very many are not drawn by shuffling all, for which there need not be the memory.
    """
    make: dict[str, Any] = {"generator": generator, "device": device}
    if total <= _SHUFFLED or 4 * count > total or device.type == "meta":
        return torch.randperm(total, **make)[:count].sort().values
    # What is drawn until there are enough is any set of its size, and so is what a random choice
    # leaves of it.
    drawn = torch.empty(0, dtype=torch.int64, device=device)
    while drawn.numel() < count:
        missing = count - drawn.numel()
        more = torch.randint(total, (missing + missing // 4 + 16,), **make)
        drawn = torch.cat([drawn, more]).unique()
    kept = torch.randperm(drawn.numel(), **make)[:count].sort().values
    return drawn[kept]
