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


class Interrupted(js.nn.BlockSparseLinear):
    """Does something between a look at the one buffer and a look at the other, as another thread
    may."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name == "crow_indices" and "meanwhile" in vars(self):
            vars(self).pop("meanwhile")()
        return found


def test_buffers_that_are_replaced_between_two_looks() -> None:
    pattern, other = (js.Pattern.random((64, 64), 16, density) for density in (0.25, 0.75))
    layer = Interrupted(64, 64, 16, pattern=pattern)
    vars(layer)["meanwhile"] = lambda: layer.set_pattern(other)
    assert layer.pattern == other
    assert "meanwhile" not in vars(layer)
