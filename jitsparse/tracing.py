"""Which kernels a model would run, found by running it on tensors that have no data.

A copy of the model, all of whose tensors are fake (torch's ``FakeTensorMode``: shape, strides,
dtype, device and no memory), runs forward and backward on fake inputs. Every call of a registered
operation records the memory layout of its operands, and from these
:mod:`~jitsparse.kernels.dispatch` makes the same keys that a real call would make. So layers,
functions and patterns are found wherever the model uses them, the tensors between them have their
real strides, nothing is computed, and kernels for a GPU are found without one.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jitsparse import calls
from jitsparse.checks import is_fake
from jitsparse.errors import ArgumentError
from jitsparse.kernels.choice import Key, key_on_device
from jitsparse.pattern import Pattern
from jitsparse.traits import attach_traits, attached_traits

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["Input", "device_of", "inputs_of", "keys_of_model"]

Input = Tensor | tuple[int, ...]
"""A positional argument of a model: an example, or the shape of a floating-point tensor."""

RECORD_INSTEAD = (
    "record a real run, and warm up from that: JITSPARSE_RECORD=used.jsonl, then jitsparse warmup "
    "--from used.jsonl"
)

# What torch raises where a tensor would have to have data: exceptions, by name since they are
# private, or RuntimeErrors that say so.
_NEEDS_DATA = {
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
}
_SAYS_SO = re.compile(r"\.numpy\(\)|data pointer|meta tensor|'meta' device|fake impl")


def keys_of_model(
    model: nn.Module,
    inputs: Sequence[Input],
    *,
    device: str,
    dtype: torch.dtype | None = None,
    float32: str | None = None,
    backward: bool = True,
) -> list[Key]:
    """The keys of all calls that a model's forward and backward pass make, each once.

    Args:
        model: its tensors may be anywhere; it is left unchanged.
        inputs: its positional arguments. One given as a shape is floating-point, contiguous and
            requires a gradient; of a tensor only shape, strides, dtype and ``requires_grad`` count.
        device: ``"cpu"`` or ``"cuda"``, where the model will run.
        dtype: of all floating-point tensors of the model and its inputs; by default they keep
            theirs, and an input given as a shape has that of the model's first parameter.
        float32: as for :func:`~jitsparse.kernels.choice.key_on_device`.
        backward: whether gradients are computed, for what requires one.

    Raises:
        ArgumentError: the model cannot be copied, it cannot run on such inputs without data, or it
            calls no operation of jitsparse.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    # Without a GPU, torch can pretend to have one only until the backward pass. Then the tensors
    # between the layers have their CPU layout.
    where = device if torch.cuda.is_available() else "cpu"
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = _Fakes(mode, where, dtype)
    listener = _Listener()
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    with torch.inference_mode(False), torch.set_grad_enabled(backward), _eagerly():
        kind = type(model).__name__
        copied = _explained(f"{kind} cannot be copied", lambda _: f"Instead, {RECORD_INSTEAD}")
        with copied, fakes, _generators_copied():
            double = copy.deepcopy(model)
        with mode:
            arguments = [
                fakes.like(each).requires_grad_(backward and each.requires_grad)
                if isinstance(each, Tensor)
                else torch.empty(
                    each, dtype=dtype or _dtype_of(model), device=where
                ).requires_grad_(backward)
                for each in inputs
            ]
            shapes = ", ".join(str(tuple(each.shape)) for each in arguments)
            asked = f"{kind} on inputs of shape {shapes} on {device}"
            with _explained(f"{asked} does not run", _advice), listener:
                outputs = [each for each in tree_leaves(double(*arguments)) if _has_gradient(each)]
                if outputs:
                    # A gradient has the layout of its tensor, or is copied to it (autograd.py).
                    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    index = -1 if device == "cpu" else 0
    keys = [key_on_device(key, index, float32) for key in listener.keys()]
    if not keys:
        raise ArgumentError(
            f"{asked} calls no kernel: it has no BlockSparseLinear layer and no operation of "
            "jitsparse that such inputs reach, or all of them are empty"
        )
    return list(dict.fromkeys(keys))


def inputs_of(given: object) -> list[Input]:
    """One shape, one tensor, or a sequence of them, as a list.

    Raises:
        ArgumentError: it is none of these.
    """
    if isinstance(given, Tensor) or _is_shape(given):
        given = [given]
    if isinstance(given, Sequence) and not isinstance(given, str):
        found = [each if isinstance(each, Tensor) else _shape(each) for each in given]
        legal = [each for each in found if each is not None]
        if legal and len(legal) == len(found):
            return legal
    raise ArgumentError(
        "input_shape is the shape of the model's input, as (8, 512), an example tensor, or a list "
        f"with one of these for each positional argument; got {given!r}"
    )


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters and buffers are; the CPU if it has none or they are nowhere."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type in ("cpu", "cuda"):
            return tensor.device
    return torch.device("cpu")


class _Fakes(TorchFunctionMode):
    """Makes ``copy.deepcopy`` replace every tensor and every pattern by a fake.

    Args:
        mode: the mode that makes the fakes.
        device: of the fakes.
        dtype: of floating-point fakes, or None to keep their own.
    """

    def __init__(self, mode: FakeTensorMode, device: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.mode = mode
        self.device = device
        self.dtype = dtype

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__:
            original, memo = args
            return self._once(original, memo)
        # It copies the data of a Parameter. Layers clone indices, too, which are already fakes.
        if func is torch.Tensor.clone and not is_fake(args[0]):
            return self.like(args[0])
        if func is Pattern.__deepcopy__:
            original, memo = args
            double = Pattern.__new__(Pattern)
            memo[id(original)] = double
            for name, fact in vars(original).items():
                double.__dict__[name] = self._once(fact, memo) if isinstance(fact, Tensor) else fact
            return double
        return func(*args, **(kwargs or {}))

    def like(self, tensor: Tensor) -> Tensor:
        """A fake with the memory layout that a tensor has, or has after a move or conversion."""
        if tensor.layout is not torch.strided:
            return tensor  # no operation of ours takes it; others make a fake of it
        dtype = self.dtype if self.dtype and tensor.is_floating_point() else tensor.dtype
        stays = tensor.dtype == dtype and tensor.device.type == self.device
        # New allocations begin at a multiple of 16 bytes.
        shift = tensor.data_ptr() % 16 // tensor.itemsize if stays else 0
        with self.mode:
            storage = torch.empty(shift + calls.span(tensor), dtype=dtype, device=self.device)
            return attach_traits(
                storage.as_strided(tensor.shape, tensor.stride(), shift), attached_traits(tensor)
            )

    def _once(self, tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if id(tensor) not in memo:
            double = self.like(tensor)
            memo[id(tensor)] = double.requires_grad_() if tensor.requires_grad else double
        found: Tensor = memo[id(tensor)]
        return found


class _TensorLayout(NamedTuple):
    """The memory layout of a tensor, as far as the choice of a kernel depends on it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    traits: int

    def stand_in(self) -> Tensor:
        """A meta tensor with this layout. Its address is its distance from the start."""
        alike = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        storage = alike.new_empty(self.offset + calls.span(alike))
        return attach_traits(storage.as_strided(self.shape, self.strides, self.offset), self.traits)


class _Listener(TorchDispatchMode):
    """Records the calls of registered operations, and lets them proceed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._heard: dict[tuple[Callable[..., Any], tuple[Any, ...]], None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in calls.RUN:
            self._heard[func, tuple(_note(each) for each in args)] = None
        return func(*args, **(kwargs or {}))

    def keys(self) -> Iterator[Key]:
        """Keys of the recorded calls, as on the CPU. Call it outside of all modes."""
        for op, notes in self._heard:
            arguments = (e.stand_in() if isinstance(e, _TensorLayout) else e for e in notes)
            _, key = calls.observe(op, tuple(arguments))
            if key is not None:
                yield key


def _note(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    shape, strides = tuple(argument.shape), argument.stride()
    offset = int(argument.storage_offset())
    return _TensorLayout(shape, strides, offset, argument.dtype, attached_traits(argument))


def _has_gradient(output: object) -> bool:
    return isinstance(output, Tensor) and output.requires_grad


def _dtype_of(model: nn.Module) -> torch.dtype:
    floating = (each.dtype for each in model.parameters() if each.is_floating_point())
    return next(floating, torch.get_default_dtype())


def _is_shape(given: object) -> bool:
    return _shape(given) is not None


def _shape(given: object) -> tuple[int, ...] | None:
    """A sequence of extents as a tuple, or None."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return None
    legal = all(isinstance(e, int) and not isinstance(e, bool) and e >= 0 for e in given)
    return tuple(given) if given and legal else None


@contextlib.contextmanager
def _generators_copied() -> Iterator[None]:
    """Have ``copy.deepcopy`` copy a torch.Generator as a whole.

    Its state is a tensor, which a fake would replace.
    """
    kinds = copyreg.dispatch_table
    before = kinds.get(torch.Generator)
    kinds[torch.Generator] = lambda generator: (generator.clone_state, ())
    try:
        yield
    finally:
        if before is None:
            del kinds[torch.Generator]
        else:
            kinds[torch.Generator] = before


@contextlib.contextmanager
def _explained(what: str, advice: Callable[[Exception], str]) -> Iterator[None]:
    """Turn whatever the model's own code raises into an error that says what was asked of it."""
    try:
        yield
    except Exception as error:
        text = str(error).strip().splitlines()
        first = text[0] if text else "no explanation"
        said = [f"{what}: {type(error).__name__}: {first.rstrip('.')}", advice(error)]
        raise ArgumentError(". ".join(filter(None, said))) from error


def _advice(error: Exception) -> str:
    """What to do about an error, if tensors without data are its reason, and not a mistake."""
    if type(error).__name__ in _NEEDS_DATA or _SAYS_SO.search(str(error)):
        return f"It depends on data, and there are none here: {RECORD_INSTEAD}"
    return ""


def _eagerly() -> contextlib.AbstractContextManager[object]:
    """Run compiled parts of a model uncompiled; there are none unless the compiler is loaded."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
