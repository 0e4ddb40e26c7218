"""A linear layer with a block-sparse weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jitsparse.autograd import traced
from jitsparse.blocks import clear_edge, extract_blocks, frobenius_norms
from jitsparse.checks import (
    BLOCK_SIZES,
    as_block_size,
    as_count,
    as_shape,
    check_dtype,
    grid_of,
)
from jitsparse.errors import ArgumentError, PatternError
from jitsparse.functional import linear
from jitsparse.layout import div_up
from jitsparse.nn.state_dict import PatternStateDict
from jitsparse.pattern import Pattern
from jitsparse.sparse import BlockSparse

__all__ = ["BlockSparseLinear", "require_a_block"]


class BlockSparseLinear(PatternStateDict):
    """``y = x W^T + b`` with a block-sparse weight of shape ``(out_features, in_features)``.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        block_size: an int or a pair ``(block_rows, block_cols)``, each 8, 16, 32, 64 or 128.
        density: fraction of the blocks that the weight stores, at random places. Either this or
            ``pattern`` is given.
        pattern: where the blocks are, of shape ``(out_features, in_features)``.
        bias: whether to add a learned bias.
        device, dtype: those of the parameters.

    Shape:
        ``(*batch, in_features)`` to ``(*batch, out_features)``.

    Attributes:
        values: the learned blocks, ``(nnz_blocks, block_rows, block_cols)``.
        bias: ``(out_features,)`` or None.
        crow_indices, col_indices: the pattern, int32 buffers of the state dict. A state dict with
            another pattern can be loaded: the layer takes that pattern over. If its number of
            blocks differs, ``values`` stays the same Parameter with another shape: load before an
            optimizer has state for it, and before the model is wrapped for several devices.
        shape: ``(out_features, in_features)``, an int64 buffer that tells which layer a state
            dict is of.

    Values are drawn as :class:`torch.nn.Linear` draws its weight, scaled to the density, so that
    outputs have the same variance. :meth:`set_pattern` moves blocks while a layer is trained.

    A layer on the meta device knows only its sizes; materialise it with ``to_empty`` and load a
    state dict, which brings the pattern.

    Raises:
        PatternError: if a size, the density or the pattern is illegal, or a density above 0 rounds
            to none of the blocks.
        ArgumentError: if not exactly one of density and pattern is given, or the pattern does not
            fit.

    Example:
        >>> import torch, jitsparse as js
        >>> layer = js.nn.BlockSparseLinear(256, 512, 32, density=0.25)
        >>> layer(torch.randn(10, 256)).shape
        torch.Size([10, 512])
        >>> layer.weight  # doctest: +ELLIPSIS
        BlockSparse(shape=(512, 256), block_size=(32, 32), nnz_blocks=32, density=25.0%, ...
    """

    in_features: int
    out_features: int
    bias: nn.Parameter | None

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
        shape = out_features, in_features = as_shape((out_features, in_features))
        if pattern is None and density is not None:
            pattern = require_a_block(Pattern.random(shape, block, density, device=device), density)
        elif pattern is None or density is not None:
            raise ArgumentError(
                "BlockSparseLinear needs either density=... or pattern=..., "
                f"got {'neither' if pattern is None else 'both'}"
            )
        elif not isinstance(pattern, Pattern):
            raise ArgumentError(
                f"pattern is a jitsparse.Pattern, got {type(pattern).__name__}; Pattern.from_mask "
                "makes one of a mask"
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
        self._take_over(pattern)
        self._write_shape()
        check_dtype(dtype)
        factory = {"device": pattern.device, "dtype": dtype}
        self.values = nn.Parameter(torch.empty(pattern.values_shape, **factory))  # type: ignore[arg-type]
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, **factory))  # type: ignore[arg-type]
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @property
    def weight(self) -> BlockSparse:
        """The weight, ``(out_features, in_features)``, on the parameter ``values``.

        Raises:
            ArgumentError: the layer left the meta device without a pattern.
        """
        return BlockSparse(self._parameter("values"), self._known_pattern())

    def _known_pattern(self) -> Pattern:
        """The pattern; raises an ArgumentError if there is none."""
        pattern = self.pattern
        if self._hollow:
            raise ArgumentError(
                "this BlockSparseLinear was built on the meta device, where a pattern has no "
                "data; load a state dict, which brings one"
            )
        return pattern

    @property
    def _hollow(self) -> bool:
        """Whether the layer left the meta device and has no pattern yet.

        A state dict brings one, and values with it.
        """
        return self._pattern.crow_indices.is_meta and not self.values.is_meta

    def reset_parameters(self) -> None:
        """Draw as ``nn.Linear`` does, the values scaled by ``1 / sqrt(density)``."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        density = self._pattern.density
        scale = 1 / math.sqrt(density) if density else 1.0
        with torch.no_grad():
            # From nn.init, which loaders replace to spare what they have loaded.
            nn.init.uniform_(self.values, -bound * scale, bound * scale)
            if not (self._hollow or self.values.is_meta):
                self.values.copy_(clear_edge(self.values, self._pattern))
            if self.bias is not None:
                nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias``, of shape ``(*batch, out_features)``."""
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or traced()
        weight = self.weight if plain else self._weight_as_it_is()
        return linear(x, weight, self._parameter("bias"))

    def _parameter(self, name: str) -> Any:
        """A parameter, 0.4 us sooner than by ``nn.Module.__getattr__`` where nothing stands for it.

        That may be a property of another class (parametrizations, sharding), an attribute of the
        same name (replicas of ``nn.DataParallel``), or what a container of parameters gathers.
        """
        if (
            type(self) is BlockSparseLinear
            and name in self._parameters
            and name not in self.__dict__
            and not torch.compiler.is_compiling()
        ):
            return self._parameters[name]
        return getattr(self, name)

    def _weight_as_it_is(self) -> BlockSparse:
        """The weight for one call without gradients.

        A server may load a state dict, or move blocks, while other threads answer requests. The
        values are a view, which keeps its size and its memory.
        """
        while True:
            pattern = self._known_pattern()  # waits until a change is complete
            values = self._parameter("values")
            try:
                kept = values.view_as(values)
            except RuntimeError:
                # Their size is changing right now; or they are inference tensors, which have no
                # views outside of inference mode.
                kept = values
            if self._pattern is pattern and self._marks:
                return BlockSparse(kept, pattern)

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
        """A layer with some of the blocks of a dense layer's weight, bit for bit, and its bias.

        Args:
            layer: a dense layer; its parameters are copied. The copies require gradients, even
                where the originals are frozen, those of a teacher for instance.
            block_size: an int or a pair.
            density: keep this fraction of the blocks, those of largest Frobenius norm. On the meta
                device, where there are no norms, as many blocks at unknown places.
            mask: ``(R, C)`` bool, the blocks to keep. Either this or ``density`` is given.

        Raises:
            PatternError: if block size, density or mask is illegal.
            ArgumentError: if the layer is not a ``torch.nn.Linear``, or is a lazy one that was
                never called, or not exactly one of density and mask is given.
        """
        if not isinstance(layer, nn.Linear):
            raise ArgumentError(f"from_linear takes a Linear layer, got {type(layer).__name__}")
        if nn.parameter.is_lazy(layer.weight):
            raise ArgumentError(
                f"from_linear: the weight of this {type(layer).__name__} has no shape before the "
                "first call; call the layer once"
            )
        block = as_block_size(block_size)
        weight = layer.weight.detach()
        check_dtype(weight.dtype)
        if mask is None and density is not None:
            mask = _largest_blocks(weight, block, density)
        elif mask is None or density is not None:
            raise ArgumentError(
                "from_linear needs either density=... or mask=..., "
                f"got {'neither' if mask is None else 'both'}"
            )
        kept = BlockSparse.from_dense(weight, block, mask)
        if density is not None:
            require_a_block(kept.pattern, density)
        # The drawn values are overwritten; comparisons with the dense layer keep the same seed.
        with torch.random.fork_rng([weight.device] if weight.is_cuda else []):
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
        if layer.bias is not None:
            sparse.bias = nn.Parameter(layer.bias.detach().clone())  # it may have its own dtype
        return sparse.train(layer.training)

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
            dense.bias = nn.Parameter(self.bias.detach().clone())  # it may have its own dtype
        return dense.train(self.training)

    def extra_repr(self) -> str:
        """Sizes, block size and density, for ``repr``."""
        pattern = self._pattern
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"block_size={pattern.block_size}, nnz_blocks={pattern.nnz_blocks}, "
            f"density={pattern.density:.1%}, bias={self.bias is not None}"
        )


def require_a_block(pattern: Pattern, density: float) -> Pattern:
    """Check that a layer that was to have weights has at least one block."""
    total = math.prod(pattern.grid)
    if density > 0 and total and not pattern.nnz_blocks:
        most = math.prod(grid_of(pattern.shape, (min(BLOCK_SIZES), min(BLOCK_SIZES))))
        smaller = "smaller blocks or " if as_count(density, most) else ""
        raise PatternError(
            f"density={density} of the {f'{total} blocks' if total > 1 else 'only block'} of "
            f"{pattern.block_size} in a layer of shape {pattern.shape} rounds to none: use "
            f"{smaller}a density above 1/{2 * total}"
        )
    return pattern


def _largest_blocks(weight: Tensor, block: tuple[int, int], density: float) -> Tensor:
    """``(R, C)`` bool: the ``round(density * R * C)`` blocks of largest Frobenius norm."""
    grid = div_up(weight.shape[0], block[0]), div_up(weight.shape[1], block[1])
    total = grid[0] * grid[1]
    count = as_count(density, total)
    if weight.is_meta:  # no norms: any will do, since a pattern there has no places either
        return (torch.arange(total, device="cpu") < count).view(grid)
    where = torch.arange(total, device=weight.device)
    tiles = extract_blocks(weight, where // max(grid[1], 1), where % max(grid[1], 1), block)
    keep = frobenius_norms(tiles).topk(count).indices
    mask = torch.zeros(total, dtype=torch.bool, device=weight.device)
    mask[keep] = True
    return mask.view(grid)
