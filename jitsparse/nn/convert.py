"""A model's dense layers become block-sparse ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jitsparse.checks import as_block_size, as_count
from jitsparse.errors import ArgumentError, JitsparseError
from jitsparse.nn.linear import BlockSparseLinear

__all__ = ["sparsify_"]

_Where = Callable[[str, nn.Linear], bool]

_OWN = {*vars(nn.Module()), "in_features", "out_features"}
"""What an ``nn.Linear`` has of itself."""
_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
"""Classes that know parameters by now which would not be the model's any more. By name, since
importing some of them takes a second."""


def sparsify_(
    model: nn.Module,
    block_size: int | Sequence[int],
    *,
    density: float,
    where: _Where | None = None,
) -> tuple[str, ...]:
    """Put a :class:`BlockSparseLinear` in the place of a model's ``nn.Linear`` layers.

    Each keeps its own blocks of largest norm and its bias, as with
    :meth:`BlockSparseLinear.from_linear`, what is frozen stays so, and attributes are taken along.
    Layers of a class derived from ``nn.Linear`` stay: whoever holds one may read its weight as a
    Tensor, as ``nn.MultiheadAttention`` does.

    The parameters are new, so make optimizers and wrap the model for several devices afterwards.
    What holds an old layer or parameter without being a module of the model (a plain list, an outer
    model) keeps the old one. What fails changes nothing.

    Args:
        model: changed in place.
        block_size: an int or a pair.
        density: fraction of the blocks that each layer keeps.
        where: given the name of a layer, as in ``named_modules``, and the layer; whether it becomes
            sparse. By default all do. Of a layer in several places it is given the first name.

    Returns:
        The names of the layers that were replaced, in the model's order, of each the first.

    Raises:
        ArgumentError: no layer is to be replaced; the model is itself an ``nn.Linear``, which has
            no place in anything, or wrapped for several devices; or something would be lost: a
            layer has hooks, or a function, buffer, parameter or module that an ``nn.Linear`` does
            not have, or its weight or bias is also a parameter of another module (tied).
        PatternError: block size or density is illegal, or a layer too small for them.

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
    _check(model, where)
    block = as_block_size(block_size)
    as_count(density, 1)
    owners = _owners(model)
    places = _places(model, where)
    sparse: dict[nn.Module, BlockSparseLinear] = {}
    for layer, names in places.items():
        _require_plain(layer, names[0])
        _require_untied(layer, names, owners)
        sparse[layer] = _successor(layer, names[0], block, density)
    _put(model, {name: (layer, sparse[layer]) for layer in places for name in places[layer]})
    return tuple(names[0] for names in places.values())


def _check(model: Any, where: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"sparsify_ takes an nn.Module, got {type(model).__name__}")
    if where is not None and not callable(where):
        raise ArgumentError(
            f"where is a function of a name and a layer, got {type(where).__name__}"
        )
    if type(model) is nn.Linear:
        raise ArgumentError(
            "sparsify_ replaces layers inside of a model, and this model is a Linear itself: use "
            "BlockSparseLinear.from_linear"
        )
    for module in model.modules():
        for each in type(module).__mro__:
            if each.__name__ in _WRAPPERS:
                raise ArgumentError(
                    f"this model is wrapped by {each.__name__}, which knows the dense layers' "
                    "parameters: make it sparse first, and wrap it then"
                )


def _owners(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _places(model: nn.Module, where: _Where | None) -> dict[nn.Linear, list[str]]:
    """Layers to replace, and all names under which each is found."""
    names: dict[nn.Linear, list[str]] = {}
    derived: dict[str, int] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        # A lazy layer becomes an nn.Linear by its first call; until then from_linear refuses it.
        if type(module) in (nn.Linear, nn.LazyLinear):
            names.setdefault(module, []).append(name)
        elif isinstance(module, nn.Linear):
            derived[type(module).__name__] = derived.get(type(module).__name__, 0) + 1
    chosen = {layer: known for layer, known in names.items() if not where or where(known[0], layer)}
    if not chosen:
        stay = ", ".join(f"{count} {kind}" for kind, count in derived.items())
        raise ArgumentError(
            f"sparsify_ finds nothing to replace in this {type(model).__name__}: it has "
            f"{len(names) or 'no'} nn.Linear"
            + (", of which `where` selects none" if names else "")
            + (f"; layers of derived classes stay ({stay})" if stay else "")
        )
    return chosen


def _require_plain(layer: nn.Linear, name: str) -> None:
    """Refuse a layer to which something is bound that its successor could not have."""
    if nn.parameter.is_lazy(layer.weight):
        return  # which from_linear refuses
    kept = vars(layer)
    more = [key for key, value in kept.items() if key not in _OWN and callable(value)]
    more += [key for key, value in kept.items() if key.endswith("hooks") and value]
    more += [*layer._buffers, *layer._modules, *(layer._parameters.keys() - {"weight", "bias"})]
    for key, parameter in layer._parameters.items():
        if parameter is None:
            continue
        if type(parameter.data) is not Tensor or parameter.layout != torch.strided:
            raise ArgumentError(
                f"the {key} of layer {name!r} is no ordinary Tensor but a "
                f"{type(parameter.data).__name__} ({parameter.layout}): make the model sparse "
                "before its parameters are"
            )
        hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
        more += [f"{key}.{each}" for each in hooks if getattr(parameter, each, None)]
    if more:
        raise ArgumentError(
            f"layer {name!r} has {', '.join(more)}, which its successor would not have: undo "
            "what brought them (prune.remove, remove_weight_norm, ...) or leave the layer out "
            "(where=...)"
        )


def _require_untied(
    layer: nn.Linear, names: list[str], owners: Mapping[nn.Parameter, list[str]]
) -> None:
    """Refuse a layer whose parameters are others', too."""
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


def _successor(
    layer: nn.Linear, name: str, block: tuple[int, int], density: float
) -> BlockSparseLinear:
    try:
        sparse = BlockSparseLinear.from_linear(layer, block, density=density)
    except JitsparseError as error:
        raise type(error)(f"layer {name!r}: {error}; or leave it out (where=...)") from error
    sparse.values.requires_grad_(layer.weight.requires_grad)
    if sparse.bias is not None:
        sparse.bias.requires_grad_(layer.bias.requires_grad)
    for key in vars(layer).keys() - _OWN:
        setattr(sparse, key, getattr(layer, key))
    return sparse


def _put(model: nn.Module, changes: Mapping[str, tuple[nn.Linear, BlockSparseLinear]]) -> None:
    """Replace layers, all or none. Parents are looked up before any of them is replaced."""
    parents = {name: model.get_submodule(name.rpartition(".")[0]) for name in changes}
    try:
        for name, (_, sparse) in changes.items():
            setattr(parents[name], name.rpartition(".")[2], sparse)
    except BaseException:
        for name, (layer, _) in changes.items():
            parents[name]._modules[name.rpartition(".")[2]] = layer
        raise
