"""The registered operations: flat tensors and ints in, one tensor out, no gradients.

    jitsparse::dsd(values, index, dense, rows, cols, transposed) -> out
    jitsparse::dds(dense, values, index, rows, cols, transposed, bias, activation) -> out
    jitsparse::sdd(left, right, index, rows, cols, nnz, block_rows, block_cols) -> values

``rows`` and ``cols`` are those of the matrix as stored, ``transposed`` says how it is read,
``index`` is :attr:`Pattern.index <jitsparse.Pattern>`, ``activation`` a position in
:data:`jitsparse.reference.ACTIVATIONS`. Outputs are contiguous whatever the strides of the inputs.

One operation stands for all its kernels, so a captured graph does not depend on which of them runs,
and pinning one never recompiles a graph. Users' arguments are checked in
:mod:`jitsparse.functional`, gradients live in :mod:`jitsparse.autograd`. A captured graph has
neither these checks nor the casts for autocast, so the operations have both, too; kernels trust
their arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from jitsparse import flops
from jitsparse.errors import ArgumentError
from jitsparse.kernels import dispatch
from jitsparse.layout import IndexLayout, div_up

__all__ = [
    "cast_for_autocast",
    "dds_op",
    "dsd_op",
    "may_bypass_dispatcher",
    "sdd_op",
]

_library = torch.library.Library("jitsparse", "DEF")

_library.define(
    "dsd(Tensor values, Tensor index, Tensor dense, SymInt rows, SymInt cols, bool transposed) "
    "-> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "dds(Tensor dense, Tensor values, Tensor index, SymInt rows, SymInt cols, bool transposed, "
    "Tensor? bias, int activation) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "sdd(Tensor left, Tensor right, Tensor index, SymInt rows, SymInt cols, SymInt nnz, "
    "SymInt block_rows, SymInt block_cols) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@functools.lru_cache(1024)  # one entry per pattern size; moving blocks produces many sizes
def _index_size(rows: int, cols: int, nnz: int, block: tuple[int, int], panels: bool) -> int:
    layout = IndexLayout(div_up(rows, block[0]), div_up(cols, block[1]), nnz, block, panels)
    return layout.size


def _check_index(index: Tensor, data: Tensor, rows: int, cols: int, nnz: int, *block: int) -> None:
    """Check an index against the operands.

    Moving a captured graph to another device may leave the index behind
    (``ExportedProgram.module().to``) or take it along (``move_to_device_pass``), though it is not
    an index of that device.

    Raises:
        ArgumentError: it is on another device than the operands, is not a contiguous vector, is not
            aligned as kernels for a GPU read it, or was made for another kind of device or for
            another number of blocks.
    """
    if index.device != data.device:
        problem = f"the index of its pattern is on {index.device}, its operands on {data.device}"
    elif index.dtype is not torch.int32:
        problem = f"the index of its pattern is {index.dtype}, not torch.int32"
    elif index.dim() != 1 or not index.is_contiguous():
        problem = (
            f"the index of its pattern, of shape {tuple(index.shape)} and strides "
            f"{index.stride()}, is not one contiguous row"
        )
    elif index.is_cuda and index.data_ptr() % 16:
        problem = "the index of its pattern does not begin at a multiple of 16 bytes"
    elif index.numel() < _index_size(rows, cols, nnz, block, index.is_cuda):
        problem = f"the index of its pattern was not made for {index.device.type}"
    elif index.numel() not in (_index_size(rows, cols, nnz, block, on) for on in (False, True)):
        problem = f"the index of its pattern is not one of {nnz} blocks"
    else:
        return
    raise ArgumentError(
        f"an operation of jitsparse cannot run: {problem}. A graph keeps the device and the "
        "pattern that it was captured with: for another device export the model there, for "
        "another pattern again"
    )


def _check_operands(op: str, left: Tensor, right: Tensor, fit: bool) -> None:
    """Check two operands of one operation.

    Args:
        fit: whether their shapes fit each other and the pattern.

    Raises:
        ArgumentError: they do not fit, differ in dtype or device, or have a dtype without kernels.
    """
    alike = left.dtype is right.dtype and left.device == right.device
    if fit and alike and left.dtype in dispatch.DTYPES:
        return
    got = " and ".join(
        f"{each.dtype} of shape {tuple(each.shape)} on {each.device}" for each in (left, right)
    )
    raise ArgumentError(
        f"jitsparse::{op} has operands that do not fit each other or the pattern, {got}. A "
        "captured graph takes what it was captured with: cast or reshape its inputs, or capture "
        "it again"
    )


def _check_dsd(values: Tensor, dense: Tensor, inner: int) -> None:
    fit = values.dim() == 3 and dense.dim() > 1 and dense.shape[-2] == inner
    _check_operands("dsd", values, dense, fit)


def _check_dds(dense: Tensor, values: Tensor, bias: Tensor | None, inner: int, outer: int) -> None:
    fit = values.dim() == 3 and dense.dim() > 1 and dense.shape[-1] == inner
    _check_operands("dds", dense, values, fit)
    if bias is not None:
        _check_operands("dds", dense, bias, bias.shape == (outer,))


def _check_sdd(left: Tensor, right: Tensor, rows: int, cols: int) -> None:
    inner = left.shape[-1]
    shapes = (*right.shape[:-2], rows, inner), (*left.shape[:-2], inner, cols)
    _check_operands("sdd", left, right, (left.shape, right.shape) == shapes)


def _dsd(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> Tensor:
    _check_dsd(values, dense, rows if transposed else cols)
    _check_index(index, values, rows, cols, *values.shape)
    return dispatch.dsd(values, index, dense, rows, cols, transposed)


def _dds(
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
) -> Tensor:
    inner, outer = (cols, rows) if transposed else (rows, cols)
    _check_dds(dense, values, bias, inner, outer)
    _check_index(index, values, rows, cols, *values.shape)
    return dispatch.dds(dense, values, index, rows, cols, transposed, bias, activation)


def _sdd(left: Tensor, right: Tensor, index: Tensor, rows: int, cols: int, *blocks: Any) -> Tensor:
    _check_sdd(left, right, rows, cols)
    _check_index(index, left, rows, cols, *blocks)
    return dispatch.sdd(left, right, index, rows, cols, *blocks)


for _key in ("CPU", "CUDA"):
    _library.impl("dsd", _dsd, _key)
    _library.impl("dds", _dds, _key)
    _library.impl("sdd", _sdd, _key)


def cast_for_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors as autocast does: to its dtype, except those it leaves alone (float64)."""
    dtype = torch.get_autocast_dtype("cuda" if tensors[0].is_cuda else "cpu")
    return tuple(
        tensor
        if tensor.dtype is torch.float64 or not tensor.is_floating_point()
        else tensor.to(dtype)
        for tensor in tensors
    )


def _under_autocast(op: torch._ops.OpOverload, key: torch._C.DispatchKey) -> Callable[..., Tensor]:
    """An operation's implementation under autocast.

    Users' operands are cast before they get here, a captured graph's are not.
    """
    autocast = torch._C.DispatchKeySet(key)

    def call(*arguments: Any) -> Tensor:
        cast = (
            cast_for_autocast(each)[0] if isinstance(each, Tensor) else each for each in arguments
        )
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return op(*cast)  # type: ignore[no-any-return]

    return call


for _key in ("AutocastCPU", "AutocastCUDA"):
    for _name in ("dsd", "dds", "sdd"):
        _op = getattr(torch.ops.jitsparse, _name).default
        _library.impl(_name, _under_autocast(_op, getattr(torch._C.DispatchKey, _key)), _key)


def _dsd_fake(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> Tensor:
    inner, outer = (rows, cols) if transposed else (cols, rows)
    _check_dsd(values, dense, inner)
    return dense.new_empty((*dense.shape[:-2], outer, dense.shape[-1]))


def _dds_fake(
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
) -> Tensor:
    inner, outer = (cols, rows) if transposed else (rows, cols)
    _check_dds(dense, values, bias, inner, outer)
    return dense.new_empty((*dense.shape[:-1], outer))


def _sdd_fake(
    left: Tensor,
    right: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    nnz: int,
    block_rows: int,
    block_cols: int,
) -> Tensor:
    _check_sdd(left, right, rows, cols)
    return left.new_empty((nnz, block_rows, block_cols))


torch.library.register_fake("jitsparse::dsd", _dsd_fake, lib=_library)
torch.library.register_fake("jitsparse::dds", _dds_fake, lib=_library)
torch.library.register_fake("jitsparse::sdd", _sdd_fake, lib=_library)

# Bound once: looking an overload up through torch.ops costs as much as calling it.
dsd_op: Callable[..., Tensor] = torch.ops.jitsparse.dsd.default
dds_op: Callable[..., Tensor] = torch.ops.jitsparse.dds.default
sdd_op: Callable[..., Tensor] = torch.ops.jitsparse.sdd.default


def _dsd_mapped(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any
) -> tuple[Tensor, int | None]:
    """Mapping over the dense operand adds a batch dimension to it."""
    values, index, dense, *sizes = arguments
    if in_dims[0] is None and in_dims[1] is None:
        return dsd_op(values, index, dense.movedim(in_dims[2], 0), *sizes), 0
    return _one_by_one(dsd_op, info.batch_size, in_dims, arguments)


def _dds_mapped(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any
) -> tuple[Tensor, int | None]:
    dense, *others = arguments
    if all(dim is None for dim in in_dims[1:]):
        return dds_op(dense.movedim(in_dims[0], 0), *others), 0
    return _one_by_one(dds_op, info.batch_size, in_dims, arguments)


def _sdd_mapped(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any
) -> tuple[Tensor, int | None]:
    """An sdd sums over batch dimensions, so each entry needs its own call."""
    return _one_by_one(sdd_op, info.batch_size, in_dims, arguments)


def _one_by_one(
    op: Callable[..., Tensor],
    count: int,
    in_dims: tuple[int | None, ...],
    arguments: tuple[Any, ...],
) -> tuple[Tensor, int]:
    """Call an operation for each entry of the mapped dimension, and stack the results."""

    def answer(entry: Callable[[Tensor, int], Tensor]) -> Tensor:
        pairs = zip(arguments, in_dims, strict=True)
        return op(*(each if dim is None else entry(each, dim) for each, dim in pairs))

    if not count:
        like = answer(lambda each, dim: each.new_zeros(each.movedim(dim, 0).shape[1:]))
        return like.new_empty((0, *like.shape)), 0
    return torch.stack([answer(functools.partial(_entry, number=n)) for n in range(count)]), 0


def _entry(mapped: Tensor, dim: int, *, number: int) -> Tensor:
    entry = mapped.select(dim, number)
    # Kernels read operands with any strides, but an index must be contiguous.
    return entry if entry.is_floating_point() else entry.contiguous()


for _name, _mapped in (("dsd", _dsd_mapped), ("dds", _dds_mapped), ("sdd", _sdd_mapped)):
    torch.library.register_vmap(f"jitsparse::{_name}", _mapped, lib=_library)

flops.register()

_PLAIN = {Tensor, torch.nn.Parameter}

# Bound once, too: they run at every call.
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms_active = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_profiled = torch._C._autograd._profiler_enabled


def may_bypass_dispatcher(a: Tensor, b: Tensor, bias: Tensor | None = None) -> bool:
    """Whether a call may bypass torch's dispatcher.

    It may if there is no tracing, mode, profiler, functorch transform, tensor subclass,
    forward-mode derivative or lazily negated operand. Then the dispatcher would only lead to the
    same Python function, and costs 2.5 of a call's 7.5 microseconds.
    """
    return (
        not _is_compiling()  # first: torch.compile of torch 2.8 cannot look a class up in a set
        and type(a) in _PLAIN
        and type(b) in _PLAIN
        and (b.is_cuda or b.is_cpu)
        and not _function_modes()
        and not _dispatch_modes()
        and not _profiled()
        and not _transforms_active()
        and _tracing_state() is None
        and forward_ad._current_level < 0
        and not a.is_neg()
        and not b.is_neg()
        and (bias is None or (type(bias) in _PLAIN and not bias.is_neg()))
    )
