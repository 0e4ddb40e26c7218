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
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jitsparse.checks import is_readable
from jitsparse.errors import CacheMiss, JitsparseError
from jitsparse.jit import config
from jitsparse.layout import IndexLayout
from jitsparse.schedule import build_index
from jitsparse.traits import FACTS

if TYPE_CHECKING:
    from jitsparse.jit import Kernel

__all__ = ["HostIndices", "fill", "index_of", "read", "transposed"]

_MAX_BLOCKS = 1 << 18
"""Of a pattern. So many take 30 ms, or 56 with torch operations; above that the GPU catches up."""

HostIndices = tuple[Tensor, Tensor]
"""``crow_indices`` and ``col_indices`` as contiguous int32 tensors in the host's memory."""


def read(crow: Tensor, col: Tensor) -> tuple[Tensor, Tensor] | None:
    """The indices of a pattern on a GPU in the host's memory, of their own dtype; None of another
    device, or where they cannot be read."""
    return (crow.cpu(), col.cpu()) if _on_gpu(crow, col) else None


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
    # Asked in this order: while a graph is traced there are no host's, and no number of blocks.
    small = host is not None and _on_gpu(crow, col) and 0 < col.numel() <= _MAX_BLOCKS
    function = _compiled.function() if small else None
    if host is None or function is None:
        return build_index(crow, col, cols, block_size), None
    layout = IndexLayout(crow.numel() - 1, cols, col.numel(), block_size, panels=True)
    with torch.cuda.device(crow.device):
        # From pinned memory the GPU copies while the host goes on.
        index = torch.empty(layout.size, dtype=torch.int32, device="cpu", pin_memory=True)
        facts = fill(function, layout, host, index)
        return index.to(crow.device, non_blocking=True), facts


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
    threads = min(torch.get_num_threads(), 1 + layout.nnz // 256)
    facts = (ctypes.c_int64 * (2 * FACTS))()
    addresses = crow.data_ptr(), col.data_ptr(), index.data_ptr(), ctypes.addressof(facts)
    function(*words_of(layout, *addresses, threads))
    return list(facts)


def _on_gpu(crow: Tensor, col: Tensor) -> bool:
    """Whether these are on a GPU, and nobody traces, transforms or captures what is done here."""
    return (
        crow.is_cuda
        and is_readable(crow)
        and is_readable(col)
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
    )


class _Compiled:
    """The function, once it is compiled."""

    def __init__(self) -> None:
        self._known: Kernel | None = None
        self._build: Future[Kernel] | None = None
        self._generation = -1
        self._failed = False

    def function(self) -> Kernel | None:
        """None while it is being compiled, or if it cannot be, which is said once."""
        if self._generation != config.generation:  # which says where to find it
            self.__init__()  # type: ignore[misc]
            self._generation = config.generation
        if self._known is None and not self._failed:
            try:
                self._known = self._find()
            except JitsparseError as error:
                self._failed = True
                _say_it_is_slow(error)
        return self._known

    def _find(self) -> Kernel | None:
        from jitsparse import jit
        from jitsparse.kernels import registry

        if self._build is not None:
            return self._build.result() if self._build.done() else None
        variant = registry.INDEX
        template = registry.template_of(variant)
        hint = functools.partial(registry.warmup_command, variant)
        try:
            return jit.load(template, variant, allow_build=False, hint=hint)
        except CacheMiss:
            if not config.get().jit:
                raise
        from jitsparse.jit import background

        self._build = background.start(template, variant, hint=hint)
        return None


def _say_it_is_slow(error: JitsparseError) -> None:
    from jitsparse.jit import progress

    progress.warn(
        "jitsparse computes the indices of patterns on GPUs with torch operations, which takes "
        f"tens of milliseconds each, since the compiled function cannot be had: {error}"
    )


_compiled = _Compiled()
os.register_at_fork(after_in_child=_compiled.__init__)  # type: ignore[misc]
