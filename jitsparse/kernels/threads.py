"""How many threads a CPU kernel may use: as many as torch, and one after a fork.

A forked child inherits none of OpenMP's threads, but libgomp would wait for them forever, as it
does in torch's own operations. Only a single-threaded process is sure to have none of them.
"""

from __future__ import annotations

import contextlib
import os

import torch

__all__ = ["allowed"]

allowed = torch.get_num_threads
"""The number, as a function. Read it as ``threads.allowed``: a fork replaces it."""

_had_others = True


def _before_fork() -> None:
    global _had_others
    with contextlib.suppress(OSError):
        _had_others = len(os.listdir("/proc/self/task")) > 1


def _after_fork() -> None:
    global allowed
    if _had_others:
        allowed = _one


def _one() -> int:
    return 1


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
