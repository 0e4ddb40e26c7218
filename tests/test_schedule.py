"""The packed index against a construction in plain Python loops, panels included."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from graphlib import TopologicalSorter

import cases
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jitsparse as js
from jitsparse import gathers
from jitsparse.layout import PANEL_WORDS, Gather, IndexLayout
from jitsparse.pairs import pair_rows, triple_rows
from jitsparse.panels import HOPPER_BLOCK, MIN_DEPTH, PAIRED, PANEL, SLAB, TALL_PANEL
from jitsparse.schedule import build_index

Blocks = list[tuple[int, int]]

TALL_BLOCKS = {(64, 16), (64, 32), (64, 64)}
"""Height and depth of blocks that have panels of 192 rows."""


def naive(blocks: Blocks, rows: int, cols: int) -> dict[str, list[int]]:
    """Orders of a list of (row, column) that is sorted by row, then column."""
    by_column = sorted(range(len(blocks)), key=lambda z: blocks[z][::-1])
    of_row, of_col = [r for r, _ in blocks], [c for _, c in blocks]
    sorted_cols = sorted(of_col)
    return {
        "crow_indices": [bisect_left(of_row, row) for row in range(rows + 1)],
        "col_indices": of_col,
        "row_indices": of_row,
        "ccol_indices": [bisect_left(sorted_cols, col) for col in range(cols + 1)],
        "row_indices_t": [blocks[z][0] for z in by_column],
        "perm": by_column,
    }


def naive_panels(
    blocks: Blocks, majors: int, down: int, across: int = 1
) -> tuple[list[list[int]], list[int], list[int]]:
    """Steps, panel pointers and block order for (major, minor) blocks."""
    steps: list[list[int]] = []
    pointers, order = [0], []
    members: list[dict[int, dict[int, int]]] = [{} for _ in range(-(-majors // down))]
    for z, (major, minor) in enumerate(blocks):
        bit = major % down * across + minor % across
        members[major // down].setdefault(minor // across, {})[bit] = z
    for of_panel in members:
        for slab, bits in sorted(of_panel.items()):
            mask = sum(1 << bit for bit in bits)
            steps.append([slab, mask - (mask >> 31 << 32), len(order), bits[min(bits)]])
            order += [bits[bit] for bit in sorted(bits)]
        pointers.append(len(steps))
    return steps, pointers, order


def condensed_by(blocks: Blocks, down: int, across: int) -> tuple[Blocks, list[list[int]]]:
    """The blocks with the rank of their column in their panel in its place, and the columns that
    stand behind the ranks of each step."""
    of_panels: dict[int, set[int]] = {}
    for major, minor in blocks:
        of_panels.setdefault(major // down, set()).add(minor)
    ordered = {panel: sorted(minors) for panel, minors in of_panels.items()}
    ranked = [(major, ordered[major // down].index(minor)) for major, minor in blocks]
    columns = [
        (minors + [-1] * across)[at : at + across]
        for _, minors in sorted(ordered.items())
        for at in range(0, len(minors), across)
    ]
    return ranked, columns


def chosen_rows(
    choose: Callable[..., torch.Tensor], down: int, blocks: Blocks, majors: int, minors: int
) -> tuple[Blocks, list[list[int]]]:
    """The blocks by the places of their rows, and the rows of each panel (tests/test_pairs.py holds
    these against their rule)."""
    majors_of, minors_of = torch.tensor(blocks, dtype=torch.int64).view(-1, 2).unbind(1)
    order = choose(majors_of, minors_of, majors, minors).tolist()
    rows = [order[at : at + down] + [0] * (3 - down) for at in range(0, len(order), down)]
    place = {major: at for at, major in enumerate(order)}
    return [(place[major], minor) for major, minor in blocks], rows


def check_walked(
    layout: IndexLayout,
    index: torch.Tensor,
    parts: tuple[str, str],
    steps: list[list[int]],
    pointers: list[int],
    starts: list[list[int]],
) -> None:
    """The panels come longest first, with where their rows begin and their first steps; their own
    steps come in any order that sixteen of them share."""
    panels_part, steps_part = parts
    found = rows_of_four(layout, index, steps_part)
    panels = list(enumerate(itertools.pairwise(pointers)))
    panels.sort(key=lambda panel: panel[1][0] - panel[1][1])
    rows = layout.view(index, panels_part).view(-1, PANEL_WORDS).tolist()
    assert len(rows) == len(panels)
    for row, (panel, (begin, end)) in zip(rows, panels, strict=True):
        assert row[:8] == [begin, end, 0, 0, *starts[panel], 0]
        assert sorted(found[begin:end]) == steps[begin:end]
        first = [*itertools.chain(*found[begin : min(end, begin + 4)])]
        assert row[8:] == first + [0] * (16 - len(first))
    for at in range(0, len(panels), 16):
        after: dict[int, set[int]] = {}
        for _, (begin, end) in panels[at : at + 16]:
            for step, (slab, *_) in enumerate(found[begin:end], begin):
                after.setdefault(slab, set()).update(each[0] for each in found[step + 1 : end])
        TopologicalSorter(after).prepare()  # which raises where two panels disagree


def rows_of_four(layout: IndexLayout, index: torch.Tensor, part: str) -> list[list[int]]:
    offset, _ = layout.parts()[part]
    assert offset % 4 == 0, "read as 16-byte words"
    return layout.view(index, part).view(-1, 4).tolist()


Half = tuple[int, int, int]
"""Of a warpgroup: a panel, its first step, and the end of its steps."""


def halves_of_tiles(
    layout: IndexLayout, index: torch.Tensor, part: str
) -> tuple[list[int], list[tuple[Half, Half]]]:
    offset, _ = layout.parts()[part]
    assert offset % 4 == 0, "read as 16-byte words"
    head, *tiles = layout.view(index, part).view(-1, 8).tolist()
    assert not any(head[4:])
    assert not any(each[3] or each[7] for each in tiles)
    return head[:4], [((a, b, c), (d, e, f)) for a, b, c, _, d, e, f, _ in tiles[: head[0]]]


def check_gathers(layout: IndexLayout, index: torch.Tensor, side: str, blocks: Blocks) -> None:
    """The tiles of an sdd hold every step once, of one panel or of two that store the same columns,
    and no more than allowed. Blocks of 128 have two steps."""
    gather = layout.gathers()[side]
    majors = layout.rows if side == "row" else layout.cols
    halves_of = 2 if layout.block_size[side == "row"] == 128 else 1
    assert gather.block * halves_of == layout.block_size[side == "row"]
    pieces = [(major, minor * halves_of + n) for major, minor in blocks for n in range(halves_of)]
    expected, pointers, order = naive_panels(pieces, majors, gather.down)
    steps = rows_of_four(layout, index, f"{side}_gather_steps")[: len(expected)]
    for begin, end in itertools.pairwise(pointers):
        assert sorted(steps[begin:end]) == expected[begin:end]
    assert layout.view(index, f"{side}_gather_blocks").tolist() == order
    for kind in ("gather", "wide"):
        (_, most_of_one, most_of_two, step), tiles = halves_of_tiles(
            layout, index, f"{side}_{kind}_tiles"
        )
        seen: list[int] = []
        widths: dict[bool, list[int]] = {False: [0], True: [0]}
        for first, second in tiles:
            two = first[0] != second[0]
            halves = [first] if first == second else [first, second]
            for panel, begin, end in halves:
                assert pointers[panel] <= begin <= end <= pointers[panel + 1]
                seen += range(begin, end)
            if gather.height == 128:
                assert first == second
                width = first[2] - first[1]
            elif two:
                columns = [[steps[n][0] for n in range(*half[1:])] for half in halves]
                assert columns[0] == columns[1]
                assert first[0] < second[0]
                width = first[2] - first[1]
                assert gather.fewest <= width <= gather.most // 2
            else:
                assert first[2] == second[1]
                width = second[2] - first[1]
                assert first[2] - first[1] == -(-width // 2)
            assert 0 < width <= gather.most
            widths[two].append(width)
        assert sorted(seen) == list(range(len(steps)))
        assert [most_of_one, most_of_two] == [max(widths[False]), max(widths[True])]
        if kind == "wide":
            assert most_of_two == 0
            assert tiles == sorted(tiles)
            assert step == (128 if tiles else 0)
        else:
            check_order(gather, steps, tiles)
            assert step == wgmma_step(gather, tiles)


def wgmma_step(gather: Gather, tiles: list[tuple[Half, Half]]) -> int:
    """64 where the busiest CTA multiplies so much that it pays, else 128."""
    loaded, narrow, wide = [], [], []
    for (panel, begin, middle), (other, start, end) in tiles:
        first, second = (middle - begin) * gather.block, (end - start) * gather.block
        alone = panel == other and gather.height == 64
        rows = gather.height * (1 if panel == other else 2)
        loaded.append(rows + (first + second if alone else first))
        for step, multiplied in ((64, narrow), (128, wide)):
            multiplied.append(sum(-(-each // step) * step for each in (first, second)))

    def busiest(costs: list[int]) -> int:
        """They are dealt out to and fro, the longest first."""
        sms, done = gathers.SMS, [0] * gathers.SMS
        for n, each in enumerate(sorted(costs, reverse=True)):
            turn = n % sms if n // sms % 2 == 0 else sms - 1 - n % sms
            done[turn] += each
        return max(done)

    if not tiles:
        return 0
    pays = busiest(wide) >= 1.12 * busiest(loaded) or busiest(wide) >= 1.25 * busiest(narrow)
    return 64 if pays else 128


def check_order(gather: Gather, steps: list[list[int]], tiles: list[tuple[Half, Half]]) -> None:
    """Tiles of two panels, then the panels of a group by their columns; of two to six rounds those
    first that load most."""
    count, group, sms = len(tiles), 1, gathers.SMS
    if count > max(sms, 16 * gather.panels if gather.height == 128 else 0):
        group = max(1, (2 * sms * gather.panels + count // 2) // count)

    def place(tile: tuple[Half, Half]) -> tuple[int, ...]:
        (panel, begin, _), (other, _, end) = tile
        columns = steps[begin][0] + steps[end - 1][0]
        key = (0,) if panel != other else (1, panel // group, columns)
        return (*key, panel, begin)

    def load(tile: tuple[Half, Half]) -> int:
        (panel, begin, _), (other, start, end) = tile
        if panel != other:
            return end - start + gather.height // gather.block
        return end - begin

    expected = sorted(tiles, key=place)
    if count > sms:
        starts = [4 * sms * n for n in range(max(1, (count + 2 * sms) // (4 * sms)))]
        runs = [expected[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        expected = [tile for run in runs for tile in sorted(run, key=load, reverse=True)]
    assert tiles == expected


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
        "row": (blocks, rows, *block_size),
        "col": ([b[::-1] for b in blocks], cols, *block_size[::-1]),
    }
    for side, (pairs, majors, extent, depth) in sides.items():
        down, minors = max(1, PANEL // extent), cols if side == "row" else rows
        placed = pairs
        starts = [[2 * panel, 2 * panel + 1, 0] for panel in range(-(-majors // down))]
        if extent == PAIRED and min(block_size) >= HOPPER_BLOCK:
            placed, starts = chosen_rows(pair_rows, 2, pairs, majors, minors)
        steps, pointers, order = naive_panels(placed, majors, down)
        assert layout.view(index, f"{side}_panel_ptr").tolist() == pointers, side
        assert layout.view(index, f"{side}_panel_blocks").tolist() == order, side
        walked = f"{side}_panels_sorted" in layout.parts()
        assert walked == (min(block_size) >= HOPPER_BLOCK and depth >= MIN_DEPTH)
        if walked:
            names = f"{side}_panels_sorted", f"{side}_steps"
            check_walked(layout, index, names, steps, pointers, starts)
        else:
            assert rows_of_four(layout, index, f"{side}_steps")[: len(steps)] == steps, side
        if min(block_size) < HOPPER_BLOCK:
            continue
        check_gathers(layout, index, side, pairs)
        slabs = {"slab": PANEL} if depth < SLAB else {}
        columns: list[list[int]] = []
        if depth == 16:
            slabs["condensed"] = PANEL
            ranked, columns = condensed_by(placed, down, SLAB // depth)
        if (extent, depth) in TALL_BLOCKS:
            slabs["tall"] = TALL_PANEL
        for kind, height in slabs.items():
            down, across = max(1, height // extent), max(1, SLAB // depth)
            of_kind = ranked if kind == "condensed" else placed
            if kind == "tall":
                of_kind, starts = chosen_rows(triple_rows, 3, pairs, majors, minors)
            steps, pointers, order = naive_panels(of_kind, majors, down, across)
            name = f"{side}_{kind}"
            if kind == "condensed":
                steps = [[at, *step[1:]] for at, step in enumerate(steps)]
                found = layout.view(index, f"{name}_columns").view(-1, across)
                assert found[: len(columns)].tolist() == columns
                assert rows_of_four(layout, index, f"{name}_steps")[: len(steps)] == steps
            names = f"{name}_panels", f"{name}_steps"
            check_walked(layout, index, names, steps, pointers, starts)
            assert layout.view(index, f"{name}_blocks").tolist() == order, name
        for kind in ("tall", "condensed"):
            assert (f"{side}_{kind}_panels" in layout.parts()) == (kind in slabs)
    for part, major, count in (("rows_sorted", 0, rows), ("cols_sorted", 1, cols)):
        of_major = Counter(block[major] for block in blocks)
        stored = [of_major[at] for at in range(count)]
        longest_first = sorted(range(count), key=lambda at: -stored[at])
        assert layout.view(index, part).tolist() == longest_first
    # Without panels the index is the beginning of the same.
    plain = build_index(pattern.crow_indices, pattern.col_indices, cols, block_size, panels=False)
    head = IndexLayout(rows, cols, len(blocks), block_size, panels=False)
    assert torch.equal(plain, index[: head.size])


@given(
    rows=st.integers(0, 40),
    cols=st.integers(0, 40),
    block=st.tuples(st.sampled_from(js.checks.BLOCK_SIZES), st.sampled_from(js.checks.BLOCK_SIZES)),
    density=st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]),
    sharing=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_index_is_what_loops_would_build(
    rows: int, cols: int, block: tuple[int, int], density: float, sharing: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        if sharing:
            cases.share_columns(patch)
        check(torch.rand((rows, cols), generator=generator) < density, block)


@pytest.mark.parametrize("block", [(64, 64), (128, 64), (128, 16), (32, 32)])
def test_order_of_many_tiles(block: tuple[int, int]) -> None:
    """More than run at once, and more than a few times as many."""
    generator = torch.Generator().manual_seed(0)
    check(torch.rand((150, 64), generator=generator) < 0.1, block)
    check(torch.rand((600, 40), generator=generator) < 0.1, block)
    check(torch.rand((600, 64), generator=generator) < 0.4, block)


@pytest.mark.parametrize("block", [(64, 64), (16, 16), (32, 64)])
def test_panels_share_columns_in_several_windows(
    block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 panels each, the last one not whole."""
    cases.share_columns(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    check(torch.rand((150 * 64 // block[0], 40), generator=generator) < 0.5, block)


def test_order_of_many_tiles_in_a_panel() -> None:
    """More than neighbours share a panel for."""
    check(torch.ones((10, 40), dtype=torch.bool), (128, 128))


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
        "rows_sorted": (118, 3),
        "cols_sorted": (121, 5),
        "hopper_padding": (126, 2),
        "row_panels_sorted": (128, 24),
        "col_panels_sorted": (152, 120),
        "row_gather_steps": (272, 56),
        "row_gather_tiles": (328, 80),
        "col_gather_steps": (408, 28),
        "col_gather_tiles": (436, 56),
        "col_slab_panels": (492, 120),
        "col_slab_steps": (612, 28),
        "row_gather_blocks": (640, 14),
        "col_gather_blocks": (654, 7),
        "col_slab_blocks": (661, 7),
        "wide_padding": (668, 0),
        "row_wide_tiles": (668, 32),
        "col_wide_tiles": (700, 48),
        "condensed_padding": (748, 0),
    }
    assert layout.size == 748


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
