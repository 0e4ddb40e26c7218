"""Compiles what the GPU tests run, in parallel, before the first of them."""

from __future__ import annotations

from pathlib import Path

import cases
import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit of a test's time is its own: whichever is first waits for a fixture that compiles
    up to 2400 kernels, five minutes of 32 cores."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            asked = item.config.getoption("timeout")
            limit = float(item.config.getini("timeout")) if asked is None else asked
            item.add_marker(pytest.mark.timeout(limit, func_only=True))


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    if torch.cuda.is_available():
        cases.compile_grid("cuda")
