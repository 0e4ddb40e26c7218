"""A decoder as in language models; a factory makes its linear layers dense or block-sparse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["LLAMA_8B", "Decoder", "DecoderShape", "Linear"]

Linear = Callable[[int, int], nn.Module]
"""``(in_features, out_features)`` to a layer without bias."""

_ROTARY_BASE = 500_000.0


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder.

    Attributes:
        width: features of a token.
        hidden: features within the feed-forward part.
        heads: heads of the queries.
        kv_heads: heads of keys and values, a divisor of ``heads``.
        layers: number of layers.
        context: tokens whose keys and values are kept when one is added.
    """

    width: int
    hidden: int
    heads: int
    kv_heads: int
    layers: int
    context: int

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.width // self.heads


LLAMA_8B = DecoderShape(width=4096, hidden=14336, heads=32, kv_heads=8, layers=4, context=1024)
"""Four of the 32 layers of Llama 3.1 8B (https://arxiv.org/abs/2407.21783, table 3)."""


class Decoder(nn.Module):
    """Layers of attention and a gated feed-forward part (SwiGLU), seven linear layers in each.

    Embedding and output layer are left out. Shape: ``(batch, tokens, width)`` to the same.
    """

    def __init__(
        self, shape: DecoderShape, linear: Linear, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(
            _Layer(shape, linear, device, dtype) for _ in range(shape.layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """All tokens of a sequence at once."""
        rotary = _rotary(0, x.shape[1], self.shape.head_dim, x)
        for layer in self.layers:
            x = layer(x, rotary)
        return x

    def decode(self, x: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The last token alone.

        Args:
            x: ``(batch, 1, width)``.
            caches: keys and values of each layer, ``(batch, kv_heads, context, head_dim)``, whose
                last token is written.
        """
        rotary = _rotary(self.shape.context - 1, 1, self.shape.head_dim, x)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rotary, cache)
        return x

    def caches(
        self, batch: int, dtype: torch.dtype, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        """Standard normal keys and values of ``batch`` sequences, for each layer."""
        shape = self.shape
        size = batch, shape.kv_heads, shape.context, shape.head_dim

        def draw() -> Tensor:
            return torch.randn(size, generator=generator, device=generator.device, dtype=dtype)

        return [(draw(), draw()) for _ in self.layers]


class _Layer(nn.Module):
    def __init__(
        self, shape: DecoderShape, linear: Linear, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.shape = shape
        width, hidden, narrow = shape.width, shape.hidden, shape.kv_heads * shape.head_dim
        self.norm1 = nn.RMSNorm(width, device=device, dtype=dtype)
        self.q_proj = linear(width, width)
        self.k_proj = linear(width, narrow)
        self.v_proj = linear(width, narrow)
        self.out_proj = linear(width, width)
        self.norm2 = nn.RMSNorm(width, device=device, dtype=dtype)
        self.gate = linear(width, hidden)
        self.up = linear(width, hidden)
        self.down = linear(hidden, width)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        h = self.norm1(x)
        q = _rotated(self._heads(self.q_proj(h)), *rotary)
        k = _rotated(self._heads(self.k_proj(h)), *rotary)
        v = self._heads(self.v_proj(h))
        if cache is not None:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, -1:] = new
            k, v = cache
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + self.out_proj(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        out: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """``(batch, tokens, features)`` to ``(batch, heads, tokens, head_dim)``."""
        split: Tensor = x.unflatten(-1, (-1, self.shape.head_dim))
        return split.transpose(1, 2)


def _rotary(first: int, tokens: int, head_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, ``(tokens, head_dim / 2)``, that rotate the features of tokens from the
    ``first`` position on (rotary position embedding: Su et al., 2021,
    https://arxiv.org/abs/2104.09864)."""
    half, device = head_dim // 2, like.device
    rates = _ROTARY_BASE ** (-torch.arange(half, device=device) / half)
    angles = torch.arange(first, first + tokens, device=device)[:, None] * rates
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
