"""A matrix on another pattern, and a layer whose blocks move while it is trained: what both
patterns store is kept bit for bit, what is new is zero, and an optimizer's state goes along."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_two_ranks
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn.utils import prune

import jitsparse as js

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def masks(rows: int, cols: int) -> st.SearchStrategy[Tensor]:
    bits = st.lists(st.booleans(), min_size=rows * cols, max_size=rows * cols)
    return bits.map(lambda each: torch.tensor(each, dtype=torch.bool).view(rows, cols))


def expand(mask: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """The elements of the blocks of a mask."""
    whole = mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return whole[: shape[0], : shape[1]]


@given(masks(3, 4), masks(3, 4), st.booleans())
def test_a_matrix_on_another_pattern(before: Tensor, after: Tensor, transposed: bool) -> None:
    shape, block = (20, 50), (8, 16)
    a = js.BlockSparse.from_dense(torch.randn(shape), block, before)
    pattern = js.Pattern.from_mask(after, block, shape)
    moved = a.T.with_pattern(pattern).T if transposed else a.with_pattern(pattern)
    assert moved.pattern == pattern
    expected = torch.where(expand(after, block, shape), a.to_dense(), 0)
    assert torch.equal(moved.to_dense(), expected)


def test_what_lies_past_the_edge_is_no_part_of_it() -> None:
    pattern = js.Pattern.from_mask(torch.ones(2, 2, dtype=torch.bool), 16, (20, 20))
    values = js.BlockSparse(torch.ones(pattern.values_shape), pattern).with_pattern(pattern).values
    assert values.sum() == 400


def test_what_is_not_finite_stays_in_its_block() -> None:
    a = js.random((64, 64), 16, 0.5)
    a.values[0], a.values[1] = torch.inf, torch.nan
    everywhere = js.Pattern.from_mask(torch.ones(4, 4, dtype=torch.bool), 16)
    values = a.with_pattern(everywhere).values
    assert values.isinf().sum() == values.isnan().sum() == 256
    assert torch.equal(a.with_pattern(everywhere).with_pattern(a.pattern).values[2:], a.values[2:])


def test_gradients_of_what_moved() -> None:
    old, new = (js.Pattern.random((24, 16), 8, 0.5) for _ in range(2))
    values = torch.randn(old.values_shape, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda v: js.BlockSparse(v, old).with_pattern(new).values, (values,))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (js.Pattern.random((64, 64), 16, 0.5), r"blocks of \(32, 32\)"),
        (js.Pattern.random((64, 96), 32, 0.5), r"shape \(64, 64\)"),
        (torch.ones(2, 2), "got Tensor"),
        (js.Pattern.random((64, 64), 32, 0.5, device="meta"), r"on cpu, got one on meta: move it"),
    ],
)
def test_a_pattern_that_does_not_fit(pattern: object, said: str) -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 32, density=0.5)
    for move in (layer.set_pattern, layer.weight.with_pattern):
        with pytest.raises(js.ArgumentError, match=said):
            move(pattern)  # type: ignore[arg-type]


# -- layers -------------------------------------------------------------------------------------

SHAPE, BLOCK = (60, 90), 16

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


class Masked(nn.Module):
    """The same layer with a dense weight: what its mask forgets is zero, for its optimizer too."""

    def __init__(self, layer: js.nn.BlockSparseLinear) -> None:
        super().__init__()
        dense = layer.to_linear()
        self.weight, self.bias = dense.weight, dense.bias
        self.set_mask(layer.pattern.to_mask())

    def set_mask(self, mask: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        self.stored = expand(mask, (BLOCK, BLOCK), SHAPE)
        states = [
            state
            for each in optimizers
            for state in each.state[self.weight].values()
            if state.shape == self.weight.shape
        ]
        with torch.no_grad():
            for tensor in (self.weight, *states):
                tensor.mul_(self.stored)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.stored, self.bias)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    for x in data:
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("densities", [(0.5, 0.5, 0.5), (0.5, 0.25, 0.75), (0.25, 1.0, 0.5)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_that_of_a_masked_layer(
    name: str, densities: tuple[float, ...], device: str
) -> None:
    """In float64; adagrad's new blocks begin with an accumulator of 0, as its default is."""
    generator = torch.Generator().manual_seed(0)
    make = dict(dtype=torch.float64, device=device)
    layer = js.nn.BlockSparseLinear(SHAPE[1], SHAPE[0], BLOCK, density=densities[0], **make)
    twin = Masked(layer)
    ours, theirs = (OPTIMIZERS[name](list(each.parameters())) for each in (layer, twin))
    parameter = layer.values
    for density in densities[1:]:
        data = [torch.randn(8, SHAPE[1], generator=generator).to(**make) for _ in range(3)]
        train(layer, ours, data)
        train(twin, theirs, data)
        torch.testing.assert_close(layer.weight.to_dense(), twin.weight.detach())
        before = layer.weight.to_dense()
        pattern = js.Pattern.random(SHAPE, BLOCK, density, generator=generator).to(device)
        layer.set_pattern(pattern, ours)
        twin.set_mask(pattern.to_mask(), theirs)
        assert layer.pattern == pattern
        assert layer.values is parameter
        assert layer.values.grad is None
        assert torch.equal(layer.weight.to_dense(), torch.where(twin.stored, before, 0))
    train(layer, ours, data)
    train(twin, theirs, data)
    torch.testing.assert_close(layer.weight.to_dense(), twin.weight.detach())


@pytest.mark.parametrize("density", [0.5, 0.25])
def test_a_moved_layer_is_saved_loaded_and_copied(density: float) -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    layer.set_pattern(js.Pattern.random((96, 64), 16, density))
    x = torch.randn(3, 64)
    other = js.nn.BlockSparseLinear(64, 96, 16, density=0.75)
    other.load_state_dict(layer.state_dict())
    for twin in (other, copy.deepcopy(layer)):
        assert twin.pattern == layer.pattern
        assert torch.equal(twin(x), layer(x))


@pytest.mark.parametrize("density", [0.5, 0.25])
def test_a_compiled_layer_follows(density: float) -> None:
    torch._dynamo.reset()
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    compiled, x = torch.compile(layer, backend="aot_eager"), torch.randn(3, 64)
    compiled(x).sum().backward()
    layer.set_pattern(js.Pattern.random((96, 64), 16, density))
    with torch.no_grad():
        layer.values.normal_()
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    got, layer.values.grad = layer.values.grad, None
    layer(x).sum().backward()
    torch.testing.assert_close(got, layer.values.grad)


def test_state_of_rows_and_columns_of_blocks_moves_too() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    optimizer = torch.optim.Adafactor(layer.parameters())
    train(layer, optimizer, [torch.randn(8, 64)])
    before, old = copy.deepcopy(optimizer.state[layer.values]), layer.pattern
    assert before["row_var"].shape == (12, 16, 1)
    layer.set_pattern(js.Pattern.random((96, 64), 16, 0.75), optimizer)
    after = optimizer.state[layer.values]
    assert after["step"] == before["step"]
    was, now = (
        [tuple(each) for each in torch.stack([p.row_indices, p.col_indices], 1).tolist()]
        for p in (old, layer.pattern)
    )
    for name in ("row_var", "col_var"):
        for n, place in enumerate(now):
            nothing = torch.zeros_like(before[name][0])
            expected = before[name][was.index(place)] if place in was else nothing
            assert torch.equal(after[name][n], expected)
    train(layer, optimizer, [torch.randn(8, 64)])


@pytest.mark.parametrize("density", [0.5, 0.25])
def test_state_that_two_optimizers_share_moves_once(density: float) -> None:
    layers = [js.nn.BlockSparseLinear(64, 96, 16, density=0.5)]
    layers.append(copy.deepcopy(layers[0]))
    x, pattern = torch.randn(8, 64), js.Pattern.random((96, 64), 16, density)
    for layer, times in zip(layers, (1, 2), strict=True):
        optimizer = torch.optim.Adam(layer.parameters())
        train(layer, optimizer, [x])
        layer.set_pattern(pattern, *[optimizer] * times)
        train(layer, optimizer, [x])
    assert torch.equal(layers[0].values, layers[1].values)


def test_from_no_blocks_and_back() -> None:
    nothing = js.Pattern.from_mask(torch.zeros(6, 4, dtype=torch.bool), 16)
    layer = js.nn.BlockSparseLinear(64, 96, 16, pattern=nothing)
    optimizer = torch.optim.Adam(layer.parameters())
    for pattern in (js.Pattern.random((96, 64), 16, 0.5), nothing, nothing):
        train(layer, optimizer, [torch.randn(8, 64)])
        layer.set_pattern(pattern, optimizer)
        assert optimizer.state[layer.values]["exp_avg"].shape == layer.values.shape


def test_state_without_places_of_blocks_is_refused() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    optimizer = torch.optim.Adam(layer.parameters())
    train(layer, optimizer, [torch.randn(8, 64)])
    optimizer.state[layer.values]["absmax"] = torch.zeros(7)
    before, old = copy.deepcopy(optimizer.state[layer.values]), layer.pattern
    with pytest.raises(js.ArgumentError, match=r"'absmax' .* shape \(7,\)"):
        layer.set_pattern(js.Pattern.random((96, 64), 16, 0.5), optimizer)
    assert layer.pattern is old
    assert torch.equal(optimizer.state[layer.values]["exp_avg"], before["exp_avg"])


@pytest.mark.parametrize(
    ("kept", "moves"),
    [
        ([torch.zeros(2), torch.zeros(3)], False),
        ({"left": (1, torch.zeros(2))}, False),
        (nn.Linear(1, 1), False),
        (["adam", 0.1, None, {"step": torch.tensor(3)}, ()], True),
    ],
    ids=["list", "dict", "object", "numbers"],
)
def test_state_in_containers_is_refused_unless_it_is_of_no_block(kept: object, moves: bool) -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    optimizer = torch.optim.Adam(layer.parameters())
    train(layer, optimizer, [torch.randn(8, 64)])
    optimizer.state[layer.values]["kept"] = kept
    old, after = layer.pattern, js.Pattern.random((96, 64), 16, 0.5)
    if moves:
        layer.set_pattern(after, optimizer)
        assert layer.pattern is not old
    else:
        with pytest.raises(js.ArgumentError, match=f"'kept' .* a {type(kept).__name__}, in which"):
            layer.set_pattern(after, optimizer)
        assert layer.pattern is old


@pytest.mark.parametrize("values_first", [True, False])
def test_state_of_all_parameters_together_is_refused(values_first: bool) -> None:
    """As LBFGS keeps it, under the first of them."""
    layer, x = js.nn.BlockSparseLinear(64, 64, 16, density=0.5), torch.randn(9, 64)
    parameters = [layer.values, layer.bias] if values_first else [layer.bias, layer.values]
    optimizer = torch.optim.LBFGS(parameters)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (layer(x) - 1).square().mean()
        loss.backward()
        return loss

    after = js.Pattern.random((64, 64), 16, 0.25)
    before = layer.pattern
    optimizer.step(closure)
    with pytest.raises(js.ArgumentError, match="no block has a place of its own"):
        layer.set_pattern(after, optimizer)
    assert layer.pattern == before


def test_new_blocks_take_the_first_steps_of_rprop() -> None:
    """Which multiplies its steps: of zero they would stay the smallest there are."""
    layer, x = js.nn.BlockSparseLinear(64, 64, 16, density=0.25), torch.randn(9, 64)
    optimizer = torch.optim.Rprop(layer.parameters(), lr=0.01)
    layer(x).square().sum().backward()
    optimizer.step()
    old = layer.pattern.to_mask().flatten()
    steps = optimizer.state[layer.values]["step_size"].clone()
    layer.set_pattern(js.Pattern.from_mask(torch.ones(4, 4, dtype=torch.bool), 16), optimizer)
    moved = optimizer.state[layer.values]["step_size"]
    assert torch.equal(moved[old], steps)
    assert (moved[~old] == torch.tensor(0.01)).all()


def test_a_layer_without_data_has_none_to_move() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5, device="meta")
    with pytest.raises(js.ArgumentError, match="load a state dict first"):
        layer.set_pattern(js.Pattern.random((64, 64), 16, 0.5))


def test_values_that_are_a_shard() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    layer.values.data = torch.zeros(400)
    with pytest.raises(js.ArgumentError, match="before the model is sharded"):
        layer.set_pattern(js.Pattern.random((96, 64), 16, 0.5))


@pytest.mark.parametrize("density", [0.5, 0.25])
def test_moved_in_inference_mode_and_trained_afterwards(density: float) -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    optimizer = torch.optim.Adam(layer.parameters())
    train(layer, optimizer, [torch.randn(8, 64)])
    with torch.inference_mode():
        layer.set_pattern(js.Pattern.random((96, 64), 16, density), optimizer)
    train(layer, optimizer, [torch.randn(8, 64)])


@pytest.mark.parametrize("density", [0.5, 0.25])
def test_a_layer_made_in_inference_mode_moves_where_it_can(density: float) -> None:
    with torch.inference_mode():
        layer = copy.deepcopy(js.nn.BlockSparseLinear(64, 96, 16, density=0.5))
        layer.set_pattern(js.Pattern.random((96, 64), 16, 0.5))
    layer.set_pattern(wanted := js.Pattern.random((96, 64), 16, density))
    x = torch.randn(8, 64)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), x @ layer.weight.to_dense().T + layer.bias)
    assert layer.pattern == wanted


@pytest.mark.parametrize("through", ["set_pattern", "load_state_dict"])
@pytest.mark.parametrize("input_too", [False, True])
def test_a_backward_pass_of_before_does_not_reach_other_blocks(
    input_too: bool, through: str
) -> None:
    """Whose gradient torch would keep, whatever its shape."""
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, fused=True)
    x = torch.randn(8, 64, requires_grad=input_too)
    train(layer, optimizer, [x])
    loss = layer(x).square().mean()
    if through == "set_pattern":
        layer.set_pattern(js.Pattern.random((96, 64), 16, 0.75), optimizer)
    else:
        layer.load_state_dict(js.nn.BlockSparseLinear(64, 96, 16, density=0.75).state_dict())
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    # The gradient of the input needs the values, which are known to be others: to torch, where they
    # were written to since, else to the operation.
    said = "made before the layer's number of blocks"
    if input_too:
        said = r"modified by an inplace|\(18, 16, 16\) on cpu in the place of .*\(12, 16, 16\)"
    with pytest.raises((js.ArgumentError, RuntimeError), match=said):
        loss.backward()
    assert layer.values.grad is None
    train(layer, optimizer, [x])
    assert layer.values.grad.shape == layer.values.shape


def test_autocast_leaves_them_alone() -> None:
    a = js.random((64, 64), 16, 0.5, dtype=torch.float16)
    pattern = js.Pattern.random((64, 64), 16, 0.5)
    with torch.autocast("cpu", torch.bfloat16):
        assert a.with_pattern(pattern).dtype == torch.float16


def test_a_state_dict_of_before_can_be_loaded() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    before = {name: each.clone() for name, each in layer.state_dict().items()}
    held = layer.state_dict()
    layer.set_pattern(js.Pattern.random((96, 64), 16, 0.25))
    for name in ("crow_indices", "col_indices"):
        assert torch.equal(held[name], before[name])
    layer.load_state_dict(before)
    assert torch.equal(layer.values, before["values"])


def test_gradients_of_other_blocks_go_with_these() -> None:
    layer, other = (js.nn.BlockSparseLinear(64, 96, 16, density=0.5) for _ in range(2))
    layer(torch.ones(2, 64)).sum().backward()
    layer.load_state_dict(layer.state_dict())
    assert layer.values.grad is not None
    layer.load_state_dict(other.state_dict())
    assert layer.values.grad is None


def test_an_optimizer_that_trains_something_else() -> None:
    layer, other = (js.nn.BlockSparseLinear(64, 64, 32, density=0.5) for _ in range(2))
    before = layer.values.clone()
    for optimizer, said in (
        (torch.optim.Adam(other.parameters()), "this Adam does not train"),
        (layer, "takes optimizers, got BlockSparseLinear"),
    ):
        with pytest.raises(js.ArgumentError, match=said):
            layer.set_pattern(js.Pattern.random((64, 64), 32, 0.25), optimizer)  # type: ignore[arg-type]
    assert torch.equal(layer.values, before)


RANKS = """\
import sys, torch, jitsparse as js
store, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group(
    "gloo", rank=rank, world_size=2, store=torch.distributed.FileStore(store, 2)
)
generator = torch.Generator().manual_seed(0)
patterns = [js.Pattern.random((64, 96), 16, 0.5, generator=generator) for _ in range(3)]
data = torch.randn(3, 8, 96, generator=generator, dtype=torch.float64)
torch.manual_seed(0)
alone, layer = (
    js.nn.BlockSparseLinear(96, 64, 16, pattern=patterns[0], dtype=torch.float64) for _ in range(2)
)
alone.load_state_dict(layer.state_dict())
together = torch.nn.parallel.DistributedDataParallel(layer)
adam, twin = (torch.optim.Adam(each.parameters(), 0.01) for each in (layer, alone))
for pattern, batch in zip(patterns, data):
    layer.set_pattern(pattern, adam)
    alone.set_pattern(pattern, twin)
    for model, optimizer, x in ((together, adam, batch[rank::2]), (alone, twin, batch)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
assert layer.pattern == patterns[-1]
torch.testing.assert_close(layer.weight.to_dense(), alone.weight.to_dense())
"""


def test_ranks_that_move_together(tmp_path: Path) -> None:
    """Each has half of a batch; a layer alone has all of it."""
    run_two_ranks(RANKS, where=tmp_path)


APART = """\
import sys, torch, jitsparse as js
store, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group(
    "gloo", rank=rank, world_size=2, store=torch.distributed.FileStore(store, 2)
)
def drawn(seed):
    return js.Pattern.random((64, 64), 16, 0.5, generator=torch.Generator().manual_seed(seed))
layers = (js.nn.BlockSparseLinear(64, 64, 16, pattern=drawn(rank)) for _ in range(2))
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 64))
together = torch.nn.parallel.DistributedDataParallel(model)
assert model[1].pattern == drawn(0)  # from rank 0
js.nn.require_same_patterns(together)
model[1].set_pattern(drawn(5 + rank))
for half in (torch.distributed.new_group([0]), torch.distributed.new_group([1])):
    if torch.distributed.get_rank(half) >= 0:
        js.nn.require_same_patterns(model, half)
try:
    js.nn.require_same_patterns(together)
except js.ArgumentError as error:
    assert "layer 'module.1' has 2 different patterns: ranks 0; 1" in str(error), error
else:
    raise AssertionError("nothing was raised")
"""


def test_ranks_that_move_apart_are_told(tmp_path: Path) -> None:
    run_two_ranks(APART, where=tmp_path)


def test_ranks_are_compared_where_there_are_some() -> None:
    with pytest.raises(js.ArgumentError, match="call init_process_group before"):
        js.nn.require_same_patterns(js.nn.BlockSparseLinear(64, 64, 32, density=0.5))


def test_values_that_are_computed_do_not_move() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 32, density=0.5)
    prune.l1_unstructured(layer, "values", amount=0.5)
    with pytest.raises(js.ArgumentError, match="take off what computes them"):
        layer.set_pattern(layer.pattern)


def test_a_layer_from_the_meta_device_has_no_blocks_to_move() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 32, density=0.5, device="meta").to_empty(device="cpu")
    with pytest.raises(js.ArgumentError, match="load a state dict first"):
        layer.set_pattern(js.Pattern.random((64, 64), 32, 0.5))


def test_state_stays_where_it_is_if_it_fits() -> None:
    """A captured graph of the step knows the place."""
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    optimizer = torch.optim.Adam(layer.parameters())
    train(layer, optimizer, [torch.randn(8, 64)])
    before = dict(optimizer.state[layer.values])
    layer.set_pattern(js.Pattern.random((96, 64), 16, 0.5), optimizer)
    for name, kept in optimizer.state[layer.values].items():
        assert kept is before[name]


def test_new_blocks_begin_with_adagrads_own_sum() -> None:
    """Of zero their first step would be the whole learning rate."""
    layer, x = js.nn.BlockSparseLinear(64, 64, 16, density=0.25), torch.randn(9, 64)
    optimizer = torch.optim.Adagrad(layer.parameters(), initial_accumulator_value=0.5)
    train(layer, optimizer, [x])
    old = layer.pattern.to_mask().flatten()
    sums = optimizer.state[layer.values]["sum"].clone()
    layer.set_pattern(js.Pattern.from_mask(torch.ones(4, 4, dtype=torch.bool), 16), optimizer)
    moved = optimizer.state[layer.values]["sum"]
    assert torch.equal(moved[old], sums)
    assert (moved[~old] == 0.5).all()


class Wrapper(torch.optim.Optimizer):
    """Keeps something itself, and has another optimizer do the rest, as SAM does."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups, {})
        self.base_optimizer = base

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["old"] = parameter.detach().clone()
        self.base_optimizer.step()


@pytest.mark.parametrize("density", [0.5, 0.25])
def test_the_state_of_a_wrapped_optimizer_moves(density: float) -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    base = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    wrapper = Wrapper(base)
    train(layer, wrapper, [torch.randn(2, 64)])
    states = (base.state, "momentum_buffer"), (wrapper.state, "old")
    before = [
        js.BlockSparse(state[layer.values][key].clone(), layer.pattern) for state, key in states
    ]
    after = js.Pattern.random((64, 64), 16, density)
    layer.set_pattern(after, wrapper)
    for (state, key), old in zip(states, before, strict=True):
        assert torch.equal(state[layer.values][key], old.with_pattern(after).values)
    train(layer, wrapper, [torch.randn(2, 64)])


class Packed(torch.Tensor):
    """What keeps 8 bits of each element, say."""


def test_state_of_a_subclass_is_refused() -> None:
    """Nobody knows how it is indexed."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    adam = torch.optim.Adam(layer.parameters())
    train(layer, adam, [torch.randn(2, 64)])
    state = adam.state[layer.values]
    state["exp_avg"] = state["exp_avg"].as_subclass(Packed)
    with pytest.raises(
        js.ArgumentError, match=r"'exp_avg' of the layer's values, a Packed of shap"
    ):
        layer.set_pattern(js.Pattern.random((64, 64), 16, 0.5), adam)


def test_values_in_a_bucket_keep_their_number() -> None:
    """As ZeroRedundancyOptimizer has them: it would go on with those in the bucket."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    adam = torch.optim.Adam(layer.parameters())
    adam.parameters_as_bucket_view = True  # type: ignore[attr-defined]
    layer.set_pattern(js.Pattern.random((64, 64), 16, 0.5), adam)
    with pytest.raises(js.ArgumentError, match="parameters_as_bucket_view"):
        layer.set_pattern(js.Pattern.random((64, 64), 16, 0.25), adam)


@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_that_was_not_named_refuses_its_next_step(fused: bool) -> None:
    """Fused ones would write past the end of their state."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    adam = torch.optim.Adam(layer.parameters(), fused=fused)
    train(layer, adam, [torch.randn(2, 64)])
    layer.set_pattern(js.Pattern.random((64, 64), 16, 0.75))
    said = (
        "'exp_avg' of 8 blocks for values that are 12 .* pass this optimizer to prune_ or set_pat"
    )
    with pytest.raises(js.ArgumentError, match=said):
        train(layer, adam, [torch.randn(2, 64)])
    train(layer, torch.optim.Adam(layer.parameters(), fused=fused), [torch.randn(2, 64)])


@pytest.mark.parametrize("copied", [False, True])
def test_an_optimizer_that_was_given_state_of_other_blocks_refuses_its_next_step(
    copied: bool,
) -> None:
    """As of a checkpoint of which the model's part was not loaded."""
    few, many = (js.nn.BlockSparseLinear(64, 64, 16, density=each) for each in (0.25, 0.75))
    if copied:
        many = copy.deepcopy(many)
    old, new = (torch.optim.AdamW(layer.parameters(), fused=True) for layer in (few, many))
    train(few, old, [torch.randn(2, 64)])
    train(many, new, [torch.randn(2, 64)])
    right = copy.deepcopy(new.state_dict())
    for optimizer in (new, torch.optim.AdamW(many.parameters(), fused=True)):
        optimizer.load_state_dict(old.state_dict())
        for _ in range(2):
            with pytest.raises(js.ArgumentError, match="'exp_avg' of 4 blocks for values that are"):
                train(many, optimizer, [torch.randn(2, 64)])
        optimizer.load_state_dict(right)
        train(many, optimizer, [torch.randn(2, 64)])


@pytest.fixture
def _swapped() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("_swapped")
def test_where_conversions_swap_tensors() -> None:
    """Which torch refuses of one that somebody has a weak reference to."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    adam = torch.optim.Adam(layer.parameters())
    train(layer, adam, [torch.randn(2, 64)])
    layer.set_pattern(js.Pattern.random((64, 64), 16, 0.25), adam)
    saved = {name: each.clone() for name, each in layer.state_dict().items()}
    layer.double().float().load_state_dict(saved)
    train(layer, adam, [torch.randn(2, 64)])
    layer.set_pattern(js.Pattern.random((64, 64), 16, 0.75))
    with pytest.raises(js.ArgumentError, match="'exp_avg' of 4 blocks for values that are 12"):
        train(layer, adam, [torch.randn(2, 64)])


def test_an_optimizer_that_was_named_goes_on() -> None:
    torch.manual_seed(0)  # patterns that share blocks
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    adam = torch.optim.Adam(layer.parameters(), fused=True)
    for steps, density in enumerate((0.75, 0.25, 0.25), start=1):
        train(layer, adam, [torch.randn(2, 64)])
        kept = {key: adam.state[layer.values][key].clone() for key in ("exp_avg", "exp_avg_sq")}
        before = layer.pattern
        layer.set_pattern(js.Pattern.random((64, 64), 16, density), adam)
        for key, old in kept.items():
            expected = js.BlockSparse(old, before).with_pattern(layer.pattern).values
            assert torch.equal(adam.state[layer.values][key], expected)
            assert expected.any()
        assert adam.state[layer.values]["step"] == steps
    train(layer, adam, [torch.randn(2, 64)])
