"""Wrappers of a model for several processes, which do not see that its parameters have changed."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

from jitsparse.errors import ArgumentError

__all__ = ["has_process_group", "refuse_wrappers", "require_unwrapped"]

_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
"""Classes that hold parameters which would no longer be the model's. By name, since importing some
of them takes a second."""


def has_process_group() -> bool:
    """Whether this process belongs to a process group of ``torch.distributed``."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def require_unwrapped(model: nn.Module, function: str) -> None:
    """Check a model whose parameters, or their shapes, are to change.

    Raises:
        ArgumentError: it is wrapped for several devices.
    """
    for module in model.modules():
        for each in type(module).__mro__:
            if each.__name__ in _WRAPPERS:
                raise ArgumentError(
                    f"this model is wrapped by {each.__name__}, which knows the parameters of the "
                    f"layers that it has: call {function} first, and wrap the model then"
                )


def refuse_wrappers(*resized: nn.Parameter) -> None:
    """Have each DistributedDataParallel that holds values refuse to run after these were resized.

    Its hook is on a gradient that will never come, so it would reduce only the others; where it
    looks for unused parameters, without an error.

    This goes through all objects of the process, which takes some tens of milliseconds.
    """
    if not has_process_group():
        return
    numbers_of = set(map(id, resized))
    for each in gc.get_objects():
        if issubclass(type(each), nn.parallel.DistributedDataParallel):
            if not numbers_of.isdisjoint(map(id, each.module.parameters())):
                each.register_forward_pre_hook(_refuse_to_run)


def _refuse_to_run(wrapper: nn.Module, _: Any) -> None:
    raise ArgumentError(
        f"this {type(wrapper).__name__} does not know the gradients of a layer whose number of "
        "blocks has changed since it was made: wrap the model anew"
    )
