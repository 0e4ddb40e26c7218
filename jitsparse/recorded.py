"""The index of a pattern like one before: one launch in place of two thousand.

On a GPU building an index is launching small kernels: 9 to 40 ms of the host's time for a few of
the device's (docs/performance.md). Which kernels these are depends on nothing but the grid, the
block size and the number of blocks. The layers of a model share a few of those, and training that
moves blocks keeps them, so the second time they come everything is recorded as a CUDA graph, and
replayed from then on.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from jitsparse.schedule import build_index

__all__ = ["index_of"]

_MOST = 32
"""Recordings that are kept. None is dropped for another: to destroy a graph is an error while
another thread captures one."""

_REMEMBERED = 1024
"""Keys that are known to have come once."""

_Key = tuple[int, ...]
"""Device, block rows, block columns, blocks, and the block size."""

_guard = threading.Lock()
_seen: OrderedDict[_Key, None] = OrderedDict()
_recordings: dict[_Key, _Recording | None] = {}
_devices: dict[int, _Device] = {}


class _Device(NamedTuple):
    """What the recordings of a device share: as only one is replayed at a time, and its result
    copied before the next, also the memory for everything between."""

    pool: Any
    stream: torch.cuda.Stream
    idle: torch.cuda.Event


class _Recording:
    """A graph whose operands and result have fixed places.

    Raises:
        torch.OutOfMemoryError: there is no memory for it.
    """

    def __init__(
        self, on: _Device, crow: Tensor, col: Tensor, cols: int, block_size: tuple[int, int]
    ) -> None:
        self.crow, self.col = crow.clone(), col.clone()
        self.graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which waits for the device and empties torch's cache of memory.
        with torch.cuda.stream(on.stream):
            self.graph.capture_begin(pool=on.pool, capture_error_mode="thread_local")
            try:
                self.index = build_index(self.crow, self.col, cols, block_size)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # of a capture that failed
                    self.graph.capture_end()
                raise
            self.graph.capture_end()

    def replay(self, on: _Device, crow: Tensor, col: Tensor) -> Tensor:
        stream = torch.cuda.current_stream()
        stream.wait_event(on.idle)
        self.crow.copy_(crow)
        self.col.copy_(col)
        self.graph.replay()
        index = self.index.clone()
        on.idle.record(stream)
        return index


def index_of(crow: Tensor, col: Tensor, cols: int, block_size: tuple[int, int]) -> Tensor:
    """What :func:`~jitsparse.schedule.build_index` answers, bit for bit.

    Args:
        crow, col, cols, block_size: as there.
    """
    if not _may_record(crow, col):
        return build_index(crow, col, cols, block_size)
    key = (crow.get_device(), crow.numel() - 1, cols, col.numel(), *block_size)
    with torch.cuda.device(crow.device), _guard:
        if key not in _recordings:
            if not _is_second(key) or len(_recordings) >= _MOST:
                return build_index(crow, col, cols, block_size)
            _recordings[key] = _record(crow, col, cols, block_size)
        recording = _recordings[key]
        if recording is None:
            return build_index(crow, col, cols, block_size)
        return recording.replay(_device(key[0]), crow, col)


def _may_record(crow: Tensor, col: Tensor) -> bool:
    """Whether these are blocks on a GPU, and nobody else traces or captures what is done here."""
    return (
        type(crow) is Tensor
        and type(col) is Tensor
        and crow.is_cuda
        and col.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not torch.cuda.is_current_stream_capturing()
    )


def _is_second(key: _Key) -> bool:
    """Whether a key has come before; from now on it has. The first time loads the kernels, which a
    capture cannot do."""
    if key in _seen:
        del _seen[key]
        return True
    _seen[key] = None
    if len(_seen) > _REMEMBERED:
        _seen.popitem(last=False)
    return False


def _record(crow: Tensor, col: Tensor, cols: int, block_size: tuple[int, int]) -> _Recording | None:
    """A recording, or None where there is no memory that could be set aside for it."""
    try:
        return _Recording(_device(crow.get_device()), crow, col, cols, block_size)
    except torch.OutOfMemoryError:
        return None


def _device(number: int) -> _Device:
    found = _devices.get(number)
    if found is None:
        pool = torch.cuda.graph_pool_handle()
        found = _devices[number] = _Device(pool, torch.cuda.Stream(), torch.cuda.Event())
    return found
