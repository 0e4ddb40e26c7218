"""The demonstration, small: the twins share what they can, learn, and report what they did."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from jitsparse.demo.figure import draw, missing_library
from jitsparse.demo.model import ModelConfig, build_twins
from jitsparse.demo.run import Demo
from jitsparse.jit import config, kernel
from jitsparse.nn import BlockSparseLinear

SMALL = ModelConfig(width=64, layers=1, heads=2, context=32)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    # A cache of its own: the demo counts what is new in it, and other tests compile meanwhile. What
    # they have mapped in this process is not in that cache.
    own = config.override(cache_dir=tmp_path_factory.mktemp("demo") / "cache")
    with pytest.MonkeyPatch.context() as patch, own:
        patch.setattr(kernel, "_mapped", {})
        demo = Demo(device=torch.device("cpu"), steps=12, seed=3, config=SMALL)
        demo.warm_up()
        demo.train()
        yield demo


def test_every_linear_layer_of_a_block_is_sparse() -> None:
    twins = build_twins(SMALL, seed=0)
    sparse = [m for m in twins["sparse"].modules() if isinstance(m, BlockSparseLinear)]
    assert len(sparse) == 4 * SMALL.layers
    assert not [m for m in twins["sparse"].modules() if isinstance(m, nn.Linear)]
    for layer in sparse:
        assert layer.pattern.block_size == (32, 32)
        assert layer.pattern.density == 0.25


def test_the_twins_start_equal_where_they_can() -> None:
    twins = build_twins(SMALL, seed=0)
    dense, sparse = twins["dense"].state_dict(), twins["sparse"].state_dict()
    for name in ("embed.weight", "position", "norm.weight"):
        assert torch.equal(dense[name], sparse[name])


def test_it_knows_that_it_ran_on_kernels(demo: Demo) -> None:
    assert demo.compiled


def test_the_twins_take_the_same_steps_and_learn(demo: Demo) -> None:
    for run in demo.runs.values():
        assert len(run.train_loss) == len(run.step_seconds) == 12
        assert run.held_out[-1][0] == 12
        assert run.held_out[-1][1] < math.log(128)
        assert run.train_loss[-1] < run.train_loss[0]


def test_a_seed_repeats_the_losses(demo: Demo) -> None:
    again = Demo(device=torch.device("cpu"), steps=12, seed=3, config=SMALL)
    again.train()
    assert again.runs["sparse"].train_loss == demo.runs["sparse"].train_loss


@pytest.mark.parametrize(
    ("asked", "step_seconds", "taken"),
    [(None, 0.01, 120), (None, 1.0, 37), (None, 60.0, 20), (90, 60.0, 90)],
)
def test_a_slow_machine_takes_fewer_steps(
    asked: int | None, step_seconds: float, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of the twins takes this long a step, so a pair of steps takes twice as long.
    monkeypatch.setattr("jitsparse.demo.run.warm_up", lambda *arguments: step_seconds)
    demo = Demo(device=torch.device("cpu"), steps=asked, config=SMALL)
    demo.warm_up()
    assert demo.settings.steps == taken


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    demo = Demo(device=torch.device("cuda"), steps=12, seed=3, config=SMALL)
    demo.warm_up()
    demo.train()
    for run in demo.runs.values():
        assert run.held_out[-1][1] < math.log(128)


def test_table(demo: Demo) -> None:
    dense, sparse = demo.table()
    assert list(dense) == [
        "model",
        "parameters",
        "step time (ms)",
        "held-out loss (nats/char)",
        "compile seconds",
    ]
    parameters = {name: run.parameters for name, run in demo.runs.items()}
    linear = sum(
        m.weight.numel() for m in demo.models["dense"].modules() if isinstance(m, nn.Linear)
    )
    assert parameters["dense"] - parameters["sparse"] == 0.75 * linear
    assert dense["compile seconds"] == "0.0"
    assert (dense["model"], sparse["model"]) == ("dense", "sparse")


def test_json(demo: Demo, tmp_path: Path) -> None:
    written = json.loads(demo.write_json(tmp_path / "demo.json").read_text())
    assert written["runs"]["sparse"]["train_loss"] == demo.runs["sparse"].train_loss
    assert written["measured"]["torch"] == str(torch.__version__)


def test_figure(demo: Demo, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert missing_library() is None
    image = draw(demo, tmp_path / "demo.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 10_000


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitsparse.demo.figure.find_spec", lambda name: None)
    assert "pip install 'jitsparse[viz]'" in str(missing_library())
