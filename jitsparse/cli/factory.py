"""A model of the user's, named on the command line as ``module:factory``, and its inputs."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["read_input", "read_model"]


def read_model(text: str) -> torch.nn.Module:
    """What ``module:factory`` names, called without arguments.

    The module is found as ``python -m`` finds it: in the current directory, too.

    Raises:
        ValueError: there is no such module or factory, it raised, or made no model. The message
            says which.
    """
    import torch

    module, _, path = text.partition(":")
    # The import system takes a name apart itself; relative ones have nothing to be relative to.
    parts = [*module.split("."), *path.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise ValueError(
            "write module:factory, as in models.transformer:build, where build() returns the model"
        )
    factory: Any = _import(module)
    for name in path.split("."):
        if not hasattr(factory, name):
            raise ValueError(f"{module} has no {path}")
        factory = getattr(factory, name)
    if not callable(factory):
        raise ValueError(f"{path} is no function, but of type {type(factory).__name__}")
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path}() raised {_said(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"{path}() returned no torch.nn.Module, but {type(model).__name__}")
    return model


def read_input(text: str) -> torch.Tensor:
    """``"8x512"`` or ``"8x128:int64"`` as an example without data.

    Raises:
        ValueError: it is neither.
    """
    import torch

    shape, separator, name = text.partition(":")
    sides = [int(e) if e.isdecimal() and len(e) < 16 else 0 for e in shape.lower().split("x")]
    dtype = getattr(torch, name, None) if separator else torch.get_default_dtype()
    if min(sides) < 1 or not isinstance(dtype, torch.dtype):
        raise ValueError(
            "a shape is 8x512, each side 1 or more; with a dtype of torch, 8x128:int64"
        )
    try:
        example = torch.empty(sides, dtype=dtype, device="meta")
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"no tensor is so large: {error}") from error
    return example.requires_grad_(example.is_floating_point())


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(
                f"there is no module {error.name}, in {here} or where Python looks"
            ) from error
        raise ValueError(f"{name} cannot be imported: {_said(error)}") from error
    except (Exception, SystemExit) as error:  # a script may end the interpreter in its last line
        raise ValueError(f"{name} cannot be imported: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """An error's kind, its first line, and where the user's code raised it, if that did."""
    text = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return text if frame.filename == __file__ else f"{text} ({frame.filename}:{frame.lineno})"
