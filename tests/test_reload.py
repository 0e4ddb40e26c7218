"""A layer that is loaded or moved while other threads answer requests: each answer is that of one
of its states."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitsparse as js

DENSITIES = (0.25, 0.5, 0.3, 0.3)


def layers() -> list[js.nn.BlockSparseLinear]:
    torch.manual_seed(0)
    return [js.nn.BlockSparseLinear(256, 512, 32, density=each) for each in DENSITIES]


def load(layer: js.nn.BlockSparseLinear, other: js.nn.BlockSparseLinear) -> None:
    layer.load_state_dict(other.state_dict())


def assign(layer: js.nn.BlockSparseLinear, other: js.nn.BlockSparseLinear) -> None:
    layer.load_state_dict(other.state_dict(), assign=True)


def move(layer: js.nn.BlockSparseLinear, other: js.nn.BlockSparseLinear) -> None:
    layer.set_pattern(other.pattern)


@pytest.mark.parametrize("change", [load, assign, move])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_requests_meet_no_half_of_a_change(
    change: Callable[[js.nn.BlockSparseLinear, js.nn.BlockSparseLinear], None],
    mode: Callable[[], torch.no_grad],
) -> None:
    """With ones for values and inputs an answer is how many are stored in a row; what is no memory
    of the layer's would be anything."""
    others = layers()
    for each in others:
        with torch.no_grad():
            each.values.fill_(1.0)
            each.bias.zero_()  # type: ignore[union-attr]
    served, x = layers()[0], torch.ones(16, 256)
    load(served, others[0])
    done, wrong, answers = threading.Event(), [], []

    def serve() -> None:
        try:
            with mode():
                while not done.is_set():
                    out: Tensor = served(x)
                    answers.append(None)
                    if not (out % 1 == 0).all() or out.min() < 0 or out.max() > 256:
                        wrong.append(out)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        change(served, others[number % 4])
        done.wait(0.005)
    done.set()
    for thread in threads:
        thread.join()
    assert answers
    assert not wrong


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("how", ["loaded", "made", "copied", "emptied"])
def test_what_is_written_to_a_layer_of_inference_mode_is_seen(
    how: str, mode: Callable[[], torch.no_grad]
) -> None:
    """As a distributed checkpoint writes to a state dict."""
    torch.manual_seed(0)
    first, second = (js.nn.BlockSparseLinear(256, 512, 32, density=0.3) for _ in range(2))
    layer = js.nn.BlockSparseLinear(256, 512, 32, density=0.3)
    with mode():
        if how == "loaded":
            layer.load_state_dict(first.state_dict())
        elif how == "copied":
            layer = copy.deepcopy(first)
        elif how == "made":
            layer = js.nn.BlockSparseLinear(256, 512, 32, density=0.3)
        else:
            layer = js.nn.BlockSparseLinear(256, 512, 32, density=0.3, device="meta")
            layer.to_empty(device="cpu")
        if how != "emptied":
            layer(torch.ones(1, 256))
        for mine, theirs in zip(
            layer.state_dict().values(), second.state_dict().values(), strict=True
        ):
            mine.copy_(theirs)
        x = torch.randn(5, 256)
        torch.testing.assert_close(layer(x), second(x))
    assert layer.pattern == second.pattern


class Interrupted(dict[str, torch.Tensor]):
    """Buffers of a layer. Something happens at a reading of the first, as in another thread."""

    def interrupt(self, meanwhile: Callable[[], None], at: int) -> None:
        self.meanwhile, self.left = meanwhile, at

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def __getitem__(self, name: str) -> torch.Tensor:
        found = super().__getitem__(name)
        if name == "crow_indices":
            self.left -= 1
            if self.left == 0:
                self.meanwhile()
        return found


@pytest.mark.parametrize("at", [1, 2, 3])
def test_buffers_that_are_replaced_between_two_looks(at: int) -> None:
    pattern, other = (js.Pattern.random((64, 64), 16, density) for density in (0.25, 0.75))
    layer = js.nn.BlockSparseLinear(64, 64, 16, pattern=pattern)
    layer.crow_indices.add_(0)  # seems to be written to, so the layer looks closer
    layer._buffers = buffers = Interrupted(layer._buffers)  # type: ignore[assignment, arg-type]
    buffers.interrupt(lambda: layer.set_pattern(other), at)
    assert layer.pattern == other
    assert buffers.left < 0
