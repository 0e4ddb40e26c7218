"""A model is made sparse as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import jitsparse as js
from jitsparse.nn import BlockSparseLinear, sparsify_


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


def tied(dense: nn.Sequential) -> None:
    dense[3].weight = dense[0].weight


def hooked(dense: nn.Sequential) -> None:
    dense[3].register_forward_hook(lambda *_: None)


def strange(dense: nn.Sequential) -> None:
    dense[3].weight = nn.Parameter(torch.zeros(11, 64, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (tied, r"'3' is also 0\.weight \(tied\)"),
        (hooked, r"'3' has hooks \(_forward_hooks\)"),
        (strange, r"layer '3': .*complex64"),
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
    sparsify_(dense, 16, density=0.5, where=lambda name, _: name != "3")


def test_a_density_that_leaves_a_layer_nothing_names_the_layer() -> None:
    dense = model()
    with pytest.raises(js.PatternError, match=r"layer '3': density=0\.1 of the 4 blocks"):
        sparsify_(dense, 16, density=0.1)
    assert kinds(dense) == kinds(model())


@pytest.mark.parametrize(
    ("dense", "said"),
    [
        (nn.Linear(64, 64), "use BlockSparseLinear.from_linear"),
        (nn.Sequential(nn.ReLU()), "found no nn.Linear to replace in this Sequential"),
    ],
)
def test_nothing_to_do_is_an_error(dense: nn.Module, said: str) -> None:
    with pytest.raises(js.ArgumentError, match=said):
        sparsify_(dense, 16, density=0.5)
    with pytest.raises(js.ArgumentError, match="or `where` selects none"):
        sparsify_(model(), 16, density=0.5, where=lambda *_: False)
