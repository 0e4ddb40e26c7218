"""A linear layer with a block-sparse weight."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from jitsparse.checks import as_block_size, as_count, check_indices
from jitsparse.errors import ArgumentError, PatternError
from jitsparse.functional import linear
from jitsparse.layout import div_up
from jitsparse.pattern import Pattern
from jitsparse.reference import blocks_of
from jitsparse.sparse import BlockSparse, clear_edge

__all__ = ["BlockSparseLinear"]


class BlockSparseLinear(nn.Module):
    """``y = x W^T + b`` with a block-sparse weight of shape ``(out_features, in_features)``.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        block_size: an int or a pair ``(block_rows, block_cols)``, each of 8, 16, 32, 64, 128.
        density: fraction of the blocks that the weight stores, at random places. Either this or
            ``pattern`` is given.
        pattern: where the blocks are, of shape ``(out_features, in_features)``.
        bias: whether to add a learned bias.
        device, dtype: of the parameters.

    Shape:
        ``(*batch, in_features)`` to ``(*batch, out_features)``.

    Attributes:
        values: the learned blocks, ``(nnz_blocks, block_rows, block_cols)``.
        bias: ``(out_features,)`` or None.
        crow_indices, col_indices: the pattern, int32 buffers of the state dict. A state dict with
            another pattern can be loaded: the layer takes that pattern over. If its number of
            blocks differs, ``values`` becomes a new Parameter: load before building an optimizer.

    Values are drawn as :class:`torch.nn.Linear` draws its weight, scaled to the density, so that
    outputs have the same variance.

    A layer on the meta device knows its sizes only; materialise it with ``to_empty`` and load a
    state dict, which brings the pattern.

    Raises:
        PatternError: if block size, density or pattern is illegal, or the density rounds to none of
            the blocks.
        ArgumentError: if not exactly one of density and pattern is given, or the pattern does not
            fit.

    Example:
        >>> layer = BlockSparseLinear(256, 512, 32, density=0.25)
        >>> layer(torch.randn(10, 256)).shape
        torch.Size([10, 512])
        >>> layer.weight  # doctest: +ELLIPSIS
        BlockSparse(shape=(512, 256), block_size=(32, 32), nnz_blocks=32, density=25.0%, ...
    """

    in_features: int
    out_features: int
    values: nn.Parameter
    bias: nn.Parameter | None
    crow_indices: Tensor
    col_indices: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        block_size: int | Sequence[int],
        *,
        density: float | None = None,
        pattern: Pattern | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        block = as_block_size(block_size)
        shape = (out_features, in_features)
        if pattern is None and density is not None:
            pattern = _not_empty(Pattern.random(shape, block, density, device=device), density)
        elif pattern is None or density is not None:
            raise ArgumentError(
                "BlockSparseLinear needs either density=... or pattern=..., "
                f"got {'neither' if pattern is None else 'both'}"
            )
        elif pattern.shape != shape or pattern.block_size != block:
            raise ArgumentError(
                f"BlockSparseLinear({in_features}, {out_features}, {block_size}) needs a pattern "
                f"of shape {shape} and block size {block}, got {pattern!r}"
            )
        elif device is not None:
            pattern = pattern.to(device)
        self.in_features = in_features
        self.out_features = out_features
        self._set_pattern(pattern)
        factory = {"device": pattern.device, "dtype": dtype}
        self.values = nn.Parameter(torch.empty((pattern.nnz_blocks, *block), **factory))  # type: ignore[arg-type]
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, **factory))  # type: ignore[arg-type]
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @property
    def pattern(self) -> Pattern:
        """Where the blocks of the weight are."""
        self._follow_buffers()
        return self._pattern

    @property
    def weight(self) -> BlockSparse:
        """The weight, ``(out_features, in_features)``, on the parameter ``values``.

        Raises:
            ArgumentError: the layer left the meta device without a pattern.
        """
        if self._pattern.device.type == "meta" and not self.values.is_meta:
            raise ArgumentError(
                "this BlockSparseLinear was built on the meta device, where a pattern has no "
                "data; load a state dict, which brings one"
            )
        return BlockSparse(self.values, self.pattern)

    def reset_parameters(self) -> None:
        """Draw as ``nn.Linear`` does, the values scaled by ``1 / sqrt(density)``."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        density = self._pattern.density
        scale = 1 / math.sqrt(density) if density else 1.0
        with torch.no_grad():
            self.values.uniform_(-bound * scale, bound * scale)
            self.values.copy_(clear_edge(self.values, self._pattern))
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    # -- from and to nn.Linear ------------------------------------------------------------------

    @classmethod
    def from_linear(
        cls,
        layer: nn.Linear,
        block_size: int | Sequence[int],
        *,
        density: float | None = None,
        mask: Tensor | None = None,
    ) -> BlockSparseLinear:
        """The blocks of a dense layer's weight that are kept, bit for bit, and its bias.

        Args:
            layer: a dense layer; its parameters are copied.
            block_size: an int or a pair.
            density: keep this fraction of the blocks, those of largest Frobenius norm.
            mask: ``(R, C)`` bool, the blocks to keep. Either this or ``density`` is given.

        Raises:
            PatternError: if block size, density or mask is illegal.
            ArgumentError: if the layer is no ``torch.nn.Linear``, or not exactly one of density and
                mask is given.
        """
        if not isinstance(layer, nn.Linear):
            raise ArgumentError(f"from_linear takes a Linear layer, got {type(layer).__name__}")
        block = as_block_size(block_size)
        weight = layer.weight.detach()
        if mask is None and density is not None:
            mask = _largest_blocks(weight, block, density)
        elif mask is None or density is not None:
            raise ArgumentError(
                "from_linear needs either density=... or mask=..., "
                f"got {'neither' if mask is None else 'both'}"
            )
        kept = BlockSparse.from_dense(weight, block, mask)
        if density is not None:
            _not_empty(kept.pattern, density)
        sparse = cls(
            layer.in_features,
            layer.out_features,
            block,
            pattern=kept.pattern,
            bias=layer.bias is not None,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            sparse.values.copy_(kept.values)
            if sparse.bias is not None:
                sparse.bias.copy_(layer.bias)
        sparse.train(layer.training)
        return sparse

    def to_linear(self) -> nn.Linear:
        """The dense layer with the same weight, zero where no block is stored, and bias."""
        dense: nn.Linear = nn.utils.skip_init(
            nn.Linear,
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=self.values.device,
            dtype=self.values.dtype,
        )
        with torch.no_grad():
            dense.weight.copy_(self.weight.to_dense())
            if self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense.train(self.training)

    # -- the pattern follows the module ---------------------------------------------------------

    def _set_pattern(self, pattern: Pattern) -> None:
        # The buffers are what a state dict holds; the pattern's packed index is derived from them
        # and differs between devices, so it is no buffer. They are copies: others may write to a
        # layer's buffers, and nobody to a pattern, which other layers and matrices may have too.
        self.register_buffer("crow_indices", pattern.crow_indices.clone())
        self.register_buffer("col_indices", pattern.col_indices.clone())
        self._note(pattern)

    def _note(self, pattern: Pattern) -> None:
        """The pattern is what the buffers say, as they are now."""
        self._pattern = pattern
        self._seen = self.crow_indices, self.col_indices
        self._marks = _marks(*self._seen)

    def _follow_buffers(self) -> None:
        """Take over what was written to the buffers, or put in their place, behind the layer's
        back, as ``DistributedDataParallel`` does.

        Nothing is read back to the host, so on a GPU the indices are not judged, and the traits
        stay unless there are more or fewer blocks.

        Raises:
            PatternError: the indices are none of a pattern, and on the CPU.
        """
        if torch.compiler.is_compiling():
            return
        old, crow, col = self._pattern, self.crow_indices, self.col_indices
        others = crow is not self._seen[0] or col is not self._seen[1]
        # What comes off the meta device is uninitialised memory, no pattern: wait for a load.
        hollow = old.device.type == "meta" and not crow.is_meta
        if others and is_functorch_wrapped_tensor(crow):
            raise ArgumentError(
                "the indices of a BlockSparseLinear cannot be mapped over by torch.func: all "
                "models of an ensemble have one pattern; pass functional_call the parameters only"
            )
        if (others or self._marks != _marks(crow, col)) and not hollow:
            if crow.device.type == "cpu" and type(crow) is Tensor:  # fake ones have no data
                check_indices(old.shape, old.block_size, crow, col)
            traits = old.traits if col.shape == old.col_indices.shape else 0
            shape = old.shape, old.block_size
            self._note(Pattern._trusted(*shape, crow.clone(), col.clone(), traits))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BlockSparseLinear:
        self._follow_buffers()
        old = self._pattern
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if old.device.type == "meta":
            self._follow_buffers()
        elif self._marks != _marks(self.crow_indices, self.col_indices):
            # A move to another device is one of the pattern. Anything else is not for indices:
            # bfloat16 would round them, `to_empty` would leave whatever the memory held.
            pattern = old.to(self.crow_indices.device)
            for name in ("crow_indices", "col_indices"):
                buffer, wanted = getattr(self, name), getattr(pattern, name)
                if buffer.dtype is wanted.dtype and not (buffer.is_meta or buffer.is_inference()):
                    buffer.copy_(wanted)  # in its memory, which may be shared by now
                else:
                    self.register_buffer(name, wanted.clone())
            self._note(pattern)
        return self

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
            self._load_hooked(state_dict, prefix, *arguments)
        finally:
            self._load_state_dict_pre_hooks = hooks

    def _load_hooked(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        crow = state_dict.get(prefix + "crow_indices")
        col = state_dict.get(prefix + "col_indices")
        if crow is not None and col is not None:
            assign = local_metadata.get("assign_to_params_buffers", False)
            device = crow.device if assign else self.values.device
            old = self._pattern
            try:
                pattern = Pattern(
                    old.shape, old.block_size, crow.to(device).clone(), col.to(device).clone()
                )
            except (ValueError, AttributeError, RuntimeError) as error:  # also of what is no tensor
                error_msgs.append(f"the pattern of {prefix or 'the layer'!r}: {error}")
                return
            wanted = (pattern.nnz_blocks, *pattern.block_size)
            values = state_dict.get(prefix + "values", self.values)
            if tuple(values.shape) != wanted:
                error_msgs.append(
                    f"the pattern of {prefix or 'the layer'!r} stores {wanted[0]} blocks, so its "
                    f"values need shape {wanted}; "
                    + (
                        f"the state dict has {tuple(values.shape)}"
                        if prefix + "values" in state_dict
                        else "the state dict has none"
                    )
                )
                return
            self._set_pattern(pattern)
            if self.values.shape[0] != pattern.nnz_blocks:
                self.values = nn.Parameter(
                    self.values.new_empty((pattern.nnz_blocks, *pattern.block_size)),
                    requires_grad=self.values.requires_grad,
                )
        # Values, bias and the reports of what is missing. The indices are there already, equal.
        super()._load_from_state_dict(
            {
                key: value
                for key, value in state_dict.items()
                if key not in (prefix + "crow_indices", prefix + "col_indices")
            }
            | {
                prefix + name: getattr(self, name)
                for name in ("crow_indices", "col_indices")
                if prefix + name in state_dict
            },
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        if crow is not None and col is not None:
            self._note(self._pattern)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # After a copy or a load the buffers are new tensors, maybe on another device.
        self._follow_buffers()

    def extra_repr(self) -> str:
        pattern = self._pattern
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"block_size={pattern.block_size}, nnz_blocks={pattern.nnz_blocks}, "
            f"density={pattern.density:.1%}, bias={self.bias is not None}"
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


def _not_empty(pattern: Pattern, density: float) -> Pattern:
    """A layer that was to have weights has one block at least."""
    rows, cols = pattern.grid
    if density > 0 and rows * cols and not pattern.nnz_blocks:
        raise PatternError(
            f"density={density} of the {rows * cols} blocks of {pattern.block_size} in a layer of "
            f"shape {pattern.shape} rounds to none: use smaller blocks or a density of at least "
            f"{1 / (rows * cols):.2g}"
        )
    return pattern


def _largest_blocks(weight: Tensor, block: tuple[int, int], density: float) -> Tensor:
    """``(R, C)`` bool: the ``round(density * R * C)`` blocks of largest Frobenius norm."""
    grid = div_up(weight.shape[0], block[0]), div_up(weight.shape[1], block[1])
    total = grid[0] * grid[1]
    where = torch.arange(total, device=weight.device)
    tiles = blocks_of(weight, where // max(grid[1], 1), where % max(grid[1], 1), block)
    # At least in float32: squares of float16 overflow.
    norms = torch.linalg.vector_norm(
        tiles, dim=(1, 2), dtype=torch.promote_types(weight.dtype, torch.float32)
    )
    keep = norms.topk(as_count(density, total)).indices
    mask = torch.zeros(total, dtype=torch.bool, device=weight.device)
    mask[keep] = True
    return mask.view(grid)
