"""Kernels are started before the one ahead of them has written everything, and wait for that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

import jitsparse as js

pytestmark = pytest.mark.gpu

STEPS = 40

# Of each family something: the dtype, the block, the columns, and its name if calls choose another.
CASES = [
    (torch.bfloat16, 64, 512, None),
    (torch.bfloat16, 16, 256, None),
    (torch.bfloat16, 64, 8, None),
    (torch.float32, 32, 256, None),
    (torch.float64, 16, 64, None),
    (torch.float64, 16, 64, "simt"),
]


def chain(a: js.BlockSparse, x: Tensor, after_each: Callable[[], object]) -> list[Tensor]:
    """Products each of which reads what the one before it wrote, through memory that is used again
    and again, with and without another kernel between them; and all of its gradients."""
    values = a.values.clone().requires_grad_()
    a = js.BlockSparse(values, a.pattern)
    start = x = x.clone().requires_grad_()
    for step in range(STEPS):
        x = js.dsd(a.T if step % 3 == 2 else a, x)
        after_each()
        if step % 2:
            x = x * 0.5
            after_each()
    x.sum().backward()
    after_each()
    assert values.grad is not None
    assert start.grad is not None
    return [x.detach(), values.grad, start.grad]


@pytest.mark.parametrize(("dtype", "block", "columns", "family"), CASES, ids=str)
def test_what_is_queued_is_what_is_awaited_one_by_one(
    dtype: torch.dtype, block: int, columns: int, family: str | None
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    pattern = js.Pattern.random((1024, 1024), block, 0.25, device="cuda")
    shape = (pattern.nnz_blocks, block, block)
    values = torch.randn(shape, generator=generator, device="cuda") / 16
    a = js.BlockSparse(values.to(dtype), pattern)
    x = torch.randn(1024, columns, generator=generator, device="cuda").to(dtype)
    pinned = js.pin(f"dsd={family}; sdd={family}") if family else nullcontext()
    with pinned:
        expected = chain(a, x, torch.cuda.synchronize)
        for _ in range(3):
            got = chain(a, x, lambda: None)
            assert all(map(torch.equal, got, expected))
            assert all(each.isfinite().all() for each in got)


def test_a_graph_in_which_streams_meet_ahead_of_a_product() -> None:
    a = js.random((1024, 1024), 64, 0.25, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(1024, 256, device="cuda").bfloat16()
    y = torch.randn(1024, 256, device="cuda").bfloat16()
    room = torch.empty_like(x)
    side = torch.cuda.Stream()

    def both() -> Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            first = js.dsd(a, x)
        room.copy_(y).mul_(2)
        torch.cuda.current_stream().wait_stream(side)
        return js.dsd(a, first + js.dsd(a, room))

    expected = both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = both()
    for _ in range(5):
        got.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(got, expected)
