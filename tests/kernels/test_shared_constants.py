"""Numbers that stand in Python and in a CUDA header, since both need them, are the same."""

from __future__ import annotations

import re

import pytest

from jitsparse import layout, pace
from jitsparse.kernels import cost_of_spmm, split
from jitsparse.kernels.cuda import CSRC


@pytest.mark.parametrize(
    ("header", "name", "value"),
    [
        ("sdd_tail", "kMaxPanels", split._MAX_PANELS),
        ("sdd_tail", "kMaxRounds", split.MAX_ROUNDS),
        ("sdd_tail", "kStagesToStart", split._STAGES_TO_START),
        ("spmm_order", "kSet", cost_of_spmm._SET),
        ("spmm_order", "kSet", pace.NEIGHBOURS),
        ("spmm_stages", "kManyRounds", cost_of_spmm._MANY_ROUNDS),
        ("spmm_walk", "kFirstSteps", layout.FIRST_STEPS),
    ],
)
def test_both_sides_have_the_same_number(header: str, name: str, value: int) -> None:
    text = (CSRC / "cuda" / "kernels" / f"{header}.cuh").read_text(encoding="utf-8")
    found = re.findall(rf"\bconstexpr \w+ {name} = (\d+);", text)
    assert found == [str(value)]
