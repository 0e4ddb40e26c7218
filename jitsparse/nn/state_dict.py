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
                        error_msgs.append(f"the pattern of {prefix or 'the layer'!r}{error}")
                        return
                    self._write_shape()
                # Loads values and bias, and reports what is missing. The buffers are already equal.
                there = {
                    prefix + name: getattr(self, name)
                    for name in BUFFERS
                    if prefix + name in state_dict
                }
                super()._load_from_state_dict({**state_dict, **there}, prefix, *arguments)
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
        theirs = shape_in(state_dict.get(prefix + "shape"))
        if theirs not in (None, old.shape):
            return f" is one of shape {theirs}, and the layer's of shape {old.shape}"
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
        loaded = state_dict.get(prefix + "values")
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
