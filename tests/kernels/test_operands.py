"""How dense operands reach kernels: as they lie, or copied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cases
import pytest
import torch

import jitsparse as js
from jitsparse import calls
from jitsparse.kernels.operands import layout_of
from jitsparse.kernels.problem import product_problem
from jitsparse.kernels.roles import LAYOUTS


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (1, 1)])
@pytest.mark.parametrize(
    "strides",
    [(0, 1), (1, 0), (1, 1), (3, 1), (1, 3), (0, 0), (9, 1), (1, 9), (9, 2)],
)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_rows_that_kernels_are_told_of_never_overlap(
    shape: tuple[int, int], strides: tuple[int, int], batch: tuple[int, ...]
) -> None:
    """The copy engine of a GPU refuses such a stride; that of an only row says nothing."""
    given = torch.randn(200).as_strided((*batch, *shape), (*(60 for _ in batch), *strides))
    taken, letter, ld, count, apart = layout_of(given)
    assert ld >= shape[1 if letter == "n" else 0]
    steps = (ld, 1) if letter == "n" else (1, ld)
    told = taken.as_strided((count, *shape), (apart, *steps))
    assert torch.equal(told, given.reshape(count, *shape))


def test_an_axis_of_one_entry_is_never_the_contiguous_one() -> None:
    column = torch.randn(64, 3)[:, :1]
    taken, letter, ld, *_ = layout_of(column)
    assert (letter, ld, taken.is_contiguous()) == ("t", 64, True)
    taken, letter, ld, *_ = layout_of(column.mT)
    assert (letter, ld, taken.is_contiguous()) == ("n", 64, True)


@pytest.mark.parametrize("letter", ["n", "t"])
def test_a_batch_of_vectors_lies_like_a_matrix(letter: str) -> None:
    last = torch.randn(5, 7, 64)[:, -1:]
    given = last if letter == "n" else last.mT
    taken, found, ld, batch, apart = layout_of(given)
    assert taken is given
    assert (found, ld, batch, apart) == (letter, 7 * 64, 5, 7 * 64)


def problem(op: str, *operands: Any) -> tuple[Any, ...]:
    found = calls.catch(op, *operands).problem
    return found.op, found.layout, found.aligned, found.extent, found.batch


def test_vectors_of_a_batch_are_one_product() -> None:
    """Which kernel a call runs shows how it was taken."""
    a = js.random((96, 64), 32, 0.5)
    x = torch.randn(16, 3, 64)
    assert problem("dds", x[:, -1:], a.T) == ("dds", "nt", True, 16, 1)
    assert problem("dsd", a, x[:, -1:].mT) == ("dds", "nt", True, 16, 1)
    assert problem("dsd", a.T, torch.randn(96, 2)[:, 1:]) == ("dds", "nn", True, 1, 1)
    grad, x = torch.randn(16, 1, 96), torch.randn(16, 1, 64)
    assert problem("sdd", grad.mT, x, a.pattern) == ("sdd", "tn", True, 16, 1)


@pytest.mark.parametrize("lies", ["permuted", "across"])
def test_members_of_few_vectors_are_gathered(lies: str) -> None:
    a = js.BlockSparse.from_dense(cases.integers(96, 160), 32)
    x = {
        "permuted": cases.integers(8, 5, 160).transpose(0, 1),
        "across": cases.integers(5, 160, 8).mT,
    }[lies]
    grad = cases.integers(5, 8, 96)
    whole = a.to_dense()
    assert problem("dds", x, a.T) == ("dds", "nt", True, 64, 1)
    assert torch.equal(x @ a.T, x @ whole.T)
    assert problem("dsd", a, x.mT) == ("dds", "nt", True, 64, 1)
    assert torch.equal(a @ x.mT, whole @ x.mT)
    assert (a @ x.mT).is_contiguous()
    assert not (a @ x.mT)._is_view()
    assert problem("sdd", grad.mT, x, a.pattern) == ("sdd", "tn", True, 64, 1)
    assert torch.equal(js.sdd(grad.mT, x, a.pattern).to_dense(), (grad.mT @ x).sum(0))
    across = grad.mT.contiguous()
    assert problem("sdd", across, x, a.pattern) == ("sdd", "tn", True, 64, 1)
    assert torch.equal(js.sdd(across, x, a.pattern).to_dense(), (grad.mT @ x).sum(0))


def test_members_that_are_large_or_few_stay_where_they_are() -> None:
    a = js.random((96, 160), 32, 1.0)
    assert problem("dds", torch.randn(160, 5, 160)[:96].transpose(0, 1), a.T)[3:] == (128, 8)
    assert problem("dds", torch.randn(8, 3, 160).transpose(0, 1), a.T)[3:] == (8, 4)
    expanded = torch.randn(8, 160).expand(5, 8, 160)
    assert problem("dds", expanded, a.T)[3:] == (8, 8)
    assert problem("dsd", a, expanded.mT)[3:] == (8, 8)
    assert problem("sdd", torch.randn(5, 96, 8), expanded, a.pattern)[3:] == (8, 8)
    few = js.random((96, 160), 32, 0.06)
    assert problem("dds", torch.randn(8, 5, 160).transpose(0, 1), few.T)[3:] == (8, 8)


@pytest.mark.parametrize("size", [(64, 1, 64), (1, 64, 64), (64, 64, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_a_product_that_is_described_is_one_that_calls_have(
    op: str, layout: str, size: tuple[int, int, int]
) -> None:
    described = product_problem(op, "cpu", "f32", (8, 8), layout, size, 0.5)
    called = calls.sample(described).problem
    # Where a side of the result is 1, it is not aligned.
    assert called == replace(described.rounded(), aligned=called.aligned)


def test_a_product_with_a_vector_is_no_view() -> None:
    """One that a Function returned could not be written in place."""
    a = js.random((96, 64), 32, 0.5).requires_grad_()
    for x in (torch.randn(64, 1), torch.randn(3, 64, 1), torch.randn(3, 64, 2)[..., :1]):
        y = a @ x
        assert y.shape == (*x.shape[:-2], 96, 1)
        assert y.stride() == torch.empty(y.shape).stride()
        assert not y._is_view()
        y += 1
        y.sum().backward()
