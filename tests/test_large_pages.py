"""The output of a CPU product asks for large pages: new memory would cost a fault every 4 KB."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse.jit import config

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has none"
)


def asked(tensor: Tensor) -> bool:
    """Whether the system was told so of the memory in a tensor's middle."""
    middle = tensor.data_ptr() + tensor.numel() * tensor.element_size() // 2
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            here = begin <= middle < end
        elif here and name == "VmFlags:":
            return "hg" in rest
    raise AssertionError("the tensor lies in no mapping")


@pytest.mark.parametrize("arch", ["", "generic"])
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_outputs_of_many_megabytes(op: str, arch: str) -> None:
    sparse, dense = js.random((4096, 64), 32, 0.5), torch.randn(64, 3000)
    full = js.random((3200, 3200), 32, 1.0)
    left, right = torch.randn(3200, 32), torch.randn(32, 3200)
    with config.override(arch=arch):
        out = {
            "dsd": lambda: sparse @ dense,
            "dds": lambda: dense.T @ sparse.T,
            "sdd": lambda: js.sdd(left, right, full.pattern).values,
        }[op]()
    assert out.numel() * out.element_size() > 32 << 20
    assert asked(out)
    # Not of malloc, which may give memory back that an output had.
    unasked = torch.frombuffer(mmap.mmap(-1, 40 << 20), dtype=torch.float32)
    assert not asked(unasked)
