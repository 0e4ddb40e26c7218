"""System calls that fail on demand, and libraries that cannot be mapped: see faults.cpp."""

from __future__ import annotations

import ctypes
import os
import subprocess
import warnings
from pathlib import Path
from typing import Any

import zygote

SOURCE = Path(__file__).parent / "faults.cpp"


def library(folder: Path) -> Path:
    """Compile what is to be preloaded."""
    path = folder / "faults.so"
    command = ["c++", "-O1", "-shared", "-fPIC", "-D_GNU_SOURCE", "-U_FORTIFY_SOURCE"]
    subprocess.run([*command, "-o", path, SOURCE, "-ldl"], check=True)
    return path


def _preloaded() -> ctypes.CDLL:
    faults = ctypes.CDLL(None)
    faults.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    faults.faults_calls.restype = ctypes.c_char_p
    faults.faults_noexec.argtypes = [ctypes.c_char_p]
    faults.faults_without_locks.argtypes = [ctypes.c_char_p, ctypes.c_int]
    faults.faults_clock.argtypes = [ctypes.c_long]
    return faults


def use(
    folder: str, cache: str, number: int = 0, error: int = 0, lasting: bool = False
) -> dict[str, Any]:
    """Load the kernel and run it while a system call fails.

    Args:
        folder: of the template.
        cache: below which calls count.
        number: the first that fails; 0: none.
        error: its errno.
        lasting: whether all later calls of its kind fail too: reads, writes, or locks.

    Returns:
        What :func:`zygote.use` returns, ``calls``, and the ``warnings``.
    """
    faults = _preloaded()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        faults.faults_arm(os.fsencode(cache), number, error, lasting)
        value = zygote.use(folder, cache)
        calls = faults.faults_calls().decode().splitlines()
        faults.faults_arm(b"", 0, 0, 0)
    return {**value, "calls": calls, "warnings": [str(each.message) for each in seen]}


def use_elsewhere(folder: str, cache: str, ahead: int = 0, locks: int = 0) -> dict[str, Any]:
    """Load the kernel and run it as another machine would that shares the cache.

    Args:
        folder: of the template.
        cache: the cache.
        ahead: seconds by which its clock is ahead of that of the file system.
        locks: errno of every attempt to lock a file there; 0: locks work.
    """
    faults = _preloaded()
    faults.faults_clock(ahead)
    if locks:
        faults.faults_without_locks(os.fsencode(cache), locks)
    return zygote.use(folder, cache)


def use_without_exec(folder: str, cache: str, forbidden: str) -> dict[str, Any]:
    """Load the kernel and run it where nothing below a directory can be mapped as code."""
    faults = _preloaded()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        faults.faults_noexec(os.fsencode(forbidden))
        value = zygote.use(folder, cache)
    return {**value, "warnings": [str(each.message) for each in seen]}
