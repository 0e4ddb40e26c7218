"""A module whose buffers are the indices of a pattern, which follows them.

Whatever is done to a module may be done to them: it is moved, copied, loaded, averaged, given other
memory. A pattern never changes, and its packed index is derived from it, so the module makes
another one where the buffers have become something else. What it does depends on what they are
when it looks:

- tensors: their marks (version and address) tell whether they were written to or replaced. Then the
  pattern is made anew and checked, outside of any transform or mode, since it outlives these;
- on a GPU while a graph is captured: made anew by kernels that the graph holds, unchecked;
- traced by Dynamo: the layer looks once, outside of the graph, which then holds for these tensors;
- replaced by fakes, as ``torch.export`` does: what the layer saw last is what counts, and it
  refuses where the fakes are of other tensors;
- wrapped by ``torch.func.grad``: what is wrapped counts; mapped over: refused;
- on the meta device: the pattern stays. What comes off it is empty until something is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C._functorch import (
    get_unwrapped,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
)

from jitsparse.checks import check_indices, is_readable
from jitsparse.errors import ArgumentError, PatternError
from jitsparse.jit import progress
from jitsparse.pattern import Pattern
from jitsparse.transforms import outside_of_transforms

__all__ = ["BUFFERS", "INDICES", "PatternBuffers", "shape_in", "unwrapped"]

INDICES = ("crow_indices", "col_indices")
BUFFERS = (*INDICES, "shape")
_Self = TypeVar("_Self", bound="PatternBuffers")


_changes = threading.RLock()
"""Held while a layer becomes another one, and while one finds that it has."""


def _after_fork() -> None:
    """A thread of the parent may have held it, and is not here."""
    global _changes
    _changes = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class PatternBuffers(nn.Module):
    """The base of a layer that stores blocks at the places of a pattern."""

    crow_indices: Tensor
    col_indices: Tensor
    shape: Tensor
    _marks: list[tuple[int, int]]
    _emptied: list[tuple[int, int]] | None = None  # marks of buffers off the meta device, unwritten

    @property
    def pattern(self) -> Pattern:
        """Where the blocks of the weight are."""
        self._follow_buffers()
        return self._pattern

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Calls in other threads that begin meanwhile wait, and see all of a change."""
        with _changes:
            self._marks = []  # of no buffers: whoever looks at them looks closer, and waits there
            yield

    def _take_over(self, pattern: Pattern, *, in_place: bool = False) -> None:
        """Make copies of a pattern's indices the buffers; ``in_place`` writes into the present ones
        if possible, which then must have as many entries."""
        # The buffers are what a state dict holds; the pattern's packed index is derived from them
        # and differs between devices, so it is no buffer. They are copies: others may write to a
        # layer's buffers, and nobody to a pattern, which other layers and matrices may have too.
        for name in INDICES:
            self._put(name, getattr(pattern, name), in_place)
        self._note(pattern, self.crow_indices, self.col_indices)

    def _write_shape(self, *, in_place: bool = False) -> None:
        """Into the buffer that tells a state dict, whatever is there by now: what ``to_empty`` or a
        loader has left, another dtype, nothing. Not by ``_take_over``, which is to copy nothing
        from the host where blocks move."""
        shape = torch.tensor(self._pattern.shape, device=self.crow_indices.device)
        self._put("shape", shape, in_place)

    def _put(self, name: str, wanted: Tensor, in_place: bool) -> None:
        """Make a copy a buffer, or write into the present one, if that is wanted and possible."""
        if in_place and _may_write(getattr(self, name), wanted.dtype):
            getattr(self, name).copy_(wanted)
        else:
            with torch.inference_mode(False), outside_of_transforms(wanted):
                self.register_buffer(name, wanted.clone())

    def _leave_inference_mode(self) -> None:
        """Have buffers that are no tensors of inference mode, in which they may have been moved or
        copied: those count no versions, by which writes to them are seen."""
        with torch.inference_mode(False):
            for name in BUFFERS:
                if getattr(self, name).is_inference():
                    self.register_buffer(name, getattr(self, name).clone())

    def _note(self, pattern: Pattern, crow: Tensor, col: Tensor) -> None:
        """The pattern is what these buffers say, as they are now."""
        self._pattern = pattern
        self._seen = crow, col
        self._marks = _marks(crow, col)
        self._emptied = None

    def _follow_buffers(self) -> None:
        """Take over what was written to the buffers, or put in their place, behind the layer's
        back, as ``DistributedDataParallel`` does.

        They are checked then, but of a GPU not while a graph is made.

        Raises:
            PatternError: the indices are none of a pattern.
        """
        if torch.compiler.is_dynamo_compiling():
            self._follow_traced()
            # Asked in the graph, which then holds for these tensors alone; without fullgraph=True,
            # others are computed with outside of it.
            if self.crow_indices is not self._seen[0] or self.col_indices is not self._seen[1]:
                raise ArgumentError(
                    "a compiled graph cannot have other indices in the place of a layer's buffers: "
                    "pass functional_call the parameters only"
                )
        elif torch.compiler.is_compiling():  # torch.export has fakes in the buffers' place
            self._refuse_other_fakes()
            self._follow(*self._seen)
        else:
            self._follow(*self._both_buffers())

    def _both_buffers(self) -> tuple[Tensor, Tensor]:
        """Of one pattern: another thread, which puts others in their place, begins with the first
        and may do so between two looks."""
        while True:
            crow, col = self.crow_indices, self.col_indices
            if self.crow_indices is crow:
                return crow, col

    def _refuse_other_fakes(self) -> None:
        """Refuse buffers that were replaced since the layer saw them: what it saw is what is
        followed, since fakes have no data."""
        mode = getattr(self.crow_indices, "fake_mode", None)
        fakes = self.crow_indices, self.col_indices
        if mode is not None and any(
            mode.from_tensor(seen, static_shapes=True) is not fake  # the fake that it has of it
            for seen, fake in zip(self._seen, fakes, strict=True)
        ):
            raise _unseen("replaced")

    def _follow_traced(self) -> None:
        """Dynamo does not look inside: it calls this once, on the layer itself, while it traces."""
        if torch.compiler.is_exporting() and self._marks != _marks(
            self.crow_indices, self.col_indices
        ):
            # torch.export puts back the attributes that tracing has set.
            raise _unseen("written to")
        self._follow(self.crow_indices, self.col_indices)

    # As torch.compiler.assume_constant_result does, which would import all of Dynamo.
    _follow_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _follow(self, crow: Tensor, col: Tensor) -> None:
        old = self._pattern
        others = crow is not self._seen[0] or col is not self._seen[1]
        if others:
            crow, col = unwrapped(crow), unwrapped(col)
            others = crow is not self._seen[0] or col is not self._seen[1]
        # What comes off the meta device is uninitialised memory, no pattern: wait until it, or
        # what is put in its place, as functional_call does, is written to.
        hollow = old.device.type == "meta" and self._emptied == _marks(crow, col)
        if (others or self._marks != _marks(crow, col)) and not hollow:
            with _changes, outside_of_transforms(crow, col):
                if self._pattern is not old:  # another thread was first
                    return self._follow(self.crow_indices, self.col_indices)
                pattern = self._pattern_of(crow, col, replaced=others)
                self._note(pattern, crow, col)

    def _pattern_of(self, crow: Tensor, col: Tensor, *, replaced: bool) -> Pattern:
        """The pattern of what was written to the buffers, or put in their place: the present one if
        it is that, as where a moving average copies the same indices at each update."""
        old = self._pattern
        readable = is_readable(crow) and is_readable(col)
        if readable:
            self._refuse_another_shape()
            if _same_indices(old, crow, col):
                return old
        given = old.shape, old.block_size, crow.clone(), col.clone()
        if readable:
            pattern = Pattern(*given)
            if not replaced and old.device == pattern.device:
                _warn_of_other_blocks()
            return pattern
        # A graph is made or captured, or they are fake.
        if crow.device.type == "cpu" and type(crow) is Tensor:
            check_indices(*given)
        traits = old.traits if col.shape == old.col_indices.shape else 0
        return Pattern._trusted(*given, traits)

    def _refuse_another_shape(self) -> None:
        """Of indices that a loader of state dicts has put there by itself, as accelerate does."""
        shape = shape_in(self.shape)
        if shape not in (None, self._pattern.shape):
            raise PatternError(
                f"the buffers of a BlockSparseLinear became those of a layer of shape {shape}, and "
                f"its own is {self._pattern.shape}: load a checkpoint into layers of the sizes "
                "that it was made with"
            )

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        self._follow_buffers()
        old = self._pattern
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._leave_inference_mode()
        if old.device.type == "meta":
            if not self.crow_indices.is_meta:
                self._emptied = _marks(self.crow_indices, self.col_indices)
                self._write_shape(in_place=True)
            self._follow_buffers()
        elif self._marks != _marks(self.crow_indices, self.col_indices):
            # A move to another device is one of the pattern. Anything else is not for indices:
            # bfloat16 would round them, `to_empty` would leave whatever the memory held.
            pattern = old.to(self.crow_indices.device)
            self._take_over(pattern, in_place=True)  # in memory that may be shared by now
            self._write_shape(in_place=True)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._leave_inference_mode()
        if self._emptied is not None:
            self._emptied = _marks(self.crow_indices, self.col_indices)
        # After a copy or a load the buffers are new tensors, maybe on another device, or inside of
        # a transform.
        self._seen = unwrapped(self.crow_indices), unwrapped(self.col_indices)
        self._follow_buffers()


def _same_indices(pattern: Pattern, crow: Tensor, col: Tensor) -> bool:
    """Whether indices that can be read are those of a pattern."""
    return all(
        (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)
        and torch.equal(mine, theirs)
        for mine, theirs in ((pattern.crow_indices, crow), (pattern.col_indices, col))
    )


def _warn_of_other_blocks() -> None:
    progress.warn(
        "the indices of a BlockSparseLinear were overwritten by those of another pattern, beside "
        "set_pattern and load_state_dict. Its values are blocks of that one from now on, which is "
        "right if they were overwritten, too. A moving average (AveragedModel) has mixed values of "
        "different blocks: bring it to the patterns of its model before it is updated, by "
        "jitsparse.nn.match_patterns_"
    )


def unwrapped(indices: Tensor) -> Tensor:
    """What is in the place of a buffer of indices, without what ``torch.func.grad`` wraps around
    all arguments of a function.

    Raises:
        ArgumentError: it is no tensor, or mapped over.
    """
    if not isinstance(indices, Tensor):
        raise ArgumentError(
            f"the indices of a BlockSparseLinear are tensors, got {type(indices).__name__}; "
            "set_pattern changes them, and a state dict brings them"
        )
    while is_gradtrackingtensor(indices):
        indices = get_unwrapped(indices)
    if is_functorch_wrapped_tensor(indices):
        raise ArgumentError(
            "the indices of a BlockSparseLinear cannot be mapped over by torch.func: all "
            "models of an ensemble have one pattern (compare layer.pattern); pass functional_call "
            "the parameters only"
        )
    return indices


def shape_in(named: object) -> tuple[int, ...] | None:
    """The shape in the place of the buffer of that name, or of its entry in a state dict; None if
    there is none that can be read."""
    if not isinstance(named, Tensor):
        return tuple(named) if isinstance(named, (list, tuple)) else None
    named = unwrapped(named)
    return tuple(named.flatten().tolist()) if is_readable(named) else None


def _unseen(what: str) -> ArgumentError:
    """Of indices to which something was done that no captured graph would have."""
    return ArgumentError(
        f"the indices of a BlockSparseLinear were {what}: read layer.pattern once, or call the "
        "layer, before torch.export"
    )


def _marks(*buffers: Tensor) -> list[tuple[int, int]]:
    """What tells that buffers were written to, or given other memory: ``buffer.data = ...`` counts
    no version, and is how FSDP moves buffers to a GPU."""
    return [
        (
            0 if each.is_inference() else each._version,
            # Meta, fake and wrapped tensors have no memory of their own.
            each.data_ptr() if type(each) is Tensor and not each.is_meta else 0,
        )
        for each in buffers
    ]


def _may_write(buffer: Tensor, dtype: torch.dtype) -> bool:
    return buffer.dtype is dtype and not (buffer.is_meta or buffer.is_inference())
