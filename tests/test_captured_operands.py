"""A captured graph, whose operands the registered operations alone check, refuses what does not fit
its pattern, and follows autocast like the layer that it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import jitsparse as js

pytestmark = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning"
)

Capture = Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]


def exported(model: nn.Module, x: Tensor) -> Any:
    return torch.export.export(model, (x,)).module()


def traced(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.trace(model, x)


both = pytest.mark.parametrize("capture", [exported, traced])


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with torch.device(request.param):
        yield str(request.param)


@pytest.fixture
def layer(device: str) -> nn.Module:
    torch.manual_seed(0)
    made = js.nn.BlockSparseLinear(64, 96, 16, density=0.5)
    return made.eval().requires_grad_(False)


@both
@pytest.mark.parametrize("before", [False, True])
def test_autocast(capture: Capture, before: bool, layer: nn.Module, device: str) -> None:
    """Before it stands a layer that autocast casts, or nothing does."""
    dense = nn.Linear(64, 64).requires_grad_(False)
    model = nn.Sequential(dense, layer) if before else nn.Sequential(layer)
    x = torch.randn(3, 64)
    graph = capture(model, x)
    with torch.autocast(device, torch.bfloat16):
        expected = model(x)
        assert graph(x).dtype is torch.bfloat16
        assert torch.equal(graph(x), expected)
    assert torch.equal(graph(x), model(x))
    with torch.autocast(device, torch.bfloat16):
        double = model.double()(x.double())
        assert torch.equal(capture(model, x.double())(x.double()), double)


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_dtype(capture: Capture, dtype: torch.dtype, layer: nn.Module) -> None:
    graph = capture(layer, torch.randn(3, 64))
    with pytest.raises((js.ArgumentError, RuntimeError), match="do not fit each other"):
        graph(torch.randn(3, 64, dtype=dtype))


def test_another_number_of_columns(layer: nn.Module) -> None:
    graph = traced(layer, torch.randn(3, 64))
    with pytest.raises(RuntimeError, match=r"do not fit .* of shape \(3, 32\)"):
        graph(torch.zeros(3, 32))


def test_another_number_of_blocks(layer: nn.Module) -> None:
    graph = exported(layer, torch.randn(3, 64))
    fewer = {"values": torch.randn(1, 16, 16)}
    with pytest.raises(js.ArgumentError, match="not one of 1 blocks"):
        torch.func.functional_call(graph, fewer, (torch.randn(3, 64),))


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_an_index_is_one_contiguous_row(op: str) -> None:
    """As kernels read it."""
    arguments, call = list(operands()[op]), getattr(torch.ops.jitsparse, op)
    at = next(n for n, each in enumerate(arguments) if is_index(each))
    row = arguments[at]
    for other in (row.repeat_interleave(2)[::2], row.view(1, -1), row.view(-1, 1)):
        arguments[at] = other
        with pytest.raises(js.ArgumentError, match="is not one contiguous row"):
            call(*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_an_index_is_aligned(op: str) -> None:
    """Kernels for a GPU read 16 bytes of it at a time."""
    with torch.device("cuda"):
        arguments, call = list(operands()[op]), getattr(torch.ops.jitsparse, op)
        at = next(n for n, each in enumerate(arguments) if is_index(each))
        arguments[at] = torch.cat([torch.zeros(1, dtype=torch.int32), arguments[at]])[1:]
        with pytest.raises(js.ArgumentError, match="begin at a multiple of 16 bytes"):
            call(*arguments)


def is_index(argument: object) -> bool:
    return isinstance(argument, Tensor) and argument.dtype is torch.int32


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_mapped_index(op: str, dim: int) -> None:
    """Of patterns with as many blocks each."""
    arguments, call = list(operands()[op]), getattr(torch.ops.jitsparse, op)
    at = next(n for n, each in enumerate(arguments) if is_index(each))
    index = [arguments[at], js.Pattern.random((64, 96), 16, 0.5).index]
    dims = tuple(dim if n == at else None for n in range(len(arguments)))
    expected = [call(*arguments[:at], each, *arguments[at + 1 :]) for each in index]
    arguments[at] = torch.stack(index, dim)
    assert torch.equal(torch.func.vmap(call, dims)(*arguments), torch.stack(expected))


def operands() -> dict[str, Any]:
    a = js.random((64, 96), 16, 0.5)
    sizes = {"rows": 64, "cols": 96}
    return {
        "dsd": (a.values, a.pattern.index, torch.randn(96, 5), *sizes.values(), False),
        "dds": (torch.randn(5, 64), a.values, a.pattern.index, *sizes.values(), False, None, 0),
        "sdd": (
            torch.randn(64, 5),
            torch.randn(5, 96),
            a.pattern.index,
            *sizes.values(),
            *a.values.shape,
        ),
    }


def without_last(x: Tensor, dim: int) -> Tensor:
    return x.narrow(dim, 0, x.shape[dim] - 1)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_every_operand_is_checked(op: str) -> None:
    arguments, call = operands()[op], getattr(torch.ops.jitsparse, op)
    call(*arguments)
    for n, each in enumerate(arguments):
        if not isinstance(each, Tensor):
            continue
        wrong = [each.double() if each.is_floating_point() else each.float()]
        # An operand may have any number of rows, or columns, that are not summed over.
        free = {("dsd", 2): 1, ("dds", 0): 0}.get((op, n))
        wrong += [without_last(each, dim) for dim in range(each.dim()) if dim != free]
        for other in wrong:
            with pytest.raises(js.ArgumentError, match=r"jitsparse"):
                call(*arguments[:n], other, *arguments[n + 1 :])


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_fake_operands_are_checked(op: str) -> None:
    """Tracing raises what running would raise."""
    arguments, call = operands()[op], getattr(torch.ops.jitsparse, op)
    expected = call(*arguments).shape
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in arguments]
        assert call(*fake).shape == expected
        dense, summed = {"dsd": (2, 0), "dds": (0, 1), "sdd": (1, 0)}[op]
        for other in (fake[dense].double(), without_last(fake[dense], summed)):
            with pytest.raises(js.ArgumentError, match="do not fit each other"):
                call(*fake[:dense], other, *fake[dense + 1 :])


@pytest.mark.usefixtures("device")
def test_a_bias_is_checked() -> None:
    dense, values, index, rows, cols, transposed, *_ = operands()["dds"]
    for bias in (torch.zeros(95), torch.zeros(96, dtype=torch.float64), torch.zeros(1, 96)):
        with pytest.raises(js.ArgumentError, match="jitsparse::dds has operands that do not fit"):
            torch.ops.jitsparse.dds(dense, values, index, rows, cols, transposed, bias, 0)
