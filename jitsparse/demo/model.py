"""A small character-level transformer; a factory makes its linear layers dense or block-sparse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jitsparse.demo.corpus import VOCABULARY
from jitsparse.nn import BlockSparseLinear

__all__ = ["MODELS", "CharTransformer", "ModelConfig", "build_twins"]

Linear = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model.

    Attributes:
        width: features of a token.
        layers: transformer blocks.
        heads: attention heads.
        context: characters in a window.
        block_size: rows and columns of a nonzero block.
        density: share of the blocks that a sparse layer keeps.
    """

    width: int = 512
    layers: int = 2
    heads: int = 8
    context: int = 128
    block_size: int = 32
    density: float = 0.25


MODELS = {
    "cpu": ModelConfig(),
    "cuda": ModelConfig(width=2048, layers=4, heads=16, context=512),
}
"""Sizes at which the linear layers dominate a step: on two cores, and on a GPU."""


class Block(nn.Module):
    """Pre-norm attention and feed-forward, four linear layers in all.

    Shape: ``(batch, context, width)`` to the same.
    """

    def __init__(self, width: int, heads: int, linear: Linear) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = linear(width, 3 * width)
        self.proj = linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = linear(width, 4 * width)
        self.down = linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        split = (batch, context, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(split).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, context, width))
        hidden: Tensor = F.gelu(self.up(self.norm2(x)))
        out: Tensor = x + self.down(hidden)
        return out


class CharTransformer(nn.Module):
    """Characters to logits of the next character.

    Shape: ``(batch, context)`` int64 to ``(batch, context, VOCABULARY)``. The embedding, which is
    also the output layer, stays dense: it is small and every row of it is needed.
    """

    def __init__(self, config: ModelConfig, linear: Linear) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, config.width)
        self.position = nn.Parameter(0.02 * torch.randn(config.context, config.width))
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, linear) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        # Scaled so that the token dominates the residual stream, not the first layers' output.
        x = math.sqrt(self.norm.normalized_shape[0]) * (
            self.embed(characters) + self.position[: characters.shape[1]]
        )
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)


def build_twins(config: ModelConfig, seed: int) -> dict[str, CharTransformer]:
    """The dense model and its block-sparse twin, from the same seed.

    The sparse layers have random uniform patterns and :class:`torch.nn.Linear`'s initial variance
    at their density; everything outside them starts equal.
    """
    torch.manual_seed(seed)
    dense = CharTransformer(config, nn.Linear)
    torch.manual_seed(seed)
    sparse = CharTransformer(
        config,
        lambda fan_in, fan_out: BlockSparseLinear(
            fan_in, fan_out, config.block_size, density=config.density
        ),
    )
    linear_free = ("embed.", "position", "norm.")
    shared = {name: t for name, t in dense.state_dict().items() if name.startswith(linear_free)}
    sparse.load_state_dict(shared, strict=False)
    return {"dense": dense, "sparse": sparse}
