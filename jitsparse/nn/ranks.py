"""A check that processes training one model have the same pattern for each of its layers."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from jitsparse.errors import ArgumentError
from jitsparse.nn.buffers import PatternBuffers
from jitsparse.nn.wrapping import has_process_group

__all__ = ["require_same_patterns"]


def require_same_patterns(model: nn.Module, group: Any = None) -> None:
    """Check that all ranks have the same patterns.

    Data parallelism needs that: it averages gradients of blocks by position, wherever these are.

    ``DistributedDataParallel`` gives all ranks the patterns of rank 0 when it wraps a model. If
    each rank calls :meth:`BlockSparseLinear.set_pattern` later, nothing compares them: call this
    afterwards, on all ranks. It costs a hash of the indices and a collective operation.

    Args:
        model: may be wrapped. Layers are compared by name.
        group: a process group of ``torch.distributed``, by default that of all ranks.

    Raises:
        ArgumentError: ranks have different patterns, or different layers. It is raised on all of
            them, and names the first such layer. Or ``torch.distributed`` is not initialised.

    Example:
        >>> import torch, jitsparse as js
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> js.nn.require_same_patterns(js.nn.BlockSparseLinear(64, 64, 32, density=0.5))
        >>> torch.distributed.destroy_process_group()
    """
    if not has_process_group():
        raise ArgumentError(
            "require_same_patterns compares the ranks of torch.distributed, which is not "
            "initialised: call init_process_group before"
        )
    distributed = torch.distributed
    mine = {
        name: _digest(layer)
        for name, layer in model.named_modules()
        if isinstance(layer, PatternBuffers)
    }
    ranks: list[dict[str, str]] = [{} for _ in range(distributed.get_world_size(group))]
    distributed.all_gather_object(ranks, mine, group=group)
    for name in dict.fromkeys(name for layers in ranks for name in layers):
        those: dict[str | None, list[int]] = {}
        for rank, layers in enumerate(ranks):
            those.setdefault(layers.get(name), []).append(rank)
        if len(those) > 1:
            raise ArgumentError(
                f"layer {name!r} has {len(those)} different patterns"
                f"{' (or is no such layer)' if None in those else ''}: ranks "
                f"{'; '.join(', '.join(map(str, each)) for each in those.values())}. Make them "
                "with one seed, or send the state dict of one rank to the others"
            )


def _digest(layer: PatternBuffers) -> str:
    pattern = layer.pattern
    digest = hashlib.sha256(repr((pattern.shape, pattern.block_size)).encode())
    for indices in (pattern.crow_indices, pattern.col_indices):
        digest.update(indices.cpu().numpy().tobytes())
    return digest.hexdigest()
