"""What torch's own instruments see of a call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import jitsparse as js

A = js.random((40, 64), (8, 16), 0.5)
STORED = A.values.numel()


def test_a_profiler_sees_the_operations() -> None:
    x = torch.randn(5, 64, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        js.linear(x, A).sum().backward()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["jitsparse::dds"] == 2


@pytest.mark.parametrize("backward", ["plain", "autocast"])
@pytest.mark.parametrize("observer", [profile, lambda: FlopCounterMode(display=False)])
def test_observing_changes_no_bit(
    observer: Callable[[], AbstractContextManager[object]], backward: str
) -> None:
    """Under autocast, too, where the operations that are then called would cast."""
    values = A.values.clone().requires_grad_()
    x = torch.randn(64, 5, requires_grad=True)
    a = js.BlockSparse(values, A.pattern)

    def gradients() -> tuple[torch.Tensor, ...]:
        out = js.dsd(a, x), js.dds(x.T, a.T), js.sdd(torch.ones(40, 5), x.T, A.pattern).values
        with torch.autocast("cpu", torch.bfloat16, enabled=backward == "autocast"):
            return torch.autograd.grad(out, (values, x), [each.detach() / 3 for each in out])

    expected = gradients()
    with observer():
        seen = gradients()
    assert all(map(torch.equal, seen, expected))


@pytest.mark.parametrize("batch", [(), (3, 2)])
def test_flops_are_those_of_the_stored_blocks(batch: tuple[int, ...]) -> None:
    def count(call: object) -> int:
        with FlopCounterMode(display=False) as counter:
            call()  # type: ignore[operator]
        return counter.get_total_flops()

    tokens = 5 * torch.Size(batch).numel()
    x, y = torch.randn(*batch, 64, 5), torch.randn(*batch, 5, 40)
    product = 2 * STORED * tokens
    assert count(lambda: js.dsd(A, x)) == product
    assert count(lambda: js.dds(y, A)) == product
    assert count(lambda: js.sdd(y.mT, x.mT, A.pattern)) == product


def test_a_function_mode_sees_the_operation() -> None:
    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with Seen():
        js.dsd(A, torch.randn(64, 5))
    assert "jitsparse.dsd.default" in names


def test_flops_of_a_training_step() -> None:
    layer = js.nn.BlockSparseLinear(64, 40, (8, 16), density=0.5)
    x = torch.randn(5, 64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * layer.values.numel() * 5
