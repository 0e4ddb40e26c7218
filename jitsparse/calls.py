"""One call of an operation, caught before a kernel runs: to be explained, repeated and checked.

``js.explain`` asks which kernel the call would run. ``js.tune`` runs it with one kernel after the
other, on copies of its operands, and checks their results against plain torch in float64.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jitsparse import functional, ops, reference
from jitsparse.errors import ArgumentError
from jitsparse.jit import Variant
from jitsparse.kernels import dispatch, registry
from jitsparse.kernels.choice import Key, problem_of
from jitsparse.kernels.float32 import float32_as
from jitsparse.layout import div_up
from jitsparse.pattern import Pattern
from jitsparse.sparse import BlockSparse
from jitsparse.traits import attach_traits, without_profile

if TYPE_CHECKING:
    from jitsparse.jit import Kernel
    from jitsparse.kernels.problem import Problem

__all__ = ["RUN", "Call", "catch", "observe", "sample", "span"]

RUN: dict[Callable[..., Any], Callable[..., Any]] = {
    ops.dsd_op: dispatch.dsd,
    ops.dds_op: dispatch.dds,
    ops.sdd_op: dispatch.sdd,
}
"""The dispatch function behind each registered operation."""

_REFERENCE: dict[str, Callable[..., Tensor]] = {
    "dsd": reference.dsd,
    "dds": reference.dds,
    "sdd": reference.sdd,
}


@dataclass(frozen=True)
class Call:
    """What a registered operation was called with.

    Attributes:
        op: name of the operation. The kernel may be another's: a dsd with one vector is a dds.
        key: what chooses the kernel.
        arguments: arguments of the registered operation that the user's call led to.
    """

    op: str
    key: Key
    arguments: tuple[Any, ...]

    @property
    def problem(self) -> Problem:
        """The facts of the call, sizes rounded up."""
        return problem_of(self.key)

    @property
    def index(self) -> int:
        """Index of the GPU that the call runs on; -1 for the CPU."""
        return int(self.key[1])

    @property
    def device(self) -> torch.device:
        """Where the call runs."""
        return torch.device("cpu") if self.index < 0 else torch.device("cuda", self.index)

    def run(self, kernel: Kernel) -> Tensor:
        """The result of a kernel, whatever is pinned or tuned."""
        run: Callable[..., Tensor] = getattr(dispatch, self.op)
        return run(*self.arguments, find=lambda key: kernel)

    @property
    def has_data(self) -> bool:
        """Whether the operands have data; those on the meta device have none."""
        return not any(each.is_meta for each in self._operands())

    @property
    def bytes(self) -> int:
        """Bytes that the kernel reads of values and dense operands."""
        return sum(span(each) * each.itemsize for each in self._operands())

    def copy(self) -> Call:
        """The same call on copies of the operands, with the same memory layout."""
        return Call(self.op, self.key, self._map(_copy))

    def exact(self) -> tuple[Tensor, Tensor]:
        """The exact result, in float64, and how far rounding may deviate from it."""
        compute, activation = _REFERENCE[self.op], 0
        exact = compute(*self._map(Tensor.double))
        arguments = list(self._map(lambda operand: operand.double().abs()))
        if self.op == "dds":
            # Rounding is relative to the size of the summands, before the activation.
            activation, arguments[7] = arguments[7], 0
        size = compute(*arguments)
        problem = self.problem
        arithmetic = torch.finfo(torch.float64 if problem.dtype == "f64" else torch.float32).eps
        # Tensor cores truncate summands, which errs one way; they add at least 8 at a time.
        relative = 2 * (self._terms() / 8 + 16) * arithmetic
        if problem.dtype == "tf32":
            relative += 2**-9  # both factors lose the last 13 of 23 bits
        if problem.dtype == "bf32":
            relative += 2**-7  # both are rounded to 8 bits
        if activation:
            relative = 1.13 * relative + 16 * arithmetic  # no activation is steeper than that
        stored = torch.finfo(self._operands()[0].dtype)
        return exact, relative * size + stored.eps * exact.abs() + stored.tiny

    def fault(self, answer: Tensor, expected: tuple[Tensor, Tensor]) -> str | None:
        """What is wrong with a result, or None.

        Args:
            answer: from :meth:`run`.
            expected: from :meth:`exact`.
        """
        exact, allowed = expected
        if answer.shape != exact.shape:
            return f"wrong answer: shape {tuple(answer.shape)}, not {tuple(exact.shape)}"
        right = (answer.double() - exact).abs() <= allowed
        # Where the exact result is infinite, not a number, or too large for the dtype.
        right |= (answer == exact.to(answer.dtype)) | (answer.isnan() & exact.isnan())
        wrong = right.numel() - int(right.sum())
        if not wrong:
            return None
        return f"wrong answer: {wrong} of {right.numel()} numbers differ from plain torch"

    def _terms(self) -> int:
        """How many products are summed for one element of the result."""
        if self.op == "sdd":
            left = self.arguments[0]
            return int(left.shape[:-2].numel() * left.shape[-1])
        dense = self.arguments[2 if self.op == "dsd" else 0]
        return int(dense.shape[-2 if self.op == "dsd" else -1])

    def _operands(self) -> list[Tensor]:
        return [each for each in self.arguments if _is_operand(each)]

    def _map(self, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        return tuple(change(each) if _is_operand(each) else each for each in self.arguments)


def catch(op: str, *operands: Any, **options: Any) -> Call:
    """The call that an operation of :mod:`jitsparse.functional` leads to; nothing is computed.

    Raises:
        ArgumentError: the operation does not exist, the operands do not fit it, or there is nothing
            to run because the output or the pattern is empty.
    """
    if op not in (*registry.OPS, "linear"):
        raise ArgumentError(f"no operation {op!r}; there are {', '.join(registry.OPS)}, linear")
    operation = getattr(functional, op)
    try:
        bound = inspect.signature(operation).bind(*operands, **options)
    except TypeError as error:
        raise ArgumentError(f"{op} cannot be called so: {error}") from error
    watch = _Watch()
    with torch.no_grad(), watch:
        operation(*operands, **options)
    if watch.call is None:
        raise _nothing_to_run(op, bound.arguments)
    return watch.call


def _nothing_to_run(op: str, operands: Mapping[str, object]) -> ArgumentError:
    """The error for operands of which one is empty or stores no block."""
    described, of_no_block = [], 0
    for name, each in operands.items():
        if isinstance(each, Tensor):
            described.append(f"{name} has shape {tuple(each.shape)}")
        elif isinstance(each, (BlockSparse, Pattern)):
            pattern = each if isinstance(each, Pattern) else each.pattern
            blocks = math.prod(pattern.grid)
            of_no_block = 0 if pattern.nnz_blocks else blocks
            described.append(
                f"{name} has shape {each.shape} and stores {pattern.nnz_blocks} of {blocks} blocks "
                f"of {each.block_size}"
            )
    remedy = "; give it operands that are not empty"
    if of_no_block:
        remedy = (
            f"; store a block: one is a density of {1 / of_no_block:.2g}, and less than half of "
            "that rounds to none"
        )
    return ArgumentError(f"this {op} runs no kernel: {', '.join(described)}{remedy}")


def check_alone(function: str, operands: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Check that a problem, given in place of a call, is the only argument.

    Raises:
        ArgumentError: it is not.
    """
    if operands or options:
        raise ArgumentError(
            f"{function} takes a problem alone, or the name of an operation with its operands; got "
            f"a problem, {len(operands)} operands and options {list(options) or 'none'}"
        )


def sample(problem: Problem, device: torch.device | None = None, *, seed: int = 0) -> Call:
    """A call with a given problem: standard normal data on a random pattern.

    An ``aligned`` problem gets tensors as torch allocates them. Where its sizes are not multiples
    of 16 bytes these are not aligned, and the call's own problem says so.

    Args:
        problem: what to make data for; its sizes need not be rounded.
        device: by default the current device of the problem's kind.
        seed: seed of the data.

    Raises:
        ArgumentError: no call on contiguous data and a random pattern has this problem.
    """
    where = device or torch.device(problem.device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"{problem.name} is for a GPU, and torch sees none here")
    (block_rows, block_cols), left, right = problem.block, problem.layout[0], problem.layout[1]
    blocks = div_up(problem.rows, block_rows) * div_up(problem.cols, block_cols)
    if not 0 < problem.nnz <= blocks:
        raise ArgumentError(
            f"a {problem.rows} x {problem.cols} matrix has {blocks} blocks of {block_rows} x "
            f"{block_cols}, so it cannot store {problem.nnz}"
        )
    generator = torch.Generator(where).manual_seed(seed)

    def normal(*shape: int, layout: str = "n") -> Tensor:
        if layout == "t":
            shape = (*shape[:-2], shape[-1], shape[-2])
        # One element past the start of an allocation is not a multiple of 16 bytes.
        shift = 0 if problem.aligned else 1
        count = shift + torch.Size(shape).numel()
        data = torch.randn(count, generator=generator, device=where).to(
            dispatch.DTYPE_OF[problem.dtype]
        )
        made = data[shift:].view(shape)
        return made.mT if layout == "t" else made

    pattern = Pattern.random(
        (problem.rows, problem.cols),
        problem.block,
        problem.nnz / blocks,
        generator=generator,
        device=where,
    )
    # It is random, even where chance has made it look otherwise.
    attach_traits(pattern.index, without_profile(pattern.traits))
    batch = (problem.batch,) if problem.batch > 1 else ()
    operands: tuple[Any, ...]
    if problem.op == "sdd":
        a = normal(*batch, problem.rows, problem.extent, layout=left)
        b = normal(*batch, problem.extent, problem.cols, layout=right)
        operands = a, b, pattern
    else:
        stored = BlockSparse(normal(problem.nnz, *problem.block), pattern)
        sparse = stored.T if (left if problem.op == "dsd" else right) == "t" else stored
        if problem.op == "dsd":
            operands = sparse, normal(*batch, sparse.shape[1], problem.extent, layout=right)
        else:
            operands = normal(*batch, problem.extent, sparse.shape[0], layout=left), sparse
    with float32_as(problem.dtype, where.type):
        call = catch(problem.op, *operands)
    made, asked = call.problem, problem.rounded()
    if replace(made, aligned=asked.aligned) != asked:
        raise ArgumentError(
            f"no call on contiguous operands and a random pattern has the problem {asked.name}; "
            f"the nearest is {made.name}. Give the operation and the operands of the call instead"
        )
    return call


def _is_operand(argument: object) -> bool:
    """Whether an argument is data, rather than an index or a size."""
    return isinstance(argument, Tensor) and argument.is_floating_point()


def span(tensor: Tensor) -> int:
    """Number of elements in memory from the first of a tensor to its last."""
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in pairs)


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides and the same distance from a multiple of 16 bytes."""
    length = span(tensor)
    shift = tensor.data_ptr() % 16 // tensor.itemsize
    storage = tensor.new_empty(shift + length)[shift:]
    # The whole span: an expanded tensor cannot be written element by element.
    storage.copy_(tensor.as_strided((length,), (1,)))
    return storage.as_strided(tensor.shape, tensor.stride())


class _Watch(TorchDispatchMode):
    """Keeps the call of an operation instead of running a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.call: Call | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in RUN:
            return func(*args, **(kwargs or {}))
        answer, key = observe(func, tuple(args))
        if key is not None:
            self.call = Call(RUN[func].__name__, key, tuple(args))
        return answer


def observe(op: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Tensor, Key | None]:
    """Call a registered operation, short of running a kernel.

    Returns:
        A tensor of the correct shape and without meaning, and the key that chooses the kernel; no
        key if there is nothing to run.
    """
    keys: list[Key] = []

    def find(key: Key) -> _NoKernel:
        keys.append(key)
        return _NoKernel()

    answer = RUN[op](*arguments, find=find)
    return answer, keys[0] if keys else None


class _NoKernel:
    """Does nothing, successfully."""

    variant = Variant("none", "none", "none", "none")
    note: object = None

    def pack(self, *words: int) -> bytes:
        return b""

    def launch(self, words: bytes) -> int:
        return 0
