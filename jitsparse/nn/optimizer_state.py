"""An optimizer's per-block state, which follows when the blocks of a layer move."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from jitsparse.blocks import gather_blocks
from jitsparse.errors import ArgumentError

__all__ = [
    "Moves",
    "guard",
    "moves_of",
    "note_resized",
    "require_movable",
    "require_optimizer",
    "require_trained",
    "trains",
]

Moves = list[tuple[dict[str, Any], str, Tensor]]
"""States, keys of their entries, and what these are to become."""


def require_trained(values: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Check optimizers that are to follow a layer's values.

    Raises:
        ArgumentError: one is not an optimizer, or does not train them.
    """
    for optimizer in optimizers:
        require_optimizer(optimizer, "set_pattern(pattern, *optimizers)")
        if not trains(optimizer, values):
            raise ArgumentError(
                f"set_pattern(pattern, *optimizers): this {type(optimizer).__name__} does not "
                "train the layer's values"
            )


def require_optimizer(optimizer: object, function: str) -> None:
    """Check that what a function is given is an optimizer.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(f"{function} takes optimizers, got {type(optimizer).__name__}")


def trains(optimizer: torch.optim.Optimizer, values: nn.Parameter) -> bool:
    """Whether an optimizer trains a layer's values."""
    return bool(_groups(values, optimizer))


_layers: WeakSet[nn.Module] = WeakSet()
"""All layers whose number of blocks may change. (Not their values: ``torch.utils.swap_tensors``
requires tensors without weak references.)"""

_checked: WeakKeyDictionary[torch.optim.Optimizer, tuple[Any, int]] = WeakKeyDictionary()
"""The state with which an optimizer's last step was checked, and how often layers had changed their
number of blocks before it. Checking all of it in each step would take 3.5 us per layer."""

_resizes = 0
_watches_optimizers = False


def guard(layer: nn.Module) -> None:
    """Have optimizers refuse a step on a layer's ``values`` with state of another number of blocks.

    Such state is from before a change, or was loaded. Torch's fused optimizers do not compare
    shapes, and write past the end of the state.
    """
    global _watches_optimizers
    if not _watches_optimizers:
        # Never removed: removing it when the last parameter dies might happen while torch iterates
        # over its hooks.
        register_optimizer_step_pre_hook(_refuse_old_state)
        _watches_optimizers = True
    _layers.add(layer)


def note_resized() -> None:
    """Note that a layer changed its number of blocks, so that optimizers are checked anew."""
    global _resizes
    _resizes += 1


def _refuse_old_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():  # compares shapes itself
        return
    now = optimizer.state, _resizes  # loading replaces the state
    last = _checked.get(optimizer)
    if last is not None and last[0] is now[0] and last[1] == now[1]:
        return
    guarded = {id(getattr(layer, "values", None)) for layer in list(_layers)}
    for group in optimizer.param_groups:
        for values in group["params"]:
            if id(values) not in guarded:
                continue
            for key, kept in optimizer.state.get(values, {}).items():
                if isinstance(kept, Tensor) and kept.dim() > 1 and len(kept) != len(values):
                    raise ArgumentError(
                        f"this {type(optimizer).__name__} has {key!r} of {len(kept)} blocks for "
                        f"values that are {len(values)} blocks now: pass this optimizer to "
                        "prune_ or set_pattern, as in layer.set_pattern(pattern, optimizer), make "
                        "it after a state dict with another number of blocks was loaded, or load "
                        "the model's state dict together with the optimizer's"
                    )
    _checked[optimizer] = now


def moves_of(
    values: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer], places: Tensor
) -> Moves:
    """The new values of all per-block state, such as momentum and running averages.

    Averages may also be of rows and columns of blocks. New blocks start as those of a new parameter
    do, mostly at zero. Nothing is changed yet, so a failure changes nothing.

    Args:
        values: the parameter whose state it is.
        optimizers: those that may have some.
        places: the place of each new block among the old ones.

    Raises:
        ArgumentError: an optimizer keeps state in which no block has a place of its own.
    """
    moves: Moves = []
    seen: dict[int, Tensor] = {}  # an optimizer and its wrapper have the same tensors
    for optimizer in optimizers:
        for entry in _entries(values, optimizer):
            if id(entry.kept) not in seen:
                moved, start = gather_blocks(entry.kept, places), _start(values, entry)
                if start:
                    moved = moved.masked_fill((places == values.shape[0]).view(-1, 1, 1), start)
                seen[id(entry.kept)] = moved
            moves.append((entry.state, entry.key, seen[id(entry.kept)]))
    return moves


def require_movable(
    values: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer], blocks: int
) -> None:
    """Check that the optimizers' state of values can follow them to ``blocks`` blocks.

    Raises:
        ArgumentError: an optimizer keeps state in which no block has a place of its own, or keeps
            the values in buckets that they would leave.
    """
    for optimizer in optimizers:
        for _ in _entries(values, optimizer):
            pass
        for each in _with_inner(optimizer):
            if blocks != len(values) and getattr(each, "parameters_as_bucket_view", False):
                raise ArgumentError(
                    f"this {type(each).__name__} keeps its parameters in buckets, which values of "
                    "another number of blocks would leave without its knowledge: make it without "
                    "parameters_as_bucket_view=True"
                )


class _Entry(NamedTuple):
    """An optimizer's state of each block of values."""

    optimizer: torch.optim.Optimizer
    state: dict[str, Any]
    key: str
    kept: Tensor


def _entries(values: nn.Parameter, optimizer: torch.optim.Optimizer) -> Iterator[_Entry]:
    """State of each block of values in an optimizer and those that it wraps.

    Raises:
        ArgumentError: one keeps other state, in which no block has a place of its own.
    """
    for each in _with_inner(optimizer):
        state = each.state.get(_holder(values, each), {})
        for key, kept in state.items():
            if type(kept) is Tensor and kept.dim() > 1 and kept.shape[0] == values.shape[0]:
                yield _Entry(each, state, key, kept)
            elif not _is_of_no_block(kept):
                kind = type(kept).__name__
                what = f"a {kind}"
                if isinstance(kept, Tensor):
                    what = f"{'' if kind == 'Tensor' else f'a {kind} '}of shape {tuple(kept.shape)}"
                raise ArgumentError(
                    f"set_pattern(pattern, *optimizers): an optimizer keeps {key!r} of the layer's "
                    f"values, {what}, in which no block has a place of its own; move the layer "
                    "without that optimizer, and drop its state of values"
                )


def _start(values: nn.Parameter, entry: _Entry) -> float:
    """The initial value of an optimizer's entry for a new parameter."""
    optimizer = entry.optimizer
    if isinstance(optimizer, torch.optim.Rprop) and entry.key == "step_size":
        option = "lr"
    elif isinstance(optimizer, torch.optim.Adagrad) and entry.key == "sum":
        option = "initial_accumulator_value"
    else:
        return 0.0
    return float(_groups(values, optimizer)[0][option])


def _with_inner(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """An optimizer and those among its attributes, which keep the state, or some of it.

    ZeroRedundancyOptimizer has one, and so do SAM and the wrappers of trainers.
    """
    found = [optimizer]
    for each in found:
        inner = (value for value in vars(each).values() if isinstance(value, torch.optim.Optimizer))
        found += [other for other in inner if not any(other is known for known in found)]
    return found


def _is_of_no_block(kept: object) -> bool:
    """Whether an entry of a state consists of numbers, such as a step count, and names alone."""
    if isinstance(kept, (list, tuple)):
        return all(map(_is_of_no_block, kept))
    if isinstance(kept, dict):
        return all(map(_is_of_no_block, kept.values()))
    if isinstance(kept, Tensor):
        return kept.numel() <= 1
    return kept is None or isinstance(kept, (numbers.Number, str, torch.dtype, torch.device))


def _holder(values: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
    """The parameter under which an optimizer keeps its state of values.

    LBFGS, which keeps state of all parameters together, uses its first one.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        first: Tensor = optimizer.param_groups[0]["params"][0]
        return first
    return values


def _groups(values: nn.Parameter, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer that have values; empty if it does not train them."""
    return [
        group for group in optimizer.param_groups if any(each is values for each in group["params"])
    ]
