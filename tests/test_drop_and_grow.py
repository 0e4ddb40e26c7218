"""Blocks that move while a model is trained go where the algorithm says, and nothing else moves."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_two_ranks
from torch import Tensor, nn

import jitsparse as js
from jitsparse.nn.watching import Watcher

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Model(nn.Module):
    def __init__(self, **factory: Any) -> None:
        super().__init__()
        self.first = js.nn.BlockSparseLinear(40, 64, 8, density=0.3, **factory)
        self.second = js.nn.BlockSparseLinear(64, 24, 8, density=0.5, **factory)
        self.head = nn.Linear(24, 3, **factory)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(self.first(x).relu()).relu())
        return out


def make(seed: int = 0, **factory: Any) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Model(**factory)
    return model, torch.optim.Adam(model.parameters(), 1e-2)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    moving: js.nn.DropAndGrow,
    steps: int,
    shape: tuple[int, ...] = (16, 40),
) -> list[int]:
    moved = []
    for _ in range(steps):
        optimizer.zero_grad()
        like = next(model.parameters())
        x = torch.randn(shape, device=like.device, dtype=like.dtype)
        with moving.watching():
            model(x).square().mean().backward()
        optimizer.step()
        moved.append(moving.step())
    return moved


@pytest.mark.parametrize("grow", ["gradient", "random"])
def test_as_many_blocks_move_as_the_schedule_says(grow: Any) -> None:
    model, adam = make()
    counts = {name: each.pattern.nnz_blocks for name, each in layers(model).items()}
    moving = js.nn.DropAndGrow(model, adam, every=3, until=10, fraction=0.5, grow=grow)
    moved = train(model, adam, moving, 14)
    expected = [0] * 14
    for step in (3, 6, 9):
        share = 0.5 * (1 + math.cos(math.pi * step / 10)) / 2
        expected[step - 1] = sum(round(share * count) for count in counts.values())
    assert moved == expected
    assert {name: each.pattern.nnz_blocks for name, each in layers(model).items()} == counts


def layers(model: nn.Module) -> dict[str, js.nn.BlockSparseLinear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, js.nn.BlockSparseLinear)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(16, 40), (2, 5, 40)], ids=str)
def test_the_weakest_go_and_those_of_the_largest_gradient_come(
    shape: tuple[int, ...], device: str
) -> None:
    """As a dense layer computes it, summed over the passes of a step."""
    model, adam = make(device=device, dtype=torch.float64)
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100, fraction=0.25)
    dense = copy.deepcopy(model)
    js.nn.densify_(dense)
    batches = [torch.randn(shape, device=device, dtype=torch.float64) for _ in range(2)]
    with moving.watching():
        for x in batches:
            model(x).square().mean().backward()
    for x in batches:
        dense(x).square().mean().backward()
    before = {
        name: (each.pattern, each.weight.block_norms()) for name, each in layers(model).items()
    }
    values = {name: each.weight.to_dense() for name, each in layers(model).items()}
    moving.step()
    for name, layer in layers(model).items():
        old, norms = before[name]
        count = round(0.25 * (1 + math.cos(math.pi / 100)) / 2 * old.nnz_blocks)
        assert count
        kept = old.take(norms.topk(old.nnz_blocks - count).indices)
        gradient = js.BlockSparse.from_dense(
            dense.get_submodule(name).weight.grad,  # type: ignore[arg-type]
            8,
            ~old.to_mask(),
        )
        grown = gradient.pattern.take(gradient.block_norms().topk(count).indices)
        assert layer.pattern == kept | grown
        mask = kept.to_mask().repeat_interleave(8, 0).repeat_interleave(8, 1)
        assert torch.equal(layer.weight.to_dense(), torch.where(mask, values[name], 0))


@pytest.mark.parametrize("stored", [0.0, 0.15, 0.5, 1.0])
def test_gradients_are_computed_a_few_block_rows_at_a_time(stored: float) -> None:
    torch.manual_seed(0)
    layer = js.nn.BlockSparseLinear(50, 60, 8, pattern=js.Pattern.random((60, 50), 8, stored))
    wanted = js.Pattern.random((60, 50), 8, 0.7)
    x, grad = torch.randn(9, 50), torch.randn(9, 60)
    watcher = Watcher({"it": layer}, None)
    with watcher.watching():
        for some in (slice(0, 4), slice(4, 9)):
            layer(x[some]).backward(grad[some])
    expected = js.sdd(grad.mT, x, wanted).block_norms()
    torch.testing.assert_close(watcher.norms("it", wanted.to_mask()), expected)


def test_sums_beyond_float16_are_no_overflow() -> None:
    layer = js.nn.BlockSparseLinear(16, 16, 8, density=0.5, dtype=torch.float16)
    watcher = Watcher({"it": layer}, None)
    with watcher.watching():
        layer(torch.full((4096, 16), 8.0, dtype=torch.float16)).backward(
            torch.full((4096, 16), 4.0, dtype=torch.float16)
        )
    norms = watcher.norms("it", ~layer.pattern.to_mask())
    assert torch.allclose(norms, torch.tensor(4096 * 32.0 * 8))


def test_nothing_moves_where_a_scaled_loss_has_overflowed() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    patterns = model.first.pattern, model.second.pattern
    with moving.watching():
        (model(torch.randn(4, 40)).square().mean() * float("inf")).backward()
    assert moving.step() == 0
    assert (model.first.pattern, model.second.pattern) == patterns
    assert sum(train(model, adam, moving, 1)) > 0


def test_autocast() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    with moving.watching(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(4, 40)).square().mean().backward()
    assert moving.step() > 0


@pytest.mark.parametrize("autocast", [True, False])
def test_an_input_may_be_written_to_where_autograd_allows_it(autocast: bool) -> None:
    """After the backward pass, or where autocast has copied it after the forward pass."""
    layer, x = js.nn.BlockSparseLinear(40, 64, 8, density=0.3), torch.randn(4, 40)
    watcher = Watcher({"it": layer}, None)
    with watcher.watching(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = layer(x)
        seen = x.to(out.dtype, copy=True)
        if autocast:
            x.zero_()
        out.sum().backward()
        x.zero_()
    ((watched, _),) = watcher._pairs["it"]
    assert torch.equal(watched, seen)


def test_hooks_of_others_change_nothing() -> None:
    layer, x = js.nn.BlockSparseLinear(40, 64, 8, density=0.3), torch.randn(4, 40)
    layer.register_forward_hook(lambda module, inputs, out: (out.relu(), 1))
    watcher = Watcher({"it": layer}, None)
    with watcher.watching():
        layer(x)[0].sum().backward()
    ((_, grad),) = watcher._pairs["it"]
    expected = (x @ layer.weight.to_dense().T + layer.bias > 0).float()
    assert torch.equal(grad, expected)


def test_an_input_by_its_name() -> None:
    layer = js.nn.BlockSparseLinear(40, 64, 8, density=0.3)
    sgd = torch.optim.SGD(layer.parameters(), 0.1)
    moving = js.nn.DropAndGrow(layer, sgd, every=1, until=100)
    with moving.watching():
        layer(x=torch.randn(4, 40)).sum().backward()
    assert moving.step() > 0


def test_nothing_is_watched_where_nothing_moves() -> None:
    model, adam = make()
    for moving in (
        js.nn.DropAndGrow(model, adam, every=2, until=100),
        js.nn.DropAndGrow(model, adam, every=1, until=100, grow="random"),
        js.nn.DropAndGrow(model, adam, every=1, until=1),
    ):
        with moving.watching():
            assert not any(each._forward_hooks for each in model.modules())
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    with moving.watching():
        assert len(model.first._forward_hooks) == 1
        model(torch.randn(4, 40)).sum().backward()
        with torch.no_grad():
            model(torch.randn(4, 40))
    assert not any(each._forward_hooks for each in model.modules())
    seen = moving._watcher._pairs
    assert {name: len(pairs) for name, pairs in seen.items()} == {"first": 1, "second": 1}
    moving.step()
    assert not moving._watcher._pairs


def test_a_step_that_nobody_watched_says_so_and_can_be_repeated() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    model(torch.randn(4, 40)).sum().backward()
    with pytest.raises(js.ArgumentError, match=r"moving\.watching"):
        moving.step()
    with moving.watching():
        model(torch.randn(4, 40))
    with pytest.raises(js.ArgumentError, match="no backward pass through any layer was seen"):
        moving.step()
    with moving.watching():
        model(torch.randn(4, 40)).sum().backward()
    assert moving.step() > 0


def test_what_was_seen_before_an_error_does_not_count() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)

    def fail() -> None:
        with moving.watching():
            model(torch.randn(4, 40)).sum().backward()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not moving._watcher._pairs
    assert not any(each._forward_hooks for each in model.modules())


def test_an_input_without_a_batch() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    assert sum(train(model, adam, moving, 2, (40,))) > 0


@pytest.mark.parametrize("grow", ["gradient", "random"])
def test_training_goes_on_from_a_checkpoint(grow: Any) -> None:
    options = dict(every=2, until=100, grow=grow)
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, **options)
    train(model, adam, moving, 5)
    saved = copy.deepcopy((model.state_dict(), adam.state_dict(), moving.state_dict()))
    other, other_adam = make(seed=1)
    resumed = js.nn.DropAndGrow(other, other_adam, seed=7, **options)
    for into, state in zip((other, other_adam, resumed), saved, strict=True):
        into.load_state_dict(state)
    for each in ((model, adam, moving), (other, other_adam, resumed)):
        torch.manual_seed(2)
        assert sum(train(*each, 4)) > 0
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_gradient_penalty_says_that_it_is_not_seen() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    x = torch.randn(5, 40, requires_grad=True)
    with pytest.raises(js.ArgumentError, match="create_graph=True"), moving.watching():
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    assert moving.due


def test_sharded_values_are_refused_at_once() -> None:
    model, adam = make()
    model.first.values.data = torch.zeros(400)
    with pytest.raises(js.ArgumentError, match="before the model is sharded"):
        js.nn.DropAndGrow(model, adam, every=1, until=100)


def test_a_checkpoint_that_was_loaded_to_a_gpu() -> None:
    """Along with the state of what is random, which belongs to the host."""
    model, adam = make()
    state = js.nn.DropAndGrow(model, adam, every=2, until=100, grow="random").state_dict()
    state["generator"] = Moved(state["generator"])
    js.nn.DropAndGrow(model, adam, every=2, until=100).load_state_dict(state)


class Moved:
    """A tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def cpu(self) -> torch.Tensor:
        return self.tensor


def test_what_grows_at_random_is_drawn_by_the_host() -> None:
    """Whatever torch's default device is."""
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100, grow="random")
    with torch.device("meta"):
        assert moving.step()


def test_followers_move_along() -> None:
    model, adam = make()
    average = torch.optim.swa_utils.AveragedModel(model)
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100, followers=(average.module,))
    before = {name: each.weight.to_dense() for name, each in layers(average.module).items()}
    train(model, adam, moving, 1)
    for name, layer in layers(average.module).items():
        assert layer.pattern == layers(model)[name].pattern
        mask = layer.pattern.to_mask().repeat_interleave(8, 0).repeat_interleave(8, 1)
        assert torch.equal(layer.weight.to_dense(), before[name] * mask)


def test_a_follower_of_other_layers_is_refused_before_anything_moves() -> None:
    model, adam = make()
    average = torch.optim.swa_utils.AveragedModel(model)
    with pytest.raises(js.ArgumentError, match="pass the module of an AveragedModel"):
        js.nn.DropAndGrow(model, adam, every=1, until=2, followers=(average,))
    moving = js.nn.DropAndGrow(model, adam, every=1, until=9, followers=(average.module,))
    pattern = model.first.pattern
    average.module.second = nn.Linear(64, 24)
    with pytest.raises(js.ArgumentError, match="has 'second'"):
        train(model, adam, moving, 1)
    assert model.first.pattern == pattern


def test_tied_values_are_refused() -> None:
    first, second = (js.nn.BlockSparseLinear(64, 64, 8, density=0.3) for _ in range(2))
    second.values = first.values
    model = nn.Sequential(first, second)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    for call in (
        lambda: js.nn.DropAndGrow(model, sgd, every=1, until=2),
        lambda: js.nn.prune_(model, 0.1),
    ):
        with pytest.raises(js.ArgumentError, match=r"layer '1' are also 0\.values \(tied\)"):
            call()
    # One layer in two places is one layer.
    model = nn.Sequential(first, nn.ReLU(), first)
    assert js.nn.prune_(model, 0.1) == ("0",)


def test_frozen_and_unselected_layers_stay() -> None:
    model, adam = make()
    patterns = model.first.pattern, model.second.pattern
    model.first.values.requires_grad_(False)
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    train(model, adam, moving, 1)
    assert model.first.pattern == patterns[0]
    assert model.second.pattern != patterns[1]
    model, adam = make()
    moving = js.nn.DropAndGrow(
        model, adam, every=1, until=100, where=lambda name, _: name == "first"
    )
    train(model, adam, moving, 1)
    assert model.first.pattern != patterns[0]
    assert model.second.pattern == patterns[1]
    model.first.values.requires_grad_(False)
    with pytest.raises(js.ArgumentError, match="all selected layers are frozen"):
        js.nn.DropAndGrow(model, adam, every=1, until=2, where=lambda name, _: name == "first")


def test_a_layer_that_is_frozen_later_stays() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    pattern = model.first.pattern
    model.first.values.requires_grad_(False)
    assert sum(train(model, adam, moving, 1)) > 0
    assert model.first.pattern == pattern


def test_a_layer_that_is_not_used_in_a_step_stays() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    patterns = model.first.pattern, model.second.pattern
    with moving.watching():
        model.second(torch.randn(4, 64)).sum().backward()
    assert moving.step() > 0
    assert model.first.pattern == patterns[0]
    assert model.second.pattern != patterns[1]


def test_what_was_seen_before_a_checkpoint_was_loaded_does_not_count() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=100)
    state = moving.state_dict()
    with moving.watching():
        (model(torch.randn(4, 40)).sum() * float("nan")).backward()
    moving.load_state_dict(state)
    assert sum(train(model, adam, moving, 1)) > 0


def test_a_fraction_may_be_numpys() -> None:
    model, adam = make()
    np = pytest.importorskip("numpy")
    js.nn.DropAndGrow(model, adam, every=1, until=9, fraction=np.float32(0.5))


@pytest.mark.parametrize("steps", [-100, 2.7])
def test_a_checkpoint_that_no_instance_wrote(steps: float) -> None:
    moving = js.nn.DropAndGrow(*make(), every=1, until=100)
    with pytest.raises(js.ArgumentError, match="takes what state_dict returned"):
        moving.load_state_dict({**moving.state_dict(), "steps": steps})
    assert moving.state_dict()["steps"] == 0


@pytest.mark.parametrize("exponent", [-80, 60])
def test_the_scale_of_a_loss_decides_nothing(exponent: int) -> None:
    """Squares of these gradients are beyond the range of float32, at either end."""

    def grown(scale: float) -> js.Pattern:
        torch.manual_seed(0)
        layer = js.nn.BlockSparseLinear(64, 64, 8, density=0.5)
        sgd = torch.optim.SGD(layer.parameters(), 0.1)
        moving = js.nn.DropAndGrow(layer, sgd, every=1, until=10)
        with moving.watching():
            (layer(torch.randn(9, 64)).square().sum() * scale).backward()
        assert moving.step() == 9
        return layer.pattern

    assert grown(2.0**exponent) == grown(1.0)


def test_a_layer_that_no_optimizer_trains_is_refused() -> None:
    model, _ = make()
    sgd = torch.optim.SGD(model.first.parameters(), 0.1)
    with pytest.raises(js.ArgumentError, match=r"none of the optimizers trains .* 'second'"):
        js.nn.DropAndGrow(model, sgd, every=1, until=100)
    with pytest.raises(js.ArgumentError, match=r"none of the optimizers trains .* 'first'"):
        js.nn.DropAndGrow(model, every=1, until=100)


def test_a_full_layer_has_nowhere_to_grow() -> None:
    layer = js.nn.BlockSparseLinear(16, 16, 8, density=1.0)
    sgd = torch.optim.SGD(layer.parameters(), 0.1)
    assert train(layer, sgd, js.nn.DropAndGrow(layer, sgd, every=1, until=9), 2, (4, 16)) == [0, 0]


@pytest.mark.parametrize("hooked", ["output", "forward hook", "two"])
def test_hooks_on_a_layers_output_count(hooked: str) -> None:
    """As they do for the gradient of what is stored."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.25)
    sgd = torch.optim.SGD(layer.parameters(), 0.1)
    moving = js.nn.DropAndGrow(layer, sgd, every=1, until=9)
    kept = torch.zeros(64)
    kept[32:] = 1

    def mask(grad: Tensor) -> Tensor:
        return grad * kept

    if hooked == "forward hook":
        layer.register_forward_hook(lambda *given: given[-1].register_hook(mask) and None)
    x = torch.randn(5, 64)
    with moving.watching():
        y = layer(x)
        if hooked != "forward hook":
            y.register_hook(mask)
        if hooked == "two":
            y.register_hook(lambda grad: 2 * grad)
        (y**2).sum().backward()
    grad = 2 * y.detach() * kept * (2 if hooked == "two" else 1)
    everything = js.BlockSparse.from_dense(grad.mT @ x, 16, torch.ones(4, 4).bool()).block_norms()
    torch.testing.assert_close(moving._watcher.norms("", torch.ones(4, 4).bool()), everything)


def test_under_autocast_sums_do_not_overflow() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.25)
    sgd = torch.optim.SGD(layer.parameters(), 0.0)
    moving = js.nn.DropAndGrow(layer, sgd, every=1, until=9, fraction=0.5)
    with torch.autocast("cpu", torch.float16):
        with moving.watching():
            layer(100 * torch.rand(512, 64)).float().sum().mul(10).backward()
        assert moving.step() > 0


def test_a_layer_without_inputs_is_watched() -> None:
    model = nn.Sequential(
        js.nn.BlockSparseLinear(0, 16, 8, density=1.0),
        js.nn.BlockSparseLinear(16, 16, 8, density=0.5),
    )
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    moving = js.nn.DropAndGrow(model, sgd, every=1, until=9, fraction=0.5)
    assert train(model, sgd, moving, 1, (3, 0)) == [1]


@pytest.mark.parametrize("grow", ["gradient", "random"])
def test_the_default_device_does_not_matter(grow: Any) -> None:
    model, _ = make()
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)  # Adam's own step needs a device
    follower = copy.deepcopy(model)
    moving = js.nn.DropAndGrow(
        model, sgd, every=1, until=9, fraction=0.5, grow=grow, followers=[follower]
    )
    with torch.device("meta"):
        assert sum(train(model, sgd, moving, 2)) > 0
        moving.load_state_dict(moving.state_dict())
        assert train(model, sgd, moving, 1) != [0]
    assert follower.first.pattern == model.first.pattern


def test_its_repr_says_what_it_does() -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=100, until=7500)
    assert repr(moving) == "DropAndGrow(every=100, until=7500, grow='gradient', layers=2)"


@pytest.mark.parametrize(
    "state", [{}, {"steps": 3}, {"steps": 3, "generator": torch.zeros(3, dtype=torch.uint8)}, None]
)
def test_a_state_that_is_none_changes_nothing(state: Any) -> None:
    model, adam = make()
    moving = js.nn.DropAndGrow(model, adam, every=1, until=9)
    before = moving.state_dict()
    with pytest.raises(js.ArgumentError, match="what state_dict returned"):
        moving.load_state_dict(state)
    assert moving.state_dict()["steps"] == before["steps"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 0, "until": 3}, "every is a positive number"),
        ({"every": 2, "until": 1.5}, "got 2 and 1.5"),
        ({"every": 2, "until": 3, "fraction": 1.5}, "fraction is a number from 0 to 1, got 1.5"),
        ({"every": 2, "until": 3, "fraction": "a"}, "fraction is a number from 0 to 1, got 'a'"),
        ({"every": 2, "until": 3, "grow": "all"}, "grow is 'gradient' or 'random', got 'all'"),
        ({"every": 2, "until": 3, "followers": make()[0]}, r"list of models, got Model: write"),
        ({"every": 2, "until": 3, "followers": ["a"]}, "list of models, got 'a' in it"),
        ({"every": 2, "until": 3, "seed": "x"}, "seed is an int of 64 bits, got 'x'"),
        ({"every": 2, "until": 3, "seed": 2**64}, "seed is an int of 64 bits"),
        ({"every": 2, "until": 3, "where": lambda *_: False}, "of which `where` selects none"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], said: str) -> None:
    model, adam = make()
    with pytest.raises(js.ArgumentError, match=said):
        js.nn.DropAndGrow(model, adam, **options)


def test_an_optimizer_of_another_model_is_refused() -> None:
    model, adam = make()
    other, _ = make()
    with pytest.raises(js.ArgumentError, match="this Adam trains the values of no block-sparse"):
        js.nn.DropAndGrow(other, adam, every=1, until=2)
    with pytest.raises(js.ArgumentError, match="takes optimizers, got Model"):
        js.nn.DropAndGrow(model, model, every=1, until=2)  # type: ignore[arg-type]


def test_a_compiled_model_is_watched() -> None:
    model, adam = make()
    compiled = torch.compile(model, backend="aot_eager")
    moving = js.nn.DropAndGrow(model, adam, every=2, until=100)
    moved = train(compiled, adam, moving, 4)
    assert moved[1] > 0
    assert moved[3] > 0


RANK = """\
# Each has data of its own, and yet all move alike.
import sys, torch, jitsparse as js
from torch import distributed

grow, store, rank = sys.argv[1:]
distributed.init_process_group(
    "gloo", rank=int(rank), world_size=2, store=distributed.FileStore(store, 2)
)
torch.manual_seed(0)
model = torch.nn.Sequential(
    js.nn.BlockSparseLinear(40, 64, 8, density=0.3),
    torch.nn.ReLU(),
    js.nn.BlockSparseLinear(64, 24, 8, density=0.5),
)
adam = torch.optim.Adam(model.parameters())
ranked = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
moving = js.nn.DropAndGrow(model, adam, every=2, until=100, grow=grow)
torch.manual_seed(int(rank))
moved = 0
for step in range(6):
    adam.zero_grad()
    with moving.watching():
        ranked(torch.randn(16, 40)).square().mean().backward()
    if step == 3 and rank == "1":
        moving._watcher._pairs.pop("0", None)  # as if it had not used that layer
    adam.step()
    moved += moving.step()
    js.nn.require_same_patterns(ranked)
assert moved > 0
"""


@pytest.mark.parametrize("grow", ["gradient", "random"])
def test_ranks_move_alike(grow: str, tmp_path: Path) -> None:
    run_two_ranks(RANK, grow, where=tmp_path)
