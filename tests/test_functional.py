"""The operations on the CPU against float64, and the judgement of their arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
import torch

import jitsparse as js
from jitsparse.errors import ArgumentError
from jitsparse.kernels import float32
from jitsparse.kernels.float32 import float32_as, float32_dtype
from jitsparse.kernels.roles import LAYOUTS


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> None:
    run = cases.selected(request, test_products_are_right)
    cases.compile_grid("cpu", (each["variant"] for each in run))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("variant", cases.VARIANTS, ids=str)
def test_products_are_right(variant: cases.Variant) -> None:
    for seed, situation in enumerate(cases.SITUATIONS):
        try:
            cases.run(variant, situation, "cpu", seed)
        except Exception as error:
            raise AssertionError(f"in situation {situation}") from error


def test_the_grid_covers_what_it_claims() -> None:
    for op in ("dsd", "dds", "sdd"):
        mine = [variant for variant in cases.VARIANTS if variant.op == op]
        assert {(v.dtype, v.layout) for v in mine} == {
            (dtype, layout) for dtype in cases.DTYPES for layout in LAYOUTS
        }
        assert {v.block for v in mine} == set(cases.BLOCKS)
    assert {side for block in cases.BLOCKS for side in block} == set(js.checks.BLOCK_SIZES)


@pytest.fixture
def a() -> js.BlockSparse:
    """(24, 32) of blocks of 8."""
    return js.random((24, 32), 8, 0.5, generator=torch.Generator().manual_seed(0))


def test_operators_and_vectors(a: js.BlockSparse) -> None:
    x, y = torch.randn(32, 5), torch.randn(5, 24)
    assert torch.equal(a @ x, js.dsd(a, x))
    assert torch.equal(y @ a, js.dds(y, a))
    assert torch.equal(a.T @ y.T, js.dsd(a.T, y.T))
    assert torch.equal(a @ x[:, 0], js.dsd(a, x[:, :1])[:, 0])
    assert torch.equal(y[0] @ a, js.dds(y[:1], a)[0])
    bias = torch.randn(24)
    row = x[:, 0]
    assert torch.equal(js.linear(row, a, bias), js.linear(row[None], a, bias)[0])


@pytest.mark.parametrize("other", [3, None, "x"])
def test_operators_leave_other_types_to_python(a: js.BlockSparse, other: object) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        a @ other  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        other @ a  # type: ignore[operator]


def test_a_view_is_read_where_it_lies(a: js.BlockSparse) -> None:
    """Transposed operands choose another kernel; they are not copied."""
    x = torch.randn(32, 40)
    assert js.explain("dsd", a, x).problem.layout == "nn"
    assert js.explain("dsd", a, x.T.contiguous().T).problem.layout == "nt"
    assert js.explain("dsd", a.T, torch.randn(24, 40)).problem.layout == "tn"
    assert js.explain("dds", torch.randn(24, 40).T, a).problem.layout == "tn"
    assert js.explain("dds", torch.randn(40, 32), a.T).problem.layout == "nt"
    assert js.explain("linear", torch.randn(40, 32), a).problem.layout == "nt"
    left, right = torch.randn(9, 24).T, torch.randn(9, 32)
    assert js.explain("sdd", left, right, a.pattern).problem.layout == "tn"


def test_batches_that_lie_like_one_matrix_are_one(a: js.BlockSparse) -> None:
    x, y = torch.randn(4, 16, 32), torch.randn(4, 16, 24)
    problem = js.explain("linear", x, a).problem
    assert (problem.batch, problem.extent) == (1, 64)
    problem = js.explain("sdd", y.mT, x, a.pattern).problem
    assert (problem.batch, problem.extent) == (1, 64)
    problem = js.explain("sdd", y.mT.contiguous(), x, a.pattern).problem
    assert (problem.batch, problem.extent) == (4, 16)


def test_sdd_sums_over_broadcast_batches(a: js.BlockSparse) -> None:
    left, right = torch.randn(3, 1, 24, 7), torch.randn(2, 7, 32)
    dense = (left @ right).sum((0, 1))
    expected = js.BlockSparse.from_dense(dense, 8, a.pattern.to_mask())
    got = js.sdd(left, right, a.pattern)
    torch.testing.assert_close(got.values, expected.values)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.randn(3, 7, 40).mT, torch.randn(7, 24)),
        (torch.randn(3, 7, 40).mT, torch.randn(3, 9, 24)[:, :7]),
        (torch.randn(3, 9, 40)[:, :7].mT, torch.randn(3, 7, 24)),
        (torch.randn(7, 40).mT.expand(3, 40, 7), torch.randn(3, 7, 24)),
    ],
    ids=["right once", "right with gaps", "left with gaps", "left once"],
)
def test_a_batch_is_one_long_sum_only_if_both_operands_lie_so(
    left: torch.Tensor, right: torch.Tensor
) -> None:
    pattern = js.Pattern.random((40, 24), 8, 0.5)
    whole = (left.double() @ right.double()).sum(0).float()
    expected = js.BlockSparse.from_dense(whole, 8, pattern.to_mask())
    torch.testing.assert_close(js.sdd(left, right, pattern).values, expected.values)


def test_results_repeat_bit_for_bit() -> None:
    a = js.random((256, 256), 32, 0.3)
    x = torch.randn(256, 200)
    first = js.dsd(a, x), js.dds(x.T, a), js.sdd(x, x.T, a.pattern).values
    threads = torch.get_num_threads()
    try:
        for count in (threads, 1, 3):
            torch.set_num_threads(count)
            again = js.dsd(a, x), js.dds(x.T, a), js.sdd(x, x.T, a.pattern).values
            assert all(map(torch.equal, first, again))
    finally:
        torch.set_num_threads(threads)


def test_inputs_are_left_alone(a: js.BlockSparse) -> None:
    x = torch.randn(32, 9)
    before = x.clone(), a.values.clone(), a.pattern.index.clone()
    js.dsd(a, x)
    assert all(map(torch.equal, before, (x, a.values, a.pattern.index)))


X = torch.randn(32, 5)

WRONG: dict[str, tuple[Callable[[js.BlockSparse], object], str]] = {
    "dsd inner": (lambda a: js.dsd(a, X.T), "a has shape (24, 32), so b needs 32 rows; got b of"),
    "dsd inner transposed": (lambda a: js.dsd(a.T, X), "a has shape (32, 24), so b needs 24 rows"),
    "dsd scalar": (lambda a: js.dsd(a, torch.tensor(1.0)), "must be a vector or a matrix"),
    "dsd dense": (lambda a: js.dsd(X, X), "a BlockSparse and a Tensor, got Tensor, Tensor"),
    "dsd sparse": (lambda a: js.dsd(a, a), "got BlockSparse, BlockSparse"),
    "dsd COO": (lambda a: js.dsd(a, X.to_sparse()), "got BlockSparse, Tensor (torch.sparse_coo)"),
    "dds CSR": (lambda a: js.dds(X.T.to_sparse_csr(), a), "Tensor (torch.sparse_csr), BlockSparse"),
    "linear COO bias": (
        lambda a: js.linear(X.T, a, torch.zeros(24).to_sparse()),
        "a Tensor as bias, got Tensor (torch.sparse_coo)",
    ),
    "from_dense COO": (
        lambda a: js.BlockSparse.from_dense(X.to_sparse(), 8),
        "takes a Tensor, got Tensor (torch.sparse_coo)",
    ),
    "from_linear": (
        lambda a: js.nn.BlockSparseLinear.from_linear(torch.nn.Conv2d(1, 1, 1), 8, density=0.5),
        "takes a Linear layer, got Conv2d",
    ),
    "random dtype": (lambda a: js.random((8, 8), 8, 0.5, dtype=torch.int32), "got torch.int32"),
    "dsd dtype": (lambda a: js.dsd(a, X.double()), "a is torch.float32 and b is torch.float64"),
    "dsd device": (lambda a: js.dsd(a, X.to("meta")), "a on cpu and b on meta"),
    "dds inner": (lambda a: js.dds(X, a), "b has shape (24, 32), so a needs 24 columns"),
    "dds swapped": (lambda a: js.dds(a, X), "a Tensor and a BlockSparse, got BlockSparse, Tensor"),
    "dds scalar": (lambda a: js.dds(torch.tensor(1.0), a), "a must have columns, got a scalar"),
    "dds dtype": (lambda a: js.dds(X.T.half()[:, :24], a), "a is torch.float16 and b is"),
    "linear inner": (
        lambda a: js.linear(X, a),
        "weight has shape (24, 32), so x needs 32 columns; got x",
    ),
    "linear bias": (lambda a: js.linear(X.T, a, torch.zeros(32)), "bias needs shape (24,), got"),
    "linear bias dtype": (
        lambda a: js.linear(X.T, a, torch.zeros(24).half()),
        "x is torch.float32 and bias is torch.float16",
    ),
    "linear activation": (
        lambda a: js.linear(X.T, a, None, "tanh"),
        "'tanh' is not one of None, 'relu', 'gelu', 'silu'",
    ),
    "linear activation of another kind": (
        lambda a: js.linear(X.T, a, None, np.zeros(3)),
        "array([0., 0., 0.]) is not one of None, 'relu'",
    ),
    "linear dense": (lambda a: js.linear(X.T, X), "a Tensor and a BlockSparse, got Tensor, Tensor"),
    "sdd inner": (lambda a: js.sdd(X, X, a.pattern), "(32, 5) and b of shape (32, 5) have no"),
    "sdd pattern": (lambda a: js.sdd(X, X.T, a.pattern), "has shape (32, 32) and the pattern (24"),
    "sdd vector": (lambda a: js.sdd(X[0], X.T, a.pattern), "have no product"),
    "sdd matrix": (
        lambda a: js.sdd(X, X.T, a),
        "two Tensors and a Pattern, got Tensor, Tensor, BlockSparse; pass its pattern, s.pattern",
    ),
    "sdd transposed matrix": (lambda a: js.sdd(X, X.T, a.T), "pass its pattern, s.pattern.T"),
    "sdd mask": (
        lambda a: js.sdd(X, X.T, a.pattern.to_mask()),
        "got Tensor, Tensor, Tensor; Pattern.from_mask(mask, block_size) makes a Pattern of",
    ),
    "sdd sparse left": (
        lambda a: js.sdd(a, X, a.pattern),
        "got BlockSparse, Tensor, Pattern; use dsd or dds for a sparse operand",
    ),
    "sdd COO right": (
        lambda a: js.sdd(X, X.T.to_sparse(), a.pattern),
        "Tensor (torch.sparse_coo), Pattern; use dsd or dds for a sparse operand, or its to_dense",
    ),
    "linear nested": (
        lambda a: js.linear(torch.nested.nested_tensor([X.T, X.T], layout=torch.jagged), a),
        "(nested, torch.jagged), BlockSparse; pad the nested tensor, x.to_padded_tensor(0.0), or "
        "pass x.values() if jagged",
    ),
    "layer nested": (
        lambda a: js.nn.BlockSparseLinear(32, 24, 8, density=0.5)(
            torch.nested.nested_tensor([X.T, X.T], layout=torch.jagged)
        ),
        "or pass x.values() if jagged",
    ),
    "linear mkldnn": (
        lambda a: js.linear(X.T.contiguous().to_mkldnn(), a),
        "Tensor (torch._mkldnn), BlockSparse; convert the mkldnn tensor, x.to_dense()",
    ),
    "sdd dtype": (
        lambda a: js.sdd(X[:24], X.T.half(), a.pattern),
        "a is torch.float32 and b is torch.float16",
    ),
    "sdd unsupported": (
        lambda a: js.sdd(X[:24].int(), X.T.int(), a.pattern),
        "supported are float64, float32, float16 and bfloat16",
    ),
    "sdd device": (
        lambda a: js.sdd(X[:24].to("meta"), X.T.to("meta"), a.pattern),
        "a on meta and pattern on cpu",
    ),
    "sdd batch": (
        lambda a: js.sdd(X[:24].expand(3, 24, 5), X.T.expand(2, 5, 32), a.pattern),
        "batch dimensions (3,) and (2,) do not broadcast",
    ),
}


@pytest.mark.parametrize(("call", "says"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_explained(
    a: js.BlockSparse, call: Callable[[js.BlockSparse], object], says: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(says)):
        call(a)


@pytest.mark.parametrize(
    "bias",
    [
        torch.randn(16, dtype=torch.complex128).conj().imag,
        # One that lies as kernels want it, so that nothing else makes another tensor of it.
        torch._neg_view(torch.randn(16, dtype=torch.float64)),
    ],
)
def test_a_bias_that_is_negated_later(bias: torch.Tensor) -> None:
    """As imaginary parts of conjugates are."""
    x = torch.randn(3, 32, dtype=torch.float64)
    weight = js.random((16, 32), 16, 1.0, dtype=torch.float64)
    assert bias.is_neg()
    torch.testing.assert_close(
        js.linear(x, weight, bias), torch.nn.functional.linear(x, weight.to_dense(), bias.clone())
    )


DEVICES = {"cpu": -1, "cuda": 0}
MEANS = {
    "cpu": {"tf32": "tf32", "bf16": "bf32", "ieee": "f32"},
    "cuda": {"tf32": "tf32", "ieee": "f32"},
}


def both() -> tuple[str, str]:
    """The dtypes of problems in float32 on a CPU and on a GPU."""
    return float32_dtype(-1), float32_dtype(0)


@pytest.mark.skipif(float32._fp32_precision is None, reason="this torch has one API")
@pytest.mark.parametrize("device", DEVICES)
def test_a_float32_precision_of_one_device(device: str) -> None:
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    (other,) = DEVICES.keys() - {device}
    before, of_other = backend.matmul.fp32_precision, float32_dtype(DEVICES[other])
    try:
        for asked, dtype in MEANS[device].items():
            backend.matmul.fp32_precision = asked
            for inside in MEANS[device].values():
                with float32_as(inside, device):
                    assert float32_dtype(DEVICES[device]) == inside
                    assert float32_dtype(DEVICES[other]) == of_other
            assert float32_dtype(DEVICES[device]) == dtype
            assert float32_dtype(DEVICES[other]) == of_other
    finally:
        backend.matmul.fp32_precision = before


INHERITED = """
import torch
from jitsparse.kernels.float32 import float32_as, float32_dtype
torch.backends.fp32_precision = "tf32"
assert (float32_dtype(-1), float32_dtype(0)) == ("tf32", "tf32")
for device in ("cpu", "cuda"):
    with float32_as("f32", device):
        assert float32_dtype(-1 if device == "cpu" else 0) == "f32"
assert (float32_dtype(-1), float32_dtype(0)) == ("tf32", "tf32")
torch.backends.fp32_precision = "ieee"
assert (float32_dtype(-1), float32_dtype(0)) == ("f32", "f32")
"""


@pytest.mark.skipif(float32._fp32_precision is None, reason="this torch has one API")
def test_an_inherited_float32_precision_stays_inherited() -> None:
    ended = subprocess.run([sys.executable, "-c", INHERITED], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("asked", "means", "before_2_9"),
    [
        ("high", ("tf32", "tf32"), ("f32", "tf32")),
        ("medium", ("bf32", "tf32"), ("bf32", "tf32")),
        ("highest", ("f32", "f32"), ("f32", "f32")),
    ],
)
def test_a_float32_precision_of_all_devices(
    asked: str, means: tuple[str, str], before_2_9: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(asked)
        if float32._fp32_precision is not None:
            assert both() == means
        monkeypatch.setattr(float32, "_fp32_precision", None)
        assert both() == before_2_9
        with float32_as("bf32", "cpu"):
            assert both() == ("bf32", "tf32")
        assert torch.get_float32_matmul_precision() == asked
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: js.linear(torch.ones(2, 8), js.random((8, 8), 8, 1.0), [1.0]), "Tensor as bias"),
        (lambda: js.BlockSparse.from_dense([[1.0]], 8), "from_dense takes a Tensor"),
        (lambda: js.Pattern.from_mask([[True]], 8), "a block mask is a Tensor"),
        (lambda: js.BlockSparse(torch.ones(1, 8, 8), torch.ones(1, 1)), "a Tensor and a Pattern"),
    ],
)
def test_what_is_no_tensor(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises((js.ArgumentError, js.PatternError), match=says):
        wrong()


def test_arrays_are_no_operands() -> None:
    """NumPy would take a matrix for a scalar of type object, and say so."""
    a = js.random((24, 32), 8, 0.5)
    remedy = re.escape("takes a Tensor, got ndarray; convert with torch.from_numpy(x)")
    for product, call in ((lambda: a @ X.numpy(), "a @ x"), (lambda: X.T.numpy() @ a.T, "x @ a")):
        with pytest.raises(TypeError, match=f"^{call} {remedy}"):
            product()


def test_matrices_of_scipy_are_no_operands() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    a = js.random((32, 32), 8, 0.5)
    for kind in (scipy.csr_array, scipy.csc_matrix, scipy.lil_array):
        x = kind((32, 32))
        remedy = re.escape(f"takes a Tensor, got {kind.__name__}; convert with torch.from_numpy(x.")
        with pytest.raises(TypeError, match=f"^a @ x {remedy}"):
            a @ x
        with pytest.raises(
            TypeError, match=r"a\.to_scipy\(\) a BSR matrix, which SciPy can multiply"
        ):
            x @ a


def test_an_operand_of_another_class_may_know_what_to_do() -> None:
    class Other:
        def __matmul__(self, a: object) -> str:
            return "right"

        def __rmatmul__(self, a: object) -> str:
            return "left"

    a = js.random((24, 32), 8, 0.5)
    assert (a @ Other(), Other() @ a) == ("left", "right")
    for wrong in ([[1.0]], 2.0, None):
        with pytest.raises(TypeError, match="unsupported operand type"):
            a @ wrong


def test_vectors_are_named_with_their_own_shape() -> None:
    a = js.random((48, 64), 16, 0.5)
    with pytest.raises(ArgumentError, match=re.escape("got b of shape (63,)")):
        a @ torch.ones(63)
    with pytest.raises(ArgumentError, match=re.escape("got a of shape (47,)")):
        torch.ones(47) @ a


def test_nested_tensors_are_refused(a: js.BlockSparse) -> None:
    nested = torch.nested.nested_tensor([torch.randn(a.shape[1], 2), torch.randn(a.shape[1], 3)])
    with pytest.raises(js.ArgumentError, match=r"pad the nested tensor, x\.to_padded_tensor"):
        a @ nested


def test_what_is_advised_for_a_nested_tensor_runs(a: js.BlockSparse) -> None:
    parts = torch.randn(3, 32), torch.randn(5, 32)
    nested = torch.nested.nested_tensor(list(parts), layout=torch.jagged)
    whole = js.linear(torch.cat(parts), a)
    assert torch.equal(js.linear(nested.values(), a), whole)
    torch.testing.assert_close(js.linear(nested.to_padded_tensor(0.0), a)[1], whole[3:])


@pytest.mark.parametrize("shape", [(3, 16, 16), (40, 16, 16), (8, 8, 32), (0, 16, 16)])
def test_values_that_were_resized_are_refused(shape: tuple[int, int, int]) -> None:
    """Kernels would read past their end."""
    a = js.random((64, 64), 16, 0.5)
    x = torch.ones(64, 64)
    a.values.data = torch.ones(shape)
    for call in (
        lambda: a @ x,
        lambda: a.T @ x[0],
        lambda: x @ a,
        lambda: x[0] @ a.T,
        lambda: js.linear(x, a),
    ):
        with pytest.raises(ArgumentError, match=rf"8 blocks of 16 x 16, .*{re.escape(str(shape))}"):
            call()


def test_a_long_sum_is_as_exact_as_a_short_one() -> None:
    """A weight's gradient over many tokens, of numbers that add up: a sum that goes on and on loses
    a part of every term (2.6e-6 here, relative)."""
    generator = torch.Generator().manual_seed(0)
    tokens = 1 << 16
    x, grad = (torch.rand(tokens, 64, generator=generator) for _ in range(2))
    pattern = js.Pattern.from_mask(torch.ones(4, 4, dtype=torch.bool), 16)
    found = js.sdd(grad.mT, x, pattern).to_dense().double()
    exact = grad.double().mT @ x.double()
    assert (found - exact).norm() / exact.norm() < 8 * torch.finfo(torch.float32).eps


def test_a_right_operand_without_memory_is_refused() -> None:
    pattern, right = js.Pattern.random((64, 32), 16, 0.5), torch.randn(5, 32)
    right.untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match="has no memory"):
        js.sdd(torch.randn(64, 5), right, pattern)


@pytest.mark.parametrize("op", ["dsd", "vector", "dds", "sdd", "strided"])
def test_so_is_one_that_would_be_copied(op: str) -> None:
    a = js.random((64, 64), 16, 1.0)
    x = torch.randn(8, 5, 64).transpose(0, 1) if op != "strided" else torch.randn(5, 128)[:, ::2]
    across, vector = x.mT, torch.randn(64, 1)
    for each in (x, vector):
        each.untyped_storage().resize_(0)
    calls = {
        "dsd": lambda: a @ across,
        "vector": lambda: a @ vector,
        "sdd": lambda: js.sdd(across, x, a.pattern),
    }
    with pytest.raises(ArgumentError, match="has no memory"):
        calls.get(op, lambda: x @ a)()


class Named(torch.Tensor):
    """A tensor of a class of its own."""


def test_a_bias_of_a_class_of_its_own_is_asked() -> None:
    weight, x, bias = js.random((64, 32), 16, 0.5), torch.randn(7, 32), torch.randn(64)
    got = js.linear(x, weight, bias.as_subclass(Named))
    assert type(got) is Named
    assert torch.equal(got.as_subclass(torch.Tensor), js.linear(x, weight, bias))
