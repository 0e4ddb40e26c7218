"""Sizes at which 16-bit counters and 32-bit element offsets would wrap."""

from __future__ import annotations

import cases
import pytest
import torch

import jitsparse as js

pytestmark = pytest.mark.gpu

PAST = 2**31 // 32 + 512
"""Columns of a matrix of 32 rows whose last elements lie past 2^31."""


@pytest.fixture
def stored() -> js.BlockSparse:
    generator = torch.Generator("cuda").manual_seed(0)
    mask = torch.tensor([[True, False], [True, True]], device="cuda")
    values = torch.randn(3, 16, 16, generator=generator, device="cuda")
    return js.BlockSparse(values.bfloat16(), js.Pattern.from_mask(mask, 16, (32, 32)))


@pytest.fixture
def many() -> torch.Tensor:
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free GPU memory")
    return torch.randn(32, PAST, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("family", ["wgmma", "mma", "simt"])
def test_columns_past_two_to_the_31(
    family: str, stored: js.BlockSparse, many: torch.Tensor
) -> None:
    if family == "wgmma" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    with js.pin(f"dsd={family}"):
        out = js.dsd(stored, many)
    for part in (slice(0, 300), slice(PAST - 300, PAST)):
        cases.check_product(out[:, part].contiguous(), stored.to_dense(), many[:, part])


def test_rows_past_two_to_the_31(stored: js.BlockSparse, many: torch.Tensor) -> None:
    rows = many.view(PAST, 32)
    out = js.dds(rows, stored)
    for part in (slice(0, 300), slice(PAST - 300, PAST)):
        cases.check_product(out[part], rows[part], stored.to_dense())
    sampled = js.sdd(rows.mT, rows, stored.pattern)
    assert torch.isfinite(sampled.values).all()


@pytest.mark.parametrize("block", [16, 32])
def test_more_block_rows_than_16_bits_count(block: int) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    rows = 70_000 * block
    pattern = js.Pattern.random((rows, 4 * block), block, 0.3, generator=generator, device="cuda")
    values = torch.randn(pattern.nnz_blocks, block, block, generator=generator, device="cuda")
    stored = js.BlockSparse(values.bfloat16(), pattern)
    x = torch.randn(4 * block, 256, generator=generator, device="cuda").bfloat16()
    dense = stored.to_dense()
    cases.check_product(js.dsd(stored, x)[-999:], dense[-999:], x)
    grad = torch.randn(rows, 64, generator=generator, device="cuda").bfloat16()
    right = torch.randn(64, 4 * block, generator=generator, device="cuda").bfloat16()
    got, last = js.sdd(grad, right, pattern).to_dense()[-999:], grad[-999:]
    elsewhere = (last.double() @ right.double()).bfloat16()
    stored_there = pattern.to_mask().repeat_interleave(block, 0).repeat_interleave(block, 1)[-999:]
    assert not got[~stored_there].any()
    cases.check_product(torch.where(stored_there, got, elsewhere), last, right)
