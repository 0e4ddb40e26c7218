"""The index of a pattern like one before: one launch in place of two thousand.

On a GPU building an index is launching small kernels: 9 to 43 ms of the host's time for 2 to 7 of
the device's (docs/performance.md). Which kernels these are depends on nothing but the grid, the
block size and the number of blocks. The layers of a model share a few of those, and training that
moves blocks keeps them, so the second time they come everything is recorded as a CUDA graph, and
replayed from then on.

A capture is an affair of the whole process: up to torch 2.11 another thread cannot draw random
numbers on the same GPU meanwhile, and one that fails leaves torch's generator and allocator in the
middle of it. So nothing is recorded unless this thread is the only one of Python's, torch's own
allocator is in use, and there is memory enough: else patterns are built kernel by kernel.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from jitsparse.checks import is_readable
from jitsparse.jit import config, progress
from jitsparse.schedule import build_index

__all__ = ["index_of"]

_MAX_RECORDINGS = 32
"""Recordings of a device. None is dropped for another: to destroy a graph is an error while another
thread captures one."""

_REMEMBERED = 1024
"""Keys of a device that are known to have come."""

_ROOM = 1 << 30
"""Bytes that must be free on the device for a recording. Those that were measured kept 158 MB at
most (16384 x 16384, blocks of 64), 2.3 KB a block where there are many."""

_MAX_BLOCKS = 1 << 18
"""Of a pattern, above which the device has more to do than the host."""

_Key = tuple[int, ...]
"""Block rows, block columns, blocks, the block size, and whether torch has to be deterministic,
which takes other kernels."""

_Arguments = tuple[Tensor, Tensor, int, tuple[int, int]]
"""Those of :func:`~jitsparse.schedule.build_index`."""


def index_of(crow: Tensor, col: Tensor, cols: int, block_size: tuple[int, int]) -> Tensor:
    """What :func:`~jitsparse.schedule.build_index` answers, bit for bit.

    Args:
        crow, col, cols, block_size: as there.
    """
    arguments = crow, col, cols, block_size
    if _may_replay(crow, col):
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = crow.numel() - 1, cols, col.numel(), *block_size, int(deterministic)
        with torch.cuda.device(crow.device):
            index = _device(crow.get_device()).replay(key, arguments)
        if index is not None:
            return index
    return build_index(*arguments)


def _may_replay(crow: Tensor, col: Tensor) -> bool:
    """Whether these are blocks on a GPU, and nobody traces, transforms or captures what is done
    here."""
    return (
        is_readable(crow)
        and is_readable(col)
        and crow.is_cuda
        and 0 < col.numel() <= _MAX_BLOCKS
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
    )


def _may_record() -> bool:
    """Whether a capture harms nobody and cannot fail, see above."""
    return (
        threading.active_count() == 1
        and torch.cuda.get_allocator_backend() == "native"
        and config.get().cuda_caching
        and torch.cuda.mem_get_info()[0] >= _ROOM
    )


class _Recording:
    """A graph whose operands and result have fixed places.

    Args:
        pool: for what it allocates.
        stream: to capture on.
        arguments: whose tensors are its operands.
    """

    def __init__(self, pool: Any, stream: torch.cuda.Stream, arguments: _Arguments) -> None:
        self.crow, self.col = arguments[:2]
        self.graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which waits for the device and empties torch's cache of memory.
        with torch.cuda.stream(stream):
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.index = build_index(*arguments)
            finally:
                self.graph.capture_end()

    def replay(self, crow: Tensor, col: Tensor) -> Tensor:
        self.crow.copy_(crow)
        self.col.copy_(col)
        self.graph.replay()
        return self.index.clone()


class _Device:
    """The recordings of a GPU. As only one is replayed at a time, and its result copied before the
    next, they share the memory for everything between."""

    def __init__(self) -> None:
        self.recordings: dict[_Key, _Recording] = {}
        self._seen: OrderedDict[_Key, None] = OrderedDict()
        self._most = _MAX_RECORDINGS
        self._lock = threading.Lock()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()
        self._idle = torch.cuda.Event()

    def replay(self, key: _Key, arguments: _Arguments) -> Tensor | None:
        """The index, or None if it has to be built; recorded first, if that is to be."""
        with self._lock:
            if key not in self.recordings and self._again(key) and _may_record():
                self._record(key, arguments)
            recording = self.recordings.get(key)
            if recording is None:
                return None
            stream = torch.cuda.current_stream()
            stream.wait_event(self._idle)
            try:
                return recording.replay(*arguments[:2])
            finally:
                self._idle.record(stream)

    def _again(self, key: _Key) -> bool:
        """Whether a key has come before, and there may be another recording. The first time loads
        the kernels, which a capture cannot do."""
        again = key in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return again and len(self.recordings) < self._most

    def _record(self, key: _Key, arguments: _Arguments) -> None:
        """Record in a thread of its own, which has none of the modes of this one: what is allocated
        under ``torch.cuda.use_mem_pool``, for instance, would not be the graph's."""
        crow, col, cols, block_size = arguments
        kept = crow.clone(), col.clone(), cols, block_size
        stream = torch.cuda.current_stream()
        self._stream.wait_stream(stream)
        collects = gc.isenabled()
        gc.disable()  # it might free a graph of the user's, which would end this capture
        try:
            number = torch.cuda.current_device()
            with ThreadPoolExecutor(1, "", torch.cuda.set_device, (number,)) as other:
                recording = other.submit(_Recording, self._pool, self._stream, kept)
                self.recordings[key] = recording.result()
        except RuntimeError as error:  # of which running out of memory is one
            self._most = 0
            progress.warn(
                "jitsparse builds the indices of patterns kernel by kernel from now on, since "
                f"recording them as a CUDA graph failed: {error}"
            )
        finally:
            if collects:
                gc.enable()
        stream.wait_stream(self._stream)


_devices: dict[int, _Device] = {}
_guard = threading.Lock()


def _device(number: int) -> _Device:
    with _guard:
        if number not in _devices:
            _devices[number] = _Device()
        return _devices[number]
