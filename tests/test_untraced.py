"""What torch.compile must not trace runs eagerly inside of compiled functions, too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jitsparse as js
from jitsparse.untraced import untraced

Moves = Callable[[nn.Sequential, torch.optim.Optimizer], None]


def to_other_patterns(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    for layer, seed in zip(model, range(3), strict=True):
        generator = torch.Generator().manual_seed(seed)
        pattern = js.Pattern.random((64, 64), 16, 0.5, generator=generator)
        layer.set_pattern(pattern, optimizer)


def by_drop_and_grow(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    js.nn.DropAndGrow(model, optimizer, every=1, until=9, grow="random").step()


def by_pruning(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    js.nn.prune_(model, 0.25, optimizer)


@pytest.mark.parametrize("move", [to_other_patterns, by_drop_and_grow, by_pruning])
def test_blocks_move_in_a_compiled_step_as_in_an_eager_one(move: Moves) -> None:
    """Dynamo (torch 2.13) does not tell layers apart by whose state an optimizer has."""

    def trained(compiled: bool) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        real = {"density": 0.5, "dtype": torch.float64}
        layers = [js.nn.BlockSparseLinear(64, 64, 16, **real) for _ in range(3)]
        model = nn.Sequential(*layers)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

        def step(x: Tensor) -> None:
            sgd.zero_grad()
            model(x).square().mean().backward()
            sgd.step()
            move(model, sgd)

        run = torch.compile(step, backend="eager") if compiled else step
        for x in torch.randn(3, 8, 64, dtype=torch.float64):
            run(x)
        state = [sgd.state[layer.values]["momentum_buffer"] for layer in layers]
        return [*(layer.values.detach() for layer in layers), *state]

    for got, expected in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_a_whole_graph_cannot_have_them() -> None:
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5)

    def step(x: Tensor) -> Tensor:
        layer.set_pattern(layer.pattern)
        return layer(x)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="of jitsparse runs eagerly"):
        compiled(torch.randn(8, 64))


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_products_under_a_transform_are_no_frames_of_dynamo(transform: str) -> None:
    """Kernel choice and compilation were: 1492 of them, half a minute."""
    layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5, dtype=torch.float64)
    functions = {
        "grad": torch.func.grad(lambda x: layer(x).square().sum()),
        "vmap": torch.func.vmap(layer),
        "jvp": lambda x: torch.func.jvp(layer, (x,), (x,))[1],
    }
    x = torch.randn(8, 64, dtype=torch.float64)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    got = torch.compile(functions[transform], backend="aot_eager")(x)
    torch.testing.assert_close(got, functions[transform](x))
    assert torch._dynamo.utils.counters["frames"]["total"] < 50


def test_arguments_results_and_names_are_the_functions() -> None:
    @untraced
    def add(a: int, *, b: int = 1) -> int:
        """Sum."""
        return a + b

    assert add(1) == 2
    assert add(1, b=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Sum.")


def test_dynamo_is_not_imported_for_it() -> None:
    program = (
        "import sys, jitsparse as js; layer = js.nn.BlockSparseLinear(64, 64, 16, density=0.5);"
        "layer.set_pattern(layer.pattern); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
