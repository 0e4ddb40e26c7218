"""Layers whose weights are block-sparse.

:func:`sparsify_` makes the linear layers of a model block-sparse; :func:`densify_` undoes that.
While the model trains, :func:`prune_` keeps fewer and fewer of the blocks, or :class:`DropAndGrow`
moves them to where they are needed and keeps their number. A model is built from scratch with
:class:`BlockSparseLinear`, whose method ``set_pattern`` is what both of these use.
"""

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
