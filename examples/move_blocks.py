"""Train a sparse layer whose blocks move to where they are needed.

A student learns what a teacher of the same size and density computes, without knowing which blocks
the teacher stores. Once its blocks stay where chance has put them; once every few steps those with
the smallest norm go, and others grow: at random, or where the gradient is largest.

    python examples/move_blocks.py
"""

from __future__ import annotations

import contextlib
from typing import Literal

import torch

import jitsparse as js

FEATURES, BLOCK, DENSITY = 256, 16, 0.125
STEPS, BATCH, EVERY = 300, 256, 10


def train(
    teacher: js.nn.BlockSparseLinear, grow: Literal["gradient", "random"] | None
) -> tuple[float, float]:
    """A student's loss on data that it has not seen, and how many of the teacher's blocks it has.

    Args:
        teacher: whose outputs are learned.
        grow: where blocks grow; None if they stay where they are.
    """
    torch.manual_seed(1)
    device = teacher.values.device
    student = js.nn.BlockSparseLinear(FEATURES, FEATURES, BLOCK, density=DENSITY, device=device)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    moving = grow and js.nn.DropAndGrow(
        student, optimizer, every=EVERY, until=STEPS * 3 // 4, grow=grow
    )
    for _ in range(STEPS):
        x = torch.randn(BATCH, FEATURES, device=device)
        optimizer.zero_grad()
        with moving.watching() if moving else contextlib.nullcontext():
            torch.nn.functional.mse_loss(student(x), teacher(x).detach()).backward()
        optimizer.step()
        if moving:
            moving.step()
    with torch.no_grad():
        x = torch.randn(4096, FEATURES, device=device)
        loss = torch.nn.functional.mse_loss(student(x), teacher(x)).item()
    found = student.pattern & teacher.pattern
    return loss, found.nnz_blocks / teacher.pattern.nnz_blocks


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = js.nn.BlockSparseLinear(FEATURES, FEATURES, BLOCK, density=DENSITY, device=device)
    print(f"{teacher.pattern.nnz_blocks} blocks of {BLOCK} x {BLOCK}, {DENSITY:.1%} of the layer")
    for grow, what in ((None, "stay"), ("random", "grow at random"), ("gradient", "by gradient")):
        loss, found = train(teacher, grow)
        print(f"blocks {what}: held-out loss {loss:.2g}, {found:.0%} of the teacher's blocks")


if __name__ == "__main__":
    main()
