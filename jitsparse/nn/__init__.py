"""Layers whose weights are block-sparse."""

from __future__ import annotations

from jitsparse.nn.convert import densify_, sparsify_
from jitsparse.nn.drop_and_grow import DropAndGrow
from jitsparse.nn.linear import BlockSparseLinear
from jitsparse.nn.patterns import match_patterns_, prune_
from jitsparse.nn.ranks import require_same_patterns

__all__ = [
    "BlockSparseLinear",
    "DropAndGrow",
    "densify_",
    "match_patterns_",
    "prune_",
    "require_same_patterns",
    "sparsify_",
]
