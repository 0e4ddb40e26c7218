"""The gradients of blocks that are not stored, from what is seen of a layer's passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from jitsparse import functional
from jitsparse.blocks import frobenius_norms
from jitsparse.errors import ArgumentError
from jitsparse.nn.linear import BlockSparseLinear
from jitsparse.nn.wrapping import has_process_group
from jitsparse.pattern import Pattern

__all__ = ["Watcher"]


class Watcher:
    """Keeps inputs of layers and the gradients of their outputs.

    The gradient of any block of a layer's weight is a product of these.

    Args:
        layers: by name.
        group: process group whose members add their gradients, if there are several.
    """

    def __init__(self, layers: Mapping[str, BlockSparseLinear], group: Any) -> None:
        self._layers, self._group = layers, group
        self._pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def forget(self) -> None:
        """Drop what was seen."""
        self._pairs = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the passes in this context, and drop what was seen if they end in an error.

        Compiled models run eagerly here, since a graph compiled without hooks has none.
        """
        hooks = [
            # Ahead of the user's hooks, which may return something other than the layer does.
            layer.register_forward_hook(partial(self._see, name), with_kwargs=True, prepend=True)
            for name, layer in self._layers.items()
        ]
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        except BaseException:
            self.forget()
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def _see(
        self,
        name: str,
        layer: nn.Module,
        inputs: tuple[Any, ...],
        keywords: dict[str, Any],
        out: Tensor,
    ) -> None:
        if not out.requires_grad:
            return
        # As multiplied: where autocast makes a copy, autograd does not keep x itself.
        x = _rows(inputs[0] if inputs else keywords["x"]).to(out.dtype)

        def keep(grads: Sequence[Tensor | None]) -> None:
            grad = grads[place]
            if grad is None:
                return
            if torch.is_grad_enabled():
                raise ArgumentError(
                    f"DropAndGrow: a backward pass through layer {name!r} is differentiated itself "
                    "(create_graph=True, as for a gradient penalty), and the gradient of such a "
                    "loss in blocks that are not stored is not known: use grow='random', or run "
                    "that part outside of watching()"
                )
            # Until here autograd makes sure that nobody writes to x. Its memory is freed unless
            # something else holds it.
            self._pairs.setdefault(name, []).append((x.clone(), _rows(grad).clone()))

        # On the node, not the tensor, so that it runs after the user's own hooks on the tensor,
        # which may clip or mask the gradient.
        node, place = out.grad_fn, out.output_nr
        if node is not None:
            node.register_prehook(keep)

    def seen(self) -> set[str]:
        """Names of the layers through which any process has seen a backward pass."""
        names = list(self._layers)
        device = next(iter(self._layers.values())).values.device
        seen = [name in self._pairs for name in names]
        flags = self._added_up(torch.tensor(seen, dtype=torch.int32, device=device))
        return {name for name, flag in zip(names, flags.tolist(), strict=True) if flag}

    def norms(self, name: str, mask: Tensor) -> Tensor:
        """``(n,)``: norms of the gradient of a layer's weight in the blocks of a mask, row by row.

        Call it on all processes, or on none.

        Args:
            name: name of the layer.
            mask: ``(R, C)`` bool.
        """
        layer = self._layers[name]
        with torch.autocast(layer.values.device.type, enabled=False):  # it would overflow float16
            return self._norms(layer, self._pairs.get(name, []), mask)

    def _norms(
        self, layer: BlockSparseLinear, pairs: Sequence[tuple[Tensor, Tensor]], mask: Tensor
    ) -> Tensor:
        like = layer.pattern
        height, (rows, cols) = like.block_size[0], like.grid
        # As many block rows at a time as have about as many blocks as are stored.
        step = max(1, like.nnz_blocks // max(1, cols))
        sums = torch.promote_types(layer.values.dtype, torch.float32)
        norms = [torch.zeros(0, dtype=sums, device=mask.device)]
        for first in range(0, rows, step):
            some = slice(first * height, (first + step) * height)
            size = len(range(*some.indices(like.shape[0]))), like.shape[1]
            pattern = Pattern.from_mask(mask[first : first + step], like.block_size, size)
            gradient = torch.zeros(pattern.values_shape, dtype=sums, device=mask.device)
            for x, grad in pairs:
                gradient += functional.sdd(_wide(grad[:, some].mT), _wide(x), pattern).values
            norms.append(frobenius_norms(self._added_up(gradient)))
        return torch.cat(norms)

    def _added_up(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, if there are several."""
        if has_process_group():
            torch.distributed.all_reduce(tensor, group=self._group)
        return tensor


def _rows(x: Tensor) -> Tensor:
    """``(..., features)`` as ``(tokens, features)``."""
    return x.detach().reshape(x.shape[:-1].numel(), x.shape[-1])


def _wide(x: Tensor) -> Tensor:
    """Float16 as bfloat16, in which sums of many products do not overflow.

    Which norm is larger hardly ever depends on the last bits.
    """
    return x.bfloat16() if x.dtype is torch.float16 else x
