"""The registered operations with gradients, to any order (:mod:`jitsparse.gradients`).

A call that may bypass torch's dispatcher uses the Functions of this module, the cheapest way
(docs/performance.md), or none if no gradient is recorded. Modes, profilers, tensor subclasses and
graphs see the registered operations, which have the same backward passes. Dynamo must not trace the
Functions: it decides while tracing which operands need gradients, and (torch 2.13) treats as
constant an operand written through another view, by ``torch._foreach_add_``, or in an earlier step
of a ``scan``. Under the transforms of ``torch.func`` and in forward mode, Functions that define jvp
and vmap take their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad

from jitsparse import ops
from jitsparse.gradients import (
    RELU,
    gradients_of_dds,
    gradients_of_dsd,
    gradients_of_sdd,
    save_dds,
    save_dsd,
    save_sdd,
    within_matrix,
)
from jitsparse.kernels import dispatch
from jitsparse.untraced import untraced

__all__ = ["dds", "dsd", "sdd"]


def transformed() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is active.

    Raises:
        NotImplementedError: a graph is being compiled. Dynamo would put the bare operation into it,
            which has no tangents and, under a transform, no backward pass. Without
            ``fullgraph=True`` Dynamo catches this and calls the function eagerly.
    """
    active = forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
    if active and torch.compiler.is_compiling():
        raise NotImplementedError(
            "a graph cannot hold a transform of torch.func, or a forward-mode derivative, of a "
            "product of jitsparse: leave fullgraph=True away, or transform the compiled function"
        )
    return active


def traced() -> bool:
    """Whether torch.jit.trace is recording."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def dsd(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> Tensor:
    """Like ``jitsparse::dsd``, differentiable in values and dense."""
    if ops.may_bypass_dispatcher(values, dense):
        if (values.requires_grad or dense.requires_grad) and torch.is_grad_enabled():
            return _dsd_with_gradient(values, dense, (index, rows, cols, transposed))
        run = dispatch.dsd
    else:
        run = _transformed_dsd if transformed() else _dsd_op
    return run(values, index, dense, rows, cols, transposed)


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
    """Like ``jitsparse::dds``, differentiable in dense, values and bias.

    Where a gradient is recorded, the activation is none or relu: the others need the product.
    Differentiating a graph that was captured without gradients computes it again.
    """
    if ops.may_bypass_dispatcher(values, dense, bias):
        if (
            dense.requires_grad or values.requires_grad or (bias is not None and bias.requires_grad)
        ) and torch.is_grad_enabled():
            others = index, rows, cols, transposed, activation
            return _dds_with_gradient(dense, values, bias, others)
        run = dispatch.dds
    else:
        run = _transformed_dds if transformed() else _dds_op
    return run(dense, values, index, rows, cols, transposed, bias, activation)


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
    """Like ``jitsparse::sdd``, differentiable in left and right."""
    if ops.may_bypass_dispatcher(left, right):
        if (left.requires_grad or right.requires_grad) and torch.is_grad_enabled():
            others = index, rows, cols, nnz, block_rows, block_cols
            return _sdd_with_gradient(left, right, others)
        run = dispatch.sdd
    else:
        run = _transformed_sdd if transformed() else _sdd_op
    return run(left, right, index, rows, cols, nnz, block_rows, block_cols)


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def _observed(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A registered operation for observed calls: without the casts for autocast.

    :mod:`jitsparse.functional` has already made them. So a backward pass under autocast computes
    the same whether or not a profiler watches it.
    """

    def call(*arguments: Any) -> Tensor:
        if torch.compiler.is_compiling():
            return op(*arguments)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(*arguments)

    return call


_dsd_op, _dds_op, _sdd_op = map(_observed, (ops.dsd_op, ops.dds_op, ops.sdd_op))


def _differentiable(grad: Tensor, *saved: Tensor | None) -> tuple[Callable[..., Tensor], ...]:
    """dsd, dds and sdd for a backward pass.

    They are the registered operations where an operand has no memory that a kernel could read:
    ``is_grads_batched`` makes the gradient a batched tensor, and tensors saved inside
    ``torch.func.vjp`` are still wrapped when the returned function is called. Only torch's
    dispatcher can unwrap them.
    """
    if not torch.compiler.is_compiling() and (
        torch._C._functorch.is_legacy_batchedtensor(grad)
        or (
            not transformed()
            and any(each is not None and is_functorch_wrapped_tensor(each) for each in saved)
        )
    ):
        return _dsd_op, _dds_op, _sdd_op
    return dsd, dds, sdd


# -- calls that bypass the dispatcher -----------------------------------------------------------

# What has no gradient is one argument: torch takes 0.2 us to pass each (a dsd of 16 x 16 with three
# arguments and not six: 15.0 -> 14.1 us).


class _Dsd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, dense: Tensor, others: tuple[Tensor, int, int, bool]
    ) -> Tensor:
        index, sizes = others[0], others[1:]
        out = dispatch.dsd(values, index, dense, *sizes)
        of_values, of_dense, _ = ctx.needs_input_grad
        save_dsd(ctx, of_values, of_dense, values, index, dense, sizes)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_values, of_dense, _ = ctx.needs_input_grad
        return *gradients_of_dsd(_differentiable, ctx, grad, of_values, of_dense), None


class _Dds(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        dense: Tensor,
        values: Tensor,
        bias: Tensor | None,
        others: tuple[Tensor, int, int, bool, int],
    ) -> Tensor:
        index, sizes = others[0], others[1:]
        rows, cols, transposed, activation = sizes
        out = dispatch.dds(dense, values, index, rows, cols, transposed, bias, activation)
        of_dense, of_values, _, _ = ctx.needs_input_grad
        save_dds(ctx, of_dense, of_values, dense, values, index, sizes, bias, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_dense, of_values, of_bias, _ = ctx.needs_input_grad
        return *gradients_of_dds(_differentiable, ctx, grad, of_dense, of_values, of_bias), None


class _Sdd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, others: tuple[Tensor, int, int, int, int, int]
    ) -> Tensor:
        index, sizes = others[0], others[1:]
        out = dispatch.sdd(left, right, index, *sizes)
        of_left, of_right, _ = ctx.needs_input_grad
        save_sdd(ctx, of_left, of_right, left, right, index, sizes)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_left, of_right, _ = ctx.needs_input_grad
        return *gradients_of_sdd(_differentiable, ctx, grad, of_left, of_right), None


def _applier(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """``function.apply`` without its handling of torch.func transforms, 2 us per call."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


_dsd_with_gradient, _dds_with_gradient, _sdd_with_gradient = map(_applier, (_Dsd, _Dds, _Sdd))


# -- calls that the dispatcher sees: arguments are those of the registered operations -----------


def _set_up_dsd(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, index, dense, *sizes = inputs
    of_values, _, of_dense, *_ = ctx.needs_input_grad
    save_dsd(ctx, of_values, of_dense, values, index, dense, sizes)


def _backward_of_dsd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_values, _, of_dense, *_ = ctx.needs_input_grad
    grad_values, grad_dense = gradients_of_dsd(_differentiable, ctx, grad, of_values, of_dense)
    return grad_values, None, grad_dense, None, None, None


def _set_up_dds(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    dense, values, index, rows, cols, transposed, bias, activation = inputs
    of_dense, of_values, *_ = ctx.needs_input_grad
    sizes = rows, cols, transposed, activation
    save_dds(ctx, of_dense, of_values, dense, values, index, sizes, bias, output)


def _backward_of_dds(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_dense, of_values, _, _, _, _, of_bias, _ = ctx.needs_input_grad
    grad_dense, grad_values, grad_bias = gradients_of_dds(
        _differentiable, ctx, grad, of_dense, of_values, of_bias
    )
    return grad_dense, grad_values, None, None, None, None, grad_bias, None


def _set_up_sdd(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    left, right, index, *sizes = inputs
    of_left, of_right, *_ = ctx.needs_input_grad
    save_sdd(ctx, of_left, of_right, left, right, index, sizes)


def _backward_of_sdd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_left, of_right, *_ = ctx.needs_input_grad
    return *gradients_of_sdd(_differentiable, ctx, grad, of_left, of_right), *(None,) * 6


# For graphs, which hold the registered operations.
for _name, _set_up, _backward in (
    ("dsd", _set_up_dsd, _backward_of_dsd),
    ("dds", _set_up_dds, _backward_of_dds),
    ("sdd", _set_up_sdd, _backward_of_sdd),
):
    torch.library.register_autograd(
        f"jitsparse::{_name}", _backward, setup_context=_set_up, lib=ops._library
    )


# -- transforms of torch.func and forward mode --------------------------------------------------


def _save_for_both(ctx: Any, *tensors: Tensor | None) -> None:
    """Save tensors for ``jvp``, and for ``backward`` in place of those that were set up.

    Under vmap torch (2.13) remembers the batch dimensions of the list saved last, and uses them for
    both lists: so both are the same.
    """
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


class _TransformedDsd(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(_dsd_op)
    backward = staticmethod(untraced(_backward_of_dsd))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _set_up_dsd(ctx, inputs, output)
        _save_for_both(ctx, *inputs[:3])

    @staticmethod
    def jvp(ctx: Any, values_dot: Tensor, _: None, dense_dot: Tensor, *__: None) -> Tensor:
        values, index, dense = ctx.saved_tensors
        sizes = ctx.sizes
        if values_dot is not None:
            values_dot = within_matrix(values_dot, index, *sizes[:2])
        return _product_rule(
            lambda values, dense: dsd(values, index, dense, *sizes),
            (values, dense),
            (values_dot, dense_dot),
        )


class _TransformedDds(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(_dds_op)
    backward = staticmethod(untraced(_backward_of_dds))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _set_up_dds(ctx, inputs, output)
        dense, values, index, *_, bias, activation = inputs
        _save_for_both(ctx, dense, values, index, output if activation == RELU else None, bias)

    @staticmethod
    def jvp(ctx: Any, dense_dot: Tensor, values_dot: Tensor, *others: Any) -> Tensor:
        dense, values, index, out, _ = ctx.saved_tensors
        rows, cols, transposed, activation = ctx.sizes
        if values_dot is not None:
            values_dot = within_matrix(values_dot, index, rows, cols)
        bias_dot = others[4]
        sizes = rows, cols, transposed, None, 0
        dot = _product_rule(
            lambda dense, values: dds(dense, values, index, *sizes),
            (dense, values),
            (dense_dot, values_dot),
            None if bias_dot is None else bias_dot.expand(*dense.shape[:-1], -1),
        )
        # Other activations are torch operations under a transform, see functional.py.
        return torch.ops.aten.threshold_backward(dot, out, 0) if activation == RELU else dot


class _TransformedSdd(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(_sdd_op)
    backward = staticmethod(untraced(_backward_of_sdd))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _set_up_sdd(ctx, inputs, output)
        _save_for_both(ctx, *inputs[:3])

    @staticmethod
    def jvp(ctx: Any, left_dot: Tensor, right_dot: Tensor, *_: None) -> Tensor:
        left, right, index = ctx.saved_tensors
        sizes = ctx.sizes
        return _product_rule(
            lambda left, right: sdd(left, right, index, *sizes),
            (left, right),
            (left_dot, right_dot),
        )


def _product_rule(
    product: Callable[[Tensor, Tensor], Tensor],
    factors: tuple[Tensor, Tensor],
    tangents: tuple[Tensor | None, Tensor | None],
    summand: Tensor | None = None,
) -> Tensor:
    """The tangent of a product plus a summand, given at least one tangent of the three.

    Raises:
        NotImplementedError: inside another forward-mode derivative, where torch (2.13) loses the
            tangent of what a Function's ``jvp`` returns: it would count as zero.
    """
    levels = torch._C._functorch.get_interpreter_stack() or ()
    if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in levels) > 1:
        raise NotImplementedError(
            "a forward-mode derivative of a forward-mode derivative (jvp of jvp, jacfwd of jacfwd) "
            "of a product of jitsparse would be wrong: take one of the two in reverse mode, as "
            "torch.func.hessian and jvp of grad do"
        )
    (a, b), (a_dot, b_dot) = factors, tangents
    terms = (
        None if a_dot is None else product(a_dot, b),
        None if b_dot is None else product(a, b_dot),
        summand,
    )
    first, *others = (term for term in terms if term is not None)
    return sum(others, first)


_transformed_dsd = untraced(_TransformedDsd.apply)
_transformed_dds = untraced(_TransformedDds.apply)
_transformed_sdd = untraced(_TransformedSdd.apply)
