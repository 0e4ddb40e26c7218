"""An sdd two of whose panels have a tile is right on a GPU, and bit for bit what it is without."""

from __future__ import annotations

import cases
import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse.bench.cases import DTYPES
from jitsparse.kernels.float32 import float32_as
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.layout import IndexLayout, div_up
from jitsparse.schedule import build_index

pytestmark = pytest.mark.gpu

ROWS, COLS, EXTENT, BATCH = 1224, 1176, 200, 2


def pattern_of(block: tuple[int, int]) -> js.Pattern:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(div_up(ROWS, block[0]), div_up(COLS, block[1]), generator=generator) < 0.5
    return js.Pattern.from_mask(mask.to("cuda"), block, (ROWS, COLS))


def has_shared(pattern: js.Pattern, side: str) -> bool:
    size = [div_up(*each) for each in zip(pattern.shape, pattern.block_size, strict=True)]
    layout = IndexLayout(*size, pattern.nnz_blocks, pattern.block_size, panels=True)
    tiles = layout.view(pattern.index, f"{side}_gather_tiles").view(-1, 8)
    return bool((tiles[1:, 0] != tiles[1:, 4]).any())


CASES = [
    (block, dtype, layout)
    for block in ((64, 64), (32, 32), (16, 16), (64, 32), (32, 64))
    for dtype in ("bf16", "f16", "tf32")
    for layout in LAYOUTS
    # TF32 has no blocks of 16, and where it gathers rows no sharing in blocks 64 high.
    if dtype != "tf32" or (block != (16, 16) and not (block[0] == 64 and layout == "nn"))
]


@pytest.mark.parametrize(("block", "dtype", "layout"), CASES, ids=str)
def test_shared_columns(
    block: tuple[int, int], dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = pattern_of(block)
    cases.share_columns(monkeypatch)
    shared = pattern_of(block)
    generator = torch.Generator("cuda").manual_seed(0)

    def dense(rows: int, cols: int, letter: str) -> Tensor:
        shape = (BATCH, rows, cols) if letter == "n" else (BATCH, cols, rows)
        data = torch.randn(shape, generator=generator, device="cuda").to(DTYPES[dtype])
        return data if letter == "n" else data.mT

    left, right = dense(ROWS, EXTENT, layout[0]), dense(EXTENT, COLS, layout[1])
    # Panels of columns of blocks 64 high share nothing, and TF32 may choose them.
    pin = "sdd=wgmma.gcols" if block[0] == 64 else "sdd=wgmma"
    with float32_as(dtype, "cuda"), js.pin(pin):
        variant = str(js.explain("sdd", left, right, shared).variant)
        got, expected = js.sdd(left, right, shared), js.sdd(left, right, alone)
    side = "col" if ".grows" in variant else "row"
    assert has_shared(shared, side)
    assert not has_shared(alone, side)
    assert torch.equal(got.values, expected.values)
    cases.check_sdd(got, left, right, products=2**-9 if dtype == "tf32" else None)


def test_making_an_index_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cases.share_columns(monkeypatch)
    pattern = pattern_of((32, 32))
    torch.cuda.synchronize()
    with cases.never_waiting():
        index = build_index(pattern.crow_indices, pattern.col_indices, div_up(COLS, 32), (32, 32))
    assert torch.equal(index, pattern.index)
