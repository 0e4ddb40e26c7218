"""First and second derivatives of every operation, in float64, and the gradients' housekeeping."""

from __future__ import annotations

import itertools
from typing import Any

import cases
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import jitsparse as js
from jitsparse.kernels import dispatch

BLOCK = (8, 16)


def matrix(seed: int = 0) -> js.BlockSparse:
    """(20, 30), with an edge, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return js.random((20, 30), BLOCK, 0.6, dtype=torch.float64, generator=generator)


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def twice(function: object, inputs: tuple[Tensor, ...]) -> None:
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("flip_dense", [False, True])
@pytest.mark.parametrize("flip_sparse", [False, True])
def test_products(flip_sparse: bool, flip_dense: bool, batch: tuple[int, ...]) -> None:
    a = matrix()
    values = a.values.clone().requires_grad_()

    def sparse(values: Tensor) -> js.BlockSparse:
        built = js.BlockSparse(values, a.pattern)
        return built.T if flip_sparse else built

    m, k = sparse(values).shape
    right = double(*batch, 3, k) if flip_dense else double(*batch, k, 3)
    twice(lambda v, x: js.dsd(sparse(v), x.mT if flip_dense else x), (values, right))
    left = double(*batch, m, 3) if flip_dense else double(*batch, 3, m)
    twice(lambda v, x: js.dds(x.mT if flip_dense else x, sparse(v)), (values, left))


@pytest.mark.parametrize("flip_left", [False, True])
@pytest.mark.parametrize("flip_right", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_sampled_products(flip_left: bool, flip_right: bool, batch: tuple[int, ...]) -> None:
    a = matrix()
    left = double(*batch, 3, 20) if flip_left else double(*batch, 20, 3)
    right = double(*batch, 30, 3) if flip_right else double(*batch, 3, 30)
    twice(
        lambda x, y: js.sdd(x.mT if flip_left else x, y.mT if flip_right else y, a.pattern).values,
        (left, right),
    )


def test_sampled_products_of_broadcast_batches() -> None:
    a = matrix()
    twice(lambda x, y: js.sdd(x, y, a.pattern).values, (double(2, 20, 3), double(3, 30)))


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_linear(activation: str | None) -> None:
    a = matrix()
    values = a.values.clone().requires_grad_()
    twice(
        lambda x, v, b: js.linear(x, js.BlockSparse(v, a.pattern), b, activation),
        (double(2, 3, 30), values, double(20)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_in_working_precision(dtype: torch.dtype) -> None:
    """Each gradient is the product that it should be, to within the rounding of its dtype."""
    weight = js.random((64, 96), 32, 0.5, dtype=dtype).requires_grad_()
    x = torch.randn(2, 10, 96, dtype=dtype, requires_grad=True)
    bias = torch.randn(64, dtype=dtype, requires_grad=True)
    grad = torch.randn(2, 10, 64, dtype=dtype)
    js.linear(x, weight, bias).backward(grad)
    dense = weight.detach().to_dense()
    cases.check_product(x.grad, grad, dense)
    cases.check_sdd(js.BlockSparse(weight.grad, weight.pattern), grad.mT, x.detach())
    cases.check_product(bias.grad[None], torch.ones(1, 20, dtype=dtype), grad.reshape(20, 64))


def test_only_what_is_asked_for_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("dsd", "dds", "sdd"):
        op = getattr(dispatch, name)
        monkeypatch.setattr(
            dispatch, name, lambda *args, op=op, name=name: called.append(name) or op(*args)
        )
    a = matrix()
    x = torch.randn(30, 3, dtype=torch.float64)
    js.dsd(a, x.requires_grad_()).sum().backward()
    assert called == ["dsd", "dsd"]
    assert a.grad is None
    called.clear()
    js.dsd(a.requires_grad_(), x.detach()).sum().backward()
    assert called == ["dsd", "sdd"]
    called.clear()
    with torch.no_grad():
        assert not js.dsd(a, x).requires_grad
    assert called == ["dsd"]


@pytest.mark.parametrize("wanted", ["x", "values", "bias"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_one_gradient_alone_is_what_it_is_among_all(activation: str | None, wanted: str) -> None:
    weight = js.random((40, 24), 8, 0.5, dtype=torch.float64)
    tensors = {
        "x": torch.randn(3, 24, dtype=torch.float64),
        "values": weight.values,
        "bias": torch.randn(40, dtype=torch.float64),
    }

    def gradient(*names: str) -> torch.Tensor | None:
        x, values, bias = (
            each.detach().clone().requires_grad_(name in names) for name, each in tensors.items()
        )
        js.linear(x, js.BlockSparse(values, weight.pattern), bias, activation).sum().backward()
        return {"x": x, "values": values, "bias": bias}[wanted].grad

    alone, among_all = gradient(wanted), gradient(*tensors)
    assert alone is not None
    torch.testing.assert_close(alone, among_all)


def test_gradients_vanish_past_the_edge() -> None:
    a = matrix().requires_grad_()
    js.dsd(a, torch.ones(30, 3, dtype=torch.float64)).sum().backward()
    inside = js.BlockSparse.from_dense(torch.ones(20, 30), BLOCK, a.pattern.to_mask()).values
    assert torch.equal(a.grad, 3 * inside.double())


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_gradients_of_empty_and_full_patterns(density: float) -> None:
    a = js.random((16, 32), BLOCK, density, dtype=torch.float64).requires_grad_()
    x = double(32, 3)
    js.dsd(a, x).sum().backward()
    assert a.grad.shape == a.values.shape
    torch.testing.assert_close(x.grad, a.detach().to_dense().sum(0)[:, None].expand(32, 3))


def products(operation: str) -> tuple[Any, Any, tuple[torch.Tensor, ...]]:
    """An operation, the same in plain torch, and operands, all as functions of plain tensors."""
    a = matrix()
    pattern, values = a.pattern, a.values.detach()
    rows, cols = a.shape

    def whole(values: torch.Tensor) -> torch.Tensor:
        return js.BlockSparse(values, pattern).to_dense()

    if operation == "sdd":
        kept = js.BlockSparse(torch.ones_like(values), pattern).to_dense()
        return (
            lambda x, y: js.sdd(x, y, pattern).to_dense(),
            lambda x, y: x @ y * kept,
            (double(rows, 4).detach(), double(4, cols).detach()),
        )
    if operation == "dsd":
        return (
            lambda v, x: js.dsd(js.BlockSparse(v, pattern), x),
            lambda v, x: whole(v) @ x,
            (values, double(cols, 3).detach()),
        )
    activation = operation.removeprefix("linear ")
    return (
        lambda v, x, b: js.linear(x, js.BlockSparse(v, pattern), b, activation),
        lambda v, x, b: getattr(torch.nn.functional, activation)(x @ whole(v).T + b),
        (values, double(3, cols).detach(), double(rows).detach()),
    )


@pytest.mark.parametrize("operation", ["dsd", "sdd", "linear relu", "linear gelu"])
def test_transforms_of_torch_func(operation: str) -> None:
    """grad, jvp, hessian and vmap see the operations as they see plain torch's."""
    ours, plain, operands = products(operation)
    everything = tuple(range(len(operands)))
    tangents = tuple(torch.randn_like(each) for each in operands)
    batch = tuple(torch.stack([each, 2 * each, -each]) for each in operands)

    def squares(function: Any) -> Any:
        return lambda *operands: (function(*operands) ** 2).sum()

    for transform in (
        lambda f: torch.func.jvp(f, operands, tangents),
        lambda f: torch.func.grad(squares(f), everything)(*operands),
        lambda f: torch.func.hessian(squares(f), 1)(*operands),
        lambda f: torch.func.vmap(f)(*batch),
        lambda f: torch.func.vmap(torch.func.grad(squares(f), everything))(*batch),
    ):
        torch.testing.assert_close(transform(ours), transform(plain))


@pytest.mark.parametrize("operation", ["dsd", "sdd", "linear relu", "linear gelu"])
def test_gradients_through_vmap(operation: str) -> None:
    """Of each operand, of which each or all are mapped: what the backward pass saves, and what it
    does not need, is mapped or not."""
    ours, plain, operands = products(operation)

    def gradients(function: Any, mapped: set[int], wanted: set[int]) -> tuple[torch.Tensor, ...]:
        inputs = [
            torch.stack([x, 2 * x, -x]) if n in mapped else x.clone()
            for n, x in enumerate(operands)
        ]
        leaves = [inputs[n].requires_grad_() for n in wanted]
        dims = tuple(0 if n in mapped else None for n in range(len(operands)))
        out = torch.func.vmap(function, dims)(*inputs)
        return torch.autograd.grad((out**3).sum(), leaves)

    subsets = [*({n} for n in range(len(operands))), {*range(len(operands))}]
    for mapped, wanted in itertools.product(subsets, subsets):
        expected = gradients(plain, mapped, wanted)
        torch.testing.assert_close(gradients(ours, mapped, wanted), expected)


@pytest.mark.parametrize("operation", ["dsd", "sdd", "linear relu", "linear gelu"])
def test_transforms_of_transforms(operation: str) -> None:
    """Among them a gradient penalty of each sample, and what learns to learn."""
    ours, plain, (first, *rest) = products(operation)
    batch = torch.stack([first, 2 * first, -first])
    grad, vmap, jvp = torch.func.grad, torch.func.vmap, torch.func.jvp
    jacfwd, jacrev = torch.func.jacfwd, torch.func.jacrev

    def of_first(function: Any) -> Any:
        return lambda x: (function(x, *rest) ** 3).sum()

    def recorded(function: Any) -> torch.Tensor:
        leaf = batch.clone().requires_grad_()
        return torch.autograd.grad(function(leaf).square().sum(), leaf)[0]

    for transform in (
        lambda f: jacrev(jacrev(f))(first),
        lambda f: jacrev(jacfwd(f))(first),
        lambda f: jacfwd(lambda x: vmap(grad(f))(x))(batch),
        lambda f: grad(lambda x: vmap(f)(x).sum())(batch),
        lambda f: grad(lambda x: vmap(grad(f))(x).square().sum())(batch),
        lambda f: grad(lambda x: vmap(lambda x: jvp(f, (x,), (x,))[1])(x).square().sum())(batch),
        lambda f: recorded(vmap(grad(f))),
        lambda f: recorded(vmap(lambda x: jacrev(f)(x))),
    ):
        torch.testing.assert_close(transform(of_first(ours)), transform(of_first(plain)))


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_forward_over_forward_is_refused(op: str) -> None:
    """torch would lose the second tangent: twice s^2 is 4, and it said 0."""
    a = js.random((32, 32), 16, 1.0, dtype=torch.float64)
    x, one = torch.randn(32, 32, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)

    def product(s: torch.Tensor) -> torch.Tensor:
        scaled = x * s.square()
        if op == "sdd":
            return js.sdd(scaled, x, a.pattern).values
        return js.dsd(a, scaled) if op == "dsd" else js.dds(scaled, a)

    def slope(s: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(product, (s,), (one,))[1]

    with pytest.raises(NotImplementedError, match="jvp of grad"):
        torch.func.jvp(slope, (one,), (one,))
    with pytest.raises(NotImplementedError, match="jvp of grad"):
        torch.func.jacfwd(torch.func.jacfwd(product))(one)
    once = slope(one)
    curved = torch.func.jvp(torch.func.grad(lambda s: product(s).sum()), (one,), (one,))[1]
    torch.testing.assert_close(once.sum(), curved)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("operation", ["dsd", "sdd", "linear relu", "linear gelu"])
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_over_each_operand(operation: str, count: int) -> None:
    """And over all; a batch may be empty, and need not be the first dimension."""
    ours, plain, operands = products(operation)
    for mapped in (*({n} for n in range(len(operands))), {*range(len(operands))}):
        batch = tuple(
            torch.randn(*each.shape, count, dtype=each.dtype) if n in mapped else each
            for n, each in enumerate(operands)
        )
        dims = tuple(-1 if n in mapped else None for n in range(len(operands)))
        got = torch.func.vmap(ours, in_dims=dims)(*batch)
        if count:
            torch.testing.assert_close(got, torch.func.vmap(plain, in_dims=dims)(*batch))
        else:
            assert got.shape == (0, *plain(*operands).shape)


@pytest.mark.parametrize("operation", ["dsd", "sdd", "linear relu"])
def test_forward_mode_and_batched_gradients(operation: str) -> None:
    function, _, operands = products(operation)
    inputs = tuple(each.clone().requires_grad_() for each in operands)
    assert torch.autograd.gradcheck(
        function,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,
    )
    assert torch.autograd.gradgradcheck(
        function, inputs, check_fwd_over_rev=True, check_batched_grad=True, fast_mode=True
    )


def test_a_lazy_negation_is_done() -> None:
    """What ``.conj().imag`` gives has its sign in a bit that no kernel looks at."""
    a = matrix().detach()
    rows, cols = a.shape
    x, y = (torch.randn(n, dtype=torch.complex128).conj().imag for n in (cols, rows))
    assert x.is_neg()
    torch.testing.assert_close(a @ x, a.to_dense() @ x)
    torch.testing.assert_close(y @ a, y @ a.to_dense())
    kept = js.BlockSparse(torch.ones_like(a.values), a.pattern).to_dense()
    outer = js.sdd(y[:, None], x[None], a.pattern).to_dense()
    torch.testing.assert_close(outer, torch.outer(y, x) * kept)


@pytest.mark.parametrize("loss", ["abs", "sgn", "max"])
@pytest.mark.parametrize("operation", ["dsd", "dds", "sdd", "linear", "tall batch"])
def test_gradients_that_autograd_knows_to_be_zero(operation: str, loss: str) -> None:
    """They are tensors without memory: of ``sgn``, and so in the penalties of L1 losses."""
    a = matrix()
    left, right = double(3, 20), double(30, 3)
    batch = double(2, 40, 30).transpose(0, 1)

    def gradients(sparse: bool) -> list[Tensor]:
        values = a.values.detach().clone().requires_grad_()
        held = js.BlockSparse(values, a.pattern)
        weight = held if sparse else held.to_dense()
        y, x = {
            "dsd": lambda: (weight @ right, right),
            "dds": lambda: (left @ weight, left),
            "linear": lambda: (right.T @ weight.T, right),
            "tall batch": lambda: (batch @ weight.T, batch),
            "sdd": lambda: (sampled(left, right, sparse), left),
        }[operation]()
        operands = (left, right) if operation == "sdd" else (values, x)
        total = {"abs": y.abs, "sgn": y.sgn, "max": y.flatten().abs().amax}[loss]().sum()
        first = torch.autograd.grad(total, operands, create_graph=True)
        penalty = sum(each.square().sum() for each in first) + y.square().sum()
        return list(torch.autograd.grad(penalty, operands))

    def sampled(left: Tensor, right: Tensor, sparse: bool) -> Tensor:
        if sparse:
            return js.sdd(left.T, right.T, a.pattern).to_dense()
        return (left.T @ right.T) * js.BlockSparse(torch.ones_like(a.values), a.pattern).to_dense()

    for mine, wanted in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_operands_that_stand_for_zeros(device: str) -> None:
    a = js.random((20, 30), BLOCK, 0.6, device=device)
    zeros = torch._efficientzerotensor((30, 3), device=device)
    x = torch.randn(20, 3, device=device)
    assert not js.dsd(a, zeros).any()
    assert not js.dsd(a, zeros.expand(4, 30, 3)).any()
    assert not js.dds(zeros.T, a.T).any()
    assert not js.sdd(x, zeros.T, a.pattern).values.any()
    of_all = torch._efficientzerotensor((64,), device=device)
    rows = torch.randn(5, 30, device=device)
    for bias in (of_all[:20], of_all[32:52]):  # the second has an address, which nothing is at
        assert torch.equal(js.linear(rows, a, bias), js.linear(rows, a))
    none = torch._efficientzerotensor(a.values.shape, device=device)
    assert not js.dsd(a.with_values(none), torch.randn(30, 3, device=device)).any()


def test_an_exported_program_trains() -> None:
    """Its graph holds the registered operations, which know their gradients themselves."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64),
        js.nn.BlockSparseLinear(64, 64, 32, density=0.5),
        torch.nn.Linear(64, 4),
    )
    x = torch.randn(5, 64)
    program = torch.export.export(model, (x,)).module()
    for each in (model, program):
        each.zero_grad()
        each(x).square().sum().backward()
        gradients = [p.grad for _, p in sorted(each.named_parameters())]
        if each is model:
            expected = [gradient.clone() for gradient in gradients]
    torch.testing.assert_close(gradients, expected)
