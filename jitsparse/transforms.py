"""Computing outside of torch's active transforms and modes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["outside_of_transforms"]


@contextlib.contextmanager
def outside_of_transforms(*indices: Tensor) -> Iterator[None]:
    """Compute as if no mode or transform were active, if the indices belong to none of them.

    What is computed from them and kept would otherwise be fakes, or tensors of a level that is gone
    when the transform has ended. Dynamo does not trace this.
    """
    if any(type(each) is not Tensor or is_functorch_wrapped_tensor(each) for each in indices):
        yield
    else:
        with _disable_current_modes(), temporarily_clear_interpreter_stack():
            yield
