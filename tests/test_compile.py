"""torch.compile: whole graphs, backward too, and one compilation for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._higher_order_ops.scan import scan

import jitsparse as js

BACKENDS = ("aot_eager", "inductor")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def network(x: Tensor, weight: js.BlockSparse, bias: Tensor) -> Tensor:
    """Every operation once, on views, with an activation that is not fused under gradients."""
    hidden = js.linear(x, weight, bias, "gelu")
    back = js.dds(hidden, weight)
    gram = js.sdd(hidden.mT, x, weight.pattern)
    return js.dsd(gram.T, hidden.mT).mT + back


def gradients(function: Callable[..., Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    real = {"generator": generator, "dtype": torch.float64}
    weight = js.random((64, 96), 32, 0.5, **real).requires_grad_()
    x = torch.randn(10, 96, **real).requires_grad_()
    bias = torch.randn(64, **real).requires_grad_()
    out = function(x, weight, bias)
    out.square().sum().backward()
    return [out.detach(), x.grad, weight.grad, bias.grad]


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_graphs_forward_and_backward(backend: str) -> None:
    compiled = torch.compile(network, fullgraph=True, backend=backend)
    for got, expected in zip(gradients(compiled), gradients(network), strict=True):
        torch.testing.assert_close(got, expected)


def test_sizes_do_not_recompile() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    layer = js.nn.BlockSparseLinear(96, 64, 32, density=0.5)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for batch in (2, 3, 17, 64, 65, 300):
        x = torch.randn(batch, 96, requires_grad=True)
        out = compiled(x)
        out.sum().backward()
        torch.testing.assert_close(out, layer(x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("function", [torch.matmul, lambda p, q: p @ q])
def test_a_square_product_keeps_its_order(function: Any) -> None:
    """Dynamo has a matrix and its right operand change places if the operator is ``@``: that one
    stays outside of the graph."""
    a, x = js.random((64, 64), 32, 0.5), torch.randn(64, 64)
    torch._dynamo.reset()
    whole = function is torch.matmul and torch.__version__ >= (2, 11)
    compiled = torch.compile(function, backend="eager", fullgraph=whole)
    assert torch.equal(compiled(a, x), js.dsd(a, x))
    assert torch.equal(compiled(x, a), js.dds(x, a))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("op", ["linear", "dds", "dsd", "sdd"])
def test_patterns_of_any_shape(op: str, dynamic: bool | None) -> None:
    """Their sizes are then symbols, which come from outside of what is differentiated."""

    def run(x: Tensor, w: js.BlockSparse) -> Tensor:
        if op == "sdd":
            return js.sdd(x.mT, x, w.pattern).values
        if op == "dsd":
            return js.dsd(w, x.mT)
        return js.linear(x, w) if op == "linear" else js.dds(x, w.T)

    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows, cols in ((64, 48), (48, 64), (32, 32)):
        shape = (cols, cols) if op == "sdd" else (rows, cols)
        found = []
        for function in (run, compiled):
            w = js.random(shape, 16, 0.5, generator=torch.Generator().manual_seed(0))
            w.requires_grad_()
            x = torch.randn(4, cols, generator=torch.Generator().manual_seed(1)).requires_grad_()
            out = function(x, w)
            out.square().sum().backward()
            found.append([out.detach(), x.grad, w.grad])
        torch.testing.assert_close(found[1], found[0])


def test_marked_dimensions_do_not_recompile() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    a, square = js.random((64, 96), 32, 0.5), js.Pattern.random((40, 40), 8, 0.5)

    def run(x: Tensor) -> Tensor:
        return js.dsd(a, x) + js.sdd(x.mT, x, square).values.sum()

    compiled = torch.compile(run, fullgraph=True, backend=counter)
    for batch in (2, 5, 9):
        x = torch.randn(batch, 96, 40)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), run(x))
    assert counter.frame_count == 1


def test_matrices_may_be_built_and_returned_inside() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def scaled(a: js.BlockSparse, x: Tensor) -> js.BlockSparse:
        return js.BlockSparse(a.values * js.dsd(a, x).sum(), a.pattern).T

    a, x = js.random((64, 96), 32, 0.5), torch.randn(96, 5)
    got = scaled(a, x)
    assert isinstance(got, js.BlockSparse)
    assert got.transposed
    torch.testing.assert_close(got.values, a.values * js.dsd(a, x).sum())


def test_new_values_on_a_pattern_do_not_recompile() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    pattern = js.Pattern.random((64, 96), 32, 0.5)
    compiled = torch.compile(js.dsd, backend=counter, fullgraph=True)
    x = torch.randn(96, 5)
    for _ in range(3):
        a = js.BlockSparse(torch.randn(pattern.nnz_blocks, 32, 32), pattern)
        torch.testing.assert_close(compiled(a, x), js.dsd(a, x))
    assert counter.frame_count == 1


def test_autocast_inside_a_graph() -> None:
    a, x = js.random((64, 96), 32, 0.5), torch.randn(96, 5)

    def run(a: js.BlockSparse, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return js.dsd(a, x)

    got = torch.compile(run, fullgraph=True, backend="aot_eager")(a, x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, run(a, x))


def test_export_keeps_the_operations() -> None:
    layer = js.nn.BlockSparseLinear(96, 64, 32, density=0.5)
    program = torch.export.export(layer, (torch.randn(3, 96),))
    assert "jitsparse.dds.default" in program.graph_module.code
    x = torch.randn(3, 96)
    torch.testing.assert_close(program.module()(x), layer(x))


def test_the_first_call_of_a_process_may_be_compiled() -> None:
    import subprocess
    import sys

    code = (
        "import torch, jitsparse as js\n"
        "layer = js.nn.BlockSparseLinear(64, 64, 32, density=.5)\n"
        "x = torch.randn(4, 64)\n"
        "out = torch.compile(layer, fullgraph=True, backend='aot_eager')(x)\n"
        "torch.testing.assert_close(out, layer(x))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Torch 2.8 has words of its own.
REFUSAL = "fullgraph=True away" if torch.__version__ >= "2.9" else "Observed exception"

GRADIENTS = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).square().sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda f: lambda x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
}


@pytest.mark.parametrize("transform", GRADIENTS)
@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_transforms_in_a_compiled_function(op: str, transform: str) -> None:
    """They are computed outside of the graph, or refused where everything is to be in it."""
    a = js.random((32, 32), 16, 0.6)
    functions = {
        "dsd": lambda x: js.dsd(a, x),
        "dds": lambda x: js.dds(x, a),
        "sdd": lambda x: js.sdd(x, x, a.pattern).values,
    }
    f, x = GRADIENTS[transform](functions[op]), torch.randn(32, 32)
    assert torch.allclose(torch.compile(f, backend="aot_eager")(x), f(x), atol=1e-5)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match=REFUSAL):
        torch.compile(f, backend="aot_eager", fullgraph=True)(x)


class Activated(torch.nn.Module):
    def __init__(self, activation: str | None) -> None:
        super().__init__()
        self.layer = js.nn.BlockSparseLinear(32, 48, 16, density=0.6)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return js.linear(x, self.layer.weight, self.layer.bias, self.activation)


CAPTURES = {
    "export": lambda module, x: torch.export.export(module, (x,)).module(),
    "strict export": lambda module, x: torch.export.export(module, (x,), strict=True).module(),
    "trace": lambda module, x: torch.jit.trace(module, (x,)),
}


@pytest.mark.parametrize("recorded", [False, True], ids=["without gradients", "with gradients"])
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.filterwarnings("ignore")
def test_a_captured_program_has_gradients(
    activation: str | None, capture: str, recorded: bool
) -> None:
    """However it was captured: what is fused then knows the gradients of all activations."""
    module, x = Activated(activation), torch.randn(5, 32)
    with torch.set_grad_enabled(recorded):
        captured = CAPTURES[capture](module, x)
    wanted = {name: each.grad for name, each in gradients_of(module, x).items()}
    for each in module.parameters():
        each.grad = None
    found = gradients_of(captured, x)
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        assert each.grad is not None, name
        assert torch.allclose(each.grad, wanted[name], atol=1e-5), name


def gradients_of(module: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Its parameters and its input, which have gradients."""
    x = x.clone().requires_grad_()
    module(x).sin().sum().backward()
    return {"x": x, **dict(module.named_parameters())}


def through_a_view(layer: js.nn.BlockSparseLinear, x: Tensor) -> Tensor:
    buffer = torch.zeros(4, 64)
    view = buffer.view(4, 64)
    buffer.copy_(layer(x))
    gram = js.sdd(view.mT, view, layer.pattern)
    return layer(view) + js.dsd(gram, view.mT).mT


def through_foreach(layer: js.nn.BlockSparseLinear, x: Tensor) -> Tensor:
    sums = [torch.zeros(4, 64)]
    torch._foreach_add_(sums, [layer(x)])
    return layer(sums[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("run", [through_a_view, through_foreach])
def test_operands_that_need_gradients_by_what_is_written_to_them(
    run: Callable[..., Tensor], backend: str
) -> None:
    """Dynamo does not know by then that they do."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    x = torch.randn(4, 64)

    def gradient(function: Callable[..., Tensor]) -> Tensor:
        (found,) = torch.autograd.grad(function(layer, x).square().sum(), layer.values)
        return found

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(run))


def test_the_carry_of_a_scan() -> None:
    """Which is traced even where nothing is compiled."""
    xs, start = torch.randn(4, 3, 64), torch.zeros(3, 64)

    def gradients(layer: torch.nn.Module) -> tuple[Tensor, Tensor]:
        """Of the layer's first parameter, by a scan and by a loop."""

        def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            carry = layer(carry + x).tanh()
            return carry, carry.clone()

        carry, carries = start, []
        for x in xs:
            carry, _ = step(carry, x)
            carries.append(carry)
        parameter = next(layer.parameters())
        states = scan(step, start, xs)[1], torch.stack(carries)
        scanned, looped = (torch.autograd.grad(s.square().sum(), parameter)[0] for s in states)
        return scanned, looped

    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)
    scanned, looped = gradients(layer.to_linear())
    if not torch.allclose(scanned, looped, rtol=1e-3, atol=1e-3):
        pytest.skip("the scan of this torch (2.11) loses the gradient of a carry, nn.Linear's too")
    torch.testing.assert_close(*gradients(layer))
