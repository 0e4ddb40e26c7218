"""The measured decoder is a decoder, and its contestants compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from jitsparse.bench import models
from jitsparse.bench.decoder import Decoder, DecoderShape
from jitsparse.bench.models import PHASES, ModelCase, measure_model
from jitsparse.bench.peers import OURS
from jitsparse.nn import BlockSparseLinear

CPU = torch.device("cpu")
SHAPE = DecoderShape(width=64, hidden=96, heads=4, kv_heads=2, layers=2, context=24)
# Sums of at most 96 products, and two layers that each add to what came before.
TOLERANCE = 100 * torch.finfo(torch.float64).eps


def case(phase: str, tokens: int, dtype: str = "f32") -> ModelCase:
    return ModelCase(SHAPE, phase, tokens, (32, 32), 0.5, dtype, CPU)


def dense_decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(
        SHAPE, lambda i, o: nn.Linear(i, o, bias=False, dtype=torch.float64), CPU, torch.float64
    )


def test_a_decoded_token_is_the_last_of_its_sequence() -> None:
    model, x = dense_decoder(), torch.randn(3, SHAPE.context, SHAPE.width, dtype=torch.float64)
    seen: list[tuple[Tensor, Tensor]] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watching(q: Tensor, k: Tensor, v: Tensor, **options: bool) -> Tensor:
        seen.append((k.clone(), v.clone()))
        return attention(q, k, v, **options)  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", watching)
        whole = model(x)
    caches = seen[:]
    for keys, values in caches:
        keys[:, :, -1], values[:, :, -1] = 7.0, 7.0  # the step has to write them
    last = model.decode(x[:, -1:], caches)
    assert (last - whole[:, -1:]).abs().max() < TOLERANCE


def test_no_token_sees_a_later_one() -> None:
    model, x = dense_decoder(), torch.randn(1, 8, SHAPE.width, dtype=torch.float64)
    before = model(x)[:, :5]
    x[:, 5:] = 0
    assert torch.equal(model(x)[:, :5], before)


def test_where_a_token_stands_matters() -> None:
    model, x = dense_decoder(), torch.randn(1, 3, SHAPE.width, dtype=torch.float64)
    swapped = model(x[:, [1, 0, 2]])
    assert (swapped[:, 2] - model(x)[:, 2]).abs().max() > 1e-3


@pytest.mark.parametrize("phase", PHASES)
def test_contestants_compute_the_same(phase: str) -> None:
    """Ours, and the dense decoder on the same weights."""
    of = case(phase, 6)
    layers: list[BlockSparseLinear] = []

    def sparse(fan_in: int, fan_out: int) -> nn.Module:
        layers.append(models._sparse(of)(fan_in, fan_out))
        return layers[-1]

    ours = models._call(of, sparse)(0)
    twins = (layer.to_linear() for layer in layers)
    dense = models._call(of, lambda fan_in, fan_out: next(twins))(0)
    if phase == "train":
        assert len(ours) == len(dense)  # type: ignore[arg-type]
        ours, dense = ours[0], dense[0]  # type: ignore[index]
    assert isinstance(ours, Tensor)
    assert isinstance(dense, Tensor)
    assert (ours - dense).abs().max() < 1e-5 * dense.abs().max()


def test_torchs_bsr_product_is_the_layers() -> None:
    layer = models._sparse(case("prefill", 6))(64, 96)
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        theirs, ours = models._BsrLinear(layer.weight)(x), layer(x)
    assert theirs.shape == ours.shape
    assert (theirs - ours).abs().max() < 1e-5 * ours.abs().max()


def test_a_row_tells_of_the_peers_that_ran() -> None:
    outcome = measure_model(case("prefill", 6), seconds=0.0)
    (row,) = outcome.rows
    assert row["phase"] == "prefill 6"
    assert row["times dense"] > 0
    assert row["times torch BSR"] > 0
    assert not outcome.absent
    outcome = measure_model(case("train", 6), seconds=0.0)
    (row,) = outcome.rows
    assert row["times dense"] > 0
    assert row["times torch BSR"] is None
    assert OURS not in outcome.absent
    assert "gradients" in outcome.absent["torch BSR"]
