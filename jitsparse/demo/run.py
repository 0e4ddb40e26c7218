"""The demonstration from beginning to end, and the figures it ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from jitsparse import jit
from jitsparse.bench.report import header, processor
from jitsparse.demo.corpus import load_corpus
from jitsparse.demo.model import MODELS, ModelConfig, build_twins
from jitsparse.demo.train import SETTINGS, Run, precision, train, warm_up
from jitsparse.explain import explain
from jitsparse.jit import cache, config
from jitsparse.nn import BlockSparseLinear

__all__ = ["Demo"]

TRAINING_SECONDS = 75.0
"""If the default number of steps would take longer, there are fewer."""

MIN_STEPS = 20


class Demo:
    """One run: build, :meth:`warm_up`, :meth:`train`, then read the figures.

    Args:
        device: where to train.
        steps: optimiser steps of each model; by default what suits the device, or as many as a slow
            one can do in :data:`TRAINING_SECONDS`.
        seed: of initial weights, patterns and batches.
        config: sizes of the models; by default what suits the device.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        steps: int | None = None,
        seed: int = 0,
        config: ModelConfig | None = None,
    ) -> None:
        self.device = device
        self.seed = seed
        self.config = config or MODELS[device.type]
        self._fixed_steps = steps is not None
        settings = SETTINGS[device.type]
        self.settings = settings if steps is None else replace(settings, steps=steps)
        self.corpus = load_corpus()
        twins = build_twins(self.config, seed)
        self.models = {name: model.to(device) for name, model in twins.items()}
        self.runs: dict[str, Run] = {}
        self._compile_seconds = dict.fromkeys(self.models, 0.0)

    def description(self) -> str:
        """What is about to be trained, on what, where."""
        config, corpus = self.config, self.corpus
        return (
            f"{config.layers} layers of width {config.width}, {config.density:.0%} of "
            f"{config.block_size} x {config.block_size} blocks, on {processor(self.device)}; text: "
            f"{corpus.files} files of {corpus.root}, {corpus.train.numel():,} characters to train "
            f"on and {corpus.held_out.numel():,} held out"
        )

    def warm_up(self) -> list[jit.Entry]:
        """Compile what training needs, and set the number of steps if none was asked for.

        Returns:
            Cache entries of the kernels that were compiled. Kernels already in the cache are not
            among them and add no compile seconds.
        """
        compiled: list[jit.Entry] = []
        step_seconds = 0.0
        for name, model in self.models.items():
            before = {entry.path for entry in cache.current().entries()}
            with config.override(first_use="wait"):  # a step of plain torch does not count
                step_seconds += warm_up(model, self.config, self.settings, self.device)
            fresh = [entry for entry in cache.current().entries() if entry.path not in before]
            self._compile_seconds[name] = sum(entry.compile_seconds for entry in fresh)
            compiled += fresh
        if not self._fixed_steps:
            possible = max(MIN_STEPS, int(TRAINING_SECONDS / step_seconds))
            self.settings = replace(self.settings, steps=min(self.settings.steps, possible))
        return sorted(compiled, key=lambda entry: entry.created)

    @property
    def compiled(self) -> bool:
        """Whether the sparse model runs on kernels; without a compiler it runs on plain torch."""
        layer = next(m for m in self.models["sparse"].modules() if isinstance(m, BlockSparseLinear))
        rows = self.settings.batch * self.config.context
        x = layer.values.new_zeros(rows, layer.in_features)
        with precision(self.device):
            return explain("linear", x, layer.weight, layer.bias).cached

    def train(self, on_step: Callable[[int, str], None] = lambda done, text: None) -> None:
        """Train both models; ``on_step`` gets the number of steps done and the losses as text."""

        def report(done: int, runs: dict[str, Run]) -> None:
            losses = (f"{name} {run.train_loss[-1]:.3f}" for name, run in runs.items())
            on_step(done, "loss " + ", ".join(losses))

        self.runs = train(
            self.models,
            self.corpus,
            self.config,
            self.settings,
            device=self.device,
            seed=self.seed,
            on_step=report,
        )
        for name, run in self.runs.items():
            run.compile_seconds = self._compile_seconds[name]

    def summary(self) -> dict[str, Any]:
        """Model to its figures: parameters, step time, held-out loss, compile seconds."""
        return {
            name: {
                "parameters": run.parameters,
                "step_ms": run.median_step_ms,
                "held_out_loss": run.held_out[-1][1],
                "compile_s": run.compile_seconds,
            }
            for name, run in self.runs.items()
        }

    def table(self) -> list[dict[str, object]]:
        """The rows that the command prints."""
        return [
            {
                "model": name,
                "parameters": f"{row['parameters']:,}",
                "step time (ms)": f"{row['step_ms']:.1f}",
                "held-out loss (nats/char)": f"{row['held_out_loss']:.3f}",
                "compile seconds": f"{row['compile_s']:.1f}",
            }
            for name, row in self.summary().items()
        ]

    def write_json(self, path: Path) -> Path:
        """Write every figure of the run, and where and by which command it was measured."""
        runs = {
            name: {
                **self.summary()[name],
                "train_loss": run.train_loss,
                "held_out": run.held_out,
                "step_seconds": run.step_seconds,
            }
            for name, run in self.runs.items()
        }
        path.write_text(
            json.dumps({"measured": header(self.device), "runs": runs}, indent=1), encoding="utf-8"
        )
        return path
