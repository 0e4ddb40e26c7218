"""Training the twins side by side, one step of each in turn, so that both see the same machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jitsparse.demo.corpus import Corpus
from jitsparse.demo.model import CharTransformer, ModelConfig

__all__ = ["SETTINGS", "Run", "TrainConfig", "precision", "train", "warm_up"]


@dataclass(frozen=True)
class TrainConfig:
    """How the twins are trained.

    Attributes:
        steps: optimiser steps of each model.
        batch: windows in a step.
        learning_rate: peak of a short warm-up followed by a cosine.
        evaluations: how often the held-out loss is taken, the end included.
        eval_batches: batches of held-out text averaged for each of them.
    """

    steps: int = 120
    batch: int = 8
    learning_rate: float = 1e-3
    evaluations: int = 6
    eval_batches: int = 4


SETTINGS = {
    "cpu": TrainConfig(),
    "cuda": TrainConfig(steps=600, batch=16, learning_rate=3e-4),
}
"""Training takes about a minute with the model of the same device."""


@dataclass
class Run:
    """What one model did.

    Attributes:
        parameters: trainable parameters.
        train_loss: loss of each step, in nats per character.
        held_out: ``(step, loss)`` of each evaluation, in nats per character.
        step_seconds: seconds of each step: forward, backward, optimiser.
        compile_seconds: seconds that the compiler took before the first step.
    """

    parameters: int
    train_loss: list[float] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0

    @property
    def median_step_ms(self) -> float:
        """Median step time in milliseconds."""
        return 1e3 * statistics.median(self.step_seconds)


def warm_up(
    model: CharTransformer, config: ModelConfig, settings: TrainConfig, device: torch.device
) -> float:
    """Run a few forward and backward passes and evaluations, and discard them.

    Every kernel that training needs is compiled in the first round, so step times include no
    compilation.

    Returns:
        Median seconds of the later forward and backward passes: about a step.
    """
    batch = torch.zeros(settings.batch, config.context, dtype=torch.int64, device=device)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        _loss(model, batch, batch).backward()
        model.zero_grad(set_to_none=True)
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
        with torch.no_grad():
            _loss(model, batch, batch)
        _synchronize(device)
    return statistics.median(seconds[1:])


def train(
    models: Mapping[str, CharTransformer],
    corpus: Corpus,
    config: ModelConfig,
    settings: TrainConfig,
    *,
    device: torch.device,
    seed: int,
    on_step: Callable[[int, dict[str, Run]], None] = lambda step, runs: None,
) -> dict[str, Run]:
    """Train every model on the same batches.

    Args:
        models: name to model, already on ``device``.
        corpus: the text; batches depend on ``seed`` alone.
        config: sizes of the models.
        settings: how long and how fast.
        device: where the models are.
        seed: of the batches.
        on_step: called with the number of finished steps and the runs so far.

    Returns:
        Name to :class:`Run`.
    """
    generator = torch.Generator().manual_seed(seed)
    held_out = corpus.held_out_batches(settings.batch, config.context, settings.eval_batches)
    held_out = [(x.to(device), y.to(device)) for x, y in held_out]
    runs = {name: Run(_parameters(model)) for name, model in models.items()}
    optimisers = {
        # Fused: without it the dense twin, with four times the parameters, would lose the most.
        name: torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), fused=True)
        for name, model in models.items()
    }
    eval_every = max(1, settings.steps // settings.evaluations)
    for step in range(settings.steps):
        characters, targets = corpus.batch(settings.batch, config.context, generator)
        characters, targets = characters.to(device), targets.to(device)
        for name, model in models.items():
            optimiser, run = optimisers[name], runs[name]
            optimiser.param_groups[0]["lr"] = _rate(step, settings)
            _synchronize(device)
            start = time.perf_counter()
            loss = _loss(model, characters, targets)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            _synchronize(device)
            run.step_seconds.append(time.perf_counter() - start)
            run.train_loss.append(loss.item())
        done = step + 1
        if done % eval_every == 0 or done == settings.steps:
            for name, model in models.items():
                runs[name].held_out.append((done, evaluate(model, held_out)))
        on_step(done, runs)
    return runs


def precision(device: torch.device) -> torch.autocast:
    """Products in bfloat16 on a GPU, as is usual there, and in float32 on a CPU."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def evaluate(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Mean loss in nats per character over equally large batches."""
    return sum(_loss(model, x, y).item() for x, y in batches) / len(batches)


def _loss(model: nn.Module, characters: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats per character."""
    with precision(characters.device):
        return F.cross_entropy(model(characters).flatten(0, 1), targets.flatten())


def _rate(step: int, settings: TrainConfig) -> float:
    warm = max(1, settings.steps // 10)
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    progress = (step - warm) / max(1, settings.steps - warm)
    return settings.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
