"""The examples in the toolkit's documentation run."""

from __future__ import annotations

import doctest
import importlib

import pytest

from jitsparse.jit import background


@pytest.mark.parametrize(
    "name",
    ["jitsparse.jit", "jitsparse.jit.config", "jitsparse.jit.pins", "jitsparse.jit.variant"],
)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), globs={})
    assert result.attempted > 0
    assert result.failed == 0
    # What an example builds in the background, with the environment that torch wants.
    for build in [*background._builds.known.values()]:
        build.exception()
