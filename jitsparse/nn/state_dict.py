"""State dicts of a layer whose buffers are a pattern: they bring a pattern of their own, maybe with
another number of blocks, and say of which matrix it is."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from jitsparse.layout import div_up
from jitsparse.nn.buffers import INDICES, PatternBuffers, advice_on, unwrapped
from jitsparse.pattern import Pattern
from jitsparse.transforms import outside_of_transforms

__all__ = ["PatternStateDict"]


class PatternStateDict(PatternBuffers):
    """The base of a layer that can be loaded whatever pattern it has had."""

    @property
    def _facts(self) -> dict[str, Any]:
        """What the indices of a state dict do not say, how many columns the matrix has for one; and
        something by which to know these indices."""
        pattern = self._pattern
        return {
            "shape": pattern.shape,
            "block_size": pattern.block_size,
            "nnz_blocks": pattern.nnz_blocks,
        }

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Beside the version of a module, where torch.save keeps it, too; safetensors does not.
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            metadata.setdefault(prefix[:-1], {}).update(self._facts)

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
        # The layer's own hooks may make its state out of another one, so they come first.
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
                # Values, bias and the reports of what is missing. The indices are there already,
                # equal.
                there = {
                    prefix + name: getattr(self, name)
                    for name in INDICES
                    if prefix + name in state_dict
                }
                super()._load_from_state_dict({**state_dict, **there}, prefix, *arguments)
                if loaded:
                    self._note(self._pattern, self.crow_indices, self.col_indices)
        finally:
            self._load_state_dict_pre_hooks = hooks

    def _load_pattern(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]
    ) -> str | None:
        """Take over the pattern of a state dict, and make room for its values; what is wrong with
        it, or None."""
        crow, col = (state_dict[prefix + name] for name in INDICES)
        old = self._pattern
        own = self._facts
        facts = {name: local_metadata.get(name, mine) for name, mine in own.items()}
        # Where entries were renamed, the metadata are those of others.
        if _describes(facts, crow, col):
            for name in ("shape", "block_size"):
                theirs, mine = tuple(facts[name]), own[name]
                if theirs != mine:
                    return (
                        f" has {name} {theirs} in the state dict, and {mine} here (if its entries "
                        "were renamed: del state_dict._metadata)"
                    )
        try:
            assign = local_metadata.get("assign_to_params_buffers", False)
            device = crow.device if assign else self.values.device
            crow, col = unwrapped(crow), unwrapped(col)
            with outside_of_transforms(crow, col):
                there = crow.to(device).clone(), col.to(device).clone()
                pattern = Pattern(old.shape, old.block_size, *there)
        except (ValueError, AttributeError, RuntimeError) as error:  # also of what is no tensor
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
        self._take_over(pattern)
        return None


def _describes(facts: dict[str, Any], crow: Any, col: Any) -> bool:
    """Whether metadata may be of these indices."""
    rows, block_rows = facts["shape"][0], facts["block_size"][0]
    return (
        isinstance(crow, Tensor)
        and isinstance(col, Tensor)
        and crow.numel() == div_up(rows, block_rows) + 1
        and col.numel() == facts["nnz_blocks"]
    )
