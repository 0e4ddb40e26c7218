"""A model is made sparse, or dense again, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import jitsparse as js
from jitsparse.nn import BlockSparseLinear, densify_, sparsify_


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu())
        return out


def model() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(11, 64), Mlp(), nn.LayerNorm(64), nn.Linear(64, 11))


def kinds(module: nn.Module) -> list[type]:
    return [type(each) for each in module.modules()]


def test_every_linear_layer_keeps_its_largest_blocks() -> None:
    dense = model()
    weights = {name: each.detach().clone() for name, each in dense.named_parameters()}
    assert sparsify_(dense, 16, density=0.25) == ("1.up", "1.down", "3")
    up = dense[1].up
    assert isinstance(up, BlockSparseLinear)
    assert up.pattern.density == 0.25
    layer = nn.Linear(64, 128)
    with torch.no_grad():
        layer.weight.copy_(weights["1.up.weight"])
    expected = BlockSparseLinear.from_linear(layer, 16, density=0.25)
    assert torch.equal(up.weight.to_dense(), expected.weight.to_dense())
    assert torch.equal(up.bias, weights["1.up.bias"])
    assert dense[1].down.bias is None
    assert dense(torch.arange(8)).shape == (8, 11)


def test_with_all_blocks_nothing_changes_but_rounding() -> None:
    dense = model().double()
    x = torch.arange(8)
    before = dense(x)
    sparsify_(dense, 8, density=1.0)
    torch.testing.assert_close(dense(x), before)
    dense(x).sum().backward()
    assert dense[1].up.values.grad is not None


def test_where_selects_by_name_and_layer() -> None:
    dense = model()
    asked = []

    def where(name: str, layer: nn.Linear) -> bool:
        asked.append(name)
        return layer.out_features > 11

    assert sparsify_(dense, 32, density=0.5, where=where) == ("1.up", "1.down")
    assert asked == ["1.up", "1.down", "3"]
    assert type(dense[3]) is nn.Linear


def test_a_layer_in_several_places_stays_one() -> None:
    shared = nn.Linear(64, 64)
    dense = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.ReLU())})
    assert sparsify_(dense, 16, density=0.5) == ("a",)
    assert isinstance(dense["a"], BlockSparseLinear)
    assert dense["a"] is dense["b"][0]


def test_what_reads_a_weight_as_a_tensor_keeps_it() -> None:
    dense = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4), "out": nn.Linear(64, 64)})
    assert sparsify_(dense, 16, density=0.5) == ("out",)
    x = torch.randn(3, 2, 64)
    dense["attention"](x, x, x)


def test_modes_and_the_meta_device_stay() -> None:
    with torch.device("meta"):
        dense = model().eval()
    sparsify_(dense, 16, density=0.5)
    assert not dense[1].up.training
    assert dense[1].up.values.is_meta


def test_no_random_numbers_are_drawn() -> None:
    dense = model()
    before = torch.get_rng_state()
    sparsify_(dense, 16, density=0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_frozen_stays_so_and_attributes_go_along() -> None:
    dense = model().requires_grad_(False)
    dense[1].up.bias.requires_grad_()
    dense[1].up.initialised = True
    sparsify_(dense, 16, density=0.5)
    assert not dense[1].up.values.requires_grad
    assert dense[1].up.bias.requires_grad
    assert dense[1].up.initialised


def test_marks_of_parameters_and_the_dtype_of_a_bias_stay() -> None:
    model = nn.Sequential(nn.Linear(32, 48, dtype=torch.bfloat16))
    model[0].bias = nn.Parameter(torch.randn(48))
    model[0].bias.no_weight_decay = model[0].weight.group = 3
    bias = model[0].bias.detach().clone()
    for convert, name in (
        (lambda m: sparsify_(m, 16, density=0.5), "values"),
        (densify_, "weight"),
    ):
        convert(model)
        assert model[0].bias.no_weight_decay == getattr(model[0], name).group == 3
        assert torch.equal(model[0].bias, bias)
        assert model[0].bias.dtype is torch.float32


def test_a_frozen_parameter_is_known_by_its_name() -> None:
    """Not by its place: undone pruning has registered the weight anew, behind the bias."""
    dense = nn.Sequential(nn.Linear(32, 48))
    nn.utils.prune.l1_unstructured(dense[0], "weight", 0.5)
    nn.utils.prune.remove(dense[0], "weight")
    assert [name for name, _ in dense[0].named_parameters()] == ["bias", "weight"]
    dense[0].weight.requires_grad_(False)
    sparsify_(dense, 16, density=0.5)
    assert not dense[0].values.requires_grad
    assert dense[0].bias.requires_grad
    densify_(dense)
    assert not dense[0].weight.requires_grad
    assert dense[0].bias.requires_grad


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_evaluates_what_it_was_trained_to(activation: str) -> None:
    """torch hands the weights of one to a fused operation, unless they are no Tensors."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    x, mask = torch.randn(2, 5, 32), torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    sparsify_(encoder, 16, density=0.5)
    expected = encoder(x, src_key_padding_mask=mask)
    with torch.no_grad():
        got = encoder.eval()(x, src_key_padding_mask=mask)
    torch.testing.assert_close(got[~mask], expected[~mask])


def tied(dense: nn.Sequential) -> None:
    dense[3].weight = dense[0].weight


def hooked(dense: nn.Sequential) -> None:
    dense[3].register_forward_hook(lambda *_: None)


def watched(dense: nn.Sequential) -> None:
    dense[3].weight.register_hook(lambda grad: None)


def accumulated(dense: nn.Sequential) -> None:
    dense[3].bias.register_post_accumulate_grad_hook(lambda parameter: None)


def other_forward(dense: nn.Sequential) -> None:
    dense[3].forward = lambda x: x


def compiled(dense: nn.Sequential) -> None:
    dense[3].compile()


def buffered(dense: nn.Sequential) -> None:
    dense[3].register_buffer("scale", torch.ones(1))


def adapted(dense: nn.Sequential) -> None:
    dense[3].adapter = nn.Linear(64, 11)


def pruned(dense: nn.Sequential) -> None:
    prune.l1_unstructured(dense[3], "weight", 0.5)


def clashing(dense: nn.Sequential) -> None:
    dense[3].pattern = "diagonal"


def loaded_by(dense: nn.Sequential) -> None:
    dense[3].weight.weight_loader = lambda weight: None


def strange(dense: nn.Sequential) -> None:
    dense[3].weight = nn.Parameter(torch.zeros(11, 64, dtype=torch.complex64))


def lazy(dense: nn.Sequential) -> None:
    dense[3] = nn.LazyLinear(11)


def stored_sparsely(dense: nn.Sequential) -> None:
    dense[3].weight = nn.Parameter(torch.zeros(11, 64).to_sparse())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (tied, r"'3' is also 0\.weight \(tied\)"),
        (
            hooked,
            r"'3' has _forward_hooks, which .* would not have: call remove\(\) on the handles",
        ),
        (watched, r"'3' has weight\._backward_hooks, .* call remove\(\) on the handles"),
        (accumulated, r"'3' has bias\._post_accumulate_grad_hooks, .* remove\(\) on the handles"),
        (other_forward, "'3' has forward, "),
        (compiled, "'3' has _compiled_call_impl, "),
        (buffered, "'3' has scale, "),
        (adapted, "'3' has adapter, "),
        (pruned, r"_forward_pre_hooks, weight_mask, weight_orig, .*prune\.remove"),
        (clashing, "'3' has pattern, which in its successor would be something else: rename"),
        (loaded_by, r"'3' has weight\.weight_loader, "),
        (strange, "layer '3': .*complex64"),
        (lazy, "layer '3': .*call the layer once"),
        (stored_sparsely, "weight of layer '3' is no ordinary Tensor"),
    ],
)
def test_what_cannot_be_replaced_stops_all(
    change: Callable[[nn.Sequential], None], said: str
) -> None:
    dense = model()
    change(dense)
    before = kinds(dense)
    with pytest.raises(js.ArgumentError, match=said):
        sparsify_(dense, 16, density=0.5)
    assert kinds(dense) == before
    sparsify_(dense, 16, density=0.5, where=lambda name, _: not name.startswith("3"))


def test_a_density_that_leaves_a_layer_nothing_names_the_layer() -> None:
    dense = model()
    with pytest.raises(js.PatternError, match=r"layer '3': density=0\.1 of the 4 blocks"):
        sparsify_(dense, 16, density=0.1)
    assert kinds(dense) == kinds(model())


class Picky(nn.Module):
    """Takes no second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(64, 64)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__.get("_modules", {}):
            raise TypeError("there is one")
        super().__setattr__(name, value)


def test_a_parent_that_refuses_leaves_all_as_it_was() -> None:
    dense = nn.Sequential(nn.Linear(64, 64), Picky())
    before = kinds(dense)
    with pytest.raises(TypeError, match="there is one"):
        sparsify_(dense, 16, density=0.5)
    assert kinds(dense) == before


class DistributedDataParallel(nn.Module):
    """In the name is what it is known by; a real one needs processes."""

    def __init__(self) -> None:
        super().__init__()
        self.module = model()


@pytest.mark.parametrize(
    ("dense", "said"),
    [
        ([nn.Linear(64, 64)], "takes an nn.Module, got list"),
        (nn.Linear(64, 64), "use BlockSparseLinear.from_linear"),
        (nn.Sequential(nn.ReLU()), "in this Sequential: it has no nn.Linear$"),
        (
            nn.MultiheadAttention(64, 4),
            r"no nn\.Linear; layers of derived classes stay \(1 NonDynamicallyQuantizableLinear\)",
        ),
        (DistributedDataParallel(), "wrapped by DistributedDataParallel.* sparsify_ first"),
    ],
)
def test_nothing_to_do_is_an_error(dense: nn.Module, said: str) -> None:
    with pytest.raises(js.ArgumentError, match=said):
        sparsify_(dense, 16, density=0.5)


def test_wrong_arguments_are_told_before_layers_are_looked_at() -> None:
    with pytest.raises(
        js.ArgumentError, match=r"it has 3 nn\.Linear, of which `where` selects none"
    ):
        sparsify_(model(), 16, density=0.5, where=lambda *_: False)
    with pytest.raises(js.ArgumentError, match="where is a function of a name and a layer, got"):
        sparsify_(model(), 16, density=0.5, where=["1.up"])  # type: ignore[arg-type]
    with pytest.raises(js.PatternError, match=r"^block size 7"):
        sparsify_(model(), 7, density=0.5)
    with pytest.raises(js.PatternError, match=r"^density is a fraction between 0 and 1, got 2"):
        sparsify_(model(), 16, density=2)
    with pytest.raises(
        js.PatternError, match=r"^density is .* or a function of .* got \{'3': 0\.5"
    ):
        sparsify_(model(), 16, density={"3": 0.5})  # type: ignore[arg-type]
    with pytest.raises(js.ArgumentError, match=r"either density=\.\.\. or mask.*got neither"):
        sparsify_(model(), 16)
    with pytest.raises(js.ArgumentError, match=r"either density=\.\.\. or mask.*got both"):
        sparsify_(model(), 16, density=0.5, mask=everything)
    with pytest.raises(js.ArgumentError, match=r"mask is a function .* got Tensor"):
        sparsify_(model(), 16, mask=torch.ones(4, 4).bool())  # type: ignore[arg-type]


def everything(name: str, layer: nn.Linear) -> torch.Tensor:
    rows, cols = layer.weight.shape
    return torch.ones(-(-rows // 16), -(-cols // 16), dtype=torch.bool)


def test_layers_may_have_densities_and_masks_of_their_own() -> None:
    densities = {"1.up": 0.25, "1.down": 0.5, "3": 1.0}
    sparse = model()
    sparsify_(sparse, 16, density=lambda name, layer: densities[name])
    assert {name: sparse.get_submodule(name).pattern.density for name in densities} == densities

    sparse, dense = model(), model()
    sparse.load_state_dict(dense.state_dict())
    masks = {
        name: torch.rand(everything(name, dense.get_submodule(name)).shape) < 0.5
        for name in densities
    }
    sparsify_(sparse, 16, mask=lambda name, layer: masks[name])
    for name, mask in masks.items():
        assert torch.equal(sparse.get_submodule(name).pattern.to_mask(), mask)
        expected = js.BlockSparse.from_dense(dense.get_submodule(name).weight.detach(), 16, mask)
        assert torch.equal(sparse.get_submodule(name).values, expected.values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"density": lambda name, layer: 0.5 if name != "3" else 1.5},
        {"mask": lambda name, layer: everything(name, layer)[:, : 2 if name == "3" else None]},
    ],
    ids=["density", "mask"],
)
def test_a_layer_with_an_illegal_density_or_mask_is_named(wrong: dict[str, Any]) -> None:
    dense = model()
    with pytest.raises(js.PatternError, match=r"^layer '3': .*\. To skip this layer use where="):
        sparsify_(dense, 16, **wrong)
    assert kinds(dense) == kinds(model())


@pytest.mark.parametrize("argument", ["density", "mask"])
def test_a_function_that_returns_nothing_for_a_layer_is_named_with_it(argument: str) -> None:
    dense = model()
    with pytest.raises(js.ArgumentError, match=f"^layer '1.up': .* as {argument} returned None"):
        sparsify_(dense, 16, **{argument: lambda name, layer: None})
    assert kinds(dense) == kinds(model())


# -- and dense again ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_model_that_is_made_dense_again_computes_the_same(device: str) -> None:
    sparse = model().double().to(device)
    sparsify_(sparse, 16, density=0.5)
    sparse[3].values.requires_grad_(False)
    sparse[1].up.bias.requires_grad_(False)
    sparse[1].up.note = "kept"
    sparse[1].up.eval()
    x = torch.arange(8, device=device)
    before, weight = sparse(x), sparse[1].up.weight.to_dense()
    assert densify_(sparse) == ("1.up", "1.down", "3")
    assert kinds(sparse) == kinds(model())
    torch.testing.assert_close(sparse(x), before)
    assert torch.equal(sparse[1].up.weight, weight)
    assert not sparse[3].weight.requires_grad
    assert not sparse[1].up.bias.requires_grad
    assert sparse[1].up.weight.requires_grad
    assert sparse[1].down.bias is None
    assert sparse[1].up.note == "kept"
    assert not sparse[1].up.training
    model().double().load_state_dict(sparse.state_dict())


def test_some_of_the_layers_may_stay_sparse() -> None:
    sparse = model()
    sparsify_(sparse, 16, density=0.5)
    sparse.append(sparse[3])
    assert densify_(sparse, where=lambda name, layer: layer.out_features == 11) == ("3",)
    assert sparse[3] is sparse[4]
    assert isinstance(sparse[1].up, BlockSparseLinear)
    sparsify_(sparse, 16, density=1.0)
    assert sparse[1].up.pattern.density == 0.5


def test_with_the_shapes_alone() -> None:
    with torch.device("meta"):
        sparse = model()
    sparsify_(sparse, 16, density=0.5)
    densify_(sparse)
    assert sparse[3].weight.shape == (11, 64)
    assert sparse[3].weight.is_meta


def shared(sparse: nn.Sequential) -> None:
    sparse.append(BlockSparseLinear(64, 11, 16, pattern=sparse[3].pattern))
    sparse[4].values = sparse[3].values


def emptied(sparse: nn.Sequential) -> None:
    sparse[3].to("meta").to_empty(device="cpu")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (hooked, "'3' has _forward_hooks, which its successor would not have"),
        (other_forward, "'3' has forward, "),
        (buffered, "'3' has scale, "),
        (adapted, "'3' has adapter, "),
        (shared, r"'3' is also 4\.values \(tied\)"),
        (emptied, "layer '3': .*load a state dict"),
    ],
)
def test_what_cannot_be_made_dense_stops_all(
    change: Callable[[nn.Sequential], None], said: str
) -> None:
    sparse = model()
    sparsify_(sparse, 16, density=0.5)
    change(sparse)
    before = kinds(sparse)
    with pytest.raises(js.ArgumentError, match=said):
        densify_(sparse)
    assert kinds(sparse) == before
    densify_(sparse, where=lambda name, _: name.startswith("1"))


@pytest.mark.parametrize(
    ("sparse", "said"),
    [
        ("model", "densify_ takes an nn.Module, got str"),
        (BlockSparseLinear(64, 64, 16, density=0.5), "itself: use its to_linear"),
        (model(), "densify_ finds nothing .* it has no BlockSparseLinear$"),
        (DistributedDataParallel(), "wrapped by DistributedDataParallel.* densify_ first"),
    ],
)
def test_nothing_to_make_dense_is_an_error(sparse: nn.Module, said: str) -> None:
    with pytest.raises(js.ArgumentError, match=said):
        densify_(sparse)
