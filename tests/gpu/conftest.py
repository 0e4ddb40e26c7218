"""Compiles what the GPU tests run, in parallel, before the first of them."""

from __future__ import annotations

import cases
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    if torch.cuda.is_available():
        cases.compile_grid("cuda")
