"""The contestants: jitsparse, and the ways of computing the same product without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from jitsparse import functional
from jitsparse.bench.cases import DTYPES, Case, Operands, normal
from jitsparse.bench.timing import copies_beyond_l2, settle
from jitsparse.explain import explain
from jitsparse.sparse import BlockSparse

__all__ = [
    "BMM",
    "DENSE",
    "OURS",
    "PEERS",
    "STK",
    "TORCH_BSR",
    "TORCH_TUNED",
    "CannotCompute",
    "bsr_of",
    "bsr_product",
    "contestants",
    "those_that_run",
    "usual_peers",
    "variant_of",
]

Call = Callable[[int], object]

OURS = "jitsparse"
DENSE = "torch dense"
BMM = "torch bmm"
TORCH_BSR = "torch BSR"
TORCH_TUNED = "torch BSR tuned"
STK = "stk"

PEERS = (DENSE, TORCH_BSR, STK)
"""The peers of the published tables, unless a section names others."""


class CannotCompute(Exception):
    """A peer has no such product; why, in words for the report."""


def usual_peers() -> tuple[str, ...]:
    """The peers where none is asked for: nobody misses an stk that is not installed."""
    return PEERS if find_spec("stk") else (DENSE, TORCH_BSR)


def contestants(
    case: Case, operands: Operands, peers: Sequence[str] = PEERS
) -> tuple[dict[str, Call], dict[str, str]]:
    """Every contestant that can compute the case, the peers tried once, and why others cannot.

    Args:
        case: the product.
        operands: its data.
        peers: contestants beside jitsparse. On a CPU stk is left out, without a reason: it is for
            GPUs.

    Returns:
        name to call, name to the reason for an absence. A call takes a number, reduces it modulo
        the copies of its inputs, and neither allocates inputs nor synchronises.
    """
    makers = {
        name: partial(_MAKERS[name], case, operands)
        for name in peers
        if name != STK or case.device.type == "cuda"
    }
    calls, absent = those_that_run(makers, case.device)
    return {OURS: _ours(case, operands), **calls}, absent


def those_that_run(
    makers: Mapping[str, Callable[[], Call]], device: torch.device
) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls of peers that run, each tried once, by name; and why others do not, by name."""
    calls: dict[str, Call] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            call = make()
            call(0)
            settle(device)
        except CannotCompute as error:
            absent[name] = str(error)
        # A peer may fail in any way, at any size; what it said becomes part of the report.
        except Exception as error:
            absent[name] = _first_line(error)
        else:
            calls[name] = call
    return calls, absent


def variant_of(op: str, *operands: Any) -> str:
    """The variant that a call ran, or, without a compiler, a text that says that it ran none."""
    explanation = explain(op, *operands)
    return explanation.variant if explanation.cached else "plain torch (no compiler)"


def _ours(case: Case, operands: Operands) -> Call:
    sparse, left, right, n = operands.sparse, operands.left, operands.right, operands.copies
    if case.op == "dsd":
        return lambda i: functional.dsd(sparse[i % n], right[i % n])
    if case.op == "dds":
        return lambda i: functional.dds(left[i % n], sparse[i % n])
    return lambda i: functional.sdd(left[i % n], right[i % n], operands.pattern)


def _dense(case: Case, operands: Operands) -> Call:
    """The dense product of the same shapes and layouts, on data without zeros.

    Zeros draw less power and so raise a GPU's clock: cuBLAS ran at 890 instead of 790 TFLOP/s on
    an H200 when it was given the sparse operand with its zeros filled in.
    """
    m, n, k = case.size
    left = operands.left or _full(case, (m, k), case.layout[0], 1)
    right = operands.right or _full(case, (k, n), case.layout[1], 2)
    return lambda i: left[i % len(left)] @ right[i % len(right)]


def _bmm(case: Case, operands: Operands) -> Call:
    """The squares of a block-diagonal matrix as one batch of dense products.

    It does exactly the useful operations of ours, on operands of the same layouts.
    """
    if case.pattern != "diagonal":
        raise CannotCompute("it computes block-diagonal patterns only")
    (m, n, k), squares = case.size, round(1 / case.density)
    rows, cols, inner = {
        "dsd": (m // squares, n, k // squares),
        "dds": (m, n // squares, k // squares),
        "sdd": (m // squares, n // squares, k),
    }[case.op]
    left = _full(case, (squares, rows, inner), case.layout[0], 1)
    right = _full(case, (squares, inner, cols), case.layout[1], 2)
    return lambda i: torch.bmm(left[i % len(left)], right[i % len(right)])


def _full(case: Case, shape: tuple[int, ...], letter: str, seed: int) -> list[Tensor]:
    """Dense operands, in as many copies as overflow the L2 cache."""
    generator = torch.Generator(case.device).manual_seed(seed)
    dtype = DTYPES[case.dtype]
    bytes_each = dtype.itemsize * torch.Size(shape).numel()
    copies = copies_beyond_l2(bytes_each, case.device)
    return [normal(shape, letter, dtype, generator) for _ in range(copies)]


def _torch_bsr(case: Case, operands: Operands) -> Call:
    """torch's own BSR product.

    torch multiplies a row-major BSR matrix from the left only. For dds, and for a transposed sparse
    operand, it is given what it can multiply, made before the clock starts, which flatters it.
    """
    n = operands.copies
    if case.op == "sdd":
        patterns = [bsr_of(sparse) for sparse in operands.sparse]
        left, right = operands.left, operands.right
        if case.device.type == "cuda":
            from torch.sparse import _triton_ops

            return lambda i: _triton_ops.sampled_addmm(
                patterns[i % n], left[i % n], right[i % n], beta=0.0
            )

        def sampled(i: int) -> object:
            try:
                return torch.sparse.sampled_addmm(
                    patterns[i % n], left[i % n], right[i % n], beta=0.0
                )
            except RuntimeError as error:
                if "SparseBsr" not in str(error):
                    raise
                raise CannotCompute("torch has no block-sparse sdd on a CPU") from error

        return sampled
    return _bsr_products(*_for_bsr(case, operands))


def _torch_tuned(case: Case, operands: Operands) -> Call:
    """The same after torch's own search, which takes up to minutes per case."""
    if case.op == "sdd" or case.device.type != "cuda":
        raise CannotCompute("torch tunes bsr_dense_addmm on CUDA only")
    from torch.sparse._triton_ops_meta import tune_bsr_dense_addmm

    sparse, dense = _for_bsr(case, operands)
    (m, k), columns = sparse[0].shape, dense[0].shape[1]
    facts = (m, k, columns, case.block, case.density, case.pattern, case.dtype)
    if facts not in _TUNED:
        start = dense[0].new_zeros(m, columns)
        _TUNED[facts] = tune_bsr_dense_addmm(start, sparse[0], dense[0], beta=0)
    return _bsr_products(sparse, dense, meta=_TUNED[facts])


_TUNED: dict[tuple[object, ...], dict[str, int]] = {}
"""What torch's search found. It is not left in torch, whose untuned product would use it too."""


def _for_bsr(case: Case, operands: Operands) -> tuple[list[Tensor], list[Tensor]]:
    """A dsd's or dds's operands as torch's BSR product takes them."""
    if case.op == "dsd":
        return [bsr_of(s) for s in operands.sparse], operands.right
    return [bsr_of(s.T) for s in operands.sparse], [x.T.contiguous() for x in operands.left]


def _bsr_products(sparse: list[Tensor], dense: list[Tensor], **options: Any) -> Call:
    products = [bsr_product(each, **options) for each in sparse]
    n = len(products)
    return lambda i: products[i % n](dense[i % n])


def _stk(case: Case, operands: Operands) -> Call:
    if find_spec("stk") is None:
        raise CannotCompute("it is not installed")
    if case.block != (128, 128):
        raise CannotCompute("it multiplies blocks of 128 x 128 only")
    stk: Any = import_module("stk")
    n = operands.copies
    matrices = [_stk_matrix(sparse) for sparse in operands.sparse]
    left, right = operands.left, operands.right
    if case.op == "dsd":
        return lambda i: stk.ops.dsd(matrices[i % n], right[i % n])
    if case.op == "dds":
        return lambda i: stk.ops.dds(left[i % n], matrices[i % n])
    return lambda i: stk.ops.sdd(left[i % n], right[i % n], matrices[i % n])


def _stk_matrix(sparse: BlockSparse) -> object:
    stk: Any = import_module("stk")
    pattern = sparse.pattern
    matrix = stk.Matrix(
        pattern.shape,
        sparse.values,
        pattern.row_indices.short(),
        pattern.col_indices.short(),
        pattern.crow_indices.int(),
    )
    return matrix.t() if sparse.transposed else matrix


def bsr_product(matrix: Tensor, **options: Any) -> Callable[[Tensor], Tensor]:
    """torch's function for its BSR matrix times a dense one, with options of its Triton kernels."""
    if matrix.device.type != "cuda":

        def product(dense: Tensor) -> Tensor:
            try:
                return matrix @ dense
            except NotImplementedError as error:
                name = str(matrix.dtype).removeprefix("torch.")
                raise CannotCompute(
                    f"torch has no block-sparse product of {name} on a CPU"
                ) from error

        return product
    from torch.sparse._triton_ops import bsr_dense_addmm

    rows = matrix.shape[0]
    return lambda dense: bsr_dense_addmm(
        dense.new_empty(rows, dense.shape[1]), matrix, dense, beta=0, **options
    )


def bsr_of(sparse: BlockSparse) -> Tensor:
    """Convert to torch's BSR matrix."""
    with warnings.catch_warnings():
        # torch announces once per process that its BSR layout is in beta.
        warnings.simplefilter("ignore", UserWarning)
        return sparse.to_bsr()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__


_MAKERS: dict[str, Callable[[Case, Operands], Call]] = {
    DENSE: _dense,
    BMM: _bmm,
    TORCH_BSR: _torch_bsr,
    TORCH_TUNED: _torch_tuned,
    STK: _stk,
}
