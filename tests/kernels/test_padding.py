"""Products on copies in multiples of 16 bytes, of operands that lie anyhow.

The operation that is given copies runs on the CPU here; that it is given such as a kernel needs
which copies 16 bytes at a time is read from the key that they make. Small integers leave nothing to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import jitsparse as js
from jitsparse import calls, ops, reference
from jitsparse.kernels import dispatch, padding
from jitsparse.kernels.choice import problem_of
from jitsparse.kernels.operands import layout_of

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
EXTENTS = st.sampled_from([2, 3, 7, 8, 16, 17])
SIDES = st.sampled_from([17, 24, 31, 32, 40])


def lying(shape: tuple[int, ...], letter: str, shift: int, gap: int, dtype: torch.dtype) -> Tensor:
    """A tensor that begins ``shift`` elements past where torch puts it, its rows, or columns if the
    letter is ``t``, ``gap`` elements apart."""
    *batch, rows, cols = shape
    lines, length = (cols, rows) if letter == "t" else (rows, cols)
    count = torch.Size(batch).numel() * lines * (length + gap)
    data = cases.integers(shift + count, dtype=dtype)[shift:]
    made = data.view(*batch, lines, length + gap)[..., :length]
    return made.mT if letter == "t" else made


def values_of(pattern: js.Pattern, shift: int, dtype: torch.dtype) -> Tensor:
    """Integers, zero past the edge."""
    whole = js.BlockSparse.from_dense(
        cases.integers(*pattern.shape, dtype=dtype), pattern.block_size, pattern.to_mask()
    )
    held = torch.zeros(shift + whole.values.numel(), dtype=dtype)[shift:]
    return held.view(whole.values.shape).copy_(whole.values)


def aligned(op: Callable[..., Any], run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def checked(*arguments: Any) -> Tensor:
        _, key = calls.observe(op, arguments)
        assert key is not None
        assert problem_of(key).aligned
        return run(*arguments)

    return checked


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(SIDES), draw(SIDES)
    mask = torch.rand(-(-shape[0] // 16), -(-shape[1] // 16)) < 0.7
    mask[0, 0] = True
    return {
        "dtype": dtype,
        "pattern": js.Pattern.from_mask(mask, 16, shape),
        "extent": draw(EXTENTS),
        # Of more members, of so few vectors, there would be one product before.
        "batch": draw(st.sampled_from([(), (3,), (2, 1)])),
        "letters": draw(st.sampled_from(["nn", "nt", "tn", "tt"])),
        "shift": draw(st.sampled_from([0, 1])),
        "gap": draw(st.sampled_from([0, 1, 8])),
        "transposed": draw(st.booleans()),
    }


@settings(max_examples=100, deadline=None)
@given(situations())
def test_dsd(s: dict[str, Any]) -> None:
    pattern, (rows, cols) = s["pattern"], s["pattern"].shape
    shape = (*s["batch"], rows if s["transposed"] else cols, s["extent"])
    dense = lying(shape, s["letters"][0], s["shift"], s["gap"], s["dtype"])
    values = values_of(pattern, s["shift"], s["dtype"])
    taken, letter, *_ = layout_of(dense)
    arguments = values, pattern.index, taken, rows, cols, s["transposed"]
    got = padding.dsd(aligned(ops.dsd_op, dispatch.dsd), letter, *arguments)
    check(got, reference.dsd(values, pattern.index, dense, rows, cols, s["transposed"]))


@settings(max_examples=100, deadline=None)
@given(situations(), st.booleans())
def test_dds(s: dict[str, Any], biased: bool) -> None:
    pattern, (rows, cols) = s["pattern"], s["pattern"].shape
    k, m = (cols, rows) if s["transposed"] else (rows, cols)
    shape = (*s["batch"], s["extent"], k)
    dense = lying(shape, s["letters"][0], s["shift"], s["gap"], s["dtype"])
    values = values_of(pattern, s["shift"], s["dtype"])
    bias = cases.integers(m, dtype=s["dtype"]) if biased else None
    taken, letter, *_ = layout_of(dense)
    rest = values, pattern.index, rows, cols, s["transposed"], bias, 1
    got = padding.dds(aligned(ops.dds_op, dispatch.dds), letter, taken, *rest)
    check(got, reference.dds(dense, *rest))


@settings(max_examples=100, deadline=None)
@given(situations())
def test_sdd(s: dict[str, Any]) -> None:
    pattern, (rows, cols) = s["pattern"], s["pattern"].shape
    how = s["shift"], s["gap"], s["dtype"]
    left = lying((*s["batch"], rows, s["extent"]), s["letters"][0], *how)
    right = lying((*s["batch"], s["extent"], cols), s["letters"][1], *how)
    (taken, first, *_), (other, second, *_) = layout_of(left), layout_of(right)
    rest = pattern.index, rows, cols, pattern.nnz_blocks, 16, 16
    run = aligned(ops.sdd_op, dispatch.sdd)
    check(padding.sdd(run, first + second, taken, other, *rest), reference.sdd(left, right, *rest))


def check(got: Tensor, expected: Tensor) -> None:
    assert torch.equal(got, expected)
    assert got.is_contiguous()
    assert not got._is_view()


def test_what_need_not_be_copied_is_not() -> None:
    """Only the values begin where they must not."""
    pattern = js.Pattern.random((64, 64), 16, 0.5)
    dense = torch.randn(64, 64)

    def run(values: Tensor, index: Tensor, given: Tensor, *sizes: Any) -> Tensor:
        assert given is dense
        assert values.data_ptr() % 16 == 0
        return dispatch.dsd(values, index, given, *sizes)

    values = values_of(pattern, 1, torch.float32)
    padding.dsd(run, "n", values, pattern.index, dense, 64, 64, False)


@pytest.mark.parametrize("count", [1, 3])
def test_rows_that_are_summed_over_a_batch_get_no_zeros_between(count: int) -> None:
    """The gradient of a weight: whoever adds rows to each member multiplies by them, too."""
    pattern = js.Pattern.random((17, 31), 16, 0.5)
    grad, x = torch.randn(5, count, 17), torch.randn(5, count, 31)

    def run(left: Tensor, right: Tensor, *rest: Any) -> Tensor:
        assert left.shape == (5, 20, count)
        assert right.shape == (5, count, 32)
        return dispatch.sdd(left, right, *rest)

    rest = pattern.index, 17, 31, pattern.nnz_blocks, 16, 16
    padding.sdd(run, "tn", grad.mT, x, *rest)
