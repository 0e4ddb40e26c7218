"""Changes of the patterns of a model's layers: fewer blocks, or those of another model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from jitsparse.checks import as_count
from jitsparse.errors import ArgumentError
from jitsparse.nn.linear import BlockSparseLinear, require_a_block
from jitsparse.nn.optimizer_state import require_movable, require_optimizer, trains
from jitsparse.nn.replacing import Where, answer, named, require_density, require_module
from jitsparse.nn.wrapping import refuse_wrappers, require_unwrapped
from jitsparse.pattern import Pattern
from jitsparse.untraced import untraced

__all__ = ["assigned", "layers_of", "match_patterns_", "move_all", "pairs_of", "prune_"]


@untraced
def match_patterns_(model: nn.Module, like: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Give a model's layers the patterns of the layers of the same names in another model.

    A moving average averages values by their position, whichever blocks they are: call this before
    it is updated, wherever the blocks of its model have moved. Blocks that were there before keep
    their values, new ones start at zero, as with :meth:`BlockSparseLinear.set_pattern`.

    Args:
        model: changed in place.
        like: the model whose patterns these layers get, on the same devices.
        optimizers: those that train ``model``, if any: their state moves along.

    Raises:
        ArgumentError: the two have block-sparse layers of different names, shapes, block sizes or
            devices, or an optimizer keeps state that cannot be moved. Nothing is changed then.

    Example:
        >>> import torch, jitsparse as js
        >>> model = torch.nn.Sequential(js.nn.BlockSparseLinear(256, 512, 32, density=0.25))
        >>> average = torch.optim.swa_utils.AveragedModel(model)
        >>> model[0].set_pattern(js.Pattern.random((512, 256), 32, 0.25))
        >>> js.nn.match_patterns_(average.module, model)
        >>> average.update_parameters(model)
    """
    pairs = pairs_of(model, like, "match_patterns_")
    mine = {name: layer for name, (layer, _) in pairs.items()}
    trained = assigned(mine, optimizers, "match_patterns_")
    move_all(
        mine,
        {
            name: other.pattern
            for name, (layer, other) in pairs.items()
            if layer.pattern != other.pattern
        },
        trained,
    )


@untraced
def prune_(
    model: nn.Module,
    density: float | Callable[[str, BlockSparseLinear], float],
    *optimizers: torch.optim.Optimizer,
    where: Where | None = None,
) -> tuple[str, ...]:
    """Keep the blocks of largest norm in the block-sparse layers of a model.

    To prune gradually, begin with ``sparsify_(model, block_size, density=1.0)``, make the
    optimizer, and lower the density while the model trains: parameters and optimizers stay. Hooks
    on gradients do not survive another number of blocks, so a model wrapped for several devices is
    refused: prune the model itself, in the same way on all ranks, and wrap it anew. A compiled
    model is recompiled for each density, up to ``torch._dynamo.config.recompile_limit`` times (8):
    raise that, or compile when the pruning is done.

    Args:
        model: changed in place, as by :meth:`BlockSparseLinear.set_pattern`, after a step and
            before the next forward pass.
        density: fraction of all blocks that a layer stores afterwards, or a function of a layer's
            name, as in ``named_modules``, and the layer. A layer that stores no more stays as it
            is.
        optimizers: those that train the model: their state moves along.
        where: a function of the same arguments: whether the layer is pruned. By default all are.

    Returns:
        The names of the layers that were pruned.

    Raises:
        ArgumentError: the model has no such layer, is wrapped for several devices, or shares the
            values of a layer with another module (tied); an optimizer keeps state that cannot be
            moved, or trains none of the layers. Nothing is changed then.
        PatternError: a density is not from 0 to 1, or leaves no block where it is more than 0.

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
    require_density(density)
    layers = layers_of(model, "prune_", where)
    require_unwrapped(model, "prune_")
    trained = assigned(layers, optimizers, "prune_")
    patterns = {}
    for name, layer in layers.items():
        pattern = layer.pattern
        with named(name):
            wanted = answer("density", density, name, layer)
            count = as_count(wanted, math.prod(pattern.grid))
            if count < pattern.nnz_blocks:
                kept = layer.weight.detach().block_norms().topk(count).indices
                patterns[name] = require_a_block(pattern.take(kept), wanted)
    move_all(layers, patterns, trained)
    return tuple(patterns)


def move_all(
    layers: Mapping[str, BlockSparseLinear],
    patterns: Mapping[str, Pattern],
    trained: Mapping[str, Sequence[torch.optim.Optimizer]],
) -> None:
    """Apply :meth:`BlockSparseLinear.set_pattern` to several layers, to all or to none.

    Args:
        layers: by name.
        patterns: the new patterns of those that move.
        trained: for each layer the optimizers that train it.

    Raises:
        ArgumentError: one of them cannot be moved. Nothing is changed then.
    """
    for name, pattern in patterns.items():
        try:
            layers[name]._require_movable(pattern, trained[name])
        except ArgumentError as error:
            raise ArgumentError(f"layer {name!r}: {error}") from error
    resized = []
    for name, pattern in patterns.items():
        layer = layers[name]
        if pattern.nnz_blocks != layer.pattern.nnz_blocks:
            resized.append(layer.values)
        layer._move(pattern, trained[name])
    if resized:
        refuse_wrappers(*resized)


def pairs_of(
    model: nn.Module, like: nn.Module, function: str
) -> dict[str, tuple[BlockSparseLinear, BlockSparseLinear]]:
    """The layers of the same names in two models.

    Raises:
        ArgumentError: one has a layer that the other lacks, or has with another shape, block size
            or device.
    """
    theirs, mine = layers_of(like, function), layers_of(model, function)
    if theirs.keys() != mine.keys():
        name = min(theirs.keys() ^ mine.keys())
        has, lacks = ("like", "model") if name in theirs else ("model", "like")
        raise ArgumentError(
            f"{function}: patterns are matched between layers of the same names, and of model and "
            f"like {has} has {name!r}, {lacks} has not (pass the module of an AveragedModel or a "
            "DistributedDataParallel)"
        )
    for name, layer in mine.items():
        wanted, given = (
            f"{each.shape} in blocks of {each.block_size} on {each.device}"
            for each in (layer.pattern, theirs[name].pattern)
        )
        if wanted != given:
            raise ArgumentError(
                f"{function}: layer {name!r} is {wanted} in model, and {given} in like"
            )
    return {name: (layer, theirs[name]) for name, layer in mine.items()}


def layers_of(
    model: nn.Module, function: str, where: Where | None = None
) -> dict[str, BlockSparseLinear]:
    """The block-sparse layers of a model by name, the first if there are several.

    Raises:
        ArgumentError: there are none, ``model`` is not a module, ``where`` is not a function, or a
            layer's values are also a parameter of another module, which cannot know their pattern.
    """
    require_module(model, where, function)
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
    owners = {id(layer.values): name for name, layer in chosen.items()}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if owners.get(id(parameter), name) != name:
                raise ArgumentError(
                    f"{function}: the values of layer {owners[id(parameter)]!r} are also "
                    f"{name}.{key} (tied), which would not know where their blocks are: untie "
                    "them, or leave the layer out (where=...)"
                )
    return chosen


def assigned(
    layers: Mapping[str, BlockSparseLinear],
    optimizers: Sequence[torch.optim.Optimizer],
    function: str,
) -> dict[str, list[torch.optim.Optimizer]]:
    """For each layer the optimizers that train its values.

    Raises:
        ArgumentError: one is not an optimizer, trains none of the layers, or keeps state that
            cannot be moved.
    """
    for each in optimizers:
        require_optimizer(each, function)
        trained = [layer.values for layer in layers.values() if trains(each, layer.values)]
        if not trained:
            raise ArgumentError(
                f"{function}: this {type(each).__name__} trains the values of no block-sparse "
                "layer here: it was made before they were, or for another model"
            )
        for values in trained:
            require_movable(values, [each], len(values))
    return {
        name: [each for each in optimizers if trains(each, layer.values)]
        for name, layer in layers.items()
    }
