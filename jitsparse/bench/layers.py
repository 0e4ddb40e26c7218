"""Measuring linear layers: their data, and their passes beside the dense layer's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from jitsparse import functional
from jitsparse.bench.cases import DTYPES, block_name, normal
from jitsparse.bench.peers import DENSE, OURS, variant_of
from jitsparse.bench.products import rate_scale
from jitsparse.bench.section import Outcome
from jitsparse.bench.timing import copies_beyond_l2, interleave
from jitsparse.kernels.float32 import float32_as
from jitsparse.pattern import Pattern
from jitsparse.sparse import BlockSparse

__all__ = [
    "LayerCase",
    "LayerData",
    "copies",
    "make_layer",
    "measure_passes",
    "pass_calls",
    "sparse_weights",
]

Call = Callable[[int], object]

PASSES = {"forward": 1, "grad input": 1, "grad weight": 1, "step": 3}
"""Passes and the products in each."""


@dataclass(frozen=True)
class LayerCase:
    """A linear layer with a block-sparse weight and no bias.

    Attributes:
        shape: ``(out, in)``.
        tokens: rows of the input; several are measured side by side on the same weights.
        block: ``(block_rows, block_cols)`` of the weight.
        density: share of its blocks that are stored, at random places.
        dtype: a key of :data:`~jitsparse.bench.cases.DTYPES`.
        device: where it runs.
    """

    shape: tuple[int, int]
    tokens: tuple[int, ...]
    block: tuple[int, int]
    density: float
    dtype: str
    device: torch.device

    @property
    def facts(self) -> dict[str, object]:
        """What distinguishes the case from others, as its rows have it."""
        return {
            "layer": "x".join(map(str, self.shape)),
            "dtype": self.dtype,
            "block": block_name(self.block),
            "density": self.density,
            "tokens": ", ".join(map(str, self.tokens)),
        }


@dataclass(frozen=True)
class LayerData:
    """Standard normal data of a case, each kind in as many copies as overflow the L2 cache.

    Attributes:
        weight: sparse weights, on one pattern.
        dense: dense weights, without zeros.
        x: inputs, ``(tokens, in)``.
        grad: gradients of the output, ``(tokens, out)``.
    """

    weight: list[BlockSparse]
    dense: list[Tensor]
    x: list[Tensor]
    grad: list[Tensor]

    @property
    def pattern(self) -> Pattern:
        return self.weight[0].pattern


def sparse_weights(case: LayerCase, generator: torch.Generator) -> list[BlockSparse]:
    """Weights on one random pattern, in as many copies as overflow the L2 cache."""
    pattern = Pattern.random(
        case.shape, case.block, case.density, generator=generator, device=case.device
    )
    shape = pattern.values_shape
    return [BlockSparse(values, pattern) for values in copies(case, shape, generator)]


def copies(case: LayerCase, shape: tuple[int, ...], generator: torch.Generator) -> list[Tensor]:
    """Standard normal tensors of a shape, in as many copies as overflow the L2 cache."""
    dtype = DTYPES[case.dtype]
    count = copies_beyond_l2(dtype.itemsize * math.prod(shape), case.device)
    return [normal(shape, "n", dtype, generator) for _ in range(count)]


def make_layer(case: LayerCase) -> LayerData:
    """Data of a case with a single number of tokens."""
    generator = torch.Generator(case.device).manual_seed(0)
    (rows, cols), (tokens,) = case.shape, case.tokens
    return LayerData(
        sparse_weights(case, generator),
        copies(case, case.shape, generator),
        copies(case, (tokens, cols), generator),
        copies(case, (tokens, rows), generator),
    )


def pass_calls(data: LayerData) -> dict[str, Call]:
    """The passes of a layer, ours and the dense one's: ``"jitsparse forward"`` to its call.

    A step is the forward pass and both gradients as autograd runs them; the others are the
    products that it consists of, without autograd.
    """
    sparse, dense, x, grad = data.weight, data.dense, data.x, data.grad
    s, d, n, g = len(sparse), len(dense), len(x), len(grad)
    # The same memory, once with and once without gradients recorded.
    leaves = [tensor.detach().requires_grad_() for tensor in x]
    sparse_leaves = [
        BlockSparse(weight.values.detach().requires_grad_(), weight.pattern) for weight in sparse
    ]
    dense_leaves = [weight.detach().requires_grad_() for weight in dense]

    def our_step(i: int) -> object:
        leaf, weight = leaves[i % n], sparse_leaves[i % s]
        out = functional.linear(leaf, weight)
        return torch.autograd.grad(out, (leaf, weight.values), grad[i % g])

    def dense_step(i: int) -> object:
        leaf, weight = leaves[i % n], dense_leaves[i % d]
        return torch.autograd.grad(F.linear(leaf, weight), (leaf, weight), grad[i % g])

    return {
        f"{OURS} forward": lambda i: functional.linear(x[i % n], sparse[i % s]),
        f"{DENSE} forward": lambda i: F.linear(x[i % n], dense[i % d]),
        f"{OURS} grad input": lambda i: functional.dds(grad[i % g], sparse[i % s]),
        f"{DENSE} grad input": lambda i: grad[i % g] @ dense[i % d],
        f"{OURS} grad weight": lambda i: functional.sdd(grad[i % g].mT, x[i % n], data.pattern),
        f"{DENSE} grad weight": lambda i: grad[i % g].mT @ x[i % n],
        f"{OURS} step": our_step,
        f"{DENSE} step": dense_step,
    }


def measure_passes(case: LayerCase, *, seconds: float = 2.0) -> Outcome:
    """Time the passes of a layer beside the dense layer's: a row for each."""
    with float32_as(case.dtype, case.device.type):
        data = make_layer(case)
        timings = interleave(pass_calls(data), case.device, seconds=seconds)
        x, grad, weight = data.x[0], data.grad[0], data.weight[0]
        variants = {
            "forward": variant_of("linear", x, weight),
            "grad input": variant_of("dds", grad, weight),
            "grad weight": variant_of("sdd", grad.mT, x, data.pattern),
            "step": None,
        }
    dense_flops = 2.0 * math.prod(case.shape) * case.tokens[0]
    rows = []
    for name, products in PASSES.items():
        ours, dense = timings[f"{OURS} {name}"], timings[f"{DENSE} {name}"]
        scaled = products * dense_flops * rate_scale(case.device)
        rows.append(
            {
                "pass": name,
                **case.facts,
                "us": 1e6 * ours.median,
                "dense us": 1e6 * dense.median,
                "useful rate": scaled * data.pattern.density / ours.median,
                "dense rate": scaled / dense.median,
                "times dense": ours.times_faster_than(dense),
                "variant": variants[name],
            }
        )
    return Outcome(rows, timings=timings)
