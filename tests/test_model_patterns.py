"""The patterns of a model's layers: pruned, and brought to those of another model."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import jitsparse as js


def make(density: float = 0.5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        js.nn.BlockSparseLinear(40, 64, 8, density=density),
        nn.ReLU(),
        js.nn.BlockSparseLinear(64, 24, 8, density=density),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 40)).square().mean().backward()
    optimizer.step()


def test_pruning_keeps_the_largest_and_their_state() -> None:
    model = make()
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    train(model, adam)
    norms = {n: model[n].weight.block_norms() for n in (0, 2)}
    before = {n: model[n].weight.to_dense() for n in (0, 2)}
    patterns = {n: model[n].pattern for n in (0, 2)}
    momentum = {
        n: js.BlockSparse(adam.state[model[n].values]["exp_avg"], patterns[n]) for n in (0, 2)
    }
    parameters = list(model.parameters())
    assert js.nn.prune_(model, lambda name, layer: {"0": 0.25, "2": 0.1}[name], adam) == ("0", "2")
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    for n, count in ((0, 10), (2, round(0.1 * 24))):
        kept = patterns[n].take(norms[n].topk(count).indices)
        assert model[n].pattern == kept
        mask = kept.to_mask().repeat_interleave(8, 0).repeat_interleave(8, 1)
        assert torch.equal(model[n].weight.to_dense(), before[n] * mask)
        state = js.BlockSparse(adam.state[model[n].values]["exp_avg"], kept)
        assert torch.equal(state.to_dense(), momentum[n].to_dense() * mask)
    train(model, adam)


def test_pruning_never_grows_and_selects() -> None:
    model = make(0.25)
    patterns = model[0].pattern, model[2].pattern
    assert js.nn.prune_(model, 0.5) == ()
    assert js.nn.prune_(model, 0.1, where=lambda name, layer: name == "2") == ("2",)
    assert model[0].pattern == patterns[0]
    assert model[2].pattern != patterns[1]
    assert js.nn.prune_(model, 0.0) == ("0", "2")
    assert model(torch.randn(2, 40)).shape == (2, 24)


def test_gradual_pruning_from_a_dense_model() -> None:
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 24))
    x = torch.randn(3, 40)
    dense = model(x)
    js.nn.sparsify_(model, 8, density=1.0)
    torch.testing.assert_close(model(x), dense)
    adam = torch.optim.Adam(model.parameters())
    for density in (0.6, 0.3, 0.3):
        train(model, adam)
        js.nn.prune_(model, density, adam)
    assert model[0].pattern.nnz_blocks == 12


@pytest.mark.parametrize(
    ("density", "said"),
    [
        (1.5, "^density is a fraction between 0 and 1, got 1.5$"),
        (float("nan"), "^density is a fraction"),
        ("all", "^density is .*, or a function of a layer's name and the layer .* got 'all'"),
        ({"0": 0.5}, "^density is .*, or a function of a layer's name and the layer"),
        (lambda name, layer: 0.5 if name == "0" else 1.5, "layer '2': density"),
        (lambda name, layer: None, "layer '0': the function given as density returned None"),
        (0.01, "rounds to none"),
    ],
)
def test_a_density_that_is_none(density: Any, said: str) -> None:
    model = make()
    pattern = model[0].pattern
    with pytest.raises(ValueError, match=said):
        js.nn.prune_(model, density)
    assert model[0].pattern == pattern


def test_what_an_optimizer_cannot_follow_changes_nothing() -> None:
    model = make()
    lbfgs = torch.optim.LBFGS(model[2].parameters())
    sgd = torch.optim.SGD(model[0].parameters(), 0.1)

    def closure() -> torch.Tensor:
        loss = model(torch.ones(2, 40)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        lbfgs.step(closure)
    pattern = model[0].pattern
    with pytest.raises(js.ArgumentError, match="in which no block has a place of its own"):
        js.nn.prune_(model, 0.25, sgd, lbfgs)
    assert model[0].pattern == pattern


def test_a_wrapped_model_is_not_pruned(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        wrapped = nn.parallel.DistributedDataParallel(make())
        with pytest.raises(js.ArgumentError, match="call prune_ first, and wrap the model then"):
            js.nn.prune_(wrapped, 0.25)
    finally:
        torch.distributed.destroy_process_group()


def test_models_without_layers_are_refused() -> None:
    with pytest.raises(js.ArgumentError, match="it has no BlockSparseLinear; sparsify_ makes them"):
        js.nn.prune_(nn.Linear(3, 3), 0.5)
    with pytest.raises(js.ArgumentError, match=r"takes an nn\.Module, got int"):
        js.nn.prune_(3, 0.5)  # type: ignore[arg-type]
    with pytest.raises(js.ArgumentError, match="where is a function"):
        js.nn.prune_(make(), 0.5, where="0")  # type: ignore[arg-type]


# -- moving averages ----------------------------------------------------------------------------


def test_an_average_that_is_matched_first_is_that_of_the_dense_weights() -> None:
    model = make()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    before = average.module[0].weight.to_dense()
    model[0].set_pattern(js.Pattern.random((64, 40), 8, 0.5))
    js.nn.match_patterns_(average.module, model)
    mask = model[0].pattern.to_mask().repeat_interleave(8, 0).repeat_interleave(8, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        average.update_parameters(model)
        average(torch.randn(2, 40))
    expected = (before * mask + model[0].weight.to_dense()) / 2
    torch.testing.assert_close(average.module[0].weight.to_dense(), expected)


def test_an_average_of_other_blocks_is_warned_of() -> None:
    """It copies the model's buffers, by which its values are blocks of other places."""
    model = make()
    average = AveragedModel(model)
    average.update_parameters(model)
    model[0].set_pattern(js.Pattern.random((64, 40), 8, 0.5))
    average.update_parameters(model)
    with pytest.warns(RuntimeWarning, match="jitsparse.nn.match_patterns_"):
        average(torch.randn(2, 40))


def test_an_average_of_the_same_blocks_keeps_its_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What kernels need of it is not made again, although each update writes to the buffers."""
    model = make()
    average = AveragedModel(model)
    pattern = average.module[0].pattern
    average.update_parameters(model)
    monkeypatch.setattr("jitsparse.indexing.index_of", None)  # which makes it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert average.module[0].pattern is pattern


def test_a_loaded_state_dict_is_not_warned_of() -> None:
    model, other = make(), make()
    js.nn.match_patterns_(model, other)
    other[0].set_pattern(js.Pattern.random((64, 40), 8, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load_state_dict(other.state_dict())
        assert model[0].pattern == other[0].pattern


def test_matching_moves_an_optimizers_state() -> None:
    model, like = make(), make()
    adam = torch.optim.Adam(model.parameters())
    train(model, adam)
    old = js.BlockSparse(adam.state[model[0].values]["exp_avg"].clone(), model[0].pattern)
    like[0].set_pattern(js.Pattern.random((64, 40), 8, 0.25))
    js.nn.match_patterns_(model, like, adam)
    new = js.BlockSparse(adam.state[model[0].values]["exp_avg"], model[0].pattern)
    assert torch.equal(new.values, old.with_pattern(like[0].pattern).values)


def test_models_that_do_not_match_are_refused_and_left_alone() -> None:
    model = make()
    before = model[0].pattern
    for like, said in (
        (nn.Sequential(model[0]), "model has '2', like has not"),
        (nn.Sequential(nn.Identity(), *copy.deepcopy(model)), "model has '0', like has not"),
        (
            nn.Sequential(
                js.nn.BlockSparseLinear(40, 64, 8, density=0.25),
                nn.ReLU(),
                js.nn.BlockSparseLinear(64, 24, 16, density=0.5),
            ),
            r"layer '2' is \(24, 64\) in blocks of \(8, 8\) on cpu in model, and \(24, 64\) in "
            r"blocks of \(16, 16\) on cpu in like",
        ),
    ):
        with pytest.raises(js.ArgumentError, match=said):
            js.nn.match_patterns_(model, like)
        assert model[0].pattern == before


def test_where_one_layer_cannot_follow_none_moves() -> None:
    """That it cannot is found before any does."""
    model = nn.Sequential(*(js.nn.BlockSparseLinear(64, 64, 16, density=0.5) for _ in range(3)))
    nn.utils.prune.l1_unstructured(model[2], "values", 0.3)
    before = [layer.pattern for layer in model]
    with pytest.raises(js.ArgumentError, match=r"layer '2': .*pruning"):
        js.nn.prune_(model, 0.25)
    assert [layer.pattern for layer in model] == before
    other = nn.Sequential(*(js.nn.BlockSparseLinear(64, 64, 16, density=0.5) for _ in range(3)))
    with pytest.raises(js.ArgumentError, match=r"layer '2': .*pruning"):
        js.nn.match_patterns_(model, other)
    assert [layer.pattern for layer in model] == before
