"""Layers whose weights are block-sparse."""

from __future__ import annotations

from jitsparse.nn.convert import densify_, sparsify_
from jitsparse.nn.linear import BlockSparseLinear
from jitsparse.nn.ranks import require_same_patterns

__all__ = ["BlockSparseLinear", "densify_", "require_same_patterns", "sparsify_"]
