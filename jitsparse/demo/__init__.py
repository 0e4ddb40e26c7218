"""The demonstration: a block-sparse transformer beside its dense twin, on text at hand."""

from __future__ import annotations
