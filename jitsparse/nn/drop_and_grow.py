"""Dynamic sparse training: blocks move while a model is trained; their number stays the same."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from jitsparse.checks import as_fraction
from jitsparse.errors import ArgumentError
from jitsparse.nn.patterns import assigned, layers_of, match_patterns_, move_all, pairs_of
from jitsparse.nn.replacing import Where
from jitsparse.nn.watching import Watcher
from jitsparse.pattern import Pattern
from jitsparse.untraced import untraced

__all__ = ["DropAndGrow"]


class _Move(NamedTuple):
    """A layer's new pattern, and how many of its blocks are elsewhere now."""

    pattern: Pattern
    blocks: int


class DropAndGrow:
    """Moves the blocks of a model's block-sparse layers to where they are needed.

    Every ``every`` steps the blocks of smallest norm are dropped, and as many grow elsewhere in the
    layer: those whose gradient would be largest (RigL, Evci et al., 2020,
    https://arxiv.org/abs/1911.11134), or others at random (SET, Mocanu et al., 2018,
    https://arxiv.org/abs/1707.04780). New blocks start at zero, and their optimizer state
    as a new parameter's, as with :meth:`BlockSparseLinear.set_pattern`, which says what else has to
    follow.

    The gradients of blocks that are not stored are computed at the steps at which blocks move, from
    what :meth:`watching` sees there: in float32, for as many block rows at a time as have about as
    many blocks as the layer stores, never all at once. Processes of ``torch.distributed`` add their
    gradients, and so make the same moves. If a gradient is not finite, as after an overflow of a
    scaled loss, nothing moves at that step.

    Args:
        model: the model whose layers are trained.
        optimizers: those that train these layers, at least one for each.
        every: steps from one move to the next.
        until: steps after which no block moves any more, for instance three quarters of the
            training.
        fraction: fraction of a layer's blocks that would move at step 0; it falls by half a period
            of a cosine, to none at ``until``.
        grow: ``"gradient"`` or ``"random"``.
        where: a function of a layer's name, as in ``named_modules``, and the layer: whether its
            blocks move. By default those of all layers do whose values are trained.
        followers: models with layers of the same names, such as the module of an
            ``AveragedModel``, that get the same patterns.
        seed: seed of random growth.
        group: process group whose members add their gradients, by default all.

    Raises:
        ArgumentError: the model has no such layer, shares the values of one with another module
            (tied), or a follower has other layers; an optimizer trains none of them or keeps state
            that cannot be moved, or a layer has no optimizer; or a number is out of range.

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
        whole = isinstance(every, numbers.Integral) and isinstance(until, numbers.Integral)
        if not (whole and every > 0 and until >= 0):
            raise ArgumentError(
                f"every is a positive number of steps and until one that may be 0, got {every!r} "
                f"and {until!r}"
            )
        share = as_fraction(fraction)
        if share is None:
            raise ArgumentError(f"fraction is a number from 0 to 1, got {fraction!r}")
        if grow not in ("gradient", "random"):
            raise ArgumentError(f"grow is 'gradient' or 'random', got {grow!r}")
        # A Sequential is a sequence of modules, too: its layers would be taken for the followers.
        if isinstance(followers, nn.Module) or not isinstance(followers, Sequence):
            raise ArgumentError(
                f"followers is a list of models, got {type(followers).__name__}: write [model]"
            )
        for follower in followers:
            if not isinstance(follower, nn.Module):
                raise ArgumentError(f"followers is a list of models, got {follower!r} in it")
        whole = isinstance(seed, numbers.Integral)
        if not (whole and -(2**63) <= seed < 2**64):
            raise ArgumentError(f"seed is an int of 64 bits, got {seed!r}")
        self._model, self._optimizers = model, optimizers
        self._followers = tuple(followers)
        self._layers = {
            name: layer
            for name, layer in layers_of(model, "DropAndGrow", where).items()
            if layer.values.requires_grad
        }
        if not self._layers:
            raise ArgumentError("DropAndGrow: the values of all selected layers are frozen")
        self._check()
        self._watcher = Watcher(self._layers, group)
        self.every, self.until, self.fraction, self.grow = every, until, share, grow
        self._generator = torch.Generator().manual_seed(int(seed))
        self._steps = 0

    def __repr__(self) -> str:
        return (
            f"DropAndGrow(every={self.every}, until={self.until}, grow={self.grow!r}, "
            f"layers={len(self._layers)})"
        )

    def _check(self) -> dict[str, list[torch.optim.Optimizer]]:
        """The optimizers of each layer; finds whatever cannot be moved before anything is."""
        for follower in self._followers:
            pairs_of(follower, self._model, "DropAndGrow(followers=...)")
        trained = assigned(self._layers, self._optimizers, "DropAndGrow")
        for name, those in trained.items():
            if not those:
                raise ArgumentError(
                    f"DropAndGrow: none of the optimizers trains the values of layer {name!r}: "
                    "give the one that does, or leave the layer out (where=...)"
                )
            self._layers[name]._require_movable(self._layers[name].pattern, those)
        return trained

    @property
    def due(self) -> bool:
        """Whether the next :meth:`step` moves blocks."""
        number = self._steps + 1
        return number % self.every == 0 and number < self.until

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which to run the forward and backward passes of a step.

        Enter it once, or several times where gradients are accumulated. It costs something only
        where blocks move by gradient at the end of the step: inputs of layers, and gradients of
        their outputs, are kept until then, and compiled models run eagerly.

        All backward passes through calls of the layers count, so run elsewhere what must not be
        part of the gradient (``torch.autograd.grad`` of something else, a pass whose gradient is
        dropped). Computations on ``layer.weight`` outside of these calls do not count. Not for
        functions that are themselves compiled, or transformed by ``torch.func``.

        Example: see :class:`DropAndGrow`.
        """
        if self.grow == "random" or not self.due:
            yield
            return
        with self._watcher.watching():
            yield

    @torch.no_grad()
    @untraced
    def step(self) -> int:
        """Count a step, and move blocks if they are due.

        Call it after each step of the optimizer, even one that was skipped. Layers of which no
        backward pass was seen, and frozen ones, stay.

        Returns:
            How many blocks moved, 0 between moves.

        Raises:
            ArgumentError: blocks are to move by gradient, and no backward pass was seen; or
                something cannot follow any more. Nothing has moved then.
        """
        number = self._steps + 1
        moves = {}
        if self.due:
            trained = self._check()
            fraction = self.fraction * (1 + math.cos(math.pi * number / self.until)) / 2
            moves = self._moves(fraction)
            move_all(self._layers, {name: move.pattern for name, move in moves.items()}, trained)
        self._steps = number
        self._watcher.forget()
        if moves:
            for follower in self._followers:
                match_patterns_(follower, self._model)
        return sum(move.blocks for move in moves.values())

    def _moves(self, fraction: float) -> dict[str, _Move]:
        """The moves of layers; empty if a gradient is not finite."""
        names = [name for name, layer in self._layers.items() if layer.values.requires_grad]
        if self.grow == "gradient":
            seen = self._watcher.seen()
            if not seen:
                raise ArgumentError(
                    "DropAndGrow.step: blocks are to move to where gradients are largest, and no "
                    "backward pass through any layer was seen in this step: run forward and "
                    "backward in `with moving.watching():`"
                )
            names = [name for name in names if name in seen]
        moves = {}
        for name in names:
            pattern = self._layers[name].pattern
            stored = pattern.to_mask()
            absent = (~stored).flatten().nonzero().flatten()
            count = min(round(fraction * pattern.nnz_blocks), absent.numel())
            if not count:
                continue
            if self.grow == "random":
                chosen = torch.randperm(absent.numel(), generator=self._generator, device="cpu")
                grown = absent[chosen[:count].to(absent.device)]
            else:
                norms = self._watcher.norms(name, ~stored)
                if not norms.isfinite().all():
                    return {}
                grown = absent[norms.topk(count).indices]
            strengths = self._layers[name].weight.detach().block_norms()
            kept = pattern.take(strengths.topk(pattern.nnz_blocks - count).indices).to_mask()
            kept.view(-1)[grown] = True
            moves[name] = _Move(Pattern.from_mask(kept, pattern.block_size, pattern.shape), count)
        return moves

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to resume training exactly: steps, and the generator's state.

        The patterns are in the model's state dict.
        """
        return {"steps": self._steps, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where another instance stopped.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ArgumentError: it is not. Nothing has changed then.
        """
        try:
            steps = operator.index(state["steps"])
            kept = state["generator"].cpu()  # wherever it was loaded to
            if steps < 0:
                raise ValueError(f"steps is {steps}")
            generator = torch.Generator()
            generator.set_state(kept)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ArgumentError(
                "DropAndGrow.load_state_dict takes what state_dict returned, with the entries "
                f"'steps' and 'generator': {type(error).__name__}: {error}"
            ) from error
        self._watcher.forget()
        self._steps, self._generator = steps, generator
