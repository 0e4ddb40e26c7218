"""Train a sparse layer whose blocks move to where they are needed.

A student learns what a teacher of the same size and density computes, without knowing which blocks
the teacher stores. Once its blocks stay where chance has put them; once every few steps those with
the smallest norm go, and those grow that have the largest gradient among all that are not stored.
That is RigL (Evci et al., 2020, https://arxiv.org/abs/1911.11134), by blocks. The gradient of what
is not stored is an ``sdd``, of a few block rows at a time, so no dense matrix is ever made.

    python examples/move_blocks.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import jitsparse as js

FEATURES, BLOCK, DENSITY = 256, 16, 0.125
STEPS, BATCH, EVERY = 300, 256, 10
SLICE = 4
"""Block rows whose gradients are in memory at a time."""
FIRST_FRACTION = 0.3
"""Of the blocks that move the first time; less and less do, and none in the last quarter."""


def move_blocks(
    layer: js.nn.BlockSparseLinear,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    grad_output: Tensor,
    count: int,
) -> None:
    """Have the ``count`` weakest blocks give way to those whose gradient is largest.

    Args:
        layer: to change, between a step and the next forward pass.
        optimizer: that trains it: its state moves along.
        x, grad_output: an input of the layer, ``(batch, in)``, and the gradient of its output.
        count: of blocks.
    """
    pattern = layer.pattern
    norms = layer.weight.block_norms()
    kept = norms.topk(len(norms) - count).indices

    absent = ~pattern.to_mask()
    grown = norms_of_gradients(absent, x, grad_output).topk(count).indices
    new_rows, new_cols = absent.nonzero()[grown].T

    rows = torch.cat([pattern.row_indices[kept], new_rows])
    cols = torch.cat([pattern.col_indices[kept], new_cols])
    moved = js.Pattern.from_indices(rows, cols, pattern.block_size, pattern.shape)
    layer.set_pattern(moved, optimizer)


def norms_of_gradients(mask: Tensor, x: Tensor, grad_output: Tensor) -> Tensor:
    """The norm of the weight's gradient in each block of a mask, in the order of its rows."""
    norms = []
    slices = grad_output.split(SLICE * BLOCK, dim=1)
    for rows, gradient in zip(mask.split(SLICE), slices, strict=True):
        shape = gradient.shape[1], x.shape[1]
        some = js.Pattern.from_mask(rows, BLOCK, shape)
        norms.append(js.sdd(gradient.mT, x, some).block_norms())
    return torch.cat(norms)


def train(teacher: js.nn.BlockSparseLinear, moves: bool) -> tuple[float, float]:
    """A student's loss on data that it has not seen, and how many of the teacher's blocks it has.

    Args:
        teacher: whose outputs are learned.
        moves: whether blocks move.
    """
    torch.manual_seed(1)
    device = teacher.values.device
    student = js.nn.BlockSparseLinear(FEATURES, FEATURES, BLOCK, density=DENSITY, device=device)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    for step in range(STEPS):
        x = torch.randn(BATCH, FEATURES, device=device)
        y = student(x)
        y.retain_grad()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(y, teacher(x).detach()).backward()
        optimizer.step()
        progress = step / (0.75 * STEPS)
        if moves and step % EVERY == 0 and progress < 1:
            fraction = FIRST_FRACTION * (1 + math.cos(math.pi * progress)) / 2
            move_blocks(student, optimizer, x, y.grad, round(fraction * student.pattern.nnz_blocks))
    with torch.no_grad():
        x = torch.randn(4096, FEATURES, device=device)
        loss = torch.nn.functional.mse_loss(student(x), teacher(x)).item()
    found = student.pattern.to_mask() & teacher.pattern.to_mask()
    return loss, found.sum().item() / teacher.pattern.nnz_blocks


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = js.nn.BlockSparseLinear(FEATURES, FEATURES, BLOCK, density=DENSITY, device=device)
    print(f"{teacher.pattern.nnz_blocks} blocks of {BLOCK} x {BLOCK}, {DENSITY:.1%} of the layer")
    for moves in (False, True):
        loss, found = train(teacher, moves)
        where = "move" if moves else "stay"
        print(f"blocks {where}: held-out loss {loss:.2g}, {found:.0%} of the teacher's blocks")


if __name__ == "__main__":
    main()
