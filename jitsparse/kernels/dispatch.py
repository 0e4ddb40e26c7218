"""From the arguments of a registered operation to a launched kernel: the warm path.

A call becomes a plain tuple (the key: what chooses a kernel) and a row of integers (the words: what
a kernel reads). A dictionary takes the key to a compiled kernel. On this path nothing reads the
environment or the disk, takes a lock, logs or waits for a device; a miss leaves it for
:func:`_select`, which may compile.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jitsparse import reference
from jitsparse.errors import CacheMiss, ToolchainError
from jitsparse.jit import config
from jitsparse.kernels import registry
from jitsparse.kernels.problem import Problem

if TYPE_CHECKING:
    from jitsparse.jit import Choice

__all__ = [
    "DTYPES",
    "Key",
    "choose",
    "dds",
    "dsd",
    "prepare_dds",
    "prepare_dsd",
    "prepare_sdd",
    "problem_of",
    "sdd",
]

DTYPES = {
    torch.float64: ("f64", 8),
    torch.float32: ("f32", 4),
    torch.float16: ("f16", 2),
    torch.bfloat16: ("bf16", 2),
}
"""Short name and bytes of the dtypes that operations take."""

Key = tuple[Any, ...]
"""(op, device index or -1, dtype name, block rows, block cols, layout, aligned, size class)"""

Words = tuple[int, ...]
"""What a launcher reads (``csrc/abi.h``), without the last word, the stream or thread count."""

_kernels: dict[Key, Any] = {}
_generation = -1


# -- the operations -----------------------------------------------------------------------------


def dsd(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> Tensor:
    """``jitsparse::dsd`` on CPU and CUDA."""
    out, key, words, _alive = prepare_dsd(values, index, dense, rows, cols, transposed)
    if key is None:
        return out.zero_()
    if not _launch(key, words):
        return reference.dsd(values, index, dense, rows, cols, transposed)
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
) -> Tensor:
    """``jitsparse::dds`` on CPU and CUDA."""
    out, key, words, _alive = prepare_dds(
        dense, values, index, rows, cols, transposed, bias, activation
    )
    if key is None:
        out.zero_()
        return reference.activate(out if bias is None else out + bias, activation)
    if not _launch(key, words):
        return reference.dds(dense, values, index, rows, cols, transposed, bias, activation)
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
) -> Tensor:
    """``jitsparse::sdd`` on CPU and CUDA."""
    out, key, words, _alive = prepare_sdd(
        left, right, index, rows, cols, nnz, block_rows, block_cols
    )
    if key is None:
        return out.zero_()
    if not _launch(key, words):
        return reference.sdd(left, right, index, rows, cols, nnz, block_rows, block_cols)
    return out


# -- from arguments to key and words ------------------------------------------------------------


def prepare_dsd(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> tuple[Tensor, Key | None, Words, Any]:
    """Output, key, words and what must stay alive until the launch.

    The key is None if no kernel has to run: the output is empty, or the epilogue of zero.
    """
    shape = dense.shape
    nnz, block_rows, block_cols = values.shape
    m = cols if transposed else rows
    n = shape[-1]
    # Of integers: a third faster than of a tuple.
    out = dense.new_empty(m, n) if len(shape) == 2 else dense.new_empty(*shape[:-2], m, n)
    if not nnz or not out.numel():
        return out, None, (), None
    if not values.is_contiguous():
        values = values.contiguous()
    dense, letter, ld, batch, batch_stride = _layout(dense)
    name, itemsize = DTYPES[dense.dtype]
    values_ptr, dense_ptr, out_ptr = values.data_ptr(), dense.data_ptr(), out.data_ptr()
    out_stride = m * n
    strides = ld | batch_stride | n | (out_stride if batch > 1 else 0)
    aligned = not (values_ptr | dense_ptr | out_ptr | strides * itemsize) & 15
    device = dense.get_device()
    key = (
        "dsd",
        device,
        name if device < 0 or name != "f32" else _float32(),
        block_rows,
        block_cols,
        ("t" if transposed else "n") + letter,
        aligned,
        registry.size_class(rows, cols, nnz, n, batch),
    )
    words = (
        values_ptr,
        index.data_ptr(),
        dense_ptr,
        out_ptr,
        0,
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
    )
    return out, key, words, (values, dense)


def prepare_dds(
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
) -> tuple[Tensor, Key | None, Words, Any]:
    """As :func:`prepare_dsd`. A batch that lies like one tall matrix is taken as one."""
    shape = dense.shape
    nnz, block_rows, block_cols = values.shape
    m = rows if transposed else cols
    n = shape[-2]
    out = dense.new_empty(n, m) if len(shape) == 2 else dense.new_empty(*shape[:-1], m)
    if not nnz or not out.numel():
        return out, None, (), None
    if not values.is_contiguous():
        values = values.contiguous()
    dense, letter, ld, batch, batch_stride = _layout(dense)
    if batch > 1 and letter == "n" and batch_stride == n * ld:
        n, batch, batch_stride = n * batch, 1, 0
    name, itemsize = DTYPES[dense.dtype]
    values_ptr, dense_ptr, out_ptr = values.data_ptr(), dense.data_ptr(), out.data_ptr()
    bias_ptr = 0
    if bias is not None:
        bias = bias.contiguous()
        bias_ptr = bias.data_ptr()
    out_stride = m * n
    strides = ld | batch_stride | m | (out_stride if batch > 1 else 0)
    aligned = not (values_ptr | dense_ptr | out_ptr | bias_ptr | strides * itemsize) & 15
    device = dense.get_device()
    key = (
        "dds",
        device,
        name if device < 0 or name != "f32" else _float32(),
        block_rows,
        block_cols,
        letter + ("t" if transposed else "n"),
        aligned,
        registry.size_class(rows, cols, nnz, n, batch),
    )
    words = (
        values_ptr,
        index.data_ptr(),
        dense_ptr,
        out_ptr,
        bias_ptr,
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
    )
    return out, key, words, (values, dense, bias)


def prepare_sdd(
    left: Tensor,
    right: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    nnz: int,
    block_rows: int,
    block_cols: int,
) -> tuple[Tensor, Key | None, Words, Any]:
    """As :func:`prepare_dsd`. A batch that lies like one long sum is taken as one."""
    k = left.shape[-1]
    out = left.new_empty(nnz, block_rows, block_cols)
    if not nnz or not left.numel():
        return out, None, (), None
    left, left_letter, left_ld, batch, left_stride = _layout(left)
    right, right_letter, right_ld, _, right_stride = _layout(right)
    if (
        batch > 1
        and left_letter == "t"
        and right_letter == "n"
        and left_stride == k * left_ld
        and right_stride == k * right_ld
    ):
        # The weight gradient of a linear layer: both walk k with their leading dimension.
        k, batch, left_stride, right_stride = k * batch, 1, 0, 0
    name, itemsize = DTYPES[left.dtype]
    left_ptr, right_ptr, out_ptr = left.data_ptr(), right.data_ptr(), out.data_ptr()
    strides = left_ld | right_ld | left_stride | right_stride
    aligned = not (left_ptr | right_ptr | out_ptr | strides * itemsize) & 15
    device = left.get_device()
    key = (
        "sdd",
        device,
        name if device < 0 or name != "f32" else _float32(),
        block_rows,
        block_cols,
        left_letter + right_letter,
        aligned,
        registry.size_class(rows, cols, nnz, k, batch),
    )
    words = (
        left_ptr,
        right_ptr,
        index.data_ptr(),
        out_ptr,
        rows,
        cols,
        nnz,
        k,
        left_ld,
        left_stride,
        right_ld,
        right_stride,
        batch,
    )
    return out, key, words, (left, right)


def _layout(tensor: Tensor) -> tuple[Tensor, str, int, int, int]:
    """A dense operand as kernels take it: ``(tensor, letter, ld, batch, batch stride)``.

    The letter is ``n`` if the last axis is contiguous and ``t`` if the one before it is; ``ld`` is
    the stride of the other one, at least its neighbour's extent. The stride of an axis of one entry
    is never used, so such an axis fits either letter. A tensor that fits neither, or whose batch
    dimensions have no common stride, is copied.
    """
    shape = tensor.shape
    if len(shape) == 2:
        rows, cols = shape
        if tensor.is_contiguous():
            return tensor, "n", cols, 1, 0
        row_stride, col_stride = tensor.stride()
        batch, batch_stride = 1, 0
    else:
        strides = tensor.stride()
        rows, cols = shape[-2:]
        row_stride, col_stride = strides[-2:]
        batch, batch_stride = 1, 0
        for extent, stride in zip(reversed(shape[:-2]), reversed(strides[:-2]), strict=True):
            if extent == 1:
                continue
            if batch == 1:
                batch_stride = stride
            elif stride != batch * batch_stride:
                return _layout(tensor.contiguous())
            batch *= extent
    if (col_stride == 1 or cols == 1) and (row_stride >= cols or rows == 1):
        return tensor, "n", row_stride if rows > 1 else cols, batch, batch_stride
    if (row_stride == 1 or rows == 1) and (col_stride >= rows or cols == 1):
        return tensor, "t", col_stride if cols > 1 else rows, batch, batch_stride
    return _layout(tensor.contiguous())


def _float32() -> str:
    """Name of the arithmetic that torch's float32 matmul precision asks for."""
    return "f32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# -- from key to kernel -------------------------------------------------------------------------


def _launch(key: Key, words: Words) -> bool:
    """Run the kernel of a key; False where there is none and the reference has to answer."""
    global _kernels, _generation
    if config.generation != _generation:
        _kernels, _generation = {}, config.generation
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernels[key] = _select(key)
    device = key[1]
    if device < 0:
        if kernel is _REFERENCE:
            return False
        context = torch.get_num_threads()
    elif device == torch._C._cuda_getDevice():
        context = torch._C._cuda_getCurrentRawStream(device)
    else:
        with torch.cuda.device(device):
            return _launch(key, words)
    code = kernel.launch(kernel.pack(*words, context))
    if code:
        kernel.fail(code)
    return True


_REFERENCE = object()
"""Stands for the kernels of a CPU without a compiler."""

_launched: set[tuple[int, str]] = set()
"""(device, variant) of kernels that this process has loaded outside a capture."""


def _select(key: Key) -> Any:
    """Choose, and if need be compile, the kernel of a key."""
    from jitsparse import jit

    problem, device = problem_of(key), key[1]
    choice = choose(problem, registry.target_of(problem.device, device))
    variant = choice.candidate.variant
    known = device, variant.name
    command = registry.warmup_command(problem)
    if device >= 0 and known not in _launched and torch.cuda.is_current_stream_capturing():
        raise CacheMiss(
            f"{variant.name} is needed for the first time while a CUDA graph is being captured, "
            f"when nothing can be compiled or loaded. Run the same call once before the capture; "
            f"`{command}` beforehand makes that call quick"
        )
    try:
        kernel = jit.load(choice.candidate.template, variant, hint=lambda: command)
    except ToolchainError as error:
        if problem.device != "cpu":
            raise
        _warn_once(str(error))
        return _REFERENCE
    _launched.add(known)
    return kernel


def choose(problem: Problem, target: str) -> Choice:
    """The variant for a problem, by pin, tuned table or the families' preference."""
    from jitsparse import jit

    return jit.choose(registry.candidates(problem, target), problem=problem.name)


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"jitsparse runs on plain torch operations, right but slow, because it cannot compile its "
        f"kernels: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def problem_of(key: Key) -> Problem:
    """The facts of a key, with sizes rounded up to those of its size class."""
    op, device, dtype, block_rows, block_cols, layout, aligned, size_class = key
    rows, cols, nnz, extent, batch = registry.sizes_of(size_class)
    return Problem(
        op=op,
        device="cpu" if device < 0 else "cuda",
        dtype=dtype,
        block=(block_rows, block_cols),
        layout=layout,
        aligned=aligned,
        rows=rows,
        cols=cols,
        nnz=nnz,
        extent=extent,
        batch=batch,
    )
