"""Values of options that several commands take; what is wrong with one is a ValueError."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["one_of", "read_density", "read_size"]


def one_of(legal: Sequence[str]) -> Callable[[str], str]:
    """A reader of names."""

    def read(text: str) -> str:
        if text not in legal:
            raise ValueError(f"not one of {', '.join(legal)}")
        return text

    return read


def read_size(text: str) -> tuple[int, ...]:
    """``"512"`` or ``"512x256x128"`` as ``(m, n, k)``."""
    sides = tuple(int(side) for side in text.lower().split("x"))
    if len(sides) not in (1, 3) or min(sides) < 1:
        raise ValueError("a size is m = n = k, or MxNxK, each at least 1")
    return sides * 3 if len(sides) == 1 else sides


def read_density(text: str) -> float:
    """A share of blocks."""
    density = float(text)
    if not 0 < density <= 1:
        raise ValueError("a density is above 0 and at most 1")
    return density
