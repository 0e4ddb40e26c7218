"""Who is measured: jitsparse and the ways of computing the same product without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from jitsparse import functional
from jitsparse.bench.cases import Case, Operands
from jitsparse.sparse import BlockSparse

__all__ = ["DENSE", "OURS", "STK", "TORCH_BSR", "contestants"]

Call = Callable[[int], object]

OURS = "jitsparse"
DENSE = "torch dense"
TORCH_BSR = "torch BSR"
STK = "stk"


def contestants(case: Case, operands: Operands) -> tuple[dict[str, Call], dict[str, str]]:
    """Every contestant that can compute the case, tried once, and why the others cannot.

    Returns:
        name to call, name to the reason of an absence. A call takes a number, reduces it modulo the
        copies of the operands, and neither allocates inputs nor synchronises.
    """
    calls: dict[str, Call] = {
        OURS: _ours(case, operands),
        DENSE: _dense(case, operands),
    }
    absent: dict[str, str] = {}
    for name, make in ((TORCH_BSR, _torch_bsr), (STK, _stk)):
        try:
            call = make(case, operands)
            call(0)
            if case.device.type == "cuda":
                torch.cuda.synchronize(case.device)
        # A peer may fail in any way, at any size; what it said becomes part of the report.
        except Exception as error:
            absent[name] = _first_line(error)
        else:
            calls[name] = call
    return calls, absent


def _ours(case: Case, operands: Operands) -> Call:
    sparse, left, right, n = operands.sparse, operands.left, operands.right, operands.copies
    if case.op == "dsd":
        return lambda i: functional.dsd(sparse[i % n], right[i % n])
    if case.op == "dds":
        return lambda i: functional.dds(left[i % n], sparse[i % n])
    return lambda i: functional.sdd(left[i % n], right[i % n], operands.pattern)


def _dense(case: Case, operands: Operands) -> Call:
    """The dense product of the same shape, on data without zeros.

    Zeros draw less power and so raise a GPU's clock: cuBLAS ran at 890 instead of 790 TFLOP/s on
    an H200 when it was given the sparse operand with its zeros filled in.
    """
    n = operands.copies
    full = [] if case.op == "sdd" else [_full(sparse) for sparse in operands.sparse]
    left = full if case.op == "dsd" else operands.left
    right = full if case.op == "dds" else operands.right
    return lambda i: left[i % n] @ right[i % n]


def _full(sparse: BlockSparse) -> Tensor:
    return torch.randn(sparse.shape, device=sparse.device).to(sparse.dtype)


def _torch_bsr(case: Case, operands: Operands) -> Call:
    """torch's own BSR product.

    torch multiplies a BSR matrix from the left only. For dds it is given the transposed operands,
    made before the clock starts, which flatters it.
    """
    n = operands.copies
    if case.op == "sdd":
        patterns = [_bsr(sparse) for sparse in operands.sparse]
        left, right = operands.left, operands.right
        if case.device.type == "cuda":
            from torch.sparse import _triton_ops

            return lambda i: _triton_ops.sampled_addmm(
                patterns[i % n], left[i % n], right[i % n], beta=0.0
            )
        return lambda i: torch.sparse.sampled_addmm(
            patterns[i % n], left[i % n], right[i % n], beta=0.0
        )
    if case.op == "dsd":
        sparse, dense = [_bsr(s) for s in operands.sparse], operands.right
    else:
        sparse = [_bsr(s.T) for s in operands.sparse]
        dense = [x.T.contiguous() for x in operands.left]
    if case.device.type == "cuda":
        from torch.sparse._triton_ops import bsr_dense_addmm

        m, columns = sparse[0].shape[0], dense[0].shape[1]
        start = torch.zeros(m, columns, dtype=dense[0].dtype, device=case.device)
        return lambda i: bsr_dense_addmm(start, sparse[i % n], dense[i % n], beta=0)
    return lambda i: sparse[i % n] @ dense[i % n]


def _stk(case: Case, operands: Operands) -> Call:
    if find_spec("stk") is None:
        raise ModuleNotFoundError("not installed")
    if case.device.type != "cuda" or case.block != (128, 128):
        raise NotImplementedError("multiplies 128 x 128 blocks on CUDA only")
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
    return stk.Matrix(
        sparse.shape,
        sparse.values,
        pattern.row_indices.short(),
        pattern.col_indices.short(),
        pattern.crow_indices.int(),
    )


def _bsr(sparse: BlockSparse) -> Tensor:
    with warnings.catch_warnings():
        # torch announces once a process that its BSR layout is in beta.
        warnings.simplefilter("ignore", UserWarning)
        return sparse.to_bsr()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__
