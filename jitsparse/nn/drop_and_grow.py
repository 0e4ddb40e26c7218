"""Dynamic sparse training: blocks move while a model is trained, as many as there are."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from jitsparse import functional
from jitsparse.blocks import frobenius_norms
from jitsparse.errors import ArgumentError
from jitsparse.nn.patterns import Where, assigned, layers_of, match_patterns_
from jitsparse.pattern import Pattern

__all__ = ["DropAndGrow"]

_Watched = list[tuple[Tensor, Tensor]]
"""Inputs of a layer, ``(tokens, in)``, and gradients of its outputs, ``(tokens, out)``."""


class DropAndGrow:
    """Moves the blocks of a model's block-sparse layers to where they are needed.

    Every so many steps the blocks of smallest norm go, and as many grow elsewhere in the layer:
    those whose gradient would be largest (RigL, Evci et al., 2020,
    https://arxiv.org/abs/1911.11134), or others at random (SET, Mocanu et al., 2018,
    https://arxiv.org/abs/1707.04780). New blocks begin with zeros, and so does what optimizers keep
    of them, as with :meth:`BlockSparseLinear.set_pattern`, which says what else has to follow.

    The gradient of what is not stored is computed at the steps at which blocks move, from what
    :meth:`watching` sees there, some block rows at a time: it never takes more memory than the
    layer's values. Processes of ``torch.distributed`` add theirs, and so move alike.

    Args:
        model: whose layers are trained.
        optimizers: that train it.
        every: steps from one move to the next.
        until: steps after which no block moves any more, three quarters of the training for
            instance.
        fraction: of a layer's blocks that move first; then less and less, by half a period of a
            cosine, and none at ``until``.
        grow: ``"gradient"`` or ``"random"``.
        where: a function of a layer's name, as in ``named_modules``, and the layer: whether its
            blocks move. By default those of all layers do whose values are trained.
        followers: models with layers of the same names, such as the module of an
            ``AveragedModel``, that get the same patterns.
        seed: of what grows at random.

    Raises:
        ArgumentError: the model has no such layer, an optimizer trains none of them, or a number is
            not in its range.

    Example:
        >>> import torch, jitsparse as js
        >>> model = torch.nn.Sequential(js.nn.BlockSparseLinear(64, 64, 16, density=0.25))
        >>> adam = torch.optim.Adam(model.parameters())
        >>> moving = js.nn.DropAndGrow(model, adam, every=2, until=6)
        >>> for step in range(8):
        ...     with moving.watching():
        ...         model(torch.randn(32, 64)).square().mean().backward()
        ...     adam.step()
        ...     adam.zero_grad()
        ...     moved = moving.step()
        >>> model[0].pattern.nnz_blocks
        4
    """

    def __init__(
        self,
        model: nn.Module,
        *optimizers: torch.optim.Optimizer,
        every: int,
        until: int,
        fraction: float = 0.3,
        grow: Literal["gradient", "random"] = "gradient",
        where: Where | None = None,
        followers: Sequence[nn.Module] = (),
        seed: int = 0,
    ) -> None:
        if not (isinstance(every, int) and every > 0 and isinstance(until, int) and until >= 0):
            raise ArgumentError(
                f"every is a positive number of steps and until one that may be 0, got {every!r} "
                f"and {until!r}"
            )
        if not 0 <= fraction <= 1:
            raise ArgumentError(f"fraction is a number from 0 to 1, got {fraction!r}")
        if grow not in ("gradient", "random"):
            raise ArgumentError(f"grow is 'gradient' or 'random', got {grow!r}")
        self._model, self._optimizers, self._followers = model, optimizers, followers
        self._layers = {
            name: layer
            for name, layer in layers_of(model, "DropAndGrow", where).items()
            if layer.values.requires_grad
        }
        if not self._layers:
            raise ArgumentError("DropAndGrow: the values of all selected layers are frozen")
        assigned(self._layers, optimizers, "DropAndGrow")
        self.every, self.until, self.fraction, self.grow = every, until, float(fraction), grow
        self._generator = torch.Generator().manual_seed(seed)
        self._steps = 0
        self._watched: dict[str, _Watched] = {}

    @property
    def due(self) -> bool:
        """Whether the next :meth:`step` moves blocks."""
        number = self._steps + 1
        return number % self.every == 0 and number < self.until

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Run the forward and backward passes of a step in this context: once, or several times
        where gradients are accumulated. It costs something only where blocks move by gradient at
        the end of the step: inputs of layers, and gradients of their outputs, are kept until then,
        and compiled models run eagerly.

        Example: see :class:`DropAndGrow`.
        """
        if self.grow == "random" or not self.due:
            yield
            return
        hooks = [
            layer.register_forward_hook(partial(self._watch, name))
            for name, layer in self._layers.items()
        ]
        try:
            # A graph that was compiled without hooks has none.
            with torch.compiler.set_stance("force_eager"):
                yield
        except BaseException:
            self._watched = {}  # whoever tries again begins anew
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def _watch(self, name: str, layer: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> None:
        if not out.requires_grad:
            return
        x = _rows(inputs[0])

        def keep(grad: Tensor) -> None:
            self._watched.setdefault(name, []).append((x, _rows(grad)))

        out.register_hook(keep)

    @torch.no_grad()
    def step(self) -> int:
        """Count a step, after that of the optimizer, and move blocks if they are due.

        Returns:
            How many blocks moved, 0 between moves.

        Raises:
            ArgumentError: blocks are to move by gradient, and no backward pass of a layer was
                watched.
        """
        due, watched = self.due, self._watched
        number = self._steps + 1
        if not due:
            self._steps, self._watched = number, {}
            return 0
        fraction = self.fraction * (1 + math.cos(math.pi * number / self.until)) / 2
        if self.grow == "gradient" and len(watched) < len(self._layers):
            name = min(self._layers.keys() - watched.keys())
            raise ArgumentError(
                f"DropAndGrow.step: the blocks of layer {name!r} are to move to where its gradient "
                "is largest, and no backward pass through it was seen in this step: run forward "
                "and backward in `with moving.watching():`, or leave the layer out (where=...)"
            )
        moved = 0
        patterns = {}
        for name, layer in self._layers.items():
            pattern = layer.pattern
            absent = ~pattern
            count = min(round(fraction * pattern.nnz_blocks), absent.nnz_blocks)
            if count:
                grown = absent.take(self._growing(name, absent, pattern.nnz_blocks)[:count])
                norms = layer.weight.detach().block_norms()
                kept = pattern.take(norms.topk(len(norms) - count).indices)
                patterns[name] = kept | grown
                moved += count
        trained = assigned(self._layers, self._optimizers, "DropAndGrow")
        for name, moved_to in patterns.items():
            self._layers[name].set_pattern(moved_to, *trained[name])
        for follower in self._followers:
            match_patterns_(follower, self._model)
        self._steps, self._watched = number, {}
        return moved

    def _growing(self, name: str, absent: Pattern, stored: int) -> Tensor:
        """``(nnz,)``: the blocks that are not stored, those first that are to be."""
        if self.grow == "random":
            order = torch.randperm(absent.nnz_blocks, generator=self._generator)
            return order.to(absent.device)
        return _norms_of_gradient(absent, self._watched[name], stored).argsort(descending=True)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs for training to go on as it would have: steps, and the state of
        what grows at random. Where the blocks are is in the model's."""
        return {"steps": self._steps, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another has stopped.

        Args:
            state: of :meth:`state_dict`.
        """
        self._steps = int(state["steps"])
        self._generator.set_state(state["generator"])


def _rows(x: Tensor) -> Tensor:
    """``(..., features)`` as ``(tokens, features)``."""
    return x.detach().reshape(-1, x.shape[-1])


def _norms_of_gradient(absent: Pattern, watched: _Watched, stored: int) -> Tensor:
    """``(nnz,)``: the norm of the gradient of a weight in each of some blocks, in order.

    Args:
        absent: the blocks.
        watched: inputs and gradients of outputs, whose products are added up.
        stored: as many blocks as are computed at a time, at least a row of blocks.
    """
    height, (rows, cols) = absent.block_size[0], absent.grid
    mask, step = absent.to_mask(), max(1, stored // max(1, cols))
    sums = torch.promote_types(watched[0][1].dtype, torch.float32)
    norms = []
    for first in range(0, rows, step):
        some = slice(first * height, (first + step) * height)
        part = mask[first : first + step]
        size = watched[0][1][:, some].shape[1], absent.shape[1]
        pattern = Pattern.from_mask(part, absent.block_size, size)
        gradient = torch.zeros(pattern.values_shape, dtype=sums, device=pattern.device)
        for x, grad in watched:
            gradient += functional.sdd(grad[:, some].mT, x.to(grad.dtype), pattern).values
        norms.append(frobenius_norms(_added_up(gradient)))
    # Where a scaled loss has overflowed, nothing is known.
    return torch.cat(norms).nan_to_num(0.0, posinf=0.0)


def _added_up(gradient: Tensor) -> Tensor:
    """Over all processes, if there are several."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(gradient)
    return gradient
