"""Models that use jitsparse in every way that there is, for the tests of warm-up."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitsparse as js


def sparse(features: int, out: int, block: int, *, bias: bool = True) -> js.nn.BlockSparseLinear:
    return js.nn.BlockSparseLinear(features, out, block, density=0.4, bias=bias)


class Block(nn.Module):
    """Attention and a feed-forward part, the four linear layers of them sparse."""

    def __init__(self, width: int, block: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = sparse(width, 3 * width, block)
        self.out = sparse(width, width, block, bias=False)
        self.up = sparse(width, 4 * width, 2 * block)
        self.down = sparse(4 * width, width, 2 * block)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4)
        attended = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4))
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm(x))))


def transformer() -> nn.Module:
    """Three blocks with dropout between them, blocks of 8 to 32."""
    return nn.Sequential(Block(64, 16), nn.Dropout(0.1), Block(64, 8), Block(64, 16))


class Everything(nn.Module):
    """What is no layer: a pattern and a matrix that are plain attributes, each operation, views."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = transformer()
        self.pattern = js.Pattern.random((64, 64), 32, 0.5)
        self.values = nn.Parameter(torch.randn(self.pattern.nnz_blocks, 32, 32))
        self.constants = [js.random((64, 64), 16, 0.5)]

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        weight = js.BlockSparse(self.values, self.pattern)
        x = js.linear(x, weight, activation="silu")
        x = js.dds(x, self.constants[0].T)
        x = js.dsd(weight, x.mT).mT
        scores = js.sdd(x[0].T, x[0], self.pattern)
        return js.dsd(scores, x.transpose(1, 2)[..., 1:])


def everything() -> Everything:
    return Everything()


def converted(model: Everything, dtype: torch.dtype) -> Everything:
    """A copy in another dtype, constants included."""
    model = copy.deepcopy(model).to(dtype)
    model.constants = [each.to(dtype) for each in model.constants]
    return model


class Tokens(nn.Module):
    """Two inputs, one of them integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.layer = sparse(64, 96, 32)

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        return self.layer(self.embedding(tokens) * scale)


class HoldsTorchSparse(nn.Module):
    """A sparse tensor of torch's own beside our layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = sparse(64, 64, 16)
        self.register_buffer("mixing", torch.eye(8).to_sparse_csr())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.mixing @ x)


class Autocast(nn.Module):
    """Mixed precision on whatever device its input is."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.block(x)


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = sparse(64, 64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum()


class ReadsData(nn.Module):
    """Does one thing or another, as the data are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = sparse(64, 64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


class NoCopy(nn.Module):
    def __deepcopy__(self, memo: object) -> NoCopy:
        raise RuntimeError("there is only one")


def fails() -> nn.Module:
    raise RuntimeError("no such checkpoint")


def dense() -> nn.Module:
    return nn.Linear(8, 8)


not_a_function = 7
