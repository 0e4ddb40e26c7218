"""State dicts of a layer whose buffers are a pattern.

They bring a pattern of their own, maybe with another number of blocks. Its indices do not say how
many columns the matrix has, so the shape is an entry, too: safetensors files keep nothing but
entries, and whatever renames these renames it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from jitsparse.checks import is_readable
from jitsparse.nn.buffers import BUFFERS, INDICES, shape_in, unwrapped
from jitsparse.nn.moving import MovableBlocks, advice_on
from jitsparse.pattern import Pattern
from jitsparse.transforms import outside_of_transforms

__all__ = ["PatternStateDict"]


class _DenseWeight(str):
    """The key of a dense weight that came for a block-sparse layer; formatted, it says what to do.

    torch formats unexpected keys into its error, or returns them if ``strict=False``. A layer is
    not told which of these it will be, and its own messages are raised in either case.
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        layer = self.rpartition(".")[0]
        remedy = (
            f"layer {layer!r} is block-sparse: load it before js.nn.sparsify_, or "
            "js.nn.densify_ the model first"
            if layer
            else "this layer is block-sparse: load it into an nn.Linear, and convert that with "
            "BlockSparseLinear.from_linear"
        )
        return f"{super().__format__(spec)} (dense, and {remedy})"


class PatternStateDict(MovableBlocks):
    """Base of a layer that can load a state dict whatever pattern it has had."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # The layer's own hooks may derive its state from another one, so they come first.
        hooks, self._load_state_dict_pre_hooks = self._load_state_dict_pre_hooks, OrderedDict()
        arguments = local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        try:
            for hook in hooks.values():
                hook(state_dict, prefix, *arguments)
            loaded = all(state_dict.get(prefix + name) is not None for name in INDICES)
            with self._changing():
                if loaded:
                    error = self._load_pattern(state_dict, prefix, local_metadata)
                    if error is not None:
                        layer = f"layer {prefix[:-1]!r}" if prefix else "this layer"
                        error_msgs.append(f"the pattern of {layer}{error}")
                        return
                    self._write_shape()
                # Loads values and bias, and reports what is missing. The buffers are already equal.
                there = {
                    prefix + name: getattr(self, name)
                    for name in BUFFERS
                    if prefix + name in state_dict
                }
                super()._load_from_state_dict({**state_dict, **there}, prefix, *arguments)
                dense = prefix + "weight"
                if dense in unexpected_keys and prefix + "values" not in state_dict:
                    unexpected_keys[unexpected_keys.index(dense)] = _DenseWeight(dense)
                if loaded:
                    self._note(self._pattern, self.crow_indices, self.col_indices)
        finally:
            self._load_state_dict_pre_hooks = hooks

    def _has_blocks_of(self, pattern: Pattern) -> bool:
        """Whether the blocks are those of a pattern, as far as it can be read."""
        old = self._pattern
        readable = old.device.type != "meta" and is_readable(pattern.col_indices)
        return readable and old.to(pattern.device) == pattern

    def _load_pattern(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]
    ) -> str | None:
        """Take over the pattern of a state dict and make room for its values; returns any error."""
        crow, col = (state_dict[prefix + name] for name in INDICES)
        old = self._pattern
        loaded = state_dict.get(prefix + "values")
        shape, block = shape_in(state_dict.get(prefix + "shape")), _block_size_of(loaded)
        if shape not in (None, old.shape) or block not in (None, old.block_size):
            mine = _sizes(old.shape, old.block_size)
            return (
                f" is one{_sizes(shape, block)}, and the layer's is one{mine}: make the layer "
                "with the sizes of the state dict"
            )
        try:
            assign = local_metadata.get("assign_to_params_buffers", False)
            device = crow.device if assign else self.values.device
            crow, col = unwrapped(crow), unwrapped(col)
            with outside_of_transforms(crow, col):
                there = crow.to(device).clone(), col.to(device).clone()
                pattern = Pattern(old.shape, old.block_size, *there)
        except (ValueError, AttributeError, RuntimeError) as error:  # also of non-tensors
            return f": {error}"
        wanted = pattern.values_shape
        loaded = self.values if loaded is None else loaded
        if not isinstance(loaded, Tensor):
            return f" comes with values that are a {type(loaded).__name__} and no tensor"
        shape = tuple(loaded.shape)
        if shape != wanted:
            has = "none" if loaded is self.values else shape
            return (
                f" stores {wanted[0]} blocks, so its values need shape {wanted}; "
                f"the state dict has {has}"
            )
        if self.values.shape[0] != pattern.nnz_blocks:
            if type(self.values) is not nn.Parameter:
                return (
                    f" stores {wanted[0]} blocks and the layer {self.values.shape[0]}, and its "
                    f"values are a {type(self.values).__name__} by now: "
                    f"{advice_on(self.values, 'load')}"
                )
            self._resize_values(self.values.new_empty(wanted) if loaded.is_meta else loaded)
        elif self.values.grad is not None and not self._has_blocks_of(pattern):
            self.values.grad = None
        self._take_over(pattern)
        return None


def _block_size_of(values: object) -> tuple[int, ...] | None:
    """The block size of values in a state dict; None if they have none."""
    return tuple(values.shape[1:]) if isinstance(values, Tensor) and values.dim() == 3 else None


def _sizes(shape: tuple[int, ...] | None, block: tuple[int, ...] | None) -> str:
    """Those that are known, for an error message."""
    return (f" of shape {shape}" if shape else "") + (f" in blocks of {block}" if block else "")
