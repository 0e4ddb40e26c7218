"""An optimizer's state of each block follows when the blocks of a layer move."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jitsparse.blocks import gather_blocks
from jitsparse.errors import ArgumentError

__all__ = ["Moves", "moves_of", "require_trained", "trains"]

Moves = list[tuple[dict[str, Any], str, Tensor]]
"""Entries of states, and what they will be."""


def require_trained(values: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Check optimizers that are to follow a layer's values.

    Raises:
        ArgumentError: one is no optimizer, or does not train them.
    """
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"set_pattern(pattern, *optimizers) takes optimizers, got {name}")
        if not trains(optimizer, values):
            raise ArgumentError(
                f"set_pattern(pattern, *optimizers): this {name} does not train the layer's values"
            )


def trains(optimizer: torch.optim.Optimizer, values: nn.Parameter) -> bool:
    """Whether an optimizer has a parameter."""
    return bool(_groups(values, optimizer))


def moves_of(
    values: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer], places: Tensor
) -> Moves:
    """What becomes of all state that has an entry for each block: momentum, running averages, also
    of rows and columns of blocks. New blocks begin with zeros, steps of Rprop with the learning
    rate, as those of a new parameter do. Nothing is changed yet, so what fails changes nothing.

    Args:
        values: whose state it is.
        optimizers: that may have some.
        places: of each new block among the old ones.

    Raises:
        ArgumentError: an optimizer keeps something in which no block has a place of its own.
    """
    moves: Moves = []
    seen: dict[int, Tensor] = {}  # an optimizer beside one that wraps it has the same tensors
    for optimizer in optimizers:
        # ZeroRedundancyOptimizer keeps no state itself.
        inner = getattr(optimizer, "optim", optimizer)
        state = inner.state.get(_holder(values, inner), {})
        for key, kept in state.items():
            if isinstance(kept, Tensor) and kept.dim() > 1 and kept.shape[0] == values.shape[0]:
                if id(kept) not in seen:
                    moved = gather_blocks(kept, places)
                    if isinstance(inner, torch.optim.Rprop) and key == "step_size":
                        new = (places == values.shape[0]).view(-1, 1, 1)
                        moved = moved.masked_fill(new, _groups(values, optimizer)[0]["lr"])
                    seen[id(kept)] = moved
                moves.append((state, key, seen[id(kept)]))
            elif not _is_of_no_block(kept):
                kind = type(kept).__name__
                what = f"of shape {tuple(kept.shape)}" if isinstance(kept, Tensor) else f"a {kind}"
                raise ArgumentError(
                    f"set_pattern(pattern, *optimizers): an optimizer keeps {key!r} of the layer's "
                    f"values, {what}, in which no block has a place of its own; move the layer "
                    "without that optimizer, and drop its state of values"
                )
    return moves


def _is_of_no_block(kept: object) -> bool:
    """Whether an entry of a state is numbers, such as a count of steps, and names alone."""
    if isinstance(kept, (list, tuple)):
        return all(map(_is_of_no_block, kept))
    if isinstance(kept, dict):
        return all(map(_is_of_no_block, kept.values()))
    if isinstance(kept, Tensor):
        return kept.numel() <= 1
    return kept is None or isinstance(kept, (numbers.Number, str, torch.dtype, torch.device))


def _holder(values: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
    """Under which parameter an optimizer keeps what it knows of values: LBFGS, which knows
    something of all together, under its first."""
    if isinstance(optimizer, torch.optim.LBFGS):
        first: Tensor = optimizer.param_groups[0]["params"][0]
        return first
    return values


def _groups(values: nn.Parameter, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options that an optimizer has for values; none if it does not train them."""
    return [
        group for group in optimizer.param_groups if any(each is values for each in group["params"])
    ]
