"""What CPU kernels pack operands to is kept from call to call, and never shared by two of them."""

from __future__ import annotations

import ctypes
import threading

import cases
import pytest
import torch

import jitsparse as js
from jitsparse.kernels import scratch

BYTES = 8
"""At the beginning of the block that is kept: how many follow from the next line on."""


def kept() -> int | None:
    """Address of the block."""
    return ctypes.c_void_p.from_address(scratch.SCRATCH_WORD).value


def kept_bytes() -> int:
    address = kept()
    return 0 if address is None else int.from_bytes(ctypes.string_at(address, BYTES), "little")


def product(size: int, generator: torch.Generator) -> tuple[js.BlockSparse, torch.Tensor]:
    a = js.random((size, size), 32, 0.5)
    return a, torch.randn(size, 96, generator=generator)


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_a_call_finds_what_another_has_left(op: str) -> None:
    small = torch.randn(64, 64).T
    large = torch.randn(512, 512).T
    sizes = []
    for x in (large, small, large):
        a = js.random((x.shape[0], x.shape[0]), 32, 0.5)
        if op == "sdd":
            cases.check_sdd(js.sdd(x, x, a.pattern), x, x)
        elif op == "dsd":
            cases.check_product(js.dsd(a.T, x), a.to_dense().T, x)
        else:
            cases.check_product(js.dds(x, a.T), x, a.to_dense().T)
        sizes.append((kept(), kept_bytes()))
    assert sizes[0][1] > 0
    assert sizes[0] == sizes[1] == sizes[2], "the smaller call takes it, and leaves it as it is"


def test_calls_at_the_same_time_have_memory_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    operands = [product(64 * n, generator) for n in range(2, 8)]
    expected = [js.dsd(a.T, x) for a, x in operands]
    wrong = []

    def work(n: int) -> None:
        torch.set_num_threads(1)
        a, x = operands[n]
        for _ in range(200):
            if not torch.equal(js.dsd(a.T, x), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(operands))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert kept_bytes() > 0


def test_more_than_64_mb_is_given_back() -> None:
    pattern = js.Pattern.random((4352, 4352), 128, 1.0)
    left, right = torch.randn(4352, 8).half(), torch.randn(8, 4352).half()
    assert pattern.shape[0] * pattern.shape[1] * 4 > 64 << 20, "bytes of its sums in float32"
    js.sdd(left[:128], right[:, :128], js.Pattern.random((128, 128), 128, 1.0))
    before = kept(), kept_bytes()
    cases.check_sdd(js.sdd(left, right, pattern), left, right)
    assert (kept(), kept_bytes()) == before
