"""The index of a pattern on a GPU: the host computes it, in C++ that is compiled on first use.

With torch operations (:mod:`jitsparse.schedule`) that is 750 to 2200 small kernels, which the host
takes 9 to 50 ms to launch. In C++ (``csrc/index``) all of it takes the host 0.3 to 8 ms up to
65,000 blocks (docs/performance.md), and a pattern's indices are read there in any case, to check
them and to measure its traits. The result is the same, bit for bit. The torch operations stay the
specification, and are used where the host cannot read the indices (a graph is captured, compiled or
transformed), and until the C++ is compiled, which nobody waits for.
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
"""Of a pattern. With 16 threads 1 << 18 of them take 30 ms, or 56 with torch operations; with one
thread 80. Above that the GPU catches up."""

_MAX_WORDS = 1 << 24
"""Of an index, which with few blocks of a huge matrix are for the most part zeros. Pinned memory is
kept by torch as long as the process lives."""

HostIndices = tuple[Tensor, Tensor]
"""``crow_indices`` and ``col_indices`` as contiguous int32 tensors in the host's memory."""


def read(crow: Tensor, col: Tensor) -> tuple[Tensor, Tensor] | None:
    """The indices of a pattern on a GPU in the host's memory, of their own dtype; None of another
    device, or where the index is not computed here."""
    return (crow.cpu(), col.cpu()) if _may_compute(crow, col) else None


def wait(device: torch.device) -> None:
    """Until the current stream of a GPU is done. A layer makes its pattern, and a pattern its
    ``T``, at a first use and for all later ones, which may come on another stream: that one could
    not know what it has to wait for."""
    with torch.cuda.device(device):
        made = torch.cuda.Event()
        made.record()
        made.synchronize()


def transposed(host: HostIndices, cols: int) -> HostIndices:
    """Those of the transposed pattern, whose block rows are the ``cols`` block columns."""
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
    """What :func:`~jitsparse.schedule.build_index` answers, bit for bit; and, if the compiled
    function was asked, the facts by which :func:`jitsparse.traits.profile_by` knows the profile.

    Args:
        crow, col, cols, block_size: as there.
        host: the same indices in the host's memory, if they are there.
    """
    if host is not None and _may_compute(crow, col):
        layout = IndexLayout(crow.numel() - 1, cols, col.numel(), block_size, panels=True)
        function = _function() if layout.size <= _MAX_WORDS else None
        if function is not None:
            with torch.cuda.device(crow.device):
                # From pinned memory the GPU copies while the host goes on.
                index = torch.empty(layout.size, dtype=torch.int32, device="cpu", pin_memory=True)
                facts = fill(function, layout, host, index)
                return index.to(crow.device, non_blocking=True), facts
    return build_index(crow, col, cols, block_size), None


def _max_blocks() -> int:
    return min(threads.allowed(), 4) * _MAX_BLOCKS_OF_A_THREAD


def fill(function: Kernel, layout: IndexLayout, host: HostIndices, index: Tensor) -> list[int]:
    """Compute an index in the host's memory; returns the facts, see :func:`index_of`.

    Args:
        function: compiled from :func:`jitsparse.kernels.host_index.template`.
        layout: of the index.
        host: the pattern's indices.
        index: ``(layout.size,)`` int32, to be written.
    """
    from jitsparse.kernels.host_index import words_of

    crow, col = host
    # As many as kernels on a CPU have, but none for less than it costs.
    team = min(threads.allowed(), 1 + layout.nnz // 256)
    facts = (ctypes.c_int64 * (2 * FACTS))()
    addresses = crow.data_ptr(), col.data_ptr(), index.data_ptr(), ctypes.addressof(facts)
    function(*words_of(layout, *addresses, team))
    return list(facts)


def _may_compute(crow: Tensor, col: Tensor) -> bool:
    """Whether these are on a GPU, not too many, and nobody traces, transforms or captures what is
    done here."""
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
    """Of the compiled function, under a configuration, which says where to find it. A thread
    replaces it whole, so that another sees all of it or nothing."""

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
    """None while it is being compiled, or if it cannot be, which is said once."""
    global _state
    state = _state
    if state.generation != config.generation:
        state = _State(config.generation)
    if state.kernel is None and not state.failed:
        try:
            state = _advanced(state)
        except Exception as error:  # patterns can do without
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
