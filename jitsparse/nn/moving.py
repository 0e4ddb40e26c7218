"""What an optimizer knows of a layer's blocks goes where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from jitsparse.errors import ArgumentError

__all__ = ["move_state", "require_trained"]


def require_trained(values: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Judge optimizers that are to follow a layer's values.

    Raises:
        ArgumentError: one is no optimizer, or does not train them.
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                "set_pattern(pattern, *optimizers) takes optimizers, got "
                f"{type(optimizer).__name__}"
            )
        if not any(each is values for group in optimizer.param_groups for each in group["params"]):
            raise ArgumentError(
                f"set_pattern(pattern, *optimizers): this {type(optimizer).__name__} does not "
                "train the layer's values"
            )


def move_state(
    values: nn.Parameter,
    optimizers: Sequence[torch.optim.Optimizer],
    shape: torch.Size,
    moved: Callable[[Tensor], Tensor],
) -> None:
    """Move the state that has an entry for each value: momentum, running averages. What else there
    is, such as counts of steps, stays.

    Args:
        values: whose state it is.
        optimizers: that may have some.
        shape: that values had.
        moved: gives the new state for the old.
    """
    for optimizer in optimizers:
        state = optimizer.state.get(values, {})
        for name, old in state.items():
            if isinstance(old, Tensor) and old.shape == shape:
                new = moved(old)
                # In its memory where it fits, which a captured graph of the step may know.
                state[name] = old.copy_(new) if new.shape == old.shape else new
