"""What explain, tune and the bench see of a call on a GPU, short of its kernel. Needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse import calls
from jitsparse.kernels import allocate, dispatch


class OnGpu(Tensor):
    """A tensor that says so."""

    def get_device(self) -> int:
        return 0


@pytest.fixture
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_current_device", lambda: 0)
    monkeypatch.setattr(dispatch, "_current_stream", lambda device: 0)
    on_cpu = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
    for module in (allocate, dispatch):
        monkeypatch.setattr(module, "on_current_gpu", on_cpu)


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_a_call_on_a_gpu_can_be_observed(op: str, dtype: torch.dtype) -> None:
    """A kernel that is none stands in, with a variant that has no knobs."""
    pattern = js.Pattern.random((64, 64), 16, 0.25)
    values = torch.randn(pattern.nnz_blocks, 16, 16, dtype=dtype)
    x = torch.randn(64, 64, dtype=dtype).as_subclass(OnGpu)
    arguments: dict[str, tuple[Any, ...]] = {
        "dsd": (values, pattern.index, x, 64, 64, False),
        "dds": (x, values, pattern.index, 64, 64, False, None, 0),
        "sdd": (x, x, pattern.index, 64, 64, pattern.nnz_blocks, 16, 16),
    }
    keys: list[Any] = []

    def find(key: Any) -> Any:
        keys.append(key)
        return calls._NoKernel()

    getattr(dispatch, op)(*arguments[op], find=find)
    assert [key[:2] for key in keys] == [(op, 0)]


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize("batch", [(), (3,), (0,), (2, 0), (2, 3), (1, 5, 4)])
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("cols", [0, 1, 7])
def test_what_is_allocated_on_a_gpu_lies_as_torch_has_it(
    batch: tuple[int, ...], rows: int, cols: int
) -> None:
    like = torch.ones(2, dtype=torch.float64)
    got = allocate.new_matrices(like, 0, torch.Size(batch), rows, cols)
    expected = like.new_empty(*batch, rows, cols)
    assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), like.dtype)


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize("op", ["dsd", "dds"])
@pytest.mark.parametrize("extent", [0, 1, 5])
def test_so_do_matrices(op: str, extent: int) -> None:
    pattern = js.Pattern.random((64, 32), 16, 0.5)
    values = torch.randn(pattern.nnz_blocks, 16, 16)
    shape = (32, extent) if op == "dsd" else (extent, 64)
    x = torch.randn(shape).as_subclass(OnGpu)
    rest = (64, 32, False) if op == "dsd" else (64, 32, False, None, 0)
    operands = (values, pattern.index, x) if op == "dsd" else (x, values, pattern.index)
    got = getattr(dispatch, op)(*operands, *rest, find=lambda key: calls._NoKernel())
    expected = torch.empty((64, extent) if op == "dsd" else (extent, 32))
    assert (got.shape, got.stride()) == (expected.shape, expected.stride())


def shifted(*shape: int) -> Tensor:
    """A tensor of four-byte elements that begins next to a multiple of 16 bytes."""
    return torch.randn(1 + torch.Size(shape).numel())[1:].view(shape)


def matrix(rows: int, cols: int) -> js.BlockSparse:
    return js.random((rows, cols), 16, 0.5)


def moved(a: js.BlockSparse) -> js.BlockSparse:
    """The matrix, its values shifted."""
    values = shifted(*a.values.shape)
    return js.BlockSparse(values.copy_(a.values), a.pattern)


A = matrix(64, 64)
X = torch.randn(64, 64)
WIDE = torch.randn(64, 68)
ALIGNED: dict[str, tuple[Any, ...]] = {
    "dsd": ("dsd", A, X),
    "dsd across": ("dsd", A, X.T),
    "dsd of a part": ("dsd", A, WIDE[:, :60]),
    "dsd transposed": ("dsd", A.T, X),
    "dsd of a batch": ("dsd", A, torch.randn(2, 64, 64)),
    "dsd with odd rows": ("dsd", matrix(62, 64), X),
    "dds": ("dds", X, A),
    "dds across": ("dds", X.T, A),
    "dds of odd rows": ("dds", torch.randn(62, 64), A),
    "linear": ("linear", X, A, torch.randn(64)),
    "linear: bias begins anywhere": ("linear", X, A, shifted(64)),
    "sdd": ("sdd", X, X, A.pattern),
    "sdd across": ("sdd", X.T, X.T, A.pattern),
    "sdd of odd rows": ("sdd", torch.randn(62, 64), X, matrix(62, 64).pattern),
}
MISALIGNED: dict[str, tuple[Any, ...]] = {
    "dsd: values begin": ("dsd", moved(A), X),
    "dsd: dense begins": ("dsd", A, shifted(64, 64)),
    "dsd: columns": ("dsd", A, WIDE[:, :62]),
    "dsd: stride": ("dsd", A, torch.randn(64, 66)[:, :64]),
    "dsd: stride of the batch": ("dsd", A, torch.randn(2, 4098)[:, :4096].view(2, 64, 64)),
    "dsd: rows across": ("dsd", matrix(64, 66), WIDE[:, :66].T),
    "dsd: rows across, transposed": ("dsd", matrix(66, 64).T, WIDE[:, :66].T),
    "dds: values begin": ("dds", X, moved(A)),
    "dds: dense begins": ("dds", shifted(64, 64), A),
    "dds: columns": ("dds", WIDE[:, :66], matrix(66, 64)),
    "dds: columns, transposed": ("dds", WIDE[:, :66], matrix(64, 66).T),
    "dds: columns of the result": ("dds", X, matrix(64, 66)),
    "dds: rows across": ("dds", WIDE[:, :66].T, A),
    "dds: stride": ("dds", torch.randn(64, 66)[:, :64], A),
    "sdd: left begins": ("sdd", shifted(64, 64), X, A.pattern),
    "sdd: right begins": ("sdd", X, shifted(64, 64), A.pattern),
    "sdd: left stride": ("sdd", torch.randn(64, 66)[:, :64], X, A.pattern),
    "sdd: right stride": ("sdd", X, torch.randn(64, 66)[:, :64], A.pattern),
    "sdd: columns": ("sdd", X, WIDE[:, :66], matrix(64, 66).pattern),
    "sdd: rows across": ("sdd", WIDE[:, :66].T, X, matrix(66, 64).pattern),
    "sdd: sums": ("sdd", WIDE[:, :62], torch.randn(62, 64), A.pattern),
    "sdd: sums on the right": ("sdd", torch.randn(62, 64).T, WIDE[:, :62].T, A.pattern),
    "sdd: stride of the batch": (
        "sdd",
        torch.randn(2, 4098)[:, :4096].view(2, 64, 64),
        torch.randn(2, 64, 64),
        A.pattern,
    ),
}


@pytest.mark.parametrize(
    ("call", "aligned"),
    [
        *(pytest.param(call, True, id=name) for name, call in ALIGNED.items()),
        *(pytest.param(call, False, id=name) for name, call in MISALIGNED.items()),
    ],
)
def test_a_call_is_aligned_if_all_that_is_copied_16_bytes_at_a_time_is(
    call: tuple[Any, ...], aligned: bool
) -> None:
    """A kernel that trusts a wrong answer reads or writes past an address, or faults on it."""
    assert calls.catch(*call).problem.aligned == aligned
