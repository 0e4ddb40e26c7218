"""A model of the user's, named on the command line as ``module:factory``, and its inputs."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from jitsparse.cli.console import one, split
from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    import torch

__all__ = [
    "FORWARD_ONLY",
    "INPUT_SHAPE",
    "check_model_options",
    "read_input",
    "read_model",
    "with_model",
]

_Found = TypeVar("_Found")

INPUT_SHAPE = typer.Option(
    [], help="--model: the shape of its input, 8x512, or 8x128:int64; one for each input."
)
FORWARD_ONLY = typer.Option(False, "--forward-only", help="--model: without what gradients need.")


def check_model_options(
    model: str, products: Mapping[str, Any], input_shape: Sequence[str], forward_only: bool
) -> None:
    """Refuse what belongs to a model where there is none, and names products where there is one.

    Args:
        model: the value of ``--model``.
        products: the values of options that name products, by option.
        input_shape, forward_only: those of the options that belong to a model.

    Raises:
        typer.BadParameter: there is such an option.
    """
    if not model and (input_shape or forward_only):
        raise typer.BadParameter(
            "it is for --model, which was not given",
            param_hint="--input-shape" if input_shape else "--forward-only",
        )
    given = [option for option, values in products.items() if values]
    if model and given:
        raise typer.BadParameter(
            f"the model says what is computed, so no {' and no '.join(given)}",
            param_hint="--model",
        )


def with_model(
    name: str,
    inputs: Sequence[str],
    dtypes: Sequence[str],
    find: Callable[[torch.nn.Module, list[torch.Tensor], str | None], _Found],
) -> _Found:
    """What is found of a model, given it, examples of its inputs and its dtype if one is asked for.

    Raises:
        typer.BadParameter: the model, its inputs or the dtype are not what they should be.
    """
    if len(dtypes) > 1:
        raise typer.BadParameter("a model has one dtype", param_hint="--dtype")
    examples = split(inputs, read_input, "--input-shape")
    if not examples:
        raise typer.BadParameter(
            "a model needs the shape of its input: --input-shape 8x512", param_hint="--model"
        )
    try:
        # What the model's own code prints is not to stand before our JSON.
        with contextlib.redirect_stdout(sys.stderr):
            return find(one(name, read_model, "--model"), examples, dtypes[0] if dtypes else None)
    except ArgumentError as error:
        shapes = ", ".join(inputs)
        raise typer.BadParameter(
            f"{error}. (--input-shape {shapes}: one for each positional argument, token ids as "
            "8x128:int64; another size is another run)",
            param_hint="--model",
        ) from error


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
