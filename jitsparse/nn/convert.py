"""A model's dense layers become block-sparse ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from jitsparse.errors import ArgumentError, JitsparseError
from jitsparse.nn.linear import BlockSparseLinear

__all__ = ["sparsify_"]

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def sparsify_(
    model: nn.Module,
    block_size: int | Sequence[int],
    *,
    density: float,
    where: Callable[[str, nn.Linear], bool] | None = None,
) -> tuple[str, ...]:
    """Put a :class:`BlockSparseLinear` in the place of a model's ``nn.Linear`` layers.

    Each keeps its own blocks of largest norm and its bias, as with
    :meth:`BlockSparseLinear.from_linear`. Layers of a class derived from ``nn.Linear`` stay:
    whoever holds one may read its weight as a Tensor, as ``nn.MultiheadAttention`` does. The
    parameters are new, so make optimizers and wrap the model for several devices afterwards. What
    fails changes nothing.

    Args:
        model: changed in place.
        block_size: an int or a pair.
        density: fraction of the blocks that each layer keeps.
        where: given the name of a layer, as in ``named_modules``, and the layer; whether it becomes
            sparse. By default all do.

    Returns:
        The names of the layers that were replaced, in the model's order; of one that is in several
        places the first.

    Raises:
        ArgumentError: no layer is to be replaced; the model is itself an ``nn.Linear``, which has
            no place in anything; a layer has hooks, which would be lost; or its weight or bias is
            also a parameter of another module (tied), which would go on with the old one.
        PatternError: as :meth:`BlockSparseLinear.from_linear`, with the name of the layer.

    Example:
        >>> import torch, jitsparse as js
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
        ... )
        >>> js.nn.sparsify_(model, 32, density=0.25, where=lambda name, layer: name != "2")
        ('0',)
        >>> model(torch.randn(8, 256)).shape
        torch.Size([8, 10])
    """
    if type(model) is nn.Linear:
        raise ArgumentError(
            "sparsify_ replaces layers inside of a model, and this model is a Linear itself: use "
            "BlockSparseLinear.from_linear"
        )
    places = _places(model, where)
    if not places:
        raise ArgumentError(
            f"sparsify_ found no nn.Linear to replace in this {type(model).__name__}"
            + ("" if where is None else ", or `where` selects none")
        )
    owners = _owners(model)
    sparse = {}
    for layer, names in places.items():
        _require_alone(layer, names, owners)
        try:
            sparse[layer] = BlockSparseLinear.from_linear(layer, block_size, density=density)
        except JitsparseError as error:
            raise type(error)(f"layer {names[0]!r}: {error}") from error
    for layer, names in places.items():
        for name in names:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, sparse[layer])
    return tuple(names[0] for names in places.values())


def _places(
    model: nn.Module, where: Callable[[str, nn.Linear], bool] | None
) -> dict[nn.Linear, list[str]]:
    """Layers to replace, and all names under which each is found; the first one is asked about."""
    names: dict[nn.Linear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is nn.Linear:
            names.setdefault(module, []).append(name)
    if where is None:
        return names
    return {layer: known for layer, known in names.items() if where(known[0], layer)}


def _owners(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _require_alone(
    layer: nn.Linear, names: list[str], owners: dict[nn.Parameter, list[str]]
) -> None:
    """Refuse a layer to which something else is bound that a new one would not have."""
    hooks = [each for each in _HOOKS if getattr(layer, each, None)]
    if hooks:
        raise ArgumentError(
            f"layer {names[0]!r} has hooks ({', '.join(hooks)}), which its successor would not "
            "have: remove them before, or leave the layer out (where=...)"
        )
    for parameter in layer.parameters(recurse=False):
        others = [name for name in owners[parameter] if name.rpartition(".")[0] not in names]
        if others:
            raise ArgumentError(
                f"a parameter of layer {names[0]!r} is also {', '.join(others)} (tied), which "
                "would go on with the old one: untie them before, or leave the layer out "
                "(where=...)"
            )
