"""``torch.utils.cpp_extension`` as a build needs it, in a process that belongs to others.

During a build, the environment has what torch reads from it, torch's log messages go into the
build's log, and the module has replacements for ``subprocess`` (no fork happens while it starts a
program), ``sys`` (its streams can always be flushed), ``CUDA_HOME``, and ``FileLock``, which it has
from torch 2.14 on. Afterwards everything is restored.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

from jitsparse.errors import ToolchainError
from jitsparse.jit import forks, toolchain

__all__ = ["prepared", "ready"]

_NAME = "torch.utils.cpp_extension"


def ready() -> None:
    """Import the part of torch that builds; drop what a CUDA build of it logs without a GPU."""
    forks.ready("torch")
    import torch

    with _captured_logger(_NAME, []):
        forks.ready(_NAME)
        if torch.__version__ < "2.11":
            # 2.9 and 2.10 import it in the middle of a build, and later versions not at all.
            forks.ready("torch.utils.hipify.hipify_python")


@contextlib.contextmanager
def prepared(tools: toolchain.Toolchain, said: list[str], directory: Path) -> Iterator[Any]:
    """The module, ready for a build.

    Args:
        tools: the compilers that torch has to find.
        said: receives what torch logs meanwhile.
        directory: the build directory, which no other process uses.

    Raises:
        ToolchainError: the module cannot be imported.
    """
    module = _module()
    with _changed(module, tools, directory), _captured_logger(_NAME, said):
        yield module


def _module() -> Any:
    try:
        from torch.utils import cpp_extension
    except ImportError as error:
        raise ToolchainError(
            f"torch.utils.cpp_extension, which compiles kernels, cannot be imported: {error}. "
            "Install what it lacks, usually: pip install setuptools"
        ) from error
    return cpp_extension


class _Sys:
    """The module ``sys`` for torch, which flushes both streams of the process before it builds.

    A daemon may have none, or a closed one, and nobody may read what a program has printed: that is
    for the program to find out, and no reason not to build.
    """

    def __getattr__(self, name: str) -> Any:
        value = getattr(sys, name)
        return _Stream(value) if name in ("stdout", "stderr") else value


class _Stream:
    """A stream, or None, that can always be flushed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def flush(self) -> None:
        with contextlib.suppress(Exception):  # whatever a program has put there may raise
            self._stream.flush()  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Shared:
    """Environment variables and names of torch's module that builds change until the last ends."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.guard = threading.Lock()
        self.users = 0
        self.directories: set[str] = set()
        self.variables: dict[str, str | None] = {}
        self.names: dict[str, tuple[Any, Any]] = {}  # the module, what the name was

    def set_variable(self, name: str, value: str) -> None:
        self.variables.setdefault(name, os.environ.get(name))
        os.environ[name] = value

    def set_name(self, module: Any, name: str, value: Any) -> None:
        self.names.setdefault(name, (module, getattr(module, name)))
        setattr(module, name, value)

    def restore(self) -> None:
        for variable, before in self.variables.items():
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before
        for name, (module, value) in self.names.items():
            setattr(module, name, value)
        self.variables.clear()
        self.names.clear()
        self.directories.clear()


_shared = _Shared()


def _after_fork() -> None:
    """The child has none of the threads that were building, so nothing else would restore it."""
    _shared.restore()
    _shared.reset()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _changed(module: Any, tools: toolchain.Toolchain, directory: Path) -> Iterator[None]:
    """Set what torch reads from the environment and from its module for the duration of a build.

    Builds run in threads, which share the environment, so values that are already correct, on most
    machines all of them, are not written, and the last of the builds restores what any wrote.
    """
    with _shared.guard:
        missing = _missing(tools)  # first, since it may raise: then nothing is to be restored
        for variable, value in missing.items():
            _shared.set_variable(variable, value)
        _shared.set_name(module, "subprocess", forks.programs())
        _shared.set_name(module, "sys", _Sys())
        _shared.directories.add(str(directory))
        if hasattr(module, "FileLock") and "FileLock" not in _shared.names:
            _shared.set_name(module, "FileLock", _lock_of_others(module.FileLock))
        if tools.cuda_home is not None:
            # Fixed when the module was imported, and wrong if nvcc on PATH is a wrapper script.
            _shared.set_name(module, "CUDA_HOME", str(tools.cuda_home))
        _shared.users += 1
    try:
        yield
    finally:
        with _shared.guard:
            _shared.users -= 1
            if _shared.users == 0:
                _shared.restore()


def _lock_of_others(lock: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
    """torch's lock of a build directory, except where only one process builds.

    There the file system may have no locks, and none is needed.
    """

    def lock_unless_private(path: str, *arguments: Any, **options: Any) -> Any:
        if os.path.dirname(path) in _shared.directories:
            return contextlib.nullcontext()
        return lock(path, *arguments, **options)

    return lock_unless_private


def _missing(tools: toolchain.Toolchain) -> dict[str, str]:
    """Variables that have to change for torch to find what a build needs."""
    changes: dict[str, str] = {}
    directory = toolchain.ninja_directory()
    path = os.environ.get("PATH")
    if directory is not None or path is None:
        # Without PATH programs are found in these directories, but gcc does not find its own parts.
        folders = (directory, os.defpath if path is None else path)
        changes["PATH"] = os.pathsep.join(str(each) for each in folders if each is not None)
    if shutil.which(os.environ.get("CXX", "c++")) != str(tools.cxx.path):
        changes["CXX"] = str(tools.cxx.path)
    # Compilers translate their messages, and the first error is found by its English name.
    locale = next(
        (os.environ[v] for v in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(v)), "C"
    )
    if not locale.startswith(("C", "POSIX", "en")):
        changes["LC_ALL"] = "C.UTF-8"
    language = os.environ.get("LANGUAGE")
    if language and not language.startswith(("C", "en")):
        changes["LANGUAGE"] = "en"
    return changes


@contextlib.contextmanager
def _captured_logger(name: str, said: list[str]) -> Iterator[None]:
    """Send a logger's records to a list: they belong in the build's log, not on the screen."""
    logger = logging.getLogger(name)
    thread = threading.get_ident()

    def capture(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        try:
            said.append(record.getMessage())
        except (TypeError, ValueError):  # torch 2.9 omits an argument in a message on compilers
            said.append(f"{record.msg} {record.args}")
        return False

    logger.addFilter(capture)
    try:
        yield
    finally:
        logger.removeFilter(capture)
