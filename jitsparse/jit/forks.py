"""What no fork may cut in two: imports of what a build needs, and starts of compilers.

A program may fork while one of its threads builds. In the middle of an import, the child would find
the module locked for ever, by a thread that it does not have. In the middle of the start of a
program, it would inherit the end of the pipe that the program writes to, and the builder would read
until the child has ended, which may be waiting for what the builder builds. So a fork waits for the
milliseconds that either takes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util

# Imported for its order. Hooks run before a fork in reverse order of registration, and the one
# below must run before that of logging: this takes a lock that modules want when they are imported.
import logging  # noqa: F401
import os
import subprocess
import threading
from types import ModuleType
from typing import Any

__all__ = ["programs", "ready"]

_SECONDS_TO_END = 2.0
"""For a program that was told to end, before it is killed."""

_undivided = threading.RLock()

os.register_at_fork(
    before=_undivided.acquire,
    after_in_parent=_undivided.release,
    after_in_child=_undivided.release,
)


def ready(*modules: str) -> None:
    """Import modules, so that import statements elsewhere find them. No fork happens meanwhile.

    What cannot be imported, for whatever reason, is passed over: the statement that needs it says
    so better, and to whom it concerns.
    """
    # It registers hooks of its own, which must not happen while a fork is waiting: those that run
    # after it would run without those before it.
    import concurrent.futures.thread  # noqa: F401

    with _undivided:
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)


@functools.cache
def programs() -> ModuleType:
    """A ``subprocess`` during whose starts of programs no fork happens.

    Another copy of the module: ``run`` and ``check_output`` find ``Popen`` in their own, and that
    of the whole process is not ours to replace. The exceptions are those of the one that all know.
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
            """What ``run`` does on Ctrl-C. ninja ends its compilers with itself, if it is told to
            end; if it is killed at once they go on for nobody."""
            self.terminate()
            try:
                self.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                super().kill()

    copy.Popen = Popen
    for name in ("SubprocessError", "CalledProcessError", "TimeoutExpired"):
        setattr(copy, name, getattr(subprocess, name))
    return copy  # type: ignore[no-any-return]
