"""How dense operands reach kernels: as they lie, or copied."""

from __future__ import annotations

import pytest
import torch

from jitsparse.kernels.operands import layout_of


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
