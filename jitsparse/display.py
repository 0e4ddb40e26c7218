"""Displaying a pattern: a map in characters, and a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import torch

from jitsparse.checks import is_fake
from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jitsparse.pattern import Pattern

__all__ = ["character_map", "plot"]


def character_map(pattern: Pattern, max_rows: int, max_cols: int) -> str:
    """What :meth:`Pattern.to_string <jitsparse.Pattern.to_string>` returns."""
    for most in (max_rows, max_cols):
        if not isinstance(most, SupportsIndex) or most.__index__() < 1:
            raise ArgumentError(
                f"max_rows and max_cols are ints above 0, got {max_rows!r} and {max_cols!r}"
            )
    if pattern.device.type == "meta":
        return "(on the meta device: no data)"
    if is_fake(pattern.col_indices):
        return "(fake: no data)"
    rows, cols = pattern.grid
    lines, columns = min(rows, max_rows), min(cols, max_cols)
    if not lines or not columns:
        return "(no blocks)"
    line_of = torch.arange(rows, device="cpu") * lines // rows
    column_of = torch.arange(cols, device="cpu") * columns // cols
    cell = line_of[pattern._rows.cpu().long()] * columns
    cell += column_of[pattern.col_indices.cpu().long()]
    stored = torch.bincount(cell, minlength=lines * columns).view(lines, columns)
    room = torch.outer(line_of.bincount(), column_of.bincount())
    shade = (stored > 0).long() + (3 * stored >= room) + (3 * stored >= 2 * room)
    shade += stored == room
    return "\n".join("".join(".-+*#"[s] for s in line) for line in shade.tolist())


def plot(pattern: Pattern, ax: Axes | None) -> Axes:
    """What :meth:`Pattern.spy <jitsparse.Pattern.spy>` does."""
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                f"spy needs matplotlib ({error}): pip install 'jitsparse[viz]'"
            ) from error

        ax = plt.subplots()[1]
    rows, cols = pattern.shape
    block_rows, block_cols = pattern.block_size
    grid_rows, grid_cols = pattern.grid
    ax.imshow(
        pattern.to_mask().cpu().numpy(),
        cmap="Greys",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        aspect="equal",
        extent=(0, grid_cols * block_cols, grid_rows * block_rows, 0),
    )
    ax.set_title(f"{rows} x {cols}, blocks of {block_rows} x {block_cols}, {pattern.density:.1%}")
    return ax
