"""A module whose buffers are the indices of a pattern, and whose pattern follows them.

These may be moved, copied, loaded, averaged, or given other memory. A pattern never
changes, and its packed index is derived from it, so the module makes a new pattern when its buffers
have changed. What it does depends on what the buffers are when it looks:

- tensors: their marks (version and address) tell whether they were written to or replaced. If so,
  the pattern is made anew and checked, outside of any transform or mode, since it outlives these;
- on a GPU while a graph is captured: made anew, unchecked, by kernels that the graph holds;
- traced by Dynamo: the layer looks once, outside of the graph, which is valid for these tensors;
- replaced by fakes, as ``torch.export`` does: the tensors that the layer saw last count, and fakes
  of other tensors are refused;
- wrapped by ``torch.func.grad``: the wrapped tensors count; mapped over: refused;
- on the meta device: the pattern stays. Buffers that leave it are empty until they are written to.
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
"""Held while a layer's pattern changes, and while a layer notices that its buffers have changed."""


def _after_fork() -> None:
    """Replace the lock: a thread of the parent, which is not here, may have held it."""
    global _changes
    _changes = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class PatternBuffers(nn.Module):
    """Base of a layer that stores blocks at the places of a pattern."""

    crow_indices: Tensor
    col_indices: Tensor
    shape: Tensor
    _marks: list[tuple[int, int]]
    _emptied: list[tuple[int, int]] | None = None  # marks of unwritten buffers off the meta device

    @property
    def pattern(self) -> Pattern:
        """Where the blocks of the weight are."""
        # Asked first, without nn.Module.__getattr__: half the time of following them.
        buffers = self._buffers
        if torch.compiler.is_compiling() or not self._as_seen(
            buffers.get("crow_indices"), buffers.get("col_indices")
        ):
            self._follow_buffers()
        return self._pattern

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Have calls that begin in other threads wait until a change is complete."""
        with _changes:
            self._marks = []  # match no buffers: readers then look closer, and wait there
            yield

    def _take_over(self, pattern: Pattern, *, in_place: bool = False) -> None:
        """Make copies of a pattern's indices the buffers.

        ``in_place`` writes into the present ones if possible; they must have as many entries.
        """
        # The buffers are what a state dict holds; the pattern's packed index is derived from them
        # and differs between devices, so it is not a buffer. They are copies: a layer's buffers may
        # be written to, but not a pattern, which other layers and matrices may share.
        for name in INDICES:
            self._put(name, getattr(pattern, name), in_place)
        self._note(pattern, self.crow_indices, self.col_indices)

    def _write_shape(self, *, in_place: bool = False) -> None:
        """Write the buffer that tells a state dict the shape, whatever it holds now.

        That may be what ``to_empty`` or a loader has left, another dtype, or nothing. Not done by
        ``_take_over``, which must not copy anything from the host where blocks move.
        """
        shape = torch.tensor(self._pattern.shape, device=self.crow_indices.device)
        self._put("shape", shape, in_place)

    def _put(self, name: str, wanted: Tensor, in_place: bool) -> None:
        """Register a copy as a buffer, or write into the present one if requested and possible."""
        if in_place and _may_write(getattr(self, name), wanted.dtype):
            getattr(self, name).copy_(wanted)
        else:
            with torch.inference_mode(False), outside_of_transforms(wanted):
                self.register_buffer(name, wanted.clone())

    def _leave_inference_mode(self) -> None:
        """Replace buffers that are inference tensors, as after a move or copy in inference mode.

        Those count no versions, by which writes to them are noticed.
        """
        with torch.inference_mode(False):
            for name in BUFFERS:
                if getattr(self, name).is_inference():
                    self.register_buffer(name, getattr(self, name).clone())

    def _note(self, pattern: Pattern, crow: Tensor, col: Tensor) -> None:
        """Note that the pattern is that of these buffers, as they are now."""
        self._pattern = pattern
        self._seen = crow, col
        self._marks = _marks(crow, col)
        self._emptied = None

    def _follow_buffers(self) -> None:
        """Take over what was written to the buffers, or replaced them, behind the layer's back.

        ``DistributedDataParallel`` does so. The indices are checked, except on a GPU while a graph
        is made.

        Raises:
            PatternError: the indices are not those of a pattern.
        """
        if torch.compiler.is_dynamo_compiling():
            self._follow_traced()
            # Checked in the graph, which is valid for these tensors alone; without fullgraph=True,
            # others are used outside of it.
            if self.crow_indices is not self._seen[0] or self.col_indices is not self._seen[1]:
                raise ArgumentError(
                    "a compiled graph cannot have other indices in the place of a layer's buffers: "
                    "pass functional_call the parameters only"
                )
        elif torch.compiler.is_compiling():  # torch.export replaces the buffers by fakes
            self._refuse_other_fakes()
            self._follow(lambda: self._seen)
        else:
            self._follow(self._both_buffers)

    def _both_buffers(self) -> tuple[Tensor, Tensor]:
        """Both buffers, of one pattern.

        Another thread that replaces them begins with the first, and may do so between two reads.
        """
        while True:
            crow, col = self.crow_indices, self.col_indices
            if self.crow_indices is crow:
                return crow, col

    def _refuse_other_fakes(self) -> None:
        """Refuse buffers that were replaced since the layer saw them.

        Fakes have no data, so the layer follows the tensors that it saw.
        """
        mode = getattr(self.crow_indices, "fake_mode", None)
        fakes = self.crow_indices, self.col_indices
        if mode is not None and any(
            mode.from_tensor(seen, static_shapes=True) is not fake  # its fake of that tensor
            for seen, fake in zip(self._seen, fakes, strict=True)
        ):
            raise _unseen("replaced")

    def _follow_traced(self) -> None:
        """Called once by Dynamo, on the layer itself, while it traces; it does not look inside."""
        if torch.compiler.is_exporting() and self._marks != _marks(
            self.crow_indices, self.col_indices
        ):
            # torch.export restores the attributes that tracing has set.
            raise _unseen("written to")
        self._follow(self._both_buffers)

    # As torch.compiler.assume_constant_result does, which would import all of Dynamo.
    _follow_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _follow(self, look: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Make the pattern that of the buffers that ``look`` returns, if they changed."""
        if self._is_pattern_of(*self._plain(*look())):
            return
        with _changes:
            # Another thread may have been first, or have changed what was looked at.
            crow, col = self._plain(*look())
            if self._is_pattern_of(crow, col):
                return
            with outside_of_transforms(crow, col):
                pattern = self._pattern_of(crow, col, replaced=not self._has_seen(crow, col))
                self._note(pattern, crow, col)

    def _plain(self, crow: Tensor, col: Tensor) -> tuple[Tensor, Tensor]:
        """Buffers, unwrapped if they are not those that the layer saw last."""
        return (crow, col) if self._has_seen(crow, col) else (unwrapped(crow), unwrapped(col))

    def _has_seen(self, crow: Tensor, col: Tensor) -> bool:
        return crow is self._seen[0] and col is self._seen[1]

    def _as_seen(self, crow: Tensor | None, col: Tensor | None) -> bool:
        """Whether these are the buffers that the layer saw last, as they were then."""
        seen_crow, seen_col = self._seen
        return crow is seen_crow and col is seen_col and self._marks == _marks(seen_crow, seen_col)

    def _is_pattern_of(self, crow: Tensor, col: Tensor) -> bool:
        # Buffers that leave the meta device are uninitialised memory, not a pattern: wait until
        # they, or what replaces them, as functional_call does, are written to.
        return self._as_seen(crow, col) or (
            self._pattern.device.type == "meta" and self._emptied == _marks(crow, col)
        )

    def _pattern_of(self, crow: Tensor, col: Tensor, *, replaced: bool) -> Pattern:
        """The pattern of buffers that were written to or replaced.

        It is the present one if that has the same indices, as where a moving average copies them at
        each update.
        """
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
        # A graph is being made or captured, or the indices are fake.
        if crow.device.type == "cpu" and type(crow) is Tensor:
            check_indices(*given)
        traits = old.traits if col.shape == old.col_indices.shape else 0
        return Pattern._trusted(*given, traits)

    def _refuse_another_shape(self) -> None:
        """Refuse indices of another shape, which a loader wrote by itself, as accelerate does."""
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
            # A move to another device moves the pattern. Anything else is not for indices: bfloat16
            # would round them, `to_empty` would leave whatever the memory held.
            pattern = old.to(self.crow_indices.device)
            self._take_over(pattern, in_place=True)  # in memory that may be shared
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
    """Whether readable indices are those of a pattern."""
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
    """A buffer of indices, without the wrappers that ``torch.func.grad`` puts around all arguments.

    Raises:
        ArgumentError: it is not a tensor, or is mapped over.
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
    """The shape in the buffer of that name, or in its entry of a state dict; None if unreadable."""
    if not isinstance(named, Tensor):
        return tuple(named) if isinstance(named, (list, tuple)) else None
    named = unwrapped(named)
    return tuple(named.flatten().tolist()) if is_readable(named) else None


def _unseen(what: str) -> ArgumentError:
    """The error for indices that were changed in a way that no captured graph would contain."""
    return ArgumentError(
        f"the indices of a BlockSparseLinear were {what}: read layer.pattern once, or call the "
        "layer, before torch.export"
    )


def _marks(*buffers: Tensor) -> list[tuple[int, int]]:
    """Versions and addresses, which tell whether buffers were written to or given other memory.

    ``buffer.data = ...`` counts no version, and is how FSDP moves buffers to a GPU.
    """
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
