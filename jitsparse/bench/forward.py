"""Measuring a linear layer's forward pass: on few tokens, and with an epilogue."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from jitsparse import functional
from jitsparse.bench.cases import DTYPES, normal
from jitsparse.bench.layers import Call, LayerCase, copies, sparse_weights
from jitsparse.bench.peers import DENSE, OURS, variant_of
from jitsparse.bench.section import Outcome
from jitsparse.bench.timing import interleave
from jitsparse.kernels.float32 import float32_as
from jitsparse.sparse import BlockSparse

__all__ = ["epilogue_calls", "measure_epilogue", "measure_few_tokens"]

COPY = "copy"
COPY_BYTES = {"cpu": 1 << 22, "cuda": 1 << 30}
"""Size of the tensor whose copy measures the bandwidth, on CUDA far beyond any cache."""

PLAIN = "none"


def measure_few_tokens(case: LayerCase, *, seconds: float = 2.0) -> Outcome:
    """Time a layer on few tokens beside the dense one and a copy: a row per number of tokens."""
    with float32_as(case.dtype, case.device.type), torch.no_grad():
        generator = torch.Generator(case.device).manual_seed(0)
        sparse = sparse_weights(case, generator)
        dense = copies(case, case.shape, generator)
        dtype, (_, cols) = DTYPES[case.dtype], case.shape
        inputs = {t: normal((t, cols), "n", dtype, generator) for t in case.tokens}
        source = torch.randn(
            COPY_BYTES[case.device.type] // 4, generator=generator, device=case.device
        )
        target = torch.empty_like(source)
        calls: dict[str, Call] = {COPY: lambda i: target.copy_(source)}
        for tokens, x in inputs.items():
            calls[f"{OURS} {tokens}"] = _sparse_layer(x, sparse)
            calls[f"{DENSE} {tokens}"] = _dense_layer(x, dense)
        timings = interleave(calls, case.device, seconds=seconds)
        variants = {t: variant_of("linear", x, sparse[0]) for t, x in inputs.items()}
    values, copied = sparse[0].values.nbytes, 2 * source.nbytes  # a copy reads and writes
    rows = []
    for tokens in case.tokens:
        ours, theirs = timings[f"{OURS} {tokens}"], timings[f"{DENSE} {tokens}"]
        rows.append(
            {
                **case.facts,
                "tokens": str(tokens),
                "us": 1e6 * ours.median,
                "dense us": 1e6 * theirs.median,
                "times dense": ours.times_faster_than(theirs),
                "values MB": 1e-6 * values,
                "GB/s": 1e-9 * values / ours.median,
                "copy GB/s": 1e-9 * copied / timings[COPY].median,
                "share of copy": ours.times_faster_than(timings[COPY]) * values / copied,
                "variant": variants[tokens],
            }
        )
    return Outcome(rows, timings=timings)


def measure_epilogue(case: LayerCase, *, seconds: float = 2.0) -> Outcome:
    """Time a layer with bias and activation beside the one without: a row for each epilogue."""
    with float32_as(case.dtype, case.device.type), torch.no_grad():
        generator = torch.Generator(case.device).manual_seed(0)
        sparse = sparse_weights(case, generator)
        (rows, cols), (tokens,) = case.shape, case.tokens
        x = copies(case, (tokens, cols), generator)
        bias = normal((rows,), "n", DTYPES[case.dtype], generator)
        calls = epilogue_calls(x, sparse, bias)
        timings = interleave(calls, case.device, seconds=seconds)
        variant = variant_of("linear", x[0], sparse[0])
    plain = timings[PLAIN]
    return Outcome(
        [
            {
                "epilogue": name,
                **case.facts,
                "us": 1e6 * timing.median,
                "us without": 1e6 * plain.median,
                "cost %": 100 * (plain.times_faster_than(timing) - 1),
                "variant": variant,
            }
            for name, timing in timings.items()
            if name != PLAIN
        ],
        timings=timings,
    )


def epilogue_calls(x: list[Tensor], sparse: list[BlockSparse], bias: Tensor) -> dict[str, Call]:
    """The layer without and with each epilogue, by name."""
    n, s = len(x), len(sparse)
    return {
        PLAIN: lambda i: functional.linear(x[i % n], sparse[i % s]),
        "bias": lambda i: functional.linear(x[i % n], sparse[i % s], bias),
        "bias, relu": lambda i: functional.linear(x[i % n], sparse[i % s], bias, "relu"),
        "bias, gelu": lambda i: functional.linear(x[i % n], sparse[i % s], bias, "gelu"),
    }


def _sparse_layer(x: Tensor, weights: list[BlockSparse]) -> Call:
    return lambda i: functional.linear(x, weights[i % len(weights)])


def _dense_layer(x: Tensor, weights: list[Tensor]) -> Call:
    return lambda i: F.linear(x, weights[i % len(weights)])
