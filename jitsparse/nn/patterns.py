"""The patterns of all layers of a model: fewer blocks, or those of another model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from jitsparse.checks import as_count
from jitsparse.errors import ArgumentError
from jitsparse.nn.linear import BlockSparseLinear
from jitsparse.nn.moving import trains

__all__ = ["Where", "assigned", "layers_of", "match_patterns_", "prune_"]

Where = Callable[[str, BlockSparseLinear], bool]


def match_patterns_(model: nn.Module, like: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Give the layers of a model the patterns that those of the same names have in another.

    A moving average takes the mean of values by their number, whichever blocks they are: call this
    before it is updated, wherever the blocks of its model have moved. Blocks that were there before
    keep their values, new ones begin with zeros, as with :meth:`BlockSparseLinear.set_pattern`.

    Args:
        model: changed in place.
        like: whose patterns these layers get, on the same devices.
        optimizers: that train ``model``, if any do: their state moves along.

    Raises:
        ArgumentError: the two have block-sparse layers of different names, shapes or block sizes.
            Nothing is changed then.

    Example:
        >>> import torch, jitsparse as js
        >>> model = torch.nn.Sequential(js.nn.BlockSparseLinear(256, 512, 32, density=0.25))
        >>> average = torch.optim.swa_utils.AveragedModel(model)
        >>> model[0].set_pattern(js.Pattern.random((512, 256), 32, 0.25))
        >>> js.nn.match_patterns_(average.module, model)
        >>> average.update_parameters(model)
    """
    theirs, mine = (layers_of(each, "match_patterns_") for each in (like, model))
    if theirs.keys() != mine.keys():
        name = min(theirs.keys() ^ mine.keys())
        has, lacks = ("like", "model") if name in theirs else ("model", "like")
        raise ArgumentError(
            "match_patterns_(model, like) takes models with block-sparse layers of the same names: "
            f"{has} has {name!r}, and {lacks} does not (pass the module of an AveragedModel or a "
            "DistributedDataParallel)"
        )
    for name, layer in mine.items():
        facts = [(each.pattern.shape, each.pattern.block_size) for each in (layer, theirs[name])]
        if facts[0] != facts[1]:
            raise ArgumentError(
                f"match_patterns_(model, like): layer {name!r} is {facts[0][0]} in blocks of "
                f"{facts[0][1]} in model, and {facts[1][0]} in blocks of {facts[1][1]} in like"
            )
    trained = assigned(mine, optimizers, "match_patterns_")
    for name, layer in mine.items():
        if layer.pattern != theirs[name].pattern:
            layer.set_pattern(theirs[name].pattern, *trained[name])


def prune_(
    model: nn.Module,
    density: float | Callable[[str, BlockSparseLinear], float],
    *optimizers: torch.optim.Optimizer,
    where: Where | None = None,
) -> tuple[str, ...]:
    """Keep the blocks of largest norm in the block-sparse layers of a model.

    To prune gradually, begin with ``sparsify_(model, block_size, density=1.0)``, make the
    optimizer, and lower the density while the model trains: parameters and optimizers stay.

    Args:
        model: changed in place, as by :meth:`BlockSparseLinear.set_pattern`, after a step and
            before the next forward pass.
        density: fraction of all blocks that a layer stores then, or a function of a layer's name,
            as in ``named_modules``, and the layer. A layer that stores no more stays as it is.
        optimizers: that train the model: their state moves along.
        where: a function of the same: whether the layer is pruned. By default all are.

    Returns:
        The names of the layers that were pruned.

    Raises:
        ArgumentError: the model has no such layer, or one cannot be moved.
        PatternError: a density is not from 0 to 1.

    Example:
        >>> import torch, jitsparse as js
        >>> model = torch.nn.Sequential(torch.nn.Linear(256, 512))
        >>> js.nn.sparsify_(model, 32, density=1.0)
        ('0',)
        >>> adam = torch.optim.Adam(model.parameters())
        >>> for density in (0.5, 0.25):  # ... and train in between
        ...     _ = js.nn.prune_(model, density, adam)
        >>> model[0].pattern.density
        0.25
    """
    layers = layers_of(model, "prune_", where)
    trained = assigned(layers, optimizers, "prune_")
    counts = {}
    for name, layer in layers.items():
        rows, cols = layer.pattern.grid
        wanted = density(name, layer) if callable(density) else density
        count = as_count(wanted, rows * cols)
        if count < layer.pattern.nnz_blocks:
            counts[name] = count
    for name, count in counts.items():
        layer = layers[name]
        kept = layer.weight.detach().block_norms().topk(count).indices
        layer.set_pattern(layer.pattern.take(kept), *trained[name])
    return tuple(counts)


def layers_of(
    model: nn.Module, function: str, where: Where | None = None
) -> dict[str, BlockSparseLinear]:
    """The block-sparse layers of a model by their names, of each the first.

    Raises:
        ArgumentError: there are none, or ``model`` is no module or ``where`` no function.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"{function} takes an nn.Module, got {type(model).__name__}")
    if where is not None and not callable(where):
        raise ArgumentError(
            f"where is a function of a name and a layer, got {type(where).__name__}"
        )
    every = {
        name: layer for name, layer in model.named_modules() if isinstance(layer, BlockSparseLinear)
    }
    chosen = {name: layer for name, layer in every.items() if where is None or where(name, layer)}
    if not chosen:
        raise ArgumentError(
            f"{function} finds no layer in this {type(model).__name__}: it has "
            f"{len(every) or 'no'} BlockSparseLinear"
            f"{', of which `where` selects none' if every else ''}; sparsify_ makes them of "
            "nn.Linear"
        )
    return chosen


def assigned(
    layers: Mapping[str, BlockSparseLinear],
    optimizers: Sequence[torch.optim.Optimizer],
    function: str,
) -> dict[str, list[torch.optim.Optimizer]]:
    """Of each layer the optimizers that train its values.

    Raises:
        ArgumentError: one is no optimizer, or trains none of the layers.
    """
    for each in optimizers:
        name = type(each).__name__
        if not isinstance(each, torch.optim.Optimizer):
            raise ArgumentError(f"{function} takes optimizers, got {name}")
        if not any(trains(each, layer.values) for layer in layers.values()):
            raise ArgumentError(
                f"{function}: this {name} trains the values of no block-sparse layer here: it was "
                "made before they were, or for another model"
            )
    return {
        name: [each for each in optimizers if trains(each, layer.values)]
        for name, layer in layers.items()
    }
