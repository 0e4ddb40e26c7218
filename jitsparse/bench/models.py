"""Measuring whole models: a decoder that serves and trains, beside its dense twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jitsparse.bench.cases import DTYPES, block_name, normal
from jitsparse.bench.decoder import Decoder, DecoderShape, Linear
from jitsparse.bench.peers import (
    DENSE,
    OURS,
    TORCH_BSR,
    CannotCompute,
    bsr_of,
    bsr_product,
    those_that_run,
)
from jitsparse.bench.section import Outcome
from jitsparse.bench.timing import WARM_UP_CALLS, Call, interleave
from jitsparse.nn import BlockSparseLinear
from jitsparse.pattern import Pattern
from jitsparse.sparse import BlockSparse

__all__ = ["PHASES", "ModelCase", "measure_model"]

PHASES = ("decode", "prefill", "train")
"""One more token of each sequence; all tokens of one sequence; the latter with all gradients."""

_MULTIPLE = 16
"""Tokens for torch's BSR product are padded with zeros to a multiple of this: its kernels multiply
no fewer."""


@dataclass(frozen=True)
class ModelCase:
    """A decoder all of whose linear layers are block-sparse.

    Attributes:
        shape: sizes of the decoder.
        phase: one of :data:`PHASES`.
        tokens: tokens per call; those of ``decode`` are each of a different sequence.
        block: ``(block_rows, block_cols)`` of the weights.
        density: share of their blocks that are stored, at random places.
        dtype: a key of :data:`~jitsparse.bench.cases.DTYPES`.
        device: where it runs.
    """

    shape: DecoderShape
    phase: str
    tokens: int
    block: tuple[int, int]
    density: float
    dtype: str
    device: torch.device

    @property
    def facts(self) -> dict[str, object]:
        """What distinguishes the case from others, as its row has it."""
        return {
            "phase": f"{self.phase} {self.tokens}",
            "dtype": self.dtype,
            "block": block_name(self.block),
            "density": self.density,
        }


def measure_model(case: ModelCase, *, seconds: float = 2.0) -> Outcome:
    """Time a decoder beside the dense one and, where that computes it, torch's BSR product."""
    # Every case needs new graphs of the same code, of which Dynamo compiles eight.
    torch.compiler.reset()
    makers: dict[str, Callable[[], Call]] = {
        DENSE: partial(_call, case, _dense(case)),
        TORCH_BSR: partial(_call, case, _torch_bsr(case), whole=False),
    }
    calls, absent = those_that_run(makers, case.device)
    timings = interleave({OURS: _call(case, _sparse(case)), **calls}, case.device, seconds=seconds)
    row: dict[str, object] = {**case.facts, "us": 1e6 * timings[OURS].median}
    for name, peer, times in (
        (DENSE, "dense us", "times dense"),
        (TORCH_BSR, "torch BSR us", "times torch BSR"),
    ):
        theirs = timings.get(name)
        row[peer] = None if theirs is None else 1e6 * theirs.median
        row[times] = None if theirs is None else timings[OURS].times_faster_than(theirs)
    return Outcome([row], str(case.facts["phase"]), absent, timings)


def _dense(case: ModelCase) -> Linear:
    """A factory of dense layers."""
    factory = {"device": case.device, "dtype": DTYPES[case.dtype]}
    return lambda fan_in, fan_out: nn.Linear(fan_in, fan_out, bias=False, **factory)


def _torch_bsr(case: ModelCase) -> Linear:
    """A factory of layers on torch's BSR product."""
    sparse = _sparse(case)
    return lambda fan_in, fan_out: _BsrLinear(sparse(fan_in, fan_out).weight)


def _sparse(case: ModelCase) -> Callable[[int, int], BlockSparseLinear]:
    """A factory of our layers; those of one shape have one pattern."""

    def layer(fan_in: int, fan_out: int) -> BlockSparseLinear:
        generator = torch.Generator(case.device).manual_seed(0)
        pattern = Pattern.random(
            (fan_out, fan_in), case.block, case.density, generator=generator, device=case.device
        )
        dtype = DTYPES[case.dtype]
        return BlockSparseLinear(
            fan_in, fan_out, case.block, pattern=pattern, bias=False, dtype=dtype
        )

    return layer


class _BsrLinear(nn.Module):
    """torch's BSR product, ``weight @ x.T``, padded to as many tokens as it takes at least.

    The result is copied to the layout of x: the rest of a decoder takes several times as long on
    transposed activations.
    """

    def __init__(self, weight: BlockSparse) -> None:
        super().__init__()
        self.weight = bsr_of(weight)
        self.product = bsr_product(self.weight)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise CannotCompute("its gradients are not implemented")
        tokens = x.flatten(0, -2)
        missing = -len(tokens) % _MULTIPLE
        padded = F.pad(tokens, (0, 0, 0, missing)) if missing else tokens
        rows = self.product(padded.T).T[: len(tokens)].contiguous()
        out: Tensor = rows.unflatten(0, x.shape[:-1])
        return out


def _call(case: ModelCase, linear: Linear, *, whole: bool = True) -> Call:
    """A decoder's phase, as programs run it.

    On CUDA layers are compiled one by one, and a step of ``decode`` is replayed as a CUDA graph,
    since its kernels, launched one by one, take the host longer than the GPU. On a CPU, where this
    suite only shows that it works, it runs eagerly.

    Args:
        case: what is measured.
        linear: makes the linear layers.
        whole: whether these can be compiled, too.
    """
    dtype = DTYPES[case.dtype]
    model = Decoder(case.shape, linear, case.device, dtype)
    if case.device.type == "cuda":
        for layer in model.layers:
            layer.compile(fullgraph=whole, dynamic=False)
    generator = torch.Generator(case.device).manual_seed(0)
    batch = case.tokens if case.phase == "decode" else 1
    size = batch, case.tokens // batch, case.shape.width
    x, grad = (normal(size, "n", dtype, generator) for _ in range(2))
    if case.phase == "train":
        leaves = [x.requires_grad_(), *model.parameters()]
        return lambda i: torch.autograd.grad(model(x), leaves, grad)
    if case.phase == "prefill":
        return lambda i: _without_gradients(model, x)
    caches = model.caches(batch, dtype, generator)
    step = partial(_without_gradients, model.decode, x, caches)
    return _replay(step) if case.device.type == "cuda" else lambda i: step()


@torch.no_grad()
def _without_gradients(call: Callable[..., Tensor], *arguments: object) -> Tensor:
    return call(*arguments)


def _replay(step: Callable[[], object]) -> Call:
    """A step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(i: int) -> object:
        graph.replay()
        return step  # keeps the tensors alive that the graph reads

    return replay
