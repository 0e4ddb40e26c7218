"""Products of so many tiles that their order is another one are right on a GPU."""

from __future__ import annotations

import cases
import pytest
import torch

import jitsparse as js
from jitsparse.jit import Variant
from jitsparse.kernels.float32 import float32_as

pytestmark = pytest.mark.gpu

K = 1000

KERNELS = [
    *(f"dds.wgmma.sm90a.bf16.b32x32.l{layout}.t128x256x32" for layout in ("nn", "nt")),
    *(f"dsd.wgmma.sm90a.bf16.b{b}x{b}.lnn.t128x256x64" for b in (64, 128)),
    "dsd.wgmma.sm90a.bf16.b64x64.lnn.t192x256x64",
]


@pytest.mark.parametrize("density", [0.1, 0.5])
@pytest.mark.parametrize(("panels", "batch"), [(64, 1), (86, 2), (150, 1)])
@pytest.mark.parametrize("name", KERNELS)
def test_many_panels(name: str, panels: int, batch: int, density: float) -> None:
    """What is left after the last whole four sets is dealt out as if there were none."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    variant = Variant.parse(name)
    block = variant.ints("b")
    rows, extent = panels * variant.ints("t")[0] - 40, 600 if batch > 1 else 2000
    generator = torch.Generator("cuda").manual_seed(panels)
    shape = (K, rows) if variant.knob("l") == "nn" and variant.op == "dds" else (rows, K)
    pattern = js.Pattern.random(shape, block, density, generator=generator, device="cuda")
    values = torch.randn(pattern.nnz_blocks, *block, generator=generator, device="cuda")
    stored = js.BlockSparse(values.bfloat16(), pattern)
    dense = torch.randn(batch, extent, K, generator=generator, device="cuda").bfloat16()
    with js.pin(f"{variant.op}={name}"):
        if variant.op == "dds":
            right = stored if variant.knob("l") == "nn" else stored.T
            got = js.dds(dense, right)
            cases.check_product(got, dense, right.to_dense())
        else:
            columns = dense.mT.contiguous()
            got = js.dsd(stored, columns)
            cases.check_product(got, stored.to_dense(), columns)


@pytest.mark.parametrize("density", [0.02, 0.1])
@pytest.mark.parametrize("block", [8, 16])
def test_float32_and_a_dense_operand_that_outgrows_l2(block: int, density: float) -> None:
    """Rows of blocks of 8 and 16 take turns at a column of tiles. 300 of them are a group of 64 or
    256 and a partial one, behind the 16 longest."""
    k, columns = 512 * block, 4096  # 64 MiB, 128 MiB
    generator = torch.Generator("cuda").manual_seed(block)
    shape = (300 * block - 4, k)
    pattern = js.Pattern.random(shape, block, density, generator=generator, device="cuda")
    stored = js.BlockSparse(
        torch.randn(pattern.values_shape, generator=generator, device="cuda"), pattern
    )
    dense = torch.randn(k, columns, generator=generator, device="cuda")
    with float32_as("f32", "cuda"):
        for right in (dense, dense.mT.contiguous().mT):
            assert "dsd.fma." in str(js.explain("dsd", stored, right).variant)
            cases.check_product(js.dsd(stored, right), stored.to_dense(), right)
        cases.check_product(js.dds(dense.mT, stored.T), dense.mT, stored.T.to_dense())
