"""Warm-up of a model compiles what its forward and backward pass run, and nothing else.

Where only the keys of real calls are compared, the calls run no kernel, so nothing is compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import warmmodels
from torch import nn

import jitsparse as js
from jitsparse import calls, tracing
from jitsparse.jit import config, tuned
from jitsparse.kernels import dispatch, price_table, registry
from jitsparse.kernels.choice import problem_of
from jitsparse.warmup import plan

TESTS = Path(__file__).parent
DTYPES = (torch.bfloat16, torch.float32)

PROGRAM = """
import sys, torch
sys.path.insert(0, {tests!r})
import warmmodels
torch.manual_seed(0)
model = warmmodels.transformer().to({dtype})
x = torch.randn(2, 16, 64, dtype={dtype}, requires_grad=True)
model(x).square().mean().backward()
assert all(p.grad is not None and p.grad.isfinite().all() for p in (x, *model.parameters()))
"""


def run(dtype: torch.dtype, **environment: str) -> None:
    """A training step of the model in a process of its own."""
    subprocess.run(
        [sys.executable, "-c", PROGRAM.format(tests=str(TESTS), dtype=dtype)],
        env={**os.environ, **environment},
        check=True,
        timeout=240,
    )


@pytest.fixture
def real_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[dispatch.Key]]:
    """The keys that real calls choose kernels by, as they are made."""
    seen: set[dispatch.Key] = set()

    def select(key: dispatch.Key) -> calls._NoKernel:
        seen.add(key)
        return calls._NoKernel()

    monkeypatch.setattr(dispatch, "select", select)
    config.bump()
    yield seen
    config.bump()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_training_step_finds_everything_and_uses_everything(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    outcomes = js.warmup(warmmodels.transformer(), (2, 16, 64), dtype=dtype, device="cpu")
    record = tmp_path / "used.jsonl"
    run(dtype, JITSPARSE_JIT="off", JITSPARSE_RECORD=str(record))
    used = {json.loads(line)["variant"] for line in record.read_text().splitlines()}
    assert used == {each.variant.name for each in outcomes}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_are_those_of_real_calls(
    dtype: torch.dtype, device: str, real_keys: set[dispatch.Key]
) -> None:
    """Whatever the strides between the layers are, and wherever operations are called."""
    with torch.device(device):
        model = warmmodels.everything()
        x = torch.randn(2, 16, 64, dtype=dtype, requires_grad=True)
    keys = tracing.keys_of_model(model, [(2, 16, 64)], device=device, dtype=dtype)
    assert not real_keys
    warmmodels.converted(model, dtype)(x).square().mean().backward()
    assert set(keys) == real_keys
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 64)])
@pytest.mark.parametrize("dims", [(), (0,), (1,), (-1,)])
def test_a_loss_that_sums_needs_no_other_kernels(
    dims: tuple[int, ...], shape: tuple[int, ...], real_keys: set[dispatch.Key]
) -> None:
    """The gradient of a sum is expanded: rows or columns of it lie on each other."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    keys = tracing.keys_of_model(layer, [shape], device="cpu")
    layer(torch.randn(shape, requires_grad=True)).sum(dims or None).square().sum().backward()
    assert set(keys) == real_keys


def test_the_forward_pass_alone(real_keys: set[dispatch.Key]) -> None:
    model = warmmodels.everything()
    keys = tracing.keys_of_model(model, [(2, 16, 64)], device="cpu", backward=False)
    with torch.no_grad():
        model(torch.randn(2, 16, 64))
    assert set(keys) == real_keys


def test_the_mode_that_it_is_asked_in_makes_no_difference() -> None:
    """A server may warm up where it serves, a model that is trained elsewhere."""
    model = warmmodels.everything()
    keys = tracing.keys_of_model(model, [(2, 16, 64)], device="cpu")
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            assert tracing.keys_of_model(model, [(2, 16, 64)], device="cpu") == keys


def test_what_is_frozen_has_no_gradient(real_keys: set[dispatch.Key]) -> None:
    model = nn.Sequential(warmmodels.sparse(64, 128, 16), warmmodels.sparse(128, 64, 32))
    model[0].requires_grad_(False)
    x = torch.randn(8, 64)
    keys = tracing.keys_of_model(model, [x], device="cpu")
    model(x).square().sum().backward()
    assert set(keys) == real_keys
    assert sum(key[0] == "sdd" for key in keys) == 1


def test_a_model_that_returns_its_loss(real_keys: set[dispatch.Key]) -> None:
    """Then gradients lie as that loss has them: a sum's are expanded, and written out."""
    model = warmmodels.Summed()
    keys = tracing.keys_of_model(model, [(8, 64)], device="cpu")
    model(torch.randn(8, 64, requires_grad=True)).backward()
    assert set(keys) == real_keys
    assert {key[5] for key in keys if key[0] == "sdd"} == {"t"}


def test_values_that_are_not_aligned(real_keys: set[dispatch.Key]) -> None:
    """A parameter inside a larger tensor, as flattened ones are."""
    layer = warmmodels.sparse(64, 64, 16)
    room = torch.randn(layer.values.numel() + 1)
    layer.values = nn.Parameter(room[1:].view_as(layer.values))
    keys = tracing.keys_of_model(layer, [(8, 64)], device="cpu")
    layer(torch.randn(8, 64, requires_grad=True)).square().mean().backward()
    assert set(keys) == real_keys
    assert {key[7] for key in keys} == {True, False}
    # What a conversion allocates anew is aligned.
    converted = tracing.keys_of_model(layer, [(8, 64)], device="cpu", dtype=torch.bfloat16)
    assert {key[7] for key in converted} == {True}


def test_several_inputs_and_token_ids(real_keys: set[dispatch.Key]) -> None:
    model = warmmodels.Tokens()
    tokens, scale = torch.zeros(2, 24, dtype=torch.int64), torch.ones(24, 1)
    keys = tracing.keys_of_model(model, [tokens, scale], device="cpu")
    model(tokens, scale).square().sum().backward()
    assert set(keys) == real_keys


def test_sparse_tensors_of_torch(real_keys: set[dispatch.Key]) -> None:
    model = warmmodels.HoldsTorchSparse()
    keys = tracing.keys_of_model(model, [(8, 64)], device="cpu", backward=False)
    with torch.no_grad():
        model(torch.randn(8, 64))
    assert set(keys) == real_keys


def test_autocast_and_compiled_models(real_keys: set[dispatch.Key]) -> None:
    model = warmmodels.transformer()
    with torch.autocast("cpu", torch.bfloat16):
        keys = tracing.keys_of_model(torch.compile(model), [(2, 16, 64)], device="cpu")
        out = model(torch.randn(2, 16, 64, requires_grad=True))
    out.square().mean().backward()
    assert set(keys) == real_keys
    assert {key[2] for key in keys} == {"bf16"}


def test_the_model_is_left_alone() -> None:
    model = warmmodels.everything().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    pattern = model.pattern
    plan(model, (2, 16, 64), dtype="bf16", device="cpu")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.pattern is pattern
    assert pattern.device.type == "cpu"
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


class HoldsGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = js.nn.BlockSparseLinear(64, 128, 16, density=0.5)
        self.generator = torch.Generator().manual_seed(3)
        self.moving = js.nn.DropAndGrow(
            self.layer, torch.optim.SGD(self.layer.parameters()), every=1, until=9
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * torch.rand(x.shape, generator=self.generator))


def test_a_model_that_holds_generators() -> None:
    model = HoldsGenerator()
    before = model.generator.get_state()
    assert set(plan(model, (8, 64), device="cpu")) == set(plan(model.layer, (8, 64), device="cpu"))
    assert torch.equal(model.generator.get_state(), before)


def test_a_model_on_the_meta_device() -> None:
    """It has sizes, which is all that is needed."""
    real = js.nn.BlockSparseLinear(64, 128, 16, density=0.5)
    meta = js.nn.BlockSparseLinear(64, 128, 16, density=0.5, device="meta")
    assert plan(meta, (8, 64), device="cpu") == plan(real, (8, 64), device="cpu")


@pytest.fixture
def layer() -> tuple[Any, Any]:
    """A layer, and what its forward pass with 8 rows chooses and could choose."""
    layer = js.nn.BlockSparseLinear(64, 64, 32, density=0.5)
    return layer, js.explain("linear", torch.zeros(8, 64), layer.weight)


def test_a_pinned_variant_is_what_is_compiled(layer: tuple[Any, Any]) -> None:
    model, explained = layer
    forward = {"device": "cpu", "backward": False}
    assert [each.name for each in plan(model, (8, 64), **forward)] == [explained.variant]
    other = explained.alternatives[0]
    with js.pin(f"dds={other}"):
        assert [each.name for each in plan(model, (8, 64), **forward)] == [other]


def test_a_tuned_winner_is_what_is_compiled(layer: tuple[Any, Any], cache_dir: Path) -> None:
    """By the model, and by filters that its problem passes."""
    model, explained = layer
    problem, other = explained.problem, explained.alternatives[0]
    asked = {"op": problem.op, "dtype": problem.dtype, "device": "cpu"}
    before = plan(**asked, block_size=32)
    assert other not in {each.name for each in before}
    tuned.record(problem.name, registry.machine_of("cpu"), other, {})
    tuned.record("a problem of another version", registry.machine_of("cpu"), other, {})
    forward = plan(model, (8, 64), device="cpu", backward=False)
    assert [each.name for each in forward] == [other]
    assert {each.name for each in plan(**asked, block_size=32)} == {
        other,
        *(each.name for each in before),
    }
    assert other not in {each.name for each in plan(**asked, block_size=64)}
    assert other not in {each.name for each in plan(**{**asked, "op": "sdd"})}
    with js.pin(f"dds={explained.variant}"):
        assert other not in {each.name for each in plan(**asked, block_size=32)}
    # Calls of this problem will have no kernel at all, and those of others want theirs.
    with js.pin(f"{problem.op}=r99x99"):
        assert plan(**asked, block_size=32) == before


def test_a_gpu_is_not_needed_for_its_targets() -> None:
    model = warmmodels.transformer()
    both = plan(model, (2, 16, 64), dtype="bf16", arch="9.0a;8.0")
    assert both[-1] == registry.INDEX, "which patterns on any GPU want"
    assert {variant.target for variant in both[:-1]} == {"sm90a", "sm80"}
    hopper = [each for each in both if each.target != "sm80"]
    assert hopper == plan(model, (2, 16, 64), dtype="bf16", device="cuda", arch=["9.0a"])
    mixed = plan(model, (2, 16, 64), arch="generic;8.0")[:-1]
    assert {variant.target for variant in mixed} == {"generic", "sm80"}


def test_without_a_gpu_what_either_of_the_models_gpus_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An image for Hopper is built where there is no GPU, and may run on an H100 or an H200."""
    layer = js.nn.BlockSparseLinear(8192, 8192, 64, density=0.25, dtype=torch.bfloat16)
    asked = {"dtype": "bf16", "arch": "9.0a", "backward": False}
    chosen = {}
    for gpu in price_table.GPUS:
        with monkeypatch.context() as patch:
            patch.setattr(registry, "prices_for", lambda *_, gpu=gpu: (gpu,))
            chosen[gpu] = [each.name for each in plan(layer, (8192, 8192), **asked)]
    assert chosen["H200"] != chosen["H100"]
    if not torch.cuda.is_available():
        both = [each.name for each in plan(layer, (8192, 8192), **asked)]
        index = registry.INDEX.name
        assert both == [*chosen["H200"][:-1], *chosen["H100"][:-1], index]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this GPU's own table counts")
def test_without_a_gpu_what_was_tuned_for_one_of_them(cache_dir: Path) -> None:
    """An H200 runs what its table says; one of another name, and one that cannot have that, what it
    would run without."""
    layer = js.nn.BlockSparseLinear(512, 512, 64, density=0.25, dtype=torch.bfloat16)
    asked = {"dtype": "bf16", "arch": "9.0a", "backward": False}
    by_default = plan(layer, (512, 512), **asked)
    keys = tracing.keys_of_model(
        layer, [(512, 512)], device="cuda", dtype=torch.bfloat16, backward=False
    )
    (problem,) = map(problem_of, keys)
    legal = [each.variant for each in registry.candidates(problem, "sm90a") if not each.refused]
    winner = next(each for each in legal if each not in by_default)
    tuned.record(problem.name, "NVIDIA H200", winner.name, {})
    assert set(plan(layer, (512, 512), **asked)) == {*by_default, winner}


@pytest.mark.parametrize(("device", "arch"), [("cpu", "avx2"), ("cuda", "9.0a")])
def test_mixed_precision_inside_the_model(device: str, arch: str) -> None:
    found = plan(warmmodels.Autocast(), (2, 16, 64), device=device, arch=arch)
    assert {variant.dtype for variant in found} - {registry.INDEX.dtype} == {"bf16"}


def test_float32_in_each_precision() -> None:
    model = js.nn.BlockSparseLinear(64, 64, 32, density=0.5)

    def dtypes(dtype: str, arch: str) -> set[str]:
        found = plan(model, (8, 64), dtype=dtype, arch=arch)
        return {variant.dtype for variant in found} - {registry.INDEX.dtype}

    assert dtypes("tf32", "8.0") == {"tf32"}
    assert dtypes("f32", "8.0") == {"f32"}
    assert dtypes("bf32", "8.0") == {"tf32"}, "a GPU has nothing less precise"
    assert dtypes("tf32", "avx2") == dtypes("bf32", "avx2") == {"f32"}
    assert dtypes("tf32", "amx") == {"tf32"}
    assert dtypes("bf32", "amx") == {"bf32"}


class UsesNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.detach().numpy().max())


@torch.library.custom_op("jitsparse_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    """Does not say what its result is without data."""
    return x.clone()


class UsesAnOpaqueOperation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = opaque(x)
        return out


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((nn.Linear(8, 8), (4, 8)), {}, "calls no kernel"),
        # Not that it depends on data: a mistake remains one in a real run.
        (
            (warmmodels.sparse(64, 64, 16), (4, 63)),
            {},
            r"inputs of shape \(4, 63\) on cpu.* got x of shape \(4, 63\)$",
        ),
        ((nn.Linear(64, 64), (4, 63)), {}, "does not run: RuntimeError: (?!.*JITSPARSE_RECORD)"),
        ((warmmodels.sparse(64, 64, 16), (0, 64)), {}, "all of them are empty"),
        ((warmmodels.sparse(64, 64, 16), (4, 64)), {"dtype": "int8"}, "'int8' is not one of"),
        ((warmmodels.sparse(64, 64, 16), (4, 64)), {"dtype": ["f32"]}, "has one dtype"),
        ((warmmodels.sparse(64, 64, 16), (4, 64)), {"op": "dsd"}, "no op and no block_size"),
        ((warmmodels.sparse(64, 64, 16), (4, 64)), {"device": "tpu"}, "not one of cpu, cuda"),
        ((warmmodels.sparse(64, 64, 16),), {}, "needs the shape of its input"),
        ((warmmodels.sparse(64, 64, 16), (4, "x")), {}, "input_shape is"),
        ((warmmodels.sparse(64, 64, 16), (4, -1)), {}, "input_shape is"),
        ((warmmodels.sparse(64, 64, 16), ()), {}, "input_shape is"),
        ((lambda x: x, (4, 64)), {}, r"torch.nn.Module, got function"),
        ((None, (4, 64)), {}, "input_shape is for a model"),
        ((warmmodels.ReadsData(), (4, 64)), {}, "It depends on data, .*JITSPARSE_RECORD"),
        ((UsesNumpy(), (4, 64)), {}, "It depends on data, .*JITSPARSE_RECORD"),
        ((UsesAnOpaqueOperation(), (4, 64)), {}, "It depends on data, .*JITSPARSE_RECORD"),
        ((warmmodels.NoCopy(), (4, 64)), {}, "NoCopy cannot be copied.*JITSPARSE_RECORD"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: tuple[object, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(js.ArgumentError, match=message):
        js.warmup(*arguments, **options)


def test_of_targets_named_in_the_environment_those_of_the_device() -> None:
    with config.override(arch="avx2;8.0"):
        for device, target in (("cpu", "avx2"), ("cuda", "sm80")):
            found = plan(op="dsd", dtype="f32", block_size=32, device=device)
            assert {each.target for each in found if each.op == "dsd"} == {target}
