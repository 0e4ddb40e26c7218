"""Limits of the GPU tests."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit of a test's time is its own: whichever is first of a file waits for a fixture that
    compiles what the selected ones run, up to 2400 kernels, five minutes of 32 cores."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            asked = item.config.getoption("timeout")
            limit = float(item.config.getini("timeout")) if asked is None else asked
            item.add_marker(pytest.mark.timeout(limit, func_only=True))
