"""Replacing a model's layers: all of a kind, or none if something bound to one would be lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from jitsparse.checks import as_count
from jitsparse.errors import ArgumentError, JitsparseError, PatternError
from jitsparse.nn.wrapping import require_unwrapped

__all__ = [
    "Kind",
    "Where",
    "answer",
    "named",
    "replace",
    "require_density",
    "require_model",
    "require_module",
]

Where = Callable[[str, Any], bool]


@dataclass(frozen=True)
class Kind:
    """The layers that a function replaces: exactly those of some classes.

    Attributes:
        function: name of the function that replaces them.
        name: name of the layers.
        classes: exactly these are replaced.
        base: layers of classes derived from it stay.
        own: attributes that every such layer has.
        taken: names that already mean something in the replacement.
        parameters, buffers: names of the layer's own.
    """

    function: str
    name: str
    classes: tuple[type[nn.Module], ...]
    base: type[nn.Module]
    own: frozenset[str]
    taken: frozenset[str]
    parameters: frozenset[str]
    buffers: frozenset[str] = frozenset()


def replace(
    model: nn.Module, kind: Kind, where: Where | None, successor: Callable[[str, Any], nn.Module]
) -> tuple[str, ...]:
    """Replace each layer of a kind, in all of its places, or change nothing.

    Attributes that were set on a layer go along.

    Args:
        model: changed in place.
        kind: the kind of layers.
        where: a function of a layer's first name and the layer: whether it is replaced.
        successor: a function of the same arguments that returns the replacement.

    Returns:
        The first names of the layers that were replaced.

    Raises:
        ArgumentError: no layer is to be replaced, or something would be lost.
    """
    owners = _owners(model)
    places = _places(model, kind, where)
    changes: dict[str, tuple[nn.Module, nn.Module]] = {}
    for layer, names in places.items():
        _require_plain(layer, names[0], kind)
        _require_untied(layer, names, owners)
        other = successor(names[0], layer)
        for key in vars(layer).keys() - kind.own:
            setattr(other, key, getattr(layer, key))
        changes.update({name: (layer, other) for name in names})
    _put(model, changes)
    return tuple(names[0] for names in places.values())


def require_model(model: Any, where: Any, kind: Kind, instead: str) -> None:
    """Check a model in which layers are to be replaced.

    Raises:
        ArgumentError: ``model`` is not a module, or is a single layer, for which ``instead`` is to
            be used; it is wrapped for several devices; or ``where`` is not a function.
    """
    require_module(model, where, kind.function)
    if type(model) in kind.classes:
        raise ArgumentError(
            f"{kind.function} replaces layers inside of a model, and this model is a "
            f"{type(model).__name__} itself: use {instead}"
        )
    require_unwrapped(model, kind.function)


def require_module(model: Any, where: Any, function: str) -> None:
    """Check a model, and the function that selects some of its layers.

    Raises:
        ArgumentError: ``model`` is not a module, or ``where`` is not a function.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"{function} takes an nn.Module, got {type(model).__name__}")
    if where is not None and not callable(where):
        raise ArgumentError(
            f"where is a function of a name and a layer, got {type(where).__name__}"
        )


def require_density(density: Any) -> None:
    """Check a density of all layers, or a function that says that of each.

    Raises:
        PatternError: it is neither.
    """
    if callable(density):
        return
    if not isinstance(density, SupportsFloat):
        raise PatternError(
            "density is a fraction between 0 and 1, or a function of a layer's name and the layer "
            f"that returns one, got {density!r}"
        )
    as_count(density, 1)  # type: ignore[arg-type]


def answer(argument: str, given: Any, name: str, layer: nn.Module) -> Any:
    """An argument's value for a layer: what was given, or what it returns if it is a function.

    Raises:
        ArgumentError: the function returned None.
    """
    said = given(name, layer) if callable(given) else given
    if said is None:
        raise ArgumentError(
            f"the function given as {argument} returned None, and has to return a value for each "
            "layer"
        )
    return said


@contextlib.contextmanager
def named(layer: str) -> Iterator[None]:
    """Add the name of a layer to errors about it."""
    try:
        yield
    except JitsparseError as error:
        raise type(error)(f"layer {layer!r}: {error}. To skip this layer use where=...") from error


def _owners(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _places(model: nn.Module, kind: Kind, where: Where | None) -> dict[nn.Module, list[str]]:
    """Layers to replace, and all names under which each is found."""
    names: dict[nn.Module, list[str]] = {}
    derived: dict[str, int] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) in kind.classes:
            names.setdefault(module, []).append(name)
        elif isinstance(module, kind.base):
            derived[type(module).__name__] = derived.get(type(module).__name__, 0) + 1
    chosen = {layer: known for layer, known in names.items() if not where or where(known[0], layer)}
    if not chosen:
        stay = ", ".join(f"{count} {each}" for each, count in derived.items())
        raise ArgumentError(
            f"{kind.function} finds nothing to replace in this {type(model).__name__}: it has "
            f"{len(names) or 'no'} {kind.name}"
            + (", of which `where` selects none" if names else "")
            + (f"; layers of derived classes stay ({stay})" if stay else "")
        )
    return chosen


def _require_plain(layer: nn.Module, name: str, kind: Kind) -> None:
    """Refuse a layer to which something is bound that its successor could not have."""
    if any(nn.parameter.is_lazy(each) for each in layer.parameters(recurse=False)):
        return  # refused where the successor is made
    kept = vars(layer)
    added = {key: value for key, value in kept.items() if key not in kind.own}
    more = [key for key, value in added.items() if callable(value)]
    more += [key for key, value in kept.items() if key.endswith("hooks") and value]
    more += [key for key in layer._buffers if key not in kind.buffers]
    more += [*layer._modules, *(key for key in layer._parameters if key not in kind.parameters)]
    for key, parameter in layer._parameters.items():
        if parameter is None:
            continue
        if type(parameter.data) is not Tensor or parameter.layout != torch.strided:
            raise ArgumentError(
                f"the {key} of layer {name!r} is no ordinary Tensor but a "
                f"{type(parameter.data).__name__} ({parameter.layout}): call {kind.function} "
                "before parameters are made so"
            )
        hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
        more += [f"{key}.{each}" for each in hooks if getattr(parameter, each, None)]
        more += [f"{key}.{each}" for each, value in vars(parameter).items() if callable(value)]
    if more:
        undo = (
            "call remove() on the handles that registering them returned"
            if all(each.endswith("hooks") for each in more)
            else "undo what brought them (prune.remove, remove_weight_norm, ...)"
        )
        raise ArgumentError(
            f"layer {name!r} has {', '.join(more)}, which its successor would not have: {undo}, "
            "or leave the layer out (where=...)"
        )
    clashing = sorted(added.keys() & kind.taken)
    if clashing:
        raise ArgumentError(
            f"layer {name!r} has {', '.join(clashing)}, which in its successor would be something "
            "else: rename that or leave the layer out (where=...)"
        )


def _require_untied(
    layer: nn.Module, names: list[str], owners: Mapping[nn.Parameter, list[str]]
) -> None:
    """Refuse a layer whose parameters also belong to others."""
    for parameter in layer.parameters(recurse=False):
        others = [
            each for each in owners.get(parameter, []) if each.rpartition(".")[0] not in names
        ]
        if others:
            raise ArgumentError(
                f"a parameter of layer {names[0]!r} is also {', '.join(others)} (tied), which "
                "would go on with the old one: untie them before, or leave the layer out "
                "(where=...)"
            )


def _put(model: nn.Module, changes: Mapping[str, tuple[nn.Module, nn.Module]]) -> None:
    """Replace layers, all or none. Parents are looked up before any of them is replaced."""
    parents = {name: model.get_submodule(name.rpartition(".")[0]) for name in changes}
    try:
        for name, (_, other) in changes.items():
            setattr(parents[name], name.rpartition(".")[2], other)
    except BaseException:
        for name, (layer, _) in changes.items():
            parents[name]._modules[name.rpartition(".")[2]] = layer
        raise
