"""A problem's name is read back as the problem, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitsparse.kernels.problem import Problem, dtype_on

SIDES = st.sampled_from([8, 16, 32, 64, 128])
SIZES = st.integers(1, 2**31 - 1)
PROBLEMS = st.builds(
    Problem,
    op=st.sampled_from(["dsd", "dds", "sdd"]),
    device=st.sampled_from(["cpu", "cuda"]),
    dtype=st.sampled_from(["f64", "f32", "tf32", "bf32", "f16", "bf16"]),
    block=st.tuples(SIDES, SIDES),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    aligned=st.booleans(),
    rows=SIZES,
    cols=SIZES,
    nnz=SIZES,
    extent=SIZES,
    batch=SIZES,
    profile=st.integers(0, 0xFFFF),
).filter(lambda problem: problem.dtype == dtype_on(problem.device, problem.dtype))


@given(PROBLEMS)
def test_a_name_is_read_back(problem: Problem) -> None:
    assert Problem.parse(problem.name, problem.device) == problem


NAME = "dsd.bf16.b32x32.lnn.a1.r4096.c4096.z2048.e1024.x1"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "dsd",
        NAME + "\n",
        NAME + ".x1",
        NAME + ".p0000",
        NAME + ".p00A0",
        NAME.replace("dsd", "dss"),
        NAME.replace("b32", "b31"),
        NAME.replace("a1", "a2"),
        NAME.replace("r4096", "r-1"),
        NAME.replace("r4096", "r" + "9" * 5000),
        NAME.replace("4096", "٣"),
    ],
)
def test_what_is_no_name(name: str) -> None:
    assert Problem.parse(name, "cpu") is None


def test_a_gpu_has_no_problems_in_bf32() -> None:
    name = NAME.replace("bf16", "bf32")
    assert Problem.parse(name, "cpu") is not None
    assert Problem.parse(name, "cuda") is None
