"""Imports of what only a build needs, by whichever thread builds first.

A child that is forked in the middle of an import would find the module locked for ever, by a thread
that it does not have. So a fork waits until the import is done.
"""

from __future__ import annotations

import contextlib
import importlib

# Imported for its order. Hooks run before a fork in reverse order of registration, and the one
# below must run before that of logging: this takes a lock that modules want when they are imported.
import logging  # noqa: F401
import os
import threading

__all__ = ["ready"]

_importing = threading.RLock()

os.register_at_fork(
    before=_importing.acquire,
    after_in_parent=_importing.release,
    after_in_child=_importing.release,
)


def ready(*modules: str) -> None:
    """Import modules, so that import statements elsewhere find them. No fork happens meanwhile.

    What cannot be imported is passed over: the statement that needs it says so better.
    """
    # It registers hooks of its own, which must not happen while a fork is waiting: those that run
    # after it would run without those before it.
    import concurrent.futures.thread  # noqa: F401

    with _importing:
        for module in modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
