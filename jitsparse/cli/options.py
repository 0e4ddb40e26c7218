"""Values of options that several commands take; what is wrong with one is a ValueError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from jitsparse.cli.console import split
from jitsparse.jit import Variant, config
from jitsparse.kernels import registry

__all__ = ["one_of", "read_density", "read_size", "variant_filter"]


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


def variant_filter(
    op: Sequence[str],
    dtype: Sequence[str],
    block_size: Sequence[str],
    arch: Sequence[str],
    patterns: Sequence[str] = (),
) -> Callable[[Variant], bool]:
    """Whether a variant is among what these options name; an option that is not given admits all.

    Raises:
        typer.BadParameter: an operation, dtype, block size or target that there cannot be.
    """
    ops = set(split(op, one_of(registry.OPS)))
    dtypes = set(split(dtype, one_of(registry.DTYPES)))
    blocks = {f"{rows}x{cols}" for rows, cols in split(block_size, registry.parse_block_size)}
    targets = {name for names in split(arch, config.parse_arch) for name in names}

    def keep(variant: Variant) -> bool:
        return (
            (not ops or variant.op in ops)
            and (not dtypes or variant.dtype in dtypes)
            and (not blocks or dict(variant.knobs).get("b") in blocks)
            and (not targets or variant.target in targets)
            and (not patterns or any(fnmatchcase(variant.name, each) for each in patterns))
        )

    return keep
