"""The index of a pattern on a GPU: the host computes it, in C++ that is compiled on first use.

With torch operations (:mod:`jitsparse.schedule`) that is 750 to 2200 small kernels, which take the
host 9 to 50 ms to launch. In C++ (``csrc/index``) all of it takes the host 0.3 to 8 ms for up to
65,000 blocks (docs/performance.md), and the host reads a pattern's indices in any case, to check
them and to measure its traits. The result is the same, bit for bit. The torch operations remain the
specification, and are used where the host cannot read the indices (a graph is captured, compiled or
transformed), and until the C++ is compiled, which nothing waits for.
"""

from __future__ import annotations

import ctypes
import functools
import os
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from jitsparse.checks import is_readable
from jitsparse.errors import CacheMiss
from jitsparse.jit import config
from jitsparse.kernels import threads
from jitsparse.layout import IndexLayout
from jitsparse.schedule import build_index
from jitsparse.traits import FACTS

if TYPE_CHECKING:
    from jitsparse.jit import Kernel

__all__ = ["HostIndices", "fill", "index_of", "read", "transposed", "wait"]

_MAX_BLOCKS_OF_A_THREAD = 1 << 16
"""Most blocks of a pattern per thread. 1 << 18 blocks take 30 ms with 16 threads, 80 with one, and
56 with torch operations. Above that the GPU catches up."""

_MAX_WORDS = 1 << 24
"""Most words of an index: with few blocks in a huge matrix they are mostly zeros. Torch keeps
pinned memory as long as the process lives."""

HostIndices = tuple[Tensor, Tensor]
"""``crow_indices`` and ``col_indices`` as contiguous int32 tensors in host memory."""


def read(crow: Tensor, col: Tensor) -> tuple[Tensor, Tensor] | None:
    """Copy the indices of a pattern on a GPU to host memory, in their own dtype.

    None for other devices, or where the index is not computed here.
    """
    return (crow.cpu(), col.cpu()) if _may_compute(crow, col) else None


def wait(device: torch.device) -> None:
    """Wait until the current stream of a GPU is done.

    A layer makes its pattern, and a pattern its ``T``, at the first use. Later uses may come on
    another stream, which could not know what to wait for.
    """
    with torch.cuda.device(device):
        made = torch.cuda.Event()
        made.record()
        made.synchronize()


def transposed(host: HostIndices, cols: int) -> HostIndices:
    """Indices of the transposed pattern, whose block rows are the ``cols`` block columns."""
    crow, col = host
    order = torch.argsort(col, stable=True)
    row = torch.arange(crow.numel() - 1, dtype=torch.int32, device="cpu")
    row = row.repeat_interleave(crow.diff(), output_size=col.numel())
    begins = torch.arange(cols + 1, dtype=torch.int32, device="cpu")
    return torch.searchsorted(col[order], begins, out_int32=True), row[order]


def index_of(
    crow: Tensor,
    col: Tensor,
    cols: int,
    block_size: tuple[int, int],
    host: HostIndices | None,
) -> tuple[Tensor, list[int] | None]:
    """What :func:`~jitsparse.schedule.build_index` returns, bit for bit, and facts.

    The facts, from which :func:`jitsparse.traits.profile_by` computes the profile, are None unless
    the compiled function ran.

    Args:
        crow, col, cols, block_size: as for ``build_index``.
        host: the same indices in host memory, if they are there.
    """
    if host is not None and _may_compute(crow, col):
        layout = IndexLayout(crow.numel() - 1, cols, col.numel(), block_size, panels=True)
        function = _function() if layout.size <= _MAX_WORDS else None
        if function is not None:
            with torch.cuda.device(crow.device):
                # From pinned memory, the GPU copies while the host goes on.
                index = torch.empty(layout.size, dtype=torch.int32, device="cpu", pin_memory=True)
                facts = fill(function, layout, host, index)
                return index.to(crow.device, non_blocking=True), facts
    return build_index(crow, col, cols, block_size), None


def _max_blocks() -> int:
    return min(threads.allowed(), 4) * _MAX_BLOCKS_OF_A_THREAD


def fill(function: Kernel, layout: IndexLayout, host: HostIndices, index: Tensor) -> list[int]:
    """Compute an index in host memory; returns the facts, see :func:`index_of`.

    Args:
        function: compiled from :func:`jitsparse.kernels.host_index.template`.
        layout: layout of the index.
        host: the pattern's indices.
        index: ``(layout.size,)`` int32, to be written.
    """
    from jitsparse.kernels.host_index import words_of

    crow, col = host
    # As many threads as CPU kernels have, but none with too little work to pay for it.
    team = min(threads.allowed(), 1 + layout.nnz // 256)
    facts = (ctypes.c_int64 * (2 * FACTS))()
    addresses = crow.data_ptr(), col.data_ptr(), index.data_ptr(), ctypes.addressof(facts)
    function(*words_of(layout, *addresses, team))
    return list(facts)


def _may_compute(crow: Tensor, col: Tensor) -> bool:
    """Whether these are on a GPU, not too many, and not being traced, transformed or captured."""
    return (
        crow.is_cuda
        and is_readable(crow)
        and is_readable(col)
        and torch._C._get_tracing_state() is None
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and 0 < col.numel() <= _max_blocks()
    )


# -- the compiled function ------------------------------------------------------------------------


class _State(NamedTuple):
    """State of the compiled function under a configuration, which says where to find it.

    A thread replaces it as a whole, so that others see all of it or nothing.
    """

    generation: int = -1
    kernel: Kernel | None = None
    build: Future[Kernel] | None = None
    failed: bool = False


_state = _State()


def _forget() -> None:
    global _state
    _state = _State()


os.register_at_fork(after_in_child=_forget)  # the parent's threads build nothing for the child


def _function() -> Kernel | None:
    """None while it is being compiled, or if it cannot be, which is reported once."""
    global _state
    state = _state
    if state.generation != config.generation:
        state = _State(config.generation)
    if state.kernel is None and not state.failed:
        try:
            state = _advanced(state)
        except Exception as error:  # patterns work without it
            _say_it_is_slow(error)
            state = state._replace(failed=True)
        _state = state
    return state.kernel


def _advanced(state: _State) -> _State:
    from jitsparse import jit
    from jitsparse.kernels import registry

    if state.build is not None:
        return state._replace(kernel=state.build.result()) if state.build.done() else state
    variant = registry.INDEX
    template = registry.template_of(variant)
    hint = functools.partial(registry.warmup_command, variant)
    try:
        return state._replace(kernel=jit.load(template, variant, allow_build=False, hint=hint))
    except CacheMiss:
        if not config.get().jit:
            raise
    from jitsparse.jit import background

    return state._replace(build=background.start(template, variant, hint=hint))


def _say_it_is_slow(error: Exception) -> None:
    from jitsparse.jit import progress

    progress.warn(
        "jitsparse computes the indices of patterns on GPUs with torch operations, which takes "
        f"tens of milliseconds each, since the compiled function cannot be had: {error}"
    )
