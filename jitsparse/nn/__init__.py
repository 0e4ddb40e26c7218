"""Layers whose weights are block-sparse."""

from __future__ import annotations

from jitsparse.nn.convert import sparsify_
from jitsparse.nn.linear import BlockSparseLinear

__all__ = ["BlockSparseLinear", "sparsify_"]
