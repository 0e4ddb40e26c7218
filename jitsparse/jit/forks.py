"""What a fork must not interrupt: imports of what a build needs, and starts of compilers.

A program may fork while one of its threads builds. A child forked during an import would find the
module locked forever, by a thread that it does not have. One forked while a program starts would
inherit the write end of that program's pipe, and the builder would read until the child ends, which
may itself be waiting for the build. So a fork waits for the milliseconds that either takes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util

# Imported for the order of hooks: before a fork they run in reverse order of registration, and the
# one below must run before that of logging, which takes a lock that imports of modules need.
import logging  # noqa: F401
import os
import subprocess
import threading
from types import ModuleType
from typing import Any

__all__ = ["programs", "ready"]

_SECONDS_TO_END = 2.0
"""How long a program may take to end when told to, before it is killed."""

_undivided = threading.RLock()

os.register_at_fork(
    before=_undivided.acquire,
    after_in_parent=_undivided.release,
    after_in_child=_undivided.release,
)


def ready(*modules: str) -> None:
    """Import modules, so that import statements elsewhere find them. No fork happens meanwhile.

    What cannot be imported, for whatever reason, is skipped: the import statement that needs it
    reports it better, and to the right caller.
    """
    # It registers fork hooks, which must not happen while a fork is waiting: the hooks for after
    # the fork would run without those for before it.
    import concurrent.futures.thread  # noqa: F401

    with _undivided:
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)


@functools.cache
def programs() -> ModuleType:
    """A ``subprocess`` module that allows no fork while it starts a program.

    It is a copy: ``run`` and ``check_output`` look ``Popen`` up in their own module, and that of
    the whole process is not ours to change. The exceptions are those of the original.
    """
    spec = importlib.util.find_spec("subprocess")
    if spec is None or spec.loader is None:
        raise ImportError("the standard library has no module subprocess")
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)

    class Popen(copy.Popen):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            with _undivided:
                super().__init__(*arguments, **options)

        def kill(self) -> None:
            """End the program, as ``run`` does on Ctrl-C.

            ninja ends its compilers if it is told to end; killed at once, it leaves them running.
            """
            self.terminate()
            try:
                self.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                super().kill()

    copy.Popen = Popen
    for name in ("SubprocessError", "CalledProcessError", "TimeoutExpired"):
        setattr(copy, name, getattr(subprocess, name))
    return copy  # type: ignore[no-any-return]
