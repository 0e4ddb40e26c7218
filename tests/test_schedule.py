"""The packed index against a construction in plain Python loops, panels included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jitsparse as js
from jitsparse.schedule import PANEL, IndexLayout, build_index

Blocks = list[tuple[int, int]]


def naive(blocks: Blocks, rows: int, cols: int) -> dict[str, list[int]]:
    """Orders of a list of (row, column) that is sorted by row, then column."""
    by_column = sorted(range(len(blocks)), key=lambda z: blocks[z][::-1])
    return {
        "crow_indices": [sum(r < row for r, _ in blocks) for row in range(rows + 1)],
        "col_indices": [c for _, c in blocks],
        "row_indices": [r for r, _ in blocks],
        "ccol_indices": [sum(c < col for _, c in blocks) for col in range(cols + 1)],
        "row_indices_t": [blocks[z][0] for z in by_column],
        "perm": by_column,
    }


def naive_panels(
    blocks: Blocks, majors: int, group: int
) -> tuple[list[tuple[int, int, int, int]], list[int], list[int]]:
    """Steps, panel pointers and block order for (major, minor) blocks."""
    steps: list[tuple[int, int, int, int]] = []
    pointers, order = [0], []
    for panel in range(-(-majors // group)):
        members = {
            (minor, major % group): z
            for z, (major, minor) in enumerate(blocks)
            if major // group == panel
        }
        for minor in sorted({minor for minor, _ in members}):
            lanes = sorted(lane for m, lane in members if m == minor)
            steps.append((minor, sum(1 << lane for lane in lanes), len(order), 0))
            order += [members[minor, lane] for lane in lanes]
        pointers.append(len(steps))
    return steps, pointers, order


def check(mask: torch.Tensor, block_size: tuple[int, int]) -> None:
    rows, cols = mask.shape
    pattern = js.Pattern.from_mask(mask, block_size)
    blocks = [(r, c) for r, c in mask.nonzero().tolist()]
    layout = IndexLayout(rows, cols, len(blocks), block_size, panels=True)
    index = build_index(pattern.crow_indices, pattern.col_indices, cols, block_size, panels=True)
    assert index.dtype == torch.int32
    assert index.shape == (layout.size,)
    for name, expected in naive(blocks, rows, cols).items():
        assert layout.view(index, name).tolist() == expected, name
    sides = {
        "row": (blocks, rows, block_size[0]),
        "col": ([b[::-1] for b in blocks], cols, block_size[1]),
    }
    for side, (pairs, majors, extent) in sides.items():
        steps, pointers, order = naive_panels(pairs, majors, max(1, PANEL // extent))
        offset, _ = layout.parts()[f"{side}_steps"]
        assert offset % 4 == 0, "a step is read as one 16-byte load"
        got = layout.view(index, f"{side}_steps").view(-1, 4)[: len(steps)].tolist()
        assert got == [list(step) for step in steps], side
        assert layout.view(index, f"{side}_panel_ptr").tolist() == pointers, side
        assert layout.view(index, f"{side}_panel_blocks").tolist() == order, side
    # Without panels the index is the beginning of the same.
    plain = build_index(pattern.crow_indices, pattern.col_indices, cols, block_size, panels=False)
    head = IndexLayout(rows, cols, len(blocks), block_size, panels=False)
    assert torch.equal(plain, index[: head.size])


@given(
    rows=st.integers(0, 40),
    cols=st.integers(0, 40),
    block=st.tuples(
        st.sampled_from(js.pattern.BLOCK_SIZES), st.sampled_from(js.pattern.BLOCK_SIZES)
    ),
    density=st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_index_is_what_loops_would_build(
    rows: int, cols: int, block: tuple[int, int], density: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    check(torch.rand((rows, cols), generator=generator) < density, block)


def test_empty_rows_and_columns() -> None:
    mask = torch.zeros(20, 18, dtype=torch.bool)
    mask[3, 4] = mask[3, 17] = mask[19, 4] = True
    check(mask, (8, 8))
    check(mask, (128, 16))


def test_parts_lie_where_the_header_says() -> None:
    """The order of the parts, which csrc/abi.h repeats."""
    layout = IndexLayout(rows=3, cols=5, nnz=7, block_size=(32, 128), panels=True)
    assert layout.parts() == {
        "crow_indices": (0, 4),
        "col_indices": (4, 7),
        "row_indices": (11, 7),
        "ccol_indices": (18, 6),
        "row_indices_t": (24, 7),
        "perm": (31, 7),
        "padding": (38, 2),
        "row_steps": (40, 28),
        "col_steps": (68, 28),
        "row_panel_ptr": (96, 2),
        "col_panel_ptr": (98, 6),
        "row_panel_blocks": (104, 7),
        "col_panel_blocks": (111, 7),
    }
    assert layout.size == 118


@pytest.mark.parametrize("panels", [False, True])
def test_meta_indices_have_the_size_of_real_ones(panels: bool) -> None:
    pattern = js.Pattern.random((100, 100), 8, 0.3)
    sizes = [
        build_index(crow, col, 13, (8, 8), panels=panels).shape
        for crow, col in [
            (pattern.crow_indices, pattern.col_indices),
            (pattern.crow_indices.to("meta"), pattern.col_indices.to("meta")),
        ]
    ]
    assert sizes[0] == sizes[1]
