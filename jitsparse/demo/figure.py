"""The picture that the demonstration ends with: loss curves, and where one layer's blocks are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitsparse.demo.run import Demo

__all__ = ["draw", "missing_library"]

COLORS = {"dense": "#8a8f98", "sparse": "#d1495b"}
SMOOTHING = 10
"""Steps averaged for each point of the training curve."""


def missing_library() -> str | None:
    """What to print if the picture cannot be drawn, or None if it can."""
    if find_spec("matplotlib") is not None:
        return None
    return (
        "matplotlib is not installed, so demo.json is written and demo.png is not; "
        "to get both: pip install 'jitsparse[viz]'"
    )


def draw(demo: Demo, path: Path) -> Path:
    """Draw a finished run.

    Args:
        demo: after ``train``.
        path: of the PNG.
    """
    # Figure and not pyplot: no backend is chosen for the process, no window can open.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    losses, pattern_axes = figure.subplots(1, 2, width_ratios=(1.6, 1))
    for name, run in demo.runs.items():
        color, smooth = COLORS[name], _running_mean(run.train_loss)
        label = (
            f"{name}: {run.parameters / 1e6:.1f} M parameters, {run.median_step_ms:.0f} ms a step"
        )
        losses.plot(range(1, len(smooth) + 1), smooth, color=color, alpha=0.35, linewidth=1)
        losses.plot(*zip(*run.held_out, strict=True), color=color, marker="o", ms=4, label=label)
    losses.set_xlabel("step")
    losses.set_ylabel("loss (nats a character)")
    losses.set_title("Held-out loss (dots) and training loss", loc="left", fontsize=11)
    losses.grid(alpha=0.2)
    losses.legend(frameon=False)
    losses.spines[["top", "right"]].set_visible(False)

    # The loss of the first steps falls so far that the rest would look flat.
    losses.set_ylim(top=max(loss for run in demo.runs.values() for _, loss in run.held_out) + 0.5)

    sparse = demo.models["sparse"]
    name, layer = next((n, m) for n, m in sparse.named_modules() if n.endswith("proj"))
    layer.pattern.spy(pattern_axes)
    pattern_axes.set_title(f"{name}\n{pattern_axes.get_title()}", fontsize=11)
    pattern_axes.set_xlabel("input features")
    pattern_axes.set_ylabel("output features")
    figure.savefig(path, dpi=150)
    return path


def _running_mean(values: list[float]) -> list[float]:
    means = []
    for i in range(len(values)):
        window = values[max(0, i - SMOOTHING + 1) : i + 1]
        means.append(sum(window) / len(window))
    return means
