"""What explain, tune and the bench see of a call on a GPU, short of its kernel. Needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse import calls
from jitsparse.kernels import dispatch


class OnGpu(Tensor):
    """A tensor that says so."""

    def get_device(self) -> int:
        return 0


@pytest.fixture
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_a_call_on_a_gpu_can_be_observed(op: str, dtype: torch.dtype) -> None:
    """A kernel that is none stands in, with a variant that has no knobs."""
    pattern = js.Pattern.random((64, 64), 16, 0.25)
    values = torch.randn(pattern.nnz_blocks, 16, 16, dtype=dtype)
    x = torch.randn(64, 64, dtype=dtype).as_subclass(OnGpu)
    arguments: dict[str, tuple[Any, ...]] = {
        "dsd": (values, pattern.index, x, 64, 64, False),
        "dds": (x, values, pattern.index, 64, 64, False, None, 0),
        "sdd": (x, x, pattern.index, 64, 64, pattern.nnz_blocks, 16, 16),
    }
    keys: list[Any] = []

    def find(key: Any) -> Any:
        keys.append(key)
        return calls._NoKernel()

    getattr(dispatch, op)(*arguments[op], find=find)
    assert [key[:2] for key in keys] == [(op, 0)]
