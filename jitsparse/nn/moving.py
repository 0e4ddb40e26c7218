"""An optimizer's state of each block follows when the blocks of a layer move."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from jitsparse.blocks import gather_blocks
from jitsparse.errors import ArgumentError

__all__ = [
    "Moves",
    "entries_of",
    "guard",
    "moves_of",
    "require_optimizer",
    "require_trained",
    "trains",
]

Moves = list[tuple[dict[str, Any], str, Tensor]]
"""Entries of states, and what they are, or will be."""


def require_trained(values: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Check optimizers that are to follow a layer's values.

    Raises:
        ArgumentError: one is no optimizer, or does not train them.
    """
    for optimizer in optimizers:
        require_optimizer(optimizer, "set_pattern(pattern, *optimizers)")
        if not trains(optimizer, values):
            raise ArgumentError(
                f"set_pattern(pattern, *optimizers): this {type(optimizer).__name__} does not "
                "train the layer's values"
            )


def require_optimizer(optimizer: object, function: str) -> None:
    """Check what a function is given as an optimizer.

    Raises:
        ArgumentError: it is none.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(f"{function} takes optimizers, got {type(optimizer).__name__}")


def trains(optimizer: torch.optim.Optimizer, values: nn.Parameter) -> bool:
    """Whether an optimizer has a parameter."""
    return bool(_groups(values, optimizer))


_resized = WeakIdKeyDictionary()
"""Parameters that have had another number of blocks, and true for each."""

_watches_optimizers = False


def guard(values: nn.Parameter) -> None:
    """Have optimizers refuse a step on values that got another number of blocks, with state of the
    old ones. Fused ones of torch do not compare shapes, and write beyond the end of the state."""
    global _watches_optimizers
    if not _watches_optimizers:
        # For good: whoever takes it away when the last parameter dies may do so while torch goes
        # through its hooks.
        register_optimizer_step_pre_hook(_refuse_old_state)
        _watches_optimizers = True
    _resized[values] = True


def _refuse_old_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not _resized:
        return
    for group in optimizer.param_groups:
        for values in group["params"]:
            if values not in _resized:
                continue
            for key, kept in optimizer.state.get(values, {}).items():
                if isinstance(kept, Tensor) and kept.dim() > 1 and len(kept) != len(values):
                    raise ArgumentError(
                        f"this {type(optimizer).__name__} has {key!r} of {len(kept)} blocks for "
                        f"values that are {len(values)} blocks now: name it where their number "
                        "changes, as in layer.set_pattern(pattern, optimizer), or make it after a "
                        "state dict with another number was loaded"
                    )


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
        for state, key, kept in entries_of(values, optimizer):
            if id(kept) not in seen:
                moved = gather_blocks(kept, places)
                if isinstance(_inner(optimizer), torch.optim.Rprop) and key == "step_size":
                    new = (places == values.shape[0]).view(-1, 1, 1)
                    moved = moved.masked_fill(new, _groups(values, optimizer)[0]["lr"])
                seen[id(kept)] = moved
            moves.append((state, key, seen[id(kept)]))
    return moves


def entries_of(values: nn.Parameter, optimizer: torch.optim.Optimizer) -> Moves:
    """What an optimizer keeps of each block of values.

    Raises:
        ArgumentError: it keeps something else, in which no block has a place of its own.
    """
    entries: Moves = []
    inner = _inner(optimizer)
    state = inner.state.get(_holder(values, inner), {})
    for key, kept in state.items():
        if isinstance(kept, Tensor) and kept.dim() > 1 and kept.shape[0] == values.shape[0]:
            entries.append((state, key, kept))
        elif not _is_of_no_block(kept):
            kind = type(kept).__name__
            what = f"of shape {tuple(kept.shape)}" if isinstance(kept, Tensor) else f"a {kind}"
            raise ArgumentError(
                f"set_pattern(pattern, *optimizers): an optimizer keeps {key!r} of the layer's "
                f"values, {what}, in which no block has a place of its own; move the layer "
                "without that optimizer, and drop its state of values"
            )
    return entries


def _inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that keeps the state: ZeroRedundancyOptimizer keeps none itself."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optim", optimizer)
    return inner


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
