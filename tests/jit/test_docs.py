"""The examples in the toolkit's documentation run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    ["jitsparse.jit", "jitsparse.jit.config", "jitsparse.jit.selection", "jitsparse.jit.variant"],
)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), globs={})
    assert result.attempted > 0
    assert result.failed == 0
