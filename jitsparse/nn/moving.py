"""A layer whose values can become those of other blocks, in training or through a state dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jitsparse.blocks import block_positions, gather_blocks, require_like
from jitsparse.errors import ArgumentError
from jitsparse.nn.buffers import PatternBuffers
from jitsparse.nn.optimizer_state import (
    guard,
    moves_of,
    note_resized,
    require_movable,
    require_trained,
)
from jitsparse.nn.wrapping import refuse_wrappers
from jitsparse.pattern import Pattern
from jitsparse.untraced import untraced

__all__ = ["MovableBlocks", "advice_on"]


class MovableBlocks(PatternBuffers):
    """Base of a layer whose ``values`` follow its pattern wherever that goes."""

    def __init__(self) -> None:
        super().__init__()
        guard(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        guard(self)

    values: nn.Parameter

    @untraced
    def set_pattern(self, pattern: Pattern, *optimizers: torch.optim.Optimizer) -> None:
        """Store other blocks from now on, as in training that prunes blocks and grows others.

        Blocks that both patterns store keep their values, bit for bit; new ones start at zero.
        ``values`` stays the same Parameter, with as many blocks as the pattern has; its gradient is
        dropped. Nothing waits for the device.

        Args:
            pattern: one of the same shape and block size, on the same device.
            optimizers: those that train ``values``: their state of each block, such as momentum and
                running averages, moves along, and is a new parameter's for new blocks (mostly
                zero); step counts stay. An optimizer that is not named keeps the state of the old
                blocks; if their number changes, it refuses its next step. (Adam corrects its
                averages by the step count, which is not that of a new block: under a constant
                gradient its first dozens of steps are three to seven times the learning rate, with
                the default betas.)

        Call it after a step and before the next forward pass: a backward pass of an earlier one has
        gradients for the old blocks. It raises if their number has changed, or if the layer's input
        needs a gradient, too; otherwise the gradients are taken for those of the new blocks.

        Whatever else depends on the blocks has to follow:

        - a moving average of the model, before it is updated: :func:`match_patterns_`;
        - a CUDA graph that was captured: capture it anew;
        - ``DistributedDataParallel``: all ranks must move to one pattern, which
          :func:`require_same_patterns` checks, with as many blocks as before, since hooks on
          gradients do not survive another number;
        - a compiled layer follows, and is recompiled for each number of blocks, up to
          ``torch._dynamo.config.recompile_limit`` times; inside a compiled function this method
          runs eagerly, between two graphs;
        - a Parameter that two layers share has one pattern for both: do not move it.

        Raises:
            ArgumentError: if the pattern does not fit, an optimizer does not train ``values`` or
                keeps state that cannot be moved, or these are not a plain Parameter, since the
                model is sharded.

        Example:
            >>> import torch, jitsparse as js
            >>> layer = js.nn.BlockSparseLinear(256, 512, 32, density=0.25)
            >>> adam = torch.optim.Adam(layer.parameters())
            >>> kept = layer.weight.block_norms().topk(28).indices  # of 32 blocks
            >>> layer.set_pattern(layer.pattern.take(kept), adam)
            >>> layer.pattern.nnz_blocks
            28
        """
        blocks = len(self.values)
        self._require_movable(pattern, optimizers)
        self._move(pattern, optimizers)
        if len(self.values) != blocks:
            refuse_wrappers(self.values)

    def _require_movable(
        self, pattern: Pattern, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Run the checks of :meth:`set_pattern`.

        Raises:
            ArgumentError: see there.
        """
        old, values = self.pattern, self.values
        if old.device.type == "meta":
            raise ArgumentError(
                "set_pattern moves values from their places, and a layer that is on the meta "
                "device, or left it empty, has none: materialize it and load a state dict first"
            )
        require_like("set_pattern(pattern)", pattern, old.shape, old.block_size, old.device)
        plain = type(values) is nn.Parameter and values.shape == old.values_shape
        if not plain or values.device != old.device:
            raise ArgumentError(
                f"set_pattern moves values that are a Parameter of shape {old.values_shape} on "
                f"{old.device}; these are a {type(values).__name__} of shape "
                f"{tuple(values.shape)} on {values.device}: {advice_on(values, 'move')}"
            )
        require_trained(values, optimizers)
        require_movable(values, optimizers, pattern.nnz_blocks)

    def _move(self, pattern: Pattern, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """:meth:`set_pattern` after its checks."""
        old, values = self.pattern, self.values
        # A layer that was made in inference mode can be written to only there.
        with torch.inference_mode(values.is_inference()), torch.no_grad():
            places = block_positions(pattern, old)
            moved, moves = gather_blocks(values, places), moves_of(values, optimizers, places)
            as_many = moved.shape == values.shape
            for state, name, new in moves:
                # In place if it fits: a captured graph of the step may know the address.
                state[name] = state[name].copy_(new) if as_many else new
            with self._changing():
                if as_many:
                    values.copy_(moved)
                else:
                    self._resize_values(moved)
                # DistributedDataParallel holds references to the buffers.
                self._take_over(pattern, in_place=as_many)
            values.grad = None

    def _resize_values(self, wanted: Tensor) -> None:
        """Give the values another shape and content; they stay the same Parameter.

        An optimizer may hold it already.
        """
        values = self.values
        # A graph that is still alive would make later ones keep its shape. Autograd starts anew
        # where the dtype changes, but not where the shape does.
        another = torch.float32 if values.dtype is torch.float64 else torch.float64
        with torch.inference_mode(False):  # its tensors could not be trained
            _refuse_earlier_gradients(values)
            filled = values.new_empty(wanted.shape).copy_(wanted.detach())
            for data in (values.new_empty(0, dtype=another), filled):
                values.data = data
        values.grad = None
        note_resized()


def advice_on(values: Tensor, verb: str) -> str:
    """How to do something while values are still a plain Parameter."""
    if type(values) is Tensor:
        return "take off what computes them, such as pruning or weight_norm"
    return f"{verb} before the model is sharded"


def _refuse_earlier_gradients(values: nn.Parameter) -> None:
    """Make backward passes of existing graphs raise where they would accumulate into the values.

    These are about to change their shape: torch would keep a gradient of the old shape unchecked,
    and fused optimizers would read past its end. Later graphs accumulate at a node of their own.
    """

    def refuse(grads: tuple[Tensor, ...]) -> None:
        raise ArgumentError(
            "the backward pass of a graph that was made before the layer's number of blocks "
            f"changed: it has a gradient of shape {tuple(grads[0].shape)} for values of shape "
            f"{tuple(values.shape)}; run it before set_pattern or load_state_dict"
        )

    if values.requires_grad and not values.is_inference():
        torch.autograd.graph.get_gradient_edge(values).node.register_prehook(refuse)
