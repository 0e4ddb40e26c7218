"""A captured graph has the pattern that a layer has when it is captured, and its device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitsparse as js

X = torch.randn(4, 64)


def written() -> tuple[js.nn.BlockSparseLinear, js.nn.BlockSparseLinear]:
    """A layer into which another one's state was written, as ``DistributedDataParallel`` does, and
    that other."""
    layer, other = (js.nn.BlockSparseLinear(64, 96, 16, density=0.5) for _ in range(2))
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            tensor.copy_(other.state_dict()[name])
    return layer, other


def test_what_was_written_is_compiled() -> None:
    torch._dynamo.reset()
    layer, other = written()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), other(X))


def test_what_was_written_is_exported() -> None:
    layer, other = written()
    torch.testing.assert_close(torch.export.export(layer, (X,)).module()(X), other(X))


def test_a_strict_export_asks_to_read_it_before() -> None:
    layer, other = written()
    with pytest.raises(Exception, match=r"read layer\.pattern once"):
        torch.export.export(layer, (X,), strict=True)
    assert layer.pattern == other.pattern
    program = torch.export.export(layer, (X,), strict=True)
    torch.testing.assert_close(program.module()(X), other(X))


def call(
    layer: torch.nn.Module, state: dict[str, Tensor], x: Tensor
) -> Tensor:  # what users write, with another layer's state
    return torch.func.functional_call(layer, state, (x,))


def test_another_layers_buffers_in_a_graph_are_followed_outside_of_it() -> None:
    torch._dynamo.reset()
    layer, other = (js.nn.BlockSparseLinear(64, 96, 16, density=0.5) for _ in range(2))
    expected = layer(X)
    compiled = torch.compile(call, backend="aot_eager")
    torch.testing.assert_close(compiled(layer, dict(other.state_dict()), X), other(X))
    torch.testing.assert_close(compiled(layer, dict(layer.state_dict()), X), expected)


def test_what_a_call_had_in_a_layers_place_is_in_no_graph() -> None:
    torch._dynamo.reset()
    layer, other = (js.nn.BlockSparseLinear(64, 96, 16, density=0.5) for _ in range(2))
    expected = layer(X)
    compiled = torch.compile(layer, backend="aot_eager")
    compiled(X)
    torch.testing.assert_close(call(layer, other.state_dict(), X), other(X))
    torch.testing.assert_close(compiled(X), expected)
    call(layer, other.state_dict(), X)
    with pytest.raises(js.ArgumentError, match=r"read layer\.pattern once"):
        torch.export.export(layer, (X,))
    assert layer.pattern != other.pattern
    torch.testing.assert_close(torch.export.export(layer, (X,)).module()(X), expected)


def test_buffers_that_were_replaced_are_not_exported_unseen() -> None:
    layer, other = (js.nn.BlockSparseLinear(64, 96, 16, density=0.5) for _ in range(2))
    for kind in ("_buffers", "_parameters"):
        getattr(layer, kind).update(getattr(other, kind))
    with pytest.raises(js.ArgumentError, match=r"read layer\.pattern once"):
        torch.export.export(layer, (X,))
    assert layer.pattern == other.pattern
    torch.testing.assert_close(torch.export.export(layer, (X,)).module()(X), other(X))


A, B = js.random((64, 64), 16, 0.5), torch.randn(64, 4)
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "dsd": lambda index: torch.ops.jitsparse.dsd(A.values, index, B, 64, 64, False),
    "dds": lambda index: torch.ops.jitsparse.dds(B.T, A.values, index, 64, 64, False, None, 0),
    "sdd": lambda index: torch.ops.jitsparse.sdd(B, B.T, index, 64, 64, 8, 16, 16),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_index_that_is_too_short_is_refused(operation: str) -> None:
    """That of a CPU has no parts for a GPU, whose kernels would read past its end."""
    run = OPERATIONS[operation]
    run(A.pattern.index.clone())
    with pytest.raises(js.ArgumentError, match="export the model there"):
        run(A.pattern.index[:-1])


@pytest.mark.gpu
def test_a_graph_of_the_cpu_does_not_run_on_a_gpu() -> None:
    from torch.export.passes import move_to_device_pass

    layer = js.nn.BlockSparseLinear(256, 256, 32, density=0.5, dtype=torch.bfloat16)
    x = torch.randn(8, 256, dtype=torch.bfloat16)
    program = torch.export.export(layer, (x,))
    for module in (program.module().to("cuda"), move_to_device_pass(program, "cuda").module()):
        with pytest.raises(js.ArgumentError, match="export the model there"):
            module(x.cuda())
