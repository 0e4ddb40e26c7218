"""From the arguments of a registered operation to a launched kernel: the warm path.

A call becomes a plain tuple (the key, which chooses a kernel) and a row of 64-bit arguments (which
the kernel reads, ``csrc/abi.h``). A dictionary maps the key to a compiled kernel. Nothing on this
path reads the environment or the disk, takes a lock, logs or waits for a device; a miss goes to
:mod:`~jitsparse.kernels.choice`, which may compile.

The three operations are written out rather than built from common parts: a Python call costs a
tenth of a microsecond, and a whole operation here takes three.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from jitsparse import reference
from jitsparse.checks import check_dtype
from jitsparse.errors import CacheMiss
from jitsparse.jit import config
from jitsparse.kernels import padding, threads
from jitsparse.kernels.allocate import new_matrices, on_cpu, on_current_gpu
from jitsparse.kernels.choice import REFERENCE, Key, select, selection_key
from jitsparse.kernels.float32 import float32_dtype
from jitsparse.kernels.operands import (
    FREED_BELOW,
    flipped,
    is_worth_gathering,
    layout_of,
    packed,
    with_memory,
)
from jitsparse.kernels.scratch import SCRATCH_WORD
from jitsparse.kernels.workspace import (
    NO_WORKSPACE,
    may_need_workspace,
    workspace_of_product,
    workspace_of_sdd,
)
from jitsparse.traits import TRAITS, pack

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DTYPES", "DTYPE_OF", "dds", "dsd", "find", "sdd"]


class _Dtypes(dict[torch.dtype, tuple[str, int]]):
    def __missing__(self, dtype: torch.dtype) -> NoReturn:
        """Values may have been given another dtype since they were checked."""
        check_dtype(dtype)
        raise KeyError(dtype)


DTYPES = _Dtypes(
    {
        torch.float64: ("f64", 8),
        torch.float32: ("f32", 4),
        torch.float16: ("f16", 2),
        torch.bfloat16: ("bf16", 2),
    }
)
"""Short name and item size in bytes of the dtypes that operations take; an ArgumentError for
others."""

DTYPE_OF = {
    "f64": torch.float64,
    "f32": torch.float32,
    "tf32": torch.float32,
    "bf32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
"""The dtype of operands, by that of their problem."""

# Bound once: otherwise every call looks them up in the module and the class. A torch without CUDA
# has neither.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)
_current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda device: 0
)

# -- from key to kernel -------------------------------------------------------------------------

_kernels: dict[Key, Any] = {}
_generation = -1


def _after_fork() -> None:
    """Drop reference markers: what the parent is building never arrives in the child."""
    global _kernels
    _kernels = {key: kernel for key, kernel in _kernels.items() if kernel is not REFERENCE}


os.register_at_fork(after_in_child=_after_fork)


def find(key: Key) -> Any:
    """The kernel for a key, compiled if need be, or the marker that the reference must answer."""
    global _kernels, _generation
    if config.generation != _generation:
        _kernels, _generation = {}, config.generation
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _miss(key)
    return kernel


def _miss(key: Key) -> Any:
    """The kernel for a key that has none yet; it may share one chosen for the same facts."""
    # Bound once: another thread's pin may replace the dictionary meanwhile.
    kernels, facts = _kernels, selection_key(key)
    kernel = kernels.get(facts)
    if kernel is None:
        kernel = _enter(kernels, facts, select(facts))
    if kernel is not REFERENCE:
        kernels[key] = kernel
    return kernel


def _enter(kernels: dict[Key, Any], key: Key, selected: Any) -> Any:
    """Enter what was selected for a key, or the reference marker while that is being built."""
    if not isinstance(selected, Future):
        kernels[key] = selected
        return selected
    kernels[key] = REFERENCE
    # The marker is removed when the build ends; the next call then takes its kernel or raises its
    # error. The callback is added after the marker: if the build has ended, it runs at once.
    selected.add_done_callback(lambda _: kernels.pop(key, None))
    return REFERENCE


# -- the operations -----------------------------------------------------------------------------


def dsd(
    values: Tensor,
    index: Tensor,
    dense: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    find: Callable[[Key], Any] = find,
) -> Tensor:
    """``jitsparse::dsd`` on CPU and CUDA; pass ``find`` to see the key.

    A product with one vector, or a batch of them, runs as the dds of their rows: for 64 vectors
    this is 16 times as fast on a CPU. On a GPU, where a column of one entry is never aligned, it
    gets ``thin`` instead of ``simt``.
    """
    shape = dense.shape
    nnz, block_rows, block_cols = values.shape
    m = cols if transposed else rows
    n = shape[-1]
    device = dense.get_device()
    if n == 1:
        out = dds(flipped(dense), values, index, rows, cols, not transposed, None, 0, find)
        return out.resize_(*shape[:-2], m, 1)  # not a view, which could not be written in place
    if (
        len(shape) > 2
        and 0 not in dense.stride()[:-2]  # an expanded batch would be copied many times
        and is_worth_gathering(
            device, shape[:-2].numel(), n, shape[-2] * n, nnz * block_rows * block_cols
        )
    ):
        out = dds(flipped(dense), values, index, rows, cols, not transposed, None, 0, find)
        return out.mT.clone(memory_format=torch.contiguous_format)
    if device >= 0 and device != _current_device():
        with torch.cuda.device(device):
            return dsd(values, index, dense, rows, cols, transposed, find)
    if len(shape) > 2:
        out = new_matrices(dense, device, shape[:-2], m, n)
    elif device >= 0:
        out = on_current_gpu((m, n), (n or 1, 1), dense.dtype)
    else:
        out = on_cpu((m, n), (n or 1, 1), dense.dtype) if dense.is_cpu else dense.new_empty(m, n)
    if not nnz or not out.numel():
        return out.zero_()
    if not values.is_contiguous():
        values = packed(values)
    if len(shape) == 2 and dense.is_contiguous():
        letter, ld, batch, batch_stride = "n", n, 1, 0
    else:
        dense, letter, ld, batch, batch_stride = layout_of(dense)
    name, itemsize = DTYPES[dense.dtype]
    values_ptr, dense_ptr, out_ptr = values.data_ptr(), dense.data_ptr(), out.data_ptr()
    out_stride = m * n if batch > 1 else 0
    # 16-byte copies also need the contiguous extents of dense operands to be multiples of that.
    strides = ld | batch_stride | n | out_stride
    if letter == "t":
        strides |= rows if transposed else cols
    aligned = not (values_ptr | dense_ptr | out_ptr | strides * itemsize) & 15
    kernel = find(
        (
            "dsd",
            device,
            name if name != "f32" else float32_dtype(device),
            block_rows,
            block_cols,
            "t" if transposed else "n",
            letter,
            aligned,
            getattr(index, TRAITS, 0) or pack(rows, cols, nnz),
            # Sizes between the same powers of two share a choice of kernel, so a new size costs
            # only a dictionary lookup, whatever it is.
            (n - 1).bit_length(),
            (batch - 1).bit_length(),
        )
    )
    if kernel is REFERENCE:
        return _run_reference(reference.dsd, device, values, index, dense, rows, cols, transposed)
    if values_ptr < FREED_BELOW or dense_ptr < FREED_BELOW:
        if written := with_memory(kernel, values, dense):
            values, dense = written
            return dsd(values, index, dense, rows, cols, transposed, find)
    if not aligned and device >= 0 and padding.needs(kernel.variant):
        run = partial(dsd, find=lambda key: kernel)
        return padding.dsd(run, letter, values, index, dense, rows, cols, transposed)
    parts, workspace_ptr = 1, SCRATCH_WORD if device < 0 else 0
    if device >= 0 and kernel.note is not NO_WORKSPACE and may_need_workspace(kernel):
        k = rows if transposed else cols
        workspace, parts = workspace_of_product(
            kernel.variant, values, (m, n, k), batch, batch_stride
        )
        workspace_ptr = 0 if workspace is None else workspace.data_ptr()
    code = kernel.launch(
        kernel.pack(
            values_ptr,
            index.data_ptr(),
            dense_ptr,
            out_ptr,
            0,
            workspace_ptr,
            rows,
            cols,
            nnz,
            n,
            ld,
            batch_stride,
            n,
            out_stride,
            batch,
            0,
            parts,
            threads.allowed() if device < 0 else _current_stream(device),
        )
    )
    if code:
        kernel.fail(code)
    return out


def dds(
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
    find: Callable[[Key], Any] = find,
) -> Tensor:
    """``jitsparse::dds`` on CPU and CUDA. A batch laid out like one tall matrix counts as one."""
    shape = dense.shape
    nnz, block_rows, block_cols = values.shape
    m = rows if transposed else cols
    n = shape[-2]
    device = dense.get_device()
    if device >= 0 and device != _current_device():
        with torch.cuda.device(device):
            return dds(dense, values, index, rows, cols, transposed, bias, activation, find)
    if len(shape) > 2:
        out = new_matrices(dense, device, shape[:-2], n, m)
    elif device >= 0:
        out = on_current_gpu((n, m), (m or 1, 1), dense.dtype)
    else:
        out = on_cpu((n, m), (m or 1, 1), dense.dtype) if dense.is_cpu else dense.new_empty(n, m)
    if not nnz or not out.numel():
        out.zero_()
        return reference.activate(out if bias is None else out + bias, activation)
    if not values.is_contiguous():
        values = packed(values)
    if shape[-1] == 1:
        dense = packed(dense)  # so that a batch of single columns is one matrix, too
    if dense.is_contiguous():
        letter, ld, batch, batch_stride = "n", shape[-1], 1, 0
        n = out.numel() // m
    else:
        dense, letter, ld, batch, batch_stride = layout_of(dense)
        if batch > 1 and letter == "n" and batch_stride == n * ld:
            n, batch, batch_stride = n * batch, 1, 0
        elif batch_stride and is_worth_gathering(
            device, batch, n, n * shape[-1], nnz * block_rows * block_cols
        ):
            dense, letter, ld = packed(dense), "n", shape[-1]
            n, batch, batch_stride = n * batch, 1, 0
    name, itemsize = DTYPES[dense.dtype]
    values_ptr, dense_ptr, out_ptr, bias_ptr = (
        values.data_ptr(),
        dense.data_ptr(),
        out.data_ptr(),
        0,
    )
    if bias is not None:
        if not bias.is_contiguous():
            bias = packed(bias)
        bias_ptr = bias.data_ptr()
    out_stride = m * n if batch > 1 else 0
    strides = ld | batch_stride | m | out_stride
    strides |= n if letter == "t" else cols if transposed else rows
    aligned = not (values_ptr | dense_ptr | out_ptr | strides * itemsize) & 15
    kernel = find(
        (
            "dds",
            device,
            name if name != "f32" else float32_dtype(device),
            block_rows,
            block_cols,
            letter,
            "t" if transposed else "n",
            aligned,
            getattr(index, TRAITS, 0) or pack(rows, cols, nnz),
            (n - 1).bit_length(),
            (batch - 1).bit_length(),
        )
    )
    if kernel is REFERENCE:
        arguments = dense, values, index, rows, cols, transposed, bias, activation
        return _run_reference(reference.dds, device, *arguments)
    if values_ptr < FREED_BELOW or dense_ptr < FREED_BELOW:
        if written := with_memory(kernel, values, dense):
            values, dense = written
            return dds(dense, values, index, rows, cols, transposed, bias, activation, find)
    if bias is not None and bias_ptr < FREED_BELOW and with_memory(kernel, bias):
        bias_ptr = 0  # it stands for zeros: as without one
    if not aligned and device >= 0 and padding.needs(kernel.variant):
        run = partial(dds, find=lambda key: kernel)
        arguments = dense, values, index, rows, cols, transposed, bias, activation
        return padding.dds(run, letter, *arguments)
    parts, workspace_ptr = 1, SCRATCH_WORD if device < 0 else 0
    if device >= 0 and kernel.note is not NO_WORKSPACE and may_need_workspace(kernel):
        k = cols if transposed else rows
        workspace, parts = workspace_of_product(
            kernel.variant, values, (m, n, k), batch, batch_stride
        )
        workspace_ptr = 0 if workspace is None else workspace.data_ptr()
    code = kernel.launch(
        kernel.pack(
            values_ptr,
            index.data_ptr(),
            dense_ptr,
            out_ptr,
            bias_ptr,
            workspace_ptr,
            rows,
            cols,
            nnz,
            n,
            ld,
            batch_stride,
            m,
            out_stride,
            batch,
            activation,
            parts,
            threads.allowed() if device < 0 else _current_stream(device),
        )
    )
    if code:
        kernel.fail(code)
    return out


def sdd(
    left: Tensor,
    right: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    nnz: int,
    block_rows: int,
    block_cols: int,
    find: Callable[[Key], Any] = find,
) -> Tensor:
    """``jitsparse::sdd`` on CPU and CUDA. A batch laid out like one long sum counts as one."""
    device = left.get_device()
    if device >= 0 and device != _current_device():
        with torch.cuda.device(device):
            return sdd(left, right, index, rows, cols, nnz, block_rows, block_cols, find)
    out = new_matrices(left, device, (nnz,), block_rows, block_cols)
    if not nnz or not left.numel():
        return out.zero_()
    k = left.shape[-1]
    left, left_letter, left_ld, batch, left_stride = layout_of(left)
    right, right_letter, right_ld, _, right_stride = layout_of(right)
    if batch > 1:
        lies_so = left_letter + right_letter == "tn"
        lies_so = lies_so and left_stride == k * left_ld and right_stride == k * right_ld
        expanded = not (left_stride and right_stride)
        if not (lies_so or expanded) and is_worth_gathering(
            device, batch, k, k * (rows + cols), nnz * block_rows * block_cols
        ):
            left, right, lies_so = packed(flipped(left)).mT, packed(right), True
            left_letter, left_ld, right_letter, right_ld = "t", rows, "n", cols
        if lies_so:
            # The weight gradient of a linear layer: both operands walk k with their leading
            # dimension.
            k, batch, left_stride, right_stride = k * batch, 1, 0, 0
    name, itemsize = DTYPES[left.dtype]
    left_ptr, right_ptr, out_ptr = left.data_ptr(), right.data_ptr(), out.data_ptr()
    strides = left_ld | right_ld | left_stride | right_stride
    strides |= (k if left_letter == "n" else rows) | (cols if right_letter == "n" else k)
    aligned = not (left_ptr | right_ptr | out_ptr | strides * itemsize) & 15
    kernel = find(
        (
            "sdd",
            device,
            name if name != "f32" else float32_dtype(device),
            block_rows,
            block_cols,
            left_letter,
            right_letter,
            aligned,
            getattr(index, TRAITS, 0) or pack(rows, cols, nnz),
            (k - 1).bit_length(),
            (batch - 1).bit_length(),
        )
    )
    if kernel is REFERENCE:
        arguments = left, right, index, rows, cols, nnz, block_rows, block_cols
        return _run_reference(reference.sdd, device, *arguments)
    if left_ptr < FREED_BELOW or right_ptr < FREED_BELOW:
        if written := with_memory(kernel, left, right):
            left, right = written
            return sdd(left, right, index, rows, cols, nnz, block_rows, block_cols, find)
    if not aligned and device >= 0 and padding.needs(kernel.variant):
        run = partial(sdd, find=lambda key: kernel)
        letters = left_letter + right_letter
        arguments = left, right, index, rows, cols, nnz, block_rows, block_cols
        return padding.sdd(run, letters, *arguments)
    parts, workspace_ptr = 1, SCRATCH_WORD if device < 0 else 0
    if device >= 0 and kernel.note is not NO_WORKSPACE and may_need_workspace(kernel):
        both = left_stride, right_stride
        workspace, parts = workspace_of_sdd(kernel.variant, out, (rows, cols), k, batch, both)
        workspace_ptr = 0 if workspace is None else workspace.data_ptr()
    code = kernel.launch(
        kernel.pack(
            left_ptr,
            right_ptr,
            index.data_ptr(),
            out_ptr,
            workspace_ptr,
            rows,
            cols,
            nnz,
            k,
            left_ld,
            left_stride,
            right_ld,
            right_stride,
            batch,
            parts,
            threads.allowed() if device < 0 else _current_stream(device),
        )
    )
    if code:
        kernel.fail(code)
    return out


def _run_reference(compute: Callable[..., Tensor], device: int, *arguments: Any) -> Tensor:
    """The reference's result, where there is no kernel, or none yet."""
    if device >= 0 and torch.cuda.is_current_stream_capturing():
        raise CacheMiss(
            f"the kernel of this {compute.__name__} is being compiled in the background while a "
            "CUDA graph is being captured, which would keep the plain torch operations that answer "
            'until then. Run the same call once before the capture with js.first_use("wait")'
        )
    # Operands already have the dtype that autocast asks for; sums are wider.
    with torch.autocast("cpu" if device < 0 else "cuda", enabled=False):
        return compute(*arguments)
