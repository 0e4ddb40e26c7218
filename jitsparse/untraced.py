"""Functions that Dynamo does not trace."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from jitsparse.imports import upon_import

__all__ = ["untraced"]

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``torch.compile`` run a function, and all that it calls, eagerly.

    A compiled function that calls it has a graph before the call and one after it; with
    ``fullgraph=True`` it raises torch's error. ``torch.compiler.disable`` does the same but imports
    Dynamo, so it is left until other code has.
    """
    disabled: Callable[P, R] | None = None

    @functools.wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    # What Dynamo asks of a function that traced code calls.
    outside._torchdynamo_disable = True  # type: ignore[attr-defined]
    reason = f"{function.__qualname__} of jitsparse runs eagerly"
    outside._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    return outside


def _skip_wrappers() -> None:
    """Tell Dynamo not to trace the wrappers either; they have one code object."""
    from torch._dynamo.decorators import skip

    skip(untraced(lambda: None))


upon_import("torch._dynamo", _skip_wrappers)
