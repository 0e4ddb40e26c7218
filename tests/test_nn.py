"""BlockSparseLinear: initialisation, conversion, saving, moving."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

import jitsparse as js
from jitsparse.errors import ArgumentError, PatternError
from jitsparse.nn import BlockSparseLinear


def layer(density: float = 0.5, **options: object) -> BlockSparseLinear:
    """70 -> 50 features, blocks of 16: an edge on both sides."""
    return BlockSparseLinear(70, 50, 16, density=density, **options)


def test_forward_is_that_of_the_dense_layer() -> None:
    for bias in (True, False):
        sparse = layer(bias=bias)
        x = torch.randn(2, 3, 70)
        torch.testing.assert_close(sparse(x), sparse.to_linear()(x))
        assert sparse.weight.shape == (50, 70)


def test_the_weight_is_the_parameter() -> None:
    sparse = layer()
    assert sparse.weight.values is sparse.values
    sparse(torch.randn(4, 70)).sum().backward()
    assert sparse.values.grad is not None
    assert sparse.weight.grad is sparse.values.grad


def test_a_given_pattern_is_used() -> None:
    pattern = js.Pattern.random((50, 70), (16, 32), 0.5)
    sparse = BlockSparseLinear(70, 50, (16, 32), pattern=pattern)
    assert sparse.pattern == pattern
    with pytest.raises(ArgumentError, match="needs a pattern of shape"):
        BlockSparseLinear(50, 70, (16, 32), pattern=pattern)
    with pytest.raises(ArgumentError, match="needs a pattern of shape"):
        BlockSparseLinear(70, 50, 16, pattern=pattern)
    elsewhere = BlockSparseLinear(70, 50, (16, 32), pattern=pattern, device="meta")
    assert {each.device.type for each in elsewhere.state_dict().values()} == {"meta"}


def test_exactly_one_of_density_and_pattern() -> None:
    with pytest.raises(ArgumentError, match=r"or pattern=.*, got neither"):
        BlockSparseLinear(70, 50, 16)
    with pytest.raises(ArgumentError, match="got both"):
        layer(pattern=js.Pattern.random((50, 70), 16, 0.5))
    with pytest.raises(ArgumentError, match=r"or mask=.*, got neither"):
        BlockSparseLinear.from_linear(nn.Linear(70, 50), 16)
    with pytest.raises(PatternError, match="density is a fraction"):
        BlockSparseLinear.from_linear(nn.Linear(70, 50), 16, density=2.0)


@pytest.mark.parametrize("density", [0.125, 0.5, 1.0])
def test_outputs_vary_as_those_of_a_dense_layer(density: float) -> None:
    torch.manual_seed(0)
    dense, sparse = nn.Linear(1024, 512), BlockSparseLinear(1024, 512, 32, density=density)
    # Uniform on +-1/sqrt(in): variance 1 / (3 in), divided by the density for the sparse values.
    values = sparse.values.detach()
    assert values.abs().max() <= 1 / (1024 * density) ** 0.5
    spread = values.var() * 3 * 1024 * density
    # The variance of n uniform numbers has a relative error of 0.9 / sqrt(n); six of them.
    assert abs(spread - 1) < 6 * 0.9 / values.numel() ** 0.5
    x = torch.randn(4096, 1024)
    ratio = sparse.to_linear()(x).var() / dense(x).var()
    assert abs(ratio - 1) < 0.1
    assert sparse.bias.abs().max() <= 1 / 1024**0.5


def test_initial_values_are_zero_past_the_edge() -> None:
    sparse = layer(density=1.0)
    assert torch.equal(
        sparse.weight.values, js.BlockSparse.from_dense(sparse.weight.to_dense(), 16).values
    )


def test_from_linear_keeps_the_largest_blocks_bit_for_bit() -> None:
    dense = nn.Linear(70, 50, dtype=torch.bfloat16)
    with torch.no_grad():
        dense.weight[16:32, 32:48] += 5
        dense.weight[48:, 64:] += 4  # the corner block, which the edge cuts
        dense.weight[:16, 48:64] = 0
    sparse = BlockSparseLinear.from_linear(dense, 16, density=0.1)
    assert sparse.values.dtype == torch.bfloat16
    assert sparse.pattern.nnz_blocks == 2
    assert sparse.pattern.to_mask().nonzero().tolist() == [[1, 2], [3, 4]]
    kept = sparse.pattern.to_mask().repeat_interleave(16, 0).repeat_interleave(16, 1)[:50, :70]
    assert torch.equal(sparse.weight.to_dense(), dense.weight * kept)
    assert torch.equal(sparse.bias, dense.bias)
    assert sparse.values.data_ptr() != dense.weight.data_ptr()
    # Exactly as many blocks as asked for: the zero block is the last to come.
    almost = BlockSparseLinear.from_linear(dense, 16, density=19 / 20)
    assert almost.pattern.to_mask().logical_not().nonzero().tolist() == [[0, 3]]


def test_from_linear_does_not_overflow_when_ranking() -> None:
    dense = nn.Linear(16, 32, bias=False, dtype=torch.float16)
    with torch.no_grad():
        dense.weight[:16] = 300.0  # its square is more than float16 holds
        dense.weight[16:] = 400.0
    sparse = BlockSparseLinear.from_linear(dense, 16, density=0.5)
    assert sparse.pattern.to_mask().tolist() == [[False], [True]]


def test_sizes_are_integers() -> None:
    pattern = js.Pattern.random((64, 64), 16, 0.5)
    with pytest.raises(PatternError, match=r"ints, got \(64, 64.0\)"):
        BlockSparseLinear(64.0, 64, 16, pattern=pattern)


def test_from_linear_needs_a_weight_that_is_there() -> None:
    lazy = torch.nn.LazyLinear(64)
    with pytest.raises(js.ArgumentError, match="no shape before the first call"):
        js.nn.BlockSparseLinear.from_linear(lazy, 32, density=0.5)
    lazy(torch.zeros(1, 64))
    assert js.nn.BlockSparseLinear.from_linear(lazy, 32, density=0.5).in_features == 64


def test_from_linear_by_mask_and_back() -> None:
    dense = nn.Linear(70, 50).eval()
    mask = torch.rand(4, 5) < 0.5
    sparse = BlockSparseLinear.from_linear(dense, 16, mask=mask)
    assert torch.equal(sparse.pattern.to_mask(), mask)
    assert not sparse.training
    again = sparse.to_linear()
    assert not again.training
    assert torch.equal(again.weight, sparse.weight.to_dense())
    whole = BlockSparseLinear.from_linear(dense, (8, 64), density=1.0).to_linear()
    assert torch.equal(whole.weight, dense.weight)
    assert torch.equal(whole.bias, dense.bias)
    assert whole.weight.requires_grad
    assert BlockSparseLinear.from_linear(nn.Linear(8, 8, bias=False), 8, density=1).bias is None


def test_repr() -> None:
    assert repr(BlockSparseLinear(256, 512, 32, density=0.25)) == (
        "BlockSparseLinear(in_features=256, out_features=512, block_size=(32, 32), "
        "nnz_blocks=32, density=25.0%, bias=True)"
    )


def test_methods_are_documented() -> None:
    for name in ("forward", "extra_repr"):
        assert getattr(BlockSparseLinear, name).__doc__ not in (
            None,
            getattr(nn.Module, name).__doc__,
        )


def test_state_dict_holds_plain_tensors() -> None:
    state = layer().state_dict()
    assert list(state) == ["values", "bias", "crow_indices", "col_indices", "shape"]
    assert all(type(value) is torch.Tensor for value in state.values())
    assert state["crow_indices"].dtype == state["col_indices"].dtype == torch.int32


@pytest.mark.parametrize("density", [0.5, 0.9], ids=["same number of blocks", "another"])
@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_brings_its_pattern(density: float, assign: bool) -> None:
    source, target = layer(0.5), layer(density)
    assert target.load_state_dict(source.state_dict(), assign=assign).missing_keys == []
    x = torch.randn(3, 70)
    assert torch.equal(target(x), source(x))
    assert target.pattern == source.pattern
    assert isinstance(target.values, nn.Parameter)
    # The pattern is the target's own: changing the source's tensors does not change it.
    assert target.pattern.crow_indices.data_ptr() != source.crow_indices.data_ptr()


def test_what_is_frozen_stays_frozen_whatever_pattern_it_loads() -> None:
    source, target = layer(0.5), layer(0.25).requires_grad_(False)
    target.load_state_dict(source.state_dict())
    assert target.pattern.nnz_blocks == source.pattern.nnz_blocks
    assert not any(each.requires_grad for each in target.parameters())


def test_loading_into_a_model_in_training_keeps_its_parameters() -> None:
    model = nn.Sequential(layer(), nn.ReLU(), BlockSparseLinear(50, 20, 8, density=0.5))
    before = list(model.parameters())
    model.load_state_dict(copy.deepcopy(model).state_dict())
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))


def test_a_bad_pattern_is_reported_by_load_state_dict() -> None:
    sparse = layer()
    state = sparse.state_dict()
    state["col_indices"] = torch.full_like(state["col_indices"], 99)
    with pytest.raises(RuntimeError, match="out of range: entry 0 is 99"):
        sparse.load_state_dict(state)
    with pytest.raises(RuntimeError, match="crow_indices"):
        layer().load_state_dict({"values": sparse.values, "bias": sparse.bias})
    partial = layer().load_state_dict({"bias": sparse.bias}, strict=False)
    assert partial.missing_keys == ["values", "crow_indices", "col_indices", "shape"]


def saved_and_loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, saved_and_loaded])
def test_whole_modules_copy(duplicate: object) -> None:
    source = nn.Sequential(layer(), nn.ReLU())
    again = duplicate(source)
    x = torch.randn(3, 70)
    assert torch.equal(again(x), source(x))
    with torch.no_grad():
        again[0].values.zero_()
    assert source[0].values.abs().sum() > 0
    assert torch.equal(again[0].pattern.crow_indices, again[0].crow_indices)


def test_a_layer_that_loaded_in_inference_mode_is_trained() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    with torch.inference_mode():
        layer.load_state_dict(js.nn.BlockSparseLinear(64, 96, 16, density=0.25).state_dict())
    layer(torch.randn(3, 64, requires_grad=True)).sum().backward()
    assert layer.values.grad is not None


def test_gradients_of_each_sample_by_parameters_and_buffers() -> None:
    """torch.func.grad wraps the indices, too, though nothing is mapped over them."""
    model = torch.nn.Sequential(js.nn.BlockSparseLinear(64, 64, 16, density=0.5))
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    x = torch.randn(4, 1, 64)

    def loss(parameters: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, (parameters, buffers), (x,)).square().sum()

    of_one = torch.func.vmap(torch.func.grad(loss), in_dims=(None, None, 0))
    found = of_one(parameters, buffers, x)["0.values"]
    expected = [torch.func.grad(loss)(parameters, {}, each)["0.values"] for each in x]
    torch.testing.assert_close(found, torch.stack(expected))
    one_more = {name: each[None] for name, each in buffers.items()}
    with pytest.raises(js.ArgumentError, match="cannot be mapped over"):
        torch.func.vmap(loss, in_dims=(None, 0, None))(parameters, one_more, x)


def test_indices_that_are_no_tensors() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    layer.crow_indices = None
    with pytest.raises(js.ArgumentError, match="tensors, got NoneType"):
        layer(torch.randn(3, 64))


def test_values_that_are_none_are_reported_by_load_state_dict() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 32, density=0.5)
    fewer = js.nn.BlockSparseLinear(64, 64, 32, density=0.25)
    for other, reason in ((layer, "NoneType"), (fewer, "the state dict has none")):
        state = other.state_dict() | {"values": None}
        with pytest.raises(RuntimeError, match=reason):
            layer.load_state_dict(state)


def test_values_that_are_no_tensor_are_reported_by_load_state_dict() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 32, density=0.5)
    with pytest.raises(RuntimeError, match="values that are a list and no tensor"):
        layer.load_state_dict(layer.state_dict() | {"values": [[1.0]]})


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (BlockSparseLinear(16, 32, 8, density=1.0), r"shape \(32, 16\) in blocks of \(8, 8\)"),
        (BlockSparseLinear(60, 32, 8, density=0.5), r"shape \(32, 60\) in blocks of \(8, 8\)"),
        (
            BlockSparseLinear(64, 32, (8, 16), density=0.5),
            r"shape \(32, 64\) in blocks of \(8, 16\)",
        ),
        (BlockSparseLinear(64, 32, 16, density=0.5), r"shape \(32, 64\) in blocks of \(16, 16\)"),
    ],
)
def test_a_state_dict_of_another_shape_is_reported(
    other: BlockSparseLinear, difference: str, tmp_path: Path
) -> None:
    """Although its indices may be those of a legal pattern of the layer's own shape."""
    model = nn.Sequential(BlockSparseLinear(64, 32, 8, density=0.5))
    state = nn.Sequential(other).state_dict()
    torch.save(state, tmp_path / "state.pt")
    for each in (dict(state), torch.load(tmp_path / "state.pt", weights_only=True)):
        said = f"pattern of layer '0' is one of {difference}, and the layer's is one of shape "
        with pytest.raises(RuntimeError, match=said + r"\(32, 64\) in blocks of \(8, 8\): make"):
            model.load_state_dict(each)
    with pytest.raises(RuntimeError, match="pattern of this layer is one of "):
        model[0].load_state_dict(other.state_dict())


def test_a_state_dict_that_says_no_shape_still_has_a_block_size() -> None:
    state = BlockSparseLinear(64, 32, 16, density=0.5).state_dict()
    del state["shape"]
    with pytest.raises(RuntimeError, match=r"is one in blocks of \(16, 16\), and .* of \(8, 8\)"):
        BlockSparseLinear(64, 32, 8, density=0.5).load_state_dict(state)


def test_a_dense_weight_for_a_sparse_layer_is_told_what_to_do() -> None:
    model = nn.Sequential(nn.ModuleDict({"up": nn.Linear(64, 32)}), nn.Linear(32, 8))
    state, sparse = model.state_dict(), copy.deepcopy(model)
    js.nn.sparsify_(sparse, 8, density=0.5, where=lambda name, layer: name == "0.up")
    said = r"0\.up\.weight \(dense, and layer '0\.up' .* before js\.nn\.sparsify_, or js\.nn\.dens"
    with pytest.raises(RuntimeError, match=said) as caught:
        sparse.load_state_dict(state)
    assert str(caught.value).count("dense, and") == 1
    with pytest.raises(RuntimeError, match=r'"weight \(dense, .* BlockSparseLinear\.from_linear'):
        sparse[0]["up"].load_state_dict(model[0]["up"].state_dict())
    # As the remedy says:
    js.nn.densify_(sparse)
    assert sparse.load_state_dict(state).unexpected_keys == []


def test_a_dense_weight_is_an_unexpected_key_as_any_other_unless_strict() -> None:
    sparse = layer()
    values = sparse.values.detach().clone()
    found = sparse.load_state_dict(nn.Linear(70, 50).state_dict(), strict=False)
    assert found.unexpected_keys == ["weight"]
    assert repr(found.unexpected_keys) == "['weight']"
    assert found.missing_keys == ["values", "crow_indices", "col_indices", "shape"]
    assert torch.equal(sparse.values, values)


def test_entries_of_a_state_dict_may_be_renamed() -> None:
    old = nn.Sequential(
        BlockSparseLinear(32, 48, 16, density=0.5), BlockSparseLinear(64, 32, 16, density=0.5)
    )
    new = nn.Sequential(nn.ReLU(), *(copy.deepcopy(each) for each in old))
    state = old.state_dict()
    for name in reversed(list(state)):
        state[f"{int(name[0]) + 1}{name[1:]}"] = state.pop(name)
    new.load_state_dict(state)
    assert torch.equal(new[2].values, old[1].values)


def test_state_dict_files_load_with_weights_only(tmp_path: Path) -> None:
    source, target = layer(), layer(0.7)
    torch.save(source.state_dict(), tmp_path / "state.pt")
    target.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(target.weight.to_dense(), source.weight.to_dense())


def test_safetensors_round_trip(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    source, target = layer(), layer(0.7)
    safetensors.save_model(source, str(tmp_path / "model.safetensors"))
    state = safetensors.load_file(tmp_path / "model.safetensors")
    target.load_state_dict(state)
    x = torch.randn(3, 70)
    assert torch.equal(target(x), source(x))


def test_dtypes_change_and_indices_do_not() -> None:
    sparse = layer().to(torch.float64)
    assert sparse(torch.randn(3, 70).double()).dtype == torch.float64
    half = sparse.half()
    assert half.values.dtype == torch.float16
    assert half.crow_indices.dtype == torch.int32
    assert half(torch.randn(3, 70).half()).dtype == torch.float16


def test_meta_layers_become_real() -> None:
    source = layer()
    x = torch.randn(3, 70)
    with torch.device("meta"):
        hollow = layer()
    assert hollow.values.is_meta
    assert hollow.crow_indices.is_meta
    assert "density=50.0%" in repr(hollow)
    loaded = copy.deepcopy(hollow)
    loaded.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(loaded(x), source(x))
    assert hollow(x.to("meta")).shape == (3, 50)
    filled = hollow.to_empty(device="cpu")
    with pytest.raises(ArgumentError, match="load a state dict"):
        filled(x)
    filled.load_state_dict(source.state_dict())
    assert torch.equal(filled(x), source(x))


def test_training_reduces_the_loss() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 70), torch.randn(64, 50)
    sparse = layer()
    optimizer = torch.optim.AdamW(sparse.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = nn.functional.mse_loss(sparse(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    # What lies past the edge has no gradient and stays zero.
    assert torch.equal(
        sparse.values,
        js.BlockSparse.from_dense(sparse.weight.to_dense(), 16, sparse.pattern.to_mask()).values,
    )


def square(seed: int, density: float = 0.25) -> js.nn.BlockSparseLinear:
    torch.manual_seed(seed)
    return js.nn.BlockSparseLinear(128, 128, 32, density=density)


def test_what_is_written_to_the_buffers_is_the_pattern() -> None:
    """DistributedDataParallel broadcasts buffers in place, and so do moving averages of modules."""
    model, average = square(0), square(1)
    x = torch.randn(4, 128)
    assert not torch.equal(model(x), average(x))
    with torch.no_grad():
        for mine, other in zip(average.parameters(), model.parameters(), strict=True):
            mine.copy_(other)
        for mine, other in zip(average.buffers(), model.buffers(), strict=True):
            mine.copy_(other)
    assert torch.equal(model(x), average(x))
    assert torch.equal(average.to_linear().weight, model.to_linear().weight)
    assert average.pattern == model.pattern


def test_a_pattern_that_was_written_once_is_not_written_again() -> None:
    """A layer's pattern is as immutable as any, whenever the layer made it."""
    sparse, others = square(0), (square(1), square(2))
    patterns = []
    for other in others:
        with torch.no_grad():
            for mine, theirs in zip(sparse.buffers(), other.buffers(), strict=True):
                mine.copy_(theirs)
        patterns.append(sparse.pattern)
    assert patterns == [other.pattern for other in others]


def test_other_buffers_in_their_place_are_the_pattern() -> None:
    """As ``nn.DataParallel`` has it in its replicas."""
    model, replica = square(0), square(1)
    replica.values = model.values
    replica.bias = model.bias
    replica.crow_indices = model.crow_indices.clone()
    replica.col_indices = model.col_indices.clone()
    x = torch.randn(4, 128)
    assert torch.equal(model(x), replica(x))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("values", ["missing", "of another pattern"])
def test_a_refused_state_dict_changes_nothing(values: str, strict: bool) -> None:
    model, other = square(0, 0.25), square(1, 0.5)
    state = dict(other.state_dict())
    if values == "missing":
        del state["values"]
    else:
        state["values"] = model.values.detach().clone()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="stores 8 blocks"):
        model.load_state_dict(state, strict=strict)
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name]), name


def test_values_of_more_blocks_are_the_same_parameter() -> None:
    """An optimizer that was built before trains them."""
    model, other = square(0, 0.25), square(1, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    values = model.values
    model.load_state_dict(other.state_dict())
    assert model.values is values
    x = torch.randn(4, 128)
    for each in (model, other):
        each(x).square().sum().backward()
    assert torch.equal(model.values.grad, other.values.grad)
    optimizer.step()
    assert torch.equal(model.values, other.values - 0.5 * other.values.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_graph_that_is_alive_does_not_hold_on_to_the_old_shape(dtype: torch.dtype) -> None:
    """As in a notebook, whose variables hold the loss of the last step."""
    model, other = square(0, 0.25).to(dtype), square(1, 0.5).to(dtype)
    x = torch.randn(4, 128, dtype=dtype)
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    model.load_state_dict(other.state_dict())
    assert model.values.grad is None
    model(x).sum().backward()
    assert model.values.grad.shape == other.values.shape
    assert loss.grad_fn is not None


def test_a_sharded_layer_refuses_another_number_of_blocks() -> None:
    """Its shards were laid out for those that it had."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = square(0, 0.25)
        fully_shard(model, mesh=distributed.init_device_mesh("cpu", (1,)))
        before = model.pattern
        with pytest.raises(RuntimeError, match=r"values are a DTensor .* before the model is sh"):
            model.load_state_dict(square(1, 0.5).state_dict())
        assert model.pattern == before
        assert model(torch.randn(4, 128)).shape == (4, 128)
    finally:
        distributed.destroy_process_group()


def test_a_dense_layer_on_the_meta_device_gives_a_sparse_one_there() -> None:
    """As large models are built, before a state dict brings their data."""
    dense = torch.nn.Linear(128, 96, dtype=torch.bfloat16, device="meta").eval()
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[1, :2] = True
    for made in (
        BlockSparseLinear.from_linear(dense, 32, density=1 / 6),
        BlockSparseLinear.from_linear(dense, 32, mask=mask),
    ):
        assert made.values.is_meta
        assert made.values.shape == (2, 32, 32)
        assert made.values.dtype is torch.bfloat16
        assert made.bias is not None
        assert made.bias.is_meta
        assert not made.training
    like = BlockSparseLinear.from_linear(torch.nn.Linear(128, 96), 32, mask=mask)
    made = made.to_empty(device="cpu")
    made.load_state_dict(like.state_dict())
    assert made.pattern == like.pattern


def test_a_layer_off_the_meta_device_has_no_pattern_of_its_own_making() -> None:
    """Its buffers are uninitialised memory until a state dict is loaded."""
    model = js.nn.BlockSparseLinear(128, 128, 32, density=0.25, device="meta").to_empty(
        device="cpu"
    )
    assert model.pattern.device.type == "meta"
    model.load_state_dict(square(0).state_dict())
    assert model.pattern == square(0).pattern


def test_a_density_that_rounds_to_no_block_is_an_error() -> None:
    message = r"density=0.1 of the 4 blocks of \(32, 32\) in a layer of shape \(64, 64\) rounds to"
    with pytest.raises(PatternError, match=message):
        BlockSparseLinear(64, 64, 32, density=0.1)
    with pytest.raises(PatternError, match=message):
        BlockSparseLinear.from_linear(torch.nn.Linear(64, 64), 32, density=0.1)
    assert BlockSparseLinear(64, 64, 32, density=0.0).values.shape[0] == 0
    assert BlockSparseLinear(64, 64, 32, density=0.25).values.shape[0] == 1


@pytest.mark.parametrize(
    ("features", "block", "density", "said", "least"),
    [
        (64, 32, 0.125, "the 4 blocks of .*: use smaller blocks or a density above 1/8$", 0.126),
        (64, 32, 0.001, "the 4 blocks of .*: use a density above 1/8$", 0.126),
        (64, 8, 0.007, "the 64 blocks of .*: use a density above 1/128$", 0.008),
        (8, 32, 0.5, "the only block of .*: use a density above 1/2$", 0.51),
    ],
)
def test_the_least_density_is_that_of_one_block_after_rounding(
    features: int, block: int, density: float, said: str, least: float
) -> None:
    """Smaller blocks are advised only where they would leave some."""
    with pytest.raises(PatternError, match=f"of {said}"):
        BlockSparseLinear(features, features, block, density=density)
    assert len(BlockSparseLinear(features, features, block, density=least).values) == 1


def test_the_pattern_follows_memory_that_is_put_under_a_buffer() -> None:
    """FSDP moves modules to a GPU like this; no version is counted."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    other = js.Pattern.from_mask(layer.pattern.to_mask().flip(0), 16)
    layer.crow_indices.data = other.crow_indices.clone()
    layer.col_indices.data = other.col_indices.clone()
    assert layer.pattern == other
    x = torch.randn(3, 64)
    torch.testing.assert_close(layer(x), x @ layer.weight.to_dense().T + layer.bias)
    assert layer.weight.pattern == other


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_indices_are_not_rounded(dtype: torch.dtype) -> None:
    layer = js.nn.BlockSparseLinear(8 * 4000, 16, 8, density=0.5)
    pattern = layer.pattern
    layer.type(dtype)
    assert layer.pattern == pattern
    assert layer.crow_indices.dtype is torch.int32
    with pytest.raises(TypeError):
        pattern.to(dtype)


def test_emptied_memory_is_no_pattern() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    pattern = layer.pattern
    layer.to_empty(device="cpu")
    assert layer.pattern == pattern
    assert torch.equal(layer.crow_indices, pattern.crow_indices)


def test_training_after_inference() -> None:
    """What was built in inference mode is saved for a backward pass later."""
    layer, x = js.nn.BlockSparseLinear(64, 64, 16, density=0.5), torch.randn(3, 64)
    with torch.no_grad():
        layer.crow_indices.copy_(layer.crow_indices.clone())
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    with torch.inference_mode():
        layer.load_state_dict(layer.state_dict())
    layer(x).sum().backward()
    with torch.inference_mode():
        pattern = js.Pattern.random((64, 64), 16, 0.5).T
    values = torch.randn(pattern.nnz_blocks, 16, 16, requires_grad=True)
    (js.BlockSparse(values, pattern) @ x.T).sum().backward()


def test_an_ensemble_has_one_pattern() -> None:
    models = [js.nn.BlockSparseLinear(32, 32, 16, density=0.5) for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(models)
    x = torch.randn(3, 32)

    def call(parameters: dict[str, torch.Tensor], *buffers: dict[str, torch.Tensor]) -> Any:
        return torch.func.functional_call(models[0], (parameters, *buffers), (x,))

    with pytest.raises(js.ArgumentError, match="the parameters only"):
        torch.func.vmap(call)(parameters, buffers)
    models[1].load_state_dict(models[0].state_dict())
    out = torch.func.vmap(call)(torch.func.stack_module_state(models)[0])
    torch.testing.assert_close(out, torch.stack([model(x) for model in models]))


def test_what_is_written_to_a_layer_changes_no_other() -> None:
    """Layers and matrices may share a pattern, which nobody can write to."""
    shared = js.Pattern.random((32, 32), 8, 0.5)
    student = js.nn.BlockSparseLinear(32, 32, 8, density=0.5)
    written, other = (js.nn.BlockSparseLinear(32, 32, 8, pattern=shared) for _ in range(2))
    matrix, x = js.BlockSparse(torch.randn(shared.nnz_blocks, 8, 8), shared), torch.randn(3, 32)
    before, whole, held = other(x), matrix.to_dense(), written.weight
    dense = held.to_dense()
    with torch.no_grad():
        for to, of in zip(written.buffers(), student.buffers(), strict=True):
            to.copy_(of)
    assert written.pattern == student.pattern
    assert torch.equal(other(x), before)
    assert torch.equal(matrix.to_dense(), whole)
    assert torch.equal(held.to_dense(), dense)
    assert torch.allclose(x @ matrix, x @ whole, atol=1e-5)


@pytest.mark.parametrize("move", [lambda m: m.double(), lambda m: m.to("cpu"), copy.deepcopy])
def test_what_was_written_survives_what_is_done_next(move: Callable[[Any], Any]) -> None:
    source, target = (js.nn.BlockSparseLinear(32, 32, 8, density=0.5) for _ in range(2))
    with torch.no_grad():
        for to, of in zip(target.buffers(), source.buffers(), strict=True):
            to.copy_(of)
    moved = move(target)
    assert torch.equal(moved.col_indices, source.col_indices)
    assert moved.pattern == source.pattern


def test_indices_that_are_none_of_a_pattern_are_found_where_they_were_written() -> None:
    """On the CPU; a moving average of integers rounds them, for instance, if not to others."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    with torch.no_grad():
        layer.crow_indices[-1] -= 1
    with pytest.raises(js.PatternError):
        layer(torch.randn(2, 64))


@pytest.mark.parametrize("density", [0.3, 0.6])
def test_a_hook_may_make_the_state_of_a_layer(density: float) -> None:
    source = js.nn.BlockSparseLinear(32, 48, 16, density=0.6)
    layer = js.nn.BlockSparseLinear(32, 48, 16, density=density)

    def rename(module: object, state: dict[str, Any], prefix: str, *_: object) -> None:
        for name in [name for name in state if name.startswith(f"{prefix}old_")]:
            state[name.replace("old_", "")] = state.pop(name)

    layer.register_load_state_dict_pre_hook(rename)
    layer.load_state_dict({f"old_{name}": each for name, each in source.state_dict().items()})
    assert layer.pattern == source.pattern
    assert torch.equal(layer.values, source.values)
    assert layer._load_state_dict_pre_hooks


@pytest.mark.parametrize(
    "indices",
    [torch.zeros(4, dtype=torch.int32, device="meta"), [0, 1, 2, 3]],
    ids=["meta", "list"],
)
def test_indices_that_cannot_be_loaded_are_reported(indices: object) -> None:
    layer = js.nn.BlockSparseLinear(32, 48, 16, density=0.6)
    with pytest.raises(RuntimeError, match="the pattern of"):
        layer.load_state_dict({**layer.state_dict(), "crow_indices": indices})


def test_values_without_memory_are_an_error() -> None:
    layer = js.nn.BlockSparseLinear(32, 48, 16, density=0.6)
    layer.values.untyped_storage().resize_(0)
    with pytest.raises(js.ArgumentError, match="has no memory"):
        layer(torch.randn(2, 32))


@pytest.mark.parametrize("shape", [(64, 64), (70, 50)])
def test_parameters_alone_on_the_meta_device(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``accelerate.init_empty_weights`` builds models, whose buffers have data."""
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(self, name, parameter)
        if parameter is not None:
            self._parameters[name] = nn.Parameter(parameter.to("meta"))

    with monkeypatch.context() as patched:
        patched.setattr(nn.Module, "register_parameter", register_empty)
        layer = BlockSparseLinear(*shape, 16, density=0.5)
    other, x = BlockSparseLinear(*shape, 16, density=0.5), torch.randn(3, shape[0])
    layer.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(layer(x), other(x))


def test_an_ensemble_on_a_skeleton_is_refused_by_name() -> None:
    models = [square(0), square(1)]
    state = torch.func.stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    x = torch.randn(4, 128)
    with pytest.raises(ArgumentError, match="all models of an ensemble have one pattern"):
        torch.func.vmap(lambda *state: functional_call(skeleton, state, (x,)))(*state)


def test_writes_that_torch_does_not_know_of_are_read_on_request() -> None:
    model, other = square(0), square(1)
    model.pattern  # noqa: B018
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.data.copy_(other.state_dict()[name])
    model.load_state_dict(model.state_dict())
    assert model.pattern == other.pattern


@pytest.mark.parametrize("part", ["values", "bias", "x"])
@pytest.mark.parametrize("offset", [0, 4096])
def test_what_was_freed_is_never_read(part: str, offset: int) -> None:
    """Nor a bias left out. Of a view into freed memory torch says an address, and no null."""
    shapes = {"x": (4, 64), "values": (4, 32, 32), "bias": (64,)}
    flat = torch.randn(offset + 4096)
    freed = flat[offset : offset + math.prod(shapes[part])].view(shapes[part])
    operands = {name: torch.randn(shape) for name, shape in shapes.items()} | {part: freed}
    pattern = js.Pattern.random((64, 64), 32, 1.0)
    flat.untyped_storage().resize_(0)
    with pytest.raises(js.ArgumentError, match="has no memory"):
        js.linear(operands["x"], js.BlockSparse(operands["values"], pattern), operands["bias"])


def test_a_matrix_whose_values_were_moved_without_its_pattern() -> None:
    """As ``Module.cuda`` moves Parameters, in place, of which somebody kept a matrix."""
    a = js.random((64, 64), 32, 0.5)
    object.__setattr__(a, "pattern", a.pattern.to("meta"))
    for call in (lambda: a @ torch.randn(64, 4), lambda: torch.randn(4, 64) @ a):
        with pytest.raises(js.ArgumentError, match=r"pattern.* on meta"):
            call()


@pytest.mark.parametrize("shape", [(40, 50), (64, 64)])
def test_a_layer_off_the_meta_device_can_be_reset(shape: tuple[int, int]) -> None:
    """As recipes for meta models do, before they load a state dict."""
    layer = js.nn.BlockSparseLinear(*shape, 16, density=0.5, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.values.isfinite().all()
    state = js.nn.BlockSparseLinear(*shape, 16, density=0.5).state_dict()
    layer.load_state_dict(state)
    assert torch.equal(layer.values, state["values"])


def test_a_skeleton_without_data_runs_on_the_state_of_another() -> None:
    layer, x = js.nn.BlockSparseLinear(64, 96, 16, density=0.5), torch.randn(4, 64)
    skeleton = copy.deepcopy(layer).to("meta")
    parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
    assert torch.equal(functional_call(skeleton, (parameters, buffers), (x,)), layer(x))
    gradients = grad(lambda p: functional_call(skeleton, (p, buffers), (x,)).sum())(parameters)
    assert gradients["values"].shape == layer.values.shape
    assert skeleton(x.to("meta")).is_meta


def test_what_is_written_to_a_layer_off_the_meta_device_is_its_pattern() -> None:
    """As FSDP's ``sync_module_states`` and a broadcast of the state of rank 0 do."""
    layer, x = js.nn.BlockSparseLinear(64, 96, 16, density=0.5), torch.randn(4, 64)
    hollow = js.nn.BlockSparseLinear(64, 96, 16, density=0.5, device="meta").to_empty(device="cpu")
    for each in (hollow, copy.deepcopy(hollow), hollow.double().float()):
        with pytest.raises(js.ArgumentError, match="load a state dict"):
            each(x)
    with torch.no_grad():
        for name, tensor in hollow.state_dict().items():
            tensor.copy_(layer.state_dict()[name])
    assert torch.equal(hollow(x), layer(x))


def test_the_student_of_a_frozen_teacher_can_be_trained() -> None:
    teacher = nn.Linear(64, 96).requires_grad_(False)
    student = js.nn.BlockSparseLinear.from_linear(teacher, 16, density=0.5)
    assert all(each.requires_grad for each in student.parameters())


def test_a_pattern_is_no_mask() -> None:
    with pytest.raises(js.ArgumentError, match=r"Pattern\.from_mask"):
        js.nn.BlockSparseLinear(64, 64, 16, pattern=torch.ones(4, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.float8_e4m3fn])
def test_a_dtype_that_no_kernel_has_is_refused_when_a_layer_is_made(dtype: torch.dtype) -> None:
    with pytest.raises(js.ArgumentError, match=f"got {dtype}"):
        js.nn.BlockSparseLinear(64, 64, 16, density=0.5, dtype=dtype)
    dense = nn.Linear(64, 64)
    dense.weight = nn.Parameter(torch.zeros(64, 64).to(dtype), requires_grad=False)
    with pytest.raises(js.ArgumentError, match=f"got {dtype}"):
        js.nn.BlockSparseLinear.from_linear(dense, 16, density=0.5)


@pytest.mark.parametrize("recorded", [True, False])
def test_values_that_became_what_no_kernel_takes_are_refused(recorded: bool) -> None:
    layer, x = js.nn.BlockSparseLinear(64, 96, 16, density=0.5, bias=False), torch.randn(3, 64)
    with torch.set_grad_enabled(recorded):
        weight = js.BlockSparse(layer.values, layer.pattern)
        layer.values.data = layer.values.data.to(torch.complex64)
        for call in (layer, lambda x: js.linear(x, weight)):
            with pytest.raises(js.ArgumentError, match=r"bfloat16, got torch\.complex64"):
                call(x.to(torch.complex64))
        layer.values.data = torch.zeros(3, 16, 16)
        with pytest.raises(js.ArgumentError, match=r"got \(3, 16, 16\)"):
            layer(x)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_stands_for_a_parameter_is_used(recorded: bool) -> None:
    """As sharding, parametrizations and replicas have it."""
    x = torch.randn(3, 64)

    def layer() -> js.nn.BlockSparseLinear:
        torch.manual_seed(0)
        return js.nn.BlockSparseLinear(64, 96, 16, density=0.5)

    class Gathered(js.nn.BlockSparseLinear):
        values = property(lambda self: 2 * self._parameters["values"])  # type: ignore[assignment]
        bias = property(lambda self: 2 * self._parameters["bias"])  # type: ignore[assignment]

    class Gathering(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            return 2 * super().__getitem__(name)

    by_class, by_attribute, by_container, buffers = (layer() for _ in range(4))
    by_class.__class__ = Gathered
    for name, each in layer().named_parameters():
        by_attribute.__dict__[name] = 2 * each.detach()
    by_container._parameters = Gathering(by_container._parameters)  # type: ignore[assignment]
    for name in ("crow_indices", "col_indices"):
        indices = buffers._buffers.pop(name)
        buffers.register_parameter(name, nn.Parameter(indices, requires_grad=False))  # type: ignore[arg-type]
    with torch.set_grad_enabled(recorded):
        expected = layer()(x)
        for each in (by_class, by_attribute, by_container):
            torch.testing.assert_close(each(x), 2 * expected)
        torch.testing.assert_close(buffers(x), expected)


def test_a_weight_of_a_subclass_is_used() -> None:
    class Scaled(js.nn.BlockSparseLinear):
        @property
        def weight(self) -> js.BlockSparse:
            return js.BlockSparse(2 * self.values, self.pattern)

    layer, x = Scaled(64, 96, 16, density=0.5), torch.randn(3, 64)
    torch.testing.assert_close(
        layer(x), nn.functional.linear(x, layer.weight.to_dense(), layer.bias)
    )


def test_values_that_are_computed_have_no_room_for_other_blocks() -> None:
    layer, other = (js.nn.BlockSparseLinear(64, 96, 16, density=d) for d in (0.5, 0.25))
    state = other.state_dict()
    normed = torch.nn.utils.weight_norm(layer, "values")
    state |= {name: each for name, each in normed.state_dict().items() if name not in state}
    with pytest.raises(RuntimeError, match="take off what computes them, such as pruning"):
        normed.load_state_dict(state)


def test_shared_memory_stays_shared() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5).share_memory()
    assert all(each.is_shared() for each in (*layer.parameters(), *layer.buffers()))


def test_a_loaded_layer_can_be_exported_at_once() -> None:
    layer, other = (js.nn.BlockSparseLinear(64, 96, 16, density=d) for d in (0.5, 0.25))
    layer.load_state_dict(other.state_dict())
    x = torch.randn(3, 64)
    exported = torch.export.export(layer, (x,), strict=True)
    torch.testing.assert_close(exported.module()(x), other(x))


@pytest.mark.parametrize("assign", [False, True])
def test_what_a_loader_puts_in_place_by_itself_is_of_the_same_shape(assign: bool) -> None:
    layer = js.nn.BlockSparseLinear(80, 96, 16, density=0.4)
    other = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    for name, each in other.state_dict().items():
        if assign:
            module = layer._buffers if name in layer._buffers else layer._parameters
            module[name] = each
        else:
            layer.state_dict()[name].copy_(each)
    with pytest.raises(PatternError, match=r"of shape \(96, 64\), and its own is \(96, 80\)"):
        layer(torch.randn(3, 80))


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_layer_says_its_shape_itself(assign: bool) -> None:
    """Where it came from the meta device, or a loader has left anything in the buffer."""
    other = js.nn.BlockSparseLinear(64, 96, 16, density=0.25)
    with torch.device("meta"):
        hollow = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    overwritten, rounded = (js.nn.BlockSparseLinear(64, 96, 16, density=0.5) for _ in range(2))
    overwritten.shape.fill_(7)
    rounded.shape = rounded.shape.bfloat16()
    for layer in (overwritten, rounded, *([hollow] if assign else [])):
        layer.load_state_dict(other.state_dict(), assign=assign)
        assert layer.shape.device.type == "cpu"
        assert layer.shape.dtype is torch.int64
        assert layer.shape.tolist() == [96, 64]


def test_a_cast_of_everything_leaves_the_shape() -> None:
    layer = js.nn.BlockSparseLinear(4100, 64, 64, density=0.1).type(torch.bfloat16)
    assert layer.shape.tolist() == [64, 4100]
    layer.load_state_dict(layer.state_dict())


def test_a_shape_that_is_no_tensor_is_compared() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    layer.load_state_dict(layer.state_dict() | {"shape": [96, 64]})
    with pytest.raises(RuntimeError, match=r"is one of shape \(96, 60\) in"):
        layer.load_state_dict(layer.state_dict() | {"shape": [96, 60]})


def test_a_loader_can_spare_what_it_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``from_pretrained`` does where another entry of the layer is missing."""
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    before = layer.values.detach().clone()
    monkeypatch.setattr(nn.init, "uniform_", lambda tensor, *_: tensor)
    layer.reset_parameters()
    assert torch.equal(layer.values, before)


def test_memory_that_was_emptied_says_its_shape() -> None:
    layer = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    with torch.device("meta"):
        hollow = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    for each in (layer, hollow, copy.deepcopy(layer).half(), copy.deepcopy(hollow)):
        assert each.to_empty(device="cpu").state_dict()["shape"].tolist() == [96, 64]
