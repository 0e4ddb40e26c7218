"""A user's model, named on the command line as ``module:factory``, and its inputs."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from jitsparse.cli.console import one, split
from jitsparse.cli.options import one_of
from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    import torch

__all__ = [
    "AUTOCAST",
    "FORWARD_ONLY",
    "INPUT_SHAPE",
    "check_model_options",
    "read_inputs",
    "read_model",
    "with_model",
]

_Found = TypeVar("_Found")

INPUT_SHAPE = typer.Option(
    [],
    help="--model: the shape of its input, 8x512, or 8x128:int64; one for each input. 1-64x512 is "
    "1x512, 2x512, 4x512, ... to 64x512, which is enough for all rows between.",
)
FORWARD_ONLY = typer.Option(False, "--forward-only", help="--model: without what gradients need.")
AUTOCAST = typer.Option("", help="--model: run under torch.autocast, bf16 or f16.")

_AUTOCAST = {"bf16": "bfloat16", "f16": "float16"}
"""Dtypes of autocast, and their names in torch."""


def check_model_options(
    model: str, products: Mapping[str, Any], of_model: Mapping[str, Any]
) -> None:
    """Refuse options of a model if there is none, and options that name products if there is one.

    Args:
        model: the value of ``--model``.
        products: the values of options that name products, by option.
        of_model: those of the options that belong to a model.

    Raises:
        typer.BadParameter: there is such an option.
    """
    for option, value in of_model.items():
        if value and not model:
            raise typer.BadParameter("it is for --model, which was not given", param_hint=option)
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
    autocast: str,
    find: Callable[[torch.nn.Module, list[torch.Tensor], str | None], Sequence[_Found]],
) -> list[_Found]:
    """Everything that ``find`` returns for a model, for each size of its inputs.

    It gets the model, examples of its inputs and the dtype, if one is asked for. It runs under
    autocast to a dtype, if that is asked for.

    Raises:
        typer.BadParameter: the model, its inputs or the dtype are not what they should be.
    """
    if len(dtypes) > 1:
        raise typer.BadParameter("a model has one dtype", param_hint="--dtype")
    examples = split(inputs, read_inputs, "--input-shape")
    if not examples:
        raise typer.BadParameter(
            "a model needs the shape of its input: --input-shape 8x512", param_hint="--model"
        )
    counts = [len(each) for each in examples]
    if any(count not in (1, max(counts)) for count in counts):
        asked = " and ".join(map(str, counts))
        raise typer.BadParameter(
            f"inputs of {asked} sizes do not go together: give them one range, or one of them",
            param_hint="--input-shape",
        )
    together = [[each[i % len(each)] for each in examples] for i in range(max(counts))]
    try:
        # What the model's own code prints must not precede our JSON.
        with contextlib.redirect_stdout(sys.stderr), _autocast(autocast):
            model, dtype = one(name, read_model, "--model"), dtypes[0] if dtypes else None
            found = [each for some in together for each in find(model, some, dtype)]
            return list(dict.fromkeys(found))
    except ArgumentError as error:
        shapes = ", ".join(inputs)
        raise typer.BadParameter(
            f"{error}. (--input-shape {shapes}: one for each positional argument, token ids as "
            "8x128:int64, several sizes as 1-8x512)",
            param_hint="--model",
        ) from error


@contextlib.contextmanager
def _autocast(name: str) -> Iterator[None]:
    """Autocast of CPUs and GPUs to a dtype; nothing if its name is empty."""
    if not name:
        yield
        return
    import torch

    dtype = getattr(torch, _AUTOCAST[one(name, one_of(tuple(_AUTOCAST)), "--autocast")])
    with contextlib.ExitStack() as stack:
        # Without a GPU a model runs as if on a CPU.
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, dtype))
        yield


def read_model(text: str) -> torch.nn.Module:
    """Call the factory that ``module:factory`` names, without arguments.

    The module is found as ``python -m`` finds it: in the current directory, too.

    Raises:
        ValueError: there is no such module or factory, it raised, or it returned no model. The
            message says which.
    """
    import torch

    module, _, path = text.partition(":")
    # The import system splits a name itself; relative ones have nothing to be relative to.
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


def read_inputs(text: str) -> list[torch.Tensor]:
    """``"8x512"`` or ``"8x128:int64"`` as an example without data, a range as several.

    ``"5-64x512"`` is one of 5 and one for each power of two up to 64. Kernels are chosen by sizes
    rounded up to these, so no other number of rows between has its own.

    Raises:
        ValueError: it is none of these.
    """
    import torch

    shape, separator, name = text.partition(":")
    sides = [[_size(end) for end in side.split("-")] for side in shape.lower().split("x")]
    ranges = [side for side in sides if len(side) > 1]
    dtype = getattr(torch, name, None) if separator else torch.get_default_dtype()
    legal = all(min(side) > 0 and side == sorted(side) and len(side) < 3 for side in sides)
    if not legal or len(ranges) > 1 or not isinstance(dtype, torch.dtype):
        raise ValueError(
            "a shape is 8x512, each side 1 or more; with a dtype of torch, 8x128:int64; one side "
            "may be a range, 1-64x512"
        )
    examples = []
    for size in _enough(*ranges[0]) if ranges else [1]:
        one_of_them = [side[0] if len(side) == 1 else size for side in sides]
        try:
            example = torch.empty(one_of_them, dtype=dtype, device="meta")
        except (RuntimeError, OverflowError) as error:
            raise ValueError(f"no tensor is so large: {error}") from error
        examples.append(example.requires_grad_(example.is_floating_point()))
    return examples


def _size(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _enough(first: int, last: int) -> list[int]:
    """Numbers whose multiples, rounded up to powers of two, are the same as those of all numbers
    from ``first`` to ``last``."""
    from jitsparse.kernels.problem import octave

    sizes = [first]
    while sizes[-1] < last:
        sizes.append(octave(sizes[-1] + 1))
    return sizes


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
    """An error's type, its first line, and where the user's code raised it, if it did."""
    text = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return text if frame.filename == __file__ else f"{text} ({frame.filename}:{frame.lineno})"
