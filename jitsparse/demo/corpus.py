"""Real text that every machine has: the source of Python's own standard library."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from jitsparse.errors import JitsparseError

__all__ = ["VOCABULARY", "Corpus", "load_corpus"]

VOCABULARY = 128
"""Characters the model knows: ASCII. Every other byte is read as 127, which no source file uses."""

HELD_OUT_EVERY = 10


@dataclass(frozen=True)
class Corpus:
    """Text split by file, so that no held-out line has a neighbour in the training text.

    Attributes:
        train: ``(characters,)`` int64, values below :data:`VOCABULARY`.
        held_out: ``(characters,)`` int64.
        files: how many files were read.
        root: the directory they came from.
    """

    train: Tensor
    held_out: Tensor
    files: int
    root: Path

    def batch(self, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random training windows.

        Returns:
            ``(size, context)`` characters and, of the same shape, the character after each.
        """
        starts = torch.randint(self.train.numel() - context, (size,), generator=generator)
        return _windows(self.train, starts, context)

    def held_out_batches(self, size: int, context: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """``count`` batches of windows spread evenly over the held-out text, always the same."""
        last = self.held_out.numel() - context - 1
        starts = torch.linspace(0, last, size * count, dtype=torch.float64).long()
        return [_windows(self.held_out, part, context) for part in starts.split(size)]


def load_corpus(root: Path | None = None) -> Corpus:
    """Read the top-level modules of the standard library in the order of their names.

    Every tenth file is held out.

    Args:
        root: another directory of Python files, by default the interpreter's own library.

    Raises:
        JitsparseError: the directory holds too little source (a stripped-down Python).
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    files = sorted(root.glob("*.py"), key=lambda path: path.name)
    texts = [_encode(path.read_bytes()) for path in files]
    held_out = [text for i, text in enumerate(texts) if i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    train = [text for i, text in enumerate(texts) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    if sum(text.numel() for text in held_out) < 10_000:
        raise JitsparseError(
            f"the demo trains on the Python sources in {root}, but there are only {len(files)} of "
            "them there; run it with a Python that ships its standard library as .py files"
        )
    return Corpus(torch.cat(train), torch.cat(held_out), len(files), root)


def _encode(data: bytes) -> Tensor:
    # bytearray: torch.frombuffer warns about memory it must not write to.
    return torch.frombuffer(bytearray(data or b"\n"), dtype=torch.uint8).long().clamp_(max=127)


def _windows(text: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    windows = text[starts[:, None] + torch.arange(context + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
