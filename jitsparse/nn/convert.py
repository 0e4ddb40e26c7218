"""Conversion of a model's dense layers to block-sparse ones, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from jitsparse.checks import as_block_size
from jitsparse.errors import ArgumentError
from jitsparse.nn.buffers import BUFFERS
from jitsparse.nn.linear import BlockSparseLinear
from jitsparse.nn.replacing import Kind, answer, named, replace, require_density, require_model

__all__ = ["densify_", "sparsify_"]


def sparsify_(
    model: nn.Module,
    block_size: int | Sequence[int],
    *,
    density: float | Callable[[str, nn.Linear], float] | None = None,
    mask: Callable[[str, nn.Linear], Tensor] | None = None,
    where: Callable[[str, nn.Linear], bool] | None = None,
) -> tuple[str, ...]:
    """Replace a model's ``nn.Linear`` layers by :class:`BlockSparseLinear`.

    Each keeps its own blocks of largest norm, or those of a mask, and its bias, as with
    :meth:`BlockSparseLinear.from_linear`. Frozen parameters stay frozen, and attributes of layers,
    weights and biases are kept. Layers of a class derived from ``nn.Linear`` are skipped: their
    owner may read the weight as a Tensor, as ``nn.MultiheadAttention`` does.

    The parameters are new, so make optimizers and wrap the model for several devices afterwards.
    Whatever refers to an old layer or parameter without being a module of the model (a plain list,
    an outer model) keeps the old one. A call that fails changes nothing.

    Args:
        model: changed in place.
        block_size: an int or a pair.
        density: fraction of the blocks that each layer keeps, or a function of a layer's name, as
            in ``named_modules``, and the layer.
        mask: a function of the same arguments that returns which blocks the layer keeps, ``(R, C)``
            bool. Either this or ``density`` is given.
        where: a function of the same arguments: whether the layer becomes sparse. By default all
            do. For a layer in several places all functions are given the first name.

    Returns:
        The first name of each layer that was replaced, in the model's order.

    Raises:
        ArgumentError: no layer is to be replaced; not exactly one of density and mask is given; the
            model is itself an ``nn.Linear``, which has no parent to replace it in, or wrapped for
            several devices; or something would be lost: a layer has hooks, or a function, buffer,
            parameter or module that an ``nn.Linear`` does not have, or its weight or bias is also a
            parameter of another module (tied).
        PatternError: block size, density or mask is illegal, or a layer is too small for them.

    Example:
        >>> import torch, jitsparse as js
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
        ... )
        >>> js.nn.sparsify_(model, 32, density=0.25, where=lambda name, layer: name != "2")
        ('0',)
        >>> model(torch.randn(8, 256)).shape
        torch.Size([8, 10])

        Keep the blocks in which pruning has left something:

        >>> pruned = torch.nn.Sequential(torch.nn.Linear(256, 512))
        >>> _ = pruned[0].weight.data[128:].zero_()
        >>> def stored(name, layer):
        ...     return js.BlockSparse.from_dense(layer.weight, 32).pattern.to_mask()
        >>> js.nn.sparsify_(pruned, 32, mask=stored)
        ('0',)
        >>> pruned[0].pattern.density
        0.25
    """
    require_model(model, where, _dense(), "BlockSparseLinear.from_linear")
    block = as_block_size(block_size)
    if (density is None) == (mask is None):
        raise ArgumentError(
            "sparsify_ needs either density=... or mask=..., "
            f"got {'neither' if mask is None else 'both'}"
        )
    if mask is not None and not callable(mask):
        raise ArgumentError(
            "mask is a function of a name and a layer, which returns the blocks to keep, got "
            f"{type(mask).__name__}"
        )
    if mask is None:
        require_density(density)

    def successor(name: str, layer: nn.Linear) -> BlockSparseLinear:
        with named(name):
            kept = None if density is None else answer("density", density, name, layer)
            chosen = None if mask is None else answer("mask", mask, name, layer)
            sparse = BlockSparseLinear.from_linear(layer, block, density=kept, mask=chosen)
        _take_along(layer.weight, sparse.values)
        _take_along(layer.bias, sparse.bias)
        return sparse

    return replace(model, _dense(), where, successor)


def densify_(
    model: nn.Module, *, where: Callable[[str, BlockSparseLinear], bool] | None = None
) -> tuple[str, ...]:
    """Replace a model's :class:`BlockSparseLinear` layers by ``nn.Linear``.

    The weight is the same, zero where no block is stored, and so is the bias. What
    :func:`sparsify_` says of parameters, frozen ones, attributes and failures holds here, too.

    Args:
        model: changed in place.
        where: a function of a layer's name, as in ``named_modules``, and the layer: whether it
            becomes dense. By default all do.

    Returns:
        The first name of each layer that was replaced, in the model's order.

    Raises:
        ArgumentError: no layer is to be replaced; the model is itself a BlockSparseLinear, or
            wrapped for several devices; a layer has no values, since it left the meta device
            without a state dict; or something would be lost, as with :func:`sparsify_`.

    Example:
        >>> import torch, jitsparse as js
        >>> model = torch.nn.Sequential(js.nn.BlockSparseLinear(256, 512, 32, density=0.25))
        >>> js.nn.densify_(model)
        ('0',)
        >>> model
        Sequential(
          (0): Linear(in_features=256, out_features=512, bias=True)
        )
    """
    require_model(model, where, _sparse(), "its to_linear")

    def successor(name: str, layer: BlockSparseLinear) -> nn.Linear:
        with named(name):
            dense = layer.to_linear()
        _take_along(layer.values, dense.weight)
        _take_along(layer.bias, dense.bias)
        return dense

    return replace(model, _sparse(), where, successor)


def _take_along(old: Tensor | None, new: Tensor | None) -> None:
    """Copy a parameter's ``requires_grad`` and its attributes, such as marks for optimizers."""
    if old is not None and new is not None:
        new.requires_grad_(old.requires_grad)
        vars(new).update(vars(old))


@functools.cache
def _own() -> tuple[frozenset[str], frozenset[str]]:
    """Attributes that every dense and every sparse layer has."""
    sparse = BlockSparseLinear(8, 8, 8, density=1.0, device="meta")
    return (
        frozenset({*vars(nn.Module()), "in_features", "out_features"}),
        frozenset(vars(sparse)) | {"_emptied"},
    )


@functools.cache
def _dense() -> Kind:
    dense, sparse = _own()
    return Kind(
        function="sparsify_",
        name="nn.Linear",
        # A lazy layer becomes an nn.Linear at its first call; until then from_linear refuses it.
        classes=(nn.Linear, nn.LazyLinear),
        base=nn.Linear,
        own=dense,
        taken=sparse | {*dir(BlockSparseLinear), *BUFFERS, "values"},
        parameters=frozenset({"weight", "bias"}),
    )


@functools.cache
def _sparse() -> Kind:
    dense, sparse = _own()
    return Kind(
        function="densify_",
        name="BlockSparseLinear",
        classes=(BlockSparseLinear,),
        base=BlockSparseLinear,
        own=sparse,
        taken=dense | {*dir(nn.Linear), "weight"},
        parameters=frozenset({"values", "bias"}),
        buffers=frozenset(BUFFERS),
    )
