"""Layers: every pass is the one it is called, and the figures are what their names say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from jitsparse.bench import forward, layers
from jitsparse.bench.forward import epilogue_calls, measure_epilogue, measure_few_tokens
from jitsparse.bench.layers import LayerCase, make_layer, measure_passes, pass_calls
from jitsparse.bench.peers import DENSE, OURS
from jitsparse.bench.timing import Call, Timing
from jitsparse.sparse import BlockSparse

CPU = torch.device("cpu")

# float32, a sum of at most 96 products of standard normals.
TOLERANCE = 96 * torch.finfo(torch.float32).eps * math.sqrt(96)


def case(*tokens: int) -> LayerCase:
    return LayerCase((96, 64), tokens, (32, 32), 0.5, "f32", CPU)


def clocks(seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    """Let every call take what its name says."""

    def interleave(
        calls: dict[str, Call], device: torch.device, *, seconds: float
    ) -> dict[str, Timing]:
        assert set(calls) == set(taken)
        for call in calls.values():
            call(0)  # as the clock does: which variant ran is known of kernels that ran
        return {name: Timing((taken[name],)) for name in calls}

    taken = seconds
    monkeypatch.setattr(module, "interleave", interleave)


def test_passes_are_those_of_the_dense_layer() -> None:
    data = make_layer(case(40))
    # The dense layer is given the sparse weight, so that both compute the same.
    data.dense[:] = [weight.to_dense() for weight in data.weight]
    calls = pass_calls(data)
    mask = data.pattern.to_mask().repeat_interleave(32, 0).repeat_interleave(32, 1)

    def dense_gradient(values: Tensor | BlockSparse) -> Tensor:
        if isinstance(values, Tensor):
            values = BlockSparse(values, data.pattern)
        return values.to_dense()

    for name in ("forward", "grad input"):
        ours, theirs = calls[f"{OURS} {name}"](0), calls[f"{DENSE} {name}"](0)
        assert (ours - theirs).abs().max() < TOLERANCE, name  # type: ignore[operator]
    weight = dense_gradient(calls[f"{OURS} grad weight"](0))  # type: ignore[arg-type]
    theirs = calls[f"{DENSE} grad weight"](0)
    assert (weight - theirs * mask).abs().max() < TOLERANCE  # type: ignore[operator]
    ours_x, ours_values = calls[f"{OURS} step"](0)  # type: ignore[misc]
    theirs_x, theirs_weight = calls[f"{DENSE} step"](0)  # type: ignore[misc]
    assert (ours_x - theirs_x).abs().max() < TOLERANCE
    assert (dense_gradient(ours_values) - theirs_weight * mask).abs().max() < TOLERANCE


def test_the_dense_weight_has_no_zeros() -> None:
    assert all(weight.all() for weight in make_layer(case(8)).dense)


def test_rows_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("forward", "grad input", "grad weight", "step")
    taken = {f"{OURS} {name}": 1e-3 for name in names}
    taken |= {f"{DENSE} {name}": 4e-3 for name in names}
    clocks(taken, monkeypatch, layers)
    rows = measure_passes(case(40), seconds=0.0).rows
    assert [row["pass"] for row in rows] == list(names)
    flops = 2 * 96 * 64 * 40
    for row in rows:
        assert row["times dense"] == pytest.approx(4)
        assert row["us"] == pytest.approx(1000)
        products = 3 if row["pass"] == "step" else 1
        assert row["useful rate"] == pytest.approx(products * flops * 0.5 / 1e-3 * 1e-9)
        assert row["dense rate"] == pytest.approx(products * flops / 4e-3 * 1e-9)
    assert rows[2]["variant"].startswith("sdd.")
    assert ".ltn" in rows[2]["variant"]
    assert ".lnt" in rows[0]["variant"]


def test_rows_of_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"copy": 1e-3}
    taken |= {f"{OURS} {tokens}": 2e-6 for tokens in (1, 8)}
    taken |= {f"{DENSE} {tokens}": 3e-6 for tokens in (1, 8)}
    clocks(taken, monkeypatch, forward)
    rows = measure_few_tokens(case(1, 8), seconds=0.0).rows
    assert [row["tokens"] for row in rows] == ["1", "8"]
    values = 96 * 64 // 2 * 4
    bandwidth = 2 * forward.COPY_BYTES["cpu"] / 1e-3
    for row in rows:
        assert row["values MB"] == pytest.approx(values * 1e-6)
        assert row["GB/s"] == pytest.approx(values / 2e-6 * 1e-9)
        assert row["copy GB/s"] == pytest.approx(bandwidth * 1e-9)
        assert row["share of copy"] == pytest.approx(values / 2e-6 / bandwidth)
        assert row["times dense"] == pytest.approx(1.5)


def test_epilogues_are_those_of_torch() -> None:
    data = make_layer(case(8))
    bias = torch.randn(96)
    calls = epilogue_calls(data.x, data.weight, bias)
    product = data.x[0] @ data.weight[0].to_dense().T
    expected = {
        "none": product,
        "bias": product + bias,
        "bias, relu": torch.relu(product + bias),
        "bias, gelu": torch.nn.functional.gelu(product + bias),
    }
    assert set(calls) == set(expected)
    for name, exact in expected.items():
        assert (calls[name](0) - exact).abs().max() < TOLERANCE, name  # type: ignore[operator]


def test_rows_of_epilogues(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"none": 1e-3, "bias": 1.01e-3, "bias, relu": 1.02e-3, "bias, gelu": 0.99e-3}
    clocks(taken, monkeypatch, forward)
    rows = measure_epilogue(case(8), seconds=0.0).rows
    assert [row["epilogue"] for row in rows] == ["bias", "bias, relu", "bias, gelu"]
    assert [row["cost %"] for row in rows] == pytest.approx([1, 2, -1])
