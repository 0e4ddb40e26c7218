"""Dynamic sparse training: blocks move while a model is trained, as many as there are."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from jitsparse import functional
from jitsparse.blocks import frobenius_norms
from jitsparse.errors import ArgumentError
from jitsparse.nn.linear import BlockSparseLinear
from jitsparse.nn.patterns import assigned, layers_of, match_patterns_, pairs_of
from jitsparse.nn.replacing import Where
from jitsparse.pattern import Pattern

__all__ = ["DropAndGrow"]

_Watched = list[tuple[Tensor, Tensor]]
"""Inputs of a layer, ``(tokens, in)``, and gradients of its outputs, ``(tokens, out)``."""


class _Move(NamedTuple):
    """Where a layer's blocks will be, and how many are elsewhere now."""

    pattern: Pattern
    blocks: int


class DropAndGrow:
    """Moves the blocks of a model's block-sparse layers to where they are needed.

    Every so many steps the blocks of smallest norm go, and as many grow elsewhere in the layer:
    those whose gradient would be largest (RigL, Evci et al., 2020,
    https://arxiv.org/abs/1911.11134), or others at random (SET, Mocanu et al., 2018,
    https://arxiv.org/abs/1707.04780). New blocks begin with zeros, and so does what optimizers keep
    of them, as with :meth:`BlockSparseLinear.set_pattern`, which says what else has to follow.

    The gradient of what is not stored is computed at the steps at which blocks move, from what
    :meth:`watching` sees there: in float32, of so many block rows at a time as have about as many
    blocks as the layer stores, never all of it. Processes of ``torch.distributed`` add theirs, and
    so move alike. Where a gradient is not finite, as after an overflow of a scaled loss, nothing
    moves at that step.

    Args:
        model: whose layers are trained.
        optimizers: that train it.
        every: steps from one move to the next.
        until: steps after which no block moves any more, three quarters of the training for
            instance.
        fraction: of a layer's blocks that would move at step 0; less and less do, by half a period
            of a cosine, and none at ``until``.
        grow: ``"gradient"`` or ``"random"``.
        where: a function of a layer's name, as in ``named_modules``, and the layer: whether its
            blocks move. By default those of all layers do whose values are trained.
        followers: models with layers of the same names, such as the module of an
            ``AveragedModel``, that get the same patterns.
        seed: of what grows at random.
        group: of the processes that add their gradients, by default all.

    Raises:
        ArgumentError: the model has no such layer, shares the values of one with another module
            (tied), or a follower has other layers; an optimizer trains none of them, or keeps what
            cannot be moved; or a number is not in its range.

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
        group: Any = None,
    ) -> None:
        if not (isinstance(every, int) and every > 0 and isinstance(until, int) and until >= 0):
            raise ArgumentError(
                f"every is a positive number of steps and until one that may be 0, got {every!r} "
                f"and {until!r}"
            )
        if not (isinstance(fraction, (int, float)) and 0 <= fraction <= 1):
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
        self._check()
        self._group = group
        self.every, self.until, self.fraction, self.grow = every, until, float(fraction), grow
        self._generator = torch.Generator().manual_seed(seed)
        self._steps = 0
        self._watched: dict[str, _Watched] = {}

    def _check(self) -> dict[str, list[torch.optim.Optimizer]]:
        """Of each layer its optimizers; whatever could not be moved is found before anything is."""
        for follower in self._followers:
            pairs_of(follower, self._model, "DropAndGrow(followers=...)")
        return assigned(self._layers, self._optimizers, "DropAndGrow")

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
            layer.register_forward_hook(partial(self._watch, name), with_kwargs=True)
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

    def _watch(
        self,
        name: str,
        layer: nn.Module,
        inputs: tuple[Any, ...],
        keywords: dict[str, Any],
        out: Tensor,
    ) -> None:
        if not out.requires_grad:
            return
        # As it was multiplied: what autocast has copied may be written to before the backward pass.
        x = _rows(inputs[0] if inputs else keywords["x"]).to(out.dtype)

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
        number, watched = self._steps + 1, self._watched
        if not self.due:
            self._steps, self._watched = number, {}
            return 0
        if self.grow == "gradient" and len(watched) < len(self._layers):
            name = min(self._layers.keys() - watched.keys())
            raise ArgumentError(
                f"DropAndGrow.step: the blocks of layer {name!r} are to move to where its gradient "
                "is largest, and no backward pass through it was seen in this step: run forward "
                "and backward in `with moving.watching():`, or leave the layer out (where=...)"
            )
        trained = self._check()
        fraction = self.fraction * (1 + math.cos(math.pi * number / self.until)) / 2
        moves = {
            name: self._moved(layer, watched.get(name, []), fraction)
            for name, layer in self._layers.items()
        }
        self._steps, self._watched = number, {}
        if any(move is None for move in moves.values()):
            return 0
        moved = 0
        for name, move in moves.items():
            if move is not None and move.blocks:
                self._layers[name].set_pattern(move.pattern, *trained[name])
                moved += move.blocks
        for follower in self._followers:
            match_patterns_(follower, self._model)
        return moved

    def _moved(self, layer: BlockSparseLinear, watched: _Watched, fraction: float) -> _Move | None:
        """Where a layer's blocks will be; None if its gradient is not finite."""
        pattern = layer.pattern
        stored = pattern.to_mask()
        absent = (~stored).flatten().nonzero().flatten()
        count = min(round(fraction * pattern.nnz_blocks), absent.numel())
        if not count:
            return _Move(pattern, 0)
        if self.grow == "random":
            chosen = torch.randperm(absent.numel(), generator=self._generator)[:count]
            grown = absent[chosen.to(absent.device)]
        else:
            norms = _norms_of_gradient(~stored, pattern, watched, self._group)
            if not norms.isfinite().all():
                return None
            grown = absent[norms.topk(count).indices]
        strengths = layer.weight.detach().block_norms()
        kept = pattern.take(strengths.topk(pattern.nnz_blocks - count).indices).to_mask()
        kept.view(-1)[grown] = True
        return _Move(Pattern.from_mask(kept, pattern.block_size, pattern.shape), count)

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


def _norms_of_gradient(mask: Tensor, like: Pattern, watched: _Watched, group: Any) -> Tensor:
    """``(n,)``: the norm of the gradient of a weight in each block of a mask, row after row.

    Args:
        mask: the blocks.
        like: pattern of the weight.
        watched: inputs and gradients of outputs, whose products are added up.
        group: of processes that add theirs, if there are several.
    """
    height, (rows, cols) = like.block_size[0], like.grid
    # So many block rows at a time as have about as many blocks as are stored.
    step = max(1, like.nnz_blocks // max(1, cols))
    norms = []
    for first in range(0, rows, step):
        some = slice(first * height, (first + step) * height)
        size = watched[0][1][:, some].shape[1], like.shape[1]
        pattern = Pattern.from_mask(mask[first : first + step], like.block_size, size)
        products = (functional.sdd(grad[:, some].mT, x, pattern).values for x, grad in watched)
        gradient = next(products)
        gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        for product in products:
            gradient += product
        norms.append(frobenius_norms(_added_up(gradient, group)))
    return torch.cat(norms)


def _added_up(gradient: Tensor, group: Any) -> Tensor:
    """Over all processes, if there are several."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(gradient, group=group)
    return gradient
