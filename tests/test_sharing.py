"""Panels of an sdd that store the same columns have tiles together, where that is faster."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse import gathers, sharing
from jitsparse.layout import Gather, IndexLayout
from jitsparse.schedule import build_index


def random_mask(rows: int, cols: int, density: float, seed: int = 0) -> Tensor:
    return torch.rand((rows, cols), generator=torch.Generator().manual_seed(seed)) < density


def shared(mask: Tensor) -> tuple[Tensor, Tensor, Gather]:
    """Of panels that are rows of blocks of 64: the pairing of each block, and the partners."""
    gather = Gather.of(*mask.shape, 64, 64, may_share=True)
    panel, column = mask.nonzero().unbind(1)
    found = sharing.share(column, panel, gather)
    pairing = torch.zeros(mask.shape, dtype=torch.int64)
    pairing[panel, column] = found.pairing
    return pairing, found.partner, gather


def tiles_of(mask: Tensor, block: int) -> list[list[int]]:
    """The tiles along rows."""
    pattern = js.Pattern.from_mask(mask, block)
    index = build_index(
        pattern.crow_indices, pattern.col_indices, mask.shape[1], (block, block), panels=True
    )
    layout = IndexLayout(*mask.shape, int(mask.sum()), (block, block), panels=True)
    head, *tiles = layout.view(index, "row_gather_tiles").view(-1, 8).tolist()
    return tiles[: head[0]]


def loaded(tiles: list[list[int]], block: int) -> int:
    """Rows and columns, of panels of 64 rows."""
    total = 0
    for panel, begin, end, _, other, _, last, _ in tiles:
        total += 64 + (last - begin) * block if panel == other else 128 + (end - begin) * block
    return total


@pytest.mark.parametrize("density", [0.1, 0.25, 0.5, 1.0])
def test_partners_share_the_same_columns(density: float) -> None:
    mask = random_mask(100, 60, density)
    pairing, partner, gather = shared(mask)
    for number in range(1, 1 + sharing.PAIRINGS):
        here = pairing == number
        other = partner[:, number]
        alone = other == torch.arange(len(mask))
        assert torch.equal(other[other], torch.arange(len(mask)))
        assert torch.equal(here, here[other] & ~alone[:, None])
        assert not (here & ~mask).any()
        count = here.sum(1)
        assert torch.equal(count > 0, ~alone)
        whole = count % (gather.most // 2) == 0
        assert (whole | ((count >= gather.fewest) & (count < gather.most // 2))).all()
        assert (other // 64 == torch.arange(len(mask)) // 64).all(), "a window is 64 panels"


@pytest.mark.parametrize(
    ("block", "density", "least"),
    [(64, 0.25, 1.25), (64, 0.5, 1.3), (32, 0.1, 1.2), (32, 0.5, 1.35), (16, 0.1, 1.25)],
)
def test_random_patterns_load_less(block: int, density: float, least: float) -> None:
    """8192 x 8192, by the counts of docs/performance.md, beside tiles of one panel."""
    mask = random_mask(8192 // block, 8192 // block, density)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathers, "share", lambda c, panel, g: gathers.nothing_shared(panel, g.panels))
        alone = loaded(tiles_of(mask, block), block)
    assert alone / loaded(tiles_of(mask, block), block) > least


def test_nothing_is_shared_where_all_tiles_run_at_once() -> None:
    """Fewer of them, with more to do each, would take longer."""
    assert all(tile[0] == tile[4] for tile in tiles_of(random_mask(64, 64, 0.1), 64))


@pytest.mark.parametrize(("cols", "density"), [(70, 0.25), (40, 0.5), (29, 1.0)])
def test_small_patterns_are_not_compared(
    cols: int, density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes hundreds of operations to find out, and by the costs they would share nothing."""
    mask = random_mask(16, cols, density)
    mask[:] = mask[0]
    panel, column = mask.nonzero().unbind(1)
    gather = Gather.of(*mask.shape, 64, 64, may_share=True)
    ways = sharing.nothing_shared(panel, 16), sharing.share(column, panel, gather)
    assert bool(ways[1].pairing.any())
    pairing, partner = map(torch.stack, zip(*ways, strict=True))
    key = panel * (1 + sharing.PAIRINGS) + pairing
    capacity = gather.tiles(len(panel), gather.fewest)
    assert int(gathers._planned(key.sort(1).values, partner, gather, capacity)[1]) == 0
    monkeypatch.setattr(gathers, "share", None)
    assert tiles_of(mask, 64)


def test_panels_that_are_alike_share_everything() -> None:
    half = random_mask(32, 64, 0.5)
    half[:, :4] = True
    mask = torch.cat([half, half])[torch.randperm(64, generator=torch.Generator().manual_seed(1))]
    pairing, partner, _ = shared(mask)
    first = partner[:, 1]
    assert torch.equal(mask[first], mask)
    assert torch.equal((pairing == 1).sum(1), mask.sum(1) // 4 * 4)


def test_patterns_too_large_to_compare_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = random_mask(64, 64, 0.9)
    assert shared(mask)[0].any()
    monkeypatch.setattr(sharing, "MAX_COMPARISONS", 64**3 - 1)
    pairing, partner, _ = shared(mask)
    assert not pairing.any()
    assert torch.equal(partner, torch.arange(64)[:, None].expand_as(partner))


def test_many_tiles_are_all_as_wide_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one panel; those of two are anyway."""
    few, many = random_mask(64, 64, 0.05), random_mask(64, 64, 0.5)
    assert max(tile[6] - tile[1] for tile in tiles_of(few, 64)) < 8
    monkeypatch.setattr(gathers, "MAX_BALANCED", 0)
    assert len(tiles_of(few, 64)) == int(((few.sum(1) + 7) // 8).sum())
    alone: dict[int, list[int]] = {}
    tiles = tiles_of(many, 64)
    for panel, begin, _, _, other, _, end, _ in tiles:
        if panel == other:
            alone.setdefault(panel, []).append(end - begin)
    assert 0 < sum(map(len, alone.values())) < len(tiles), "of both kinds"
    assert all(len(widths) == -(-sum(widths) // 8) for widths in alone.values())
