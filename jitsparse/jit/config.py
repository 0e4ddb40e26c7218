"""The settings in force: the environment's, read once, and what replaces them.

Values are parsed at the first :func:`get` and kept. :func:`reload` reads the environment again and
:func:`override` replaces values for the length of a ``with`` block. Each change moves
``config.generation`` on, by which every table built from configuration knows that it is stale.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from weakref import ref

from jitsparse.jit.environment import FIRST_USES, Config, choice, coerce

__all__ = ["bump", "first_use", "generation", "get", "override", "reload", "use"]

generation = 0
"""Moves on at every change of configuration or pin. Read it as ``config.generation``."""

_current: Config | None = None

lock = threading.RLock()
"""Held while what is in force is read and replaced: threads may begin and end blocks at once."""


def _after_fork() -> None:
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def get() -> Config:
    """The configuration in force."""
    global _current
    if _current is None:
        _current = Config.from_environment(os.environ)
    return _current


def reload() -> Config:
    """Read the environment again, for a process that changed it after importing jitsparse."""
    settings = Config.from_environment(os.environ)
    with lock:
        _put_in_force(settings)
    return settings


def bump() -> None:
    """Declare every table that was built from configuration stale."""
    global generation
    with lock:
        generation += 1


@contextmanager
def override(**changes: Any) -> Iterator[Config]:
    """Replace configuration values, for the whole process, inside a ``with`` block.

    Values are given as the environment would spell them or as :class:`Config` holds them.

    Example:
        >>> from jitsparse.jit import config
        >>> with config.override(jit="off", log="quiet") as inside:
        ...     inside.jit
        False

    Raises:
        ConfigError: an unknown name or an illegal value.
    """
    coerced = {name: coerce(name, value) for name, value in changes.items()}
    with _Change(coerced):
        yield get()


@contextmanager
def use(settings: Config) -> Iterator[Config]:
    """Have a configuration in force inside a ``with`` block, whatever the environment says."""
    with lock:
        before = _current
        _put_in_force(settings)
    try:
        yield settings
    finally:
        with lock:
            _put_in_force(before)


def first_use(answer: str) -> AbstractContextManager[None]:
    """What a call does whose kernel has to be compiled, from now on and for the whole process.

    ``"wait"``, the default: it waits. ``"fallback"``: it is answered by plain torch operations, as
    later ones are while the kernel compiles in the background; then calls use the kernel. The
    answers agree to within rounding. Plain torch works on the dense matrix, and takes the time and
    the memory of a dense product. What a waiting call would have raised is raised by the calls
    after the compilation has failed. Kernels in the cache are used at once. While a CUDA graph is
    captured nothing is answered that way: a call whose kernel has not run yet raises CacheMiss.

    Args:
        answer: ``"wait"`` or ``"fallback"``, as in ``JITSPARSE_FIRST_USE``.

    Returns:
        A context manager, for a ``with`` block at whose end the former setting is back, also if it
        was changed without a block meanwhile. Beginning and ending a block have all calls look
        their kernels up anew, so it is not for a loop.

    Raises:
        ConfigError: the answer is neither.

    Example:
        >>> import torch, jitsparse as js
        >>> with js.first_use("fallback"):
        ...     y = js.random((64, 64), 32, 0.5) @ torch.ones(64, 8)
    """
    return _Change({"first_use": choice("first_use", answer, FIRST_USES)})


class _Change(AbstractContextManager[None]):
    """Of some values, made at once. The end of its block undoes it, of its own values alone; one
    that a later block has changed too is left to that block."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        with lock:
            self.before = get()
            self.former = {name: getattr(self.before, name) for name in values}
            _put_in_force(replace(self.before, **values))
            # Weak, since one that is no block's never ends.
            _changes[:] = [each for each in _changes if each() is not None] + [ref(self)]

    def __exit__(self, *_: object) -> None:
        with lock:
            changes = [each for each in (reference() for reference in _changes) if each]
            place = changes.index(self)
            later = changes[place + 1 :]
            _changes[:] = [ref(each) for each in (*changes[:place], *later)]
            restored: dict[str, Any] = {}
            for name, value in self.former.items():
                heir = next((each for each in later if name in each.former), None)
                (restored if heir is None else heir.former)[name] = value
            settings = replace(get(), **restored)
            _put_in_force(self.before if settings == self.before else settings)


_changes: list[ref[_Change]] = []
"""Those that may have an end, in their order; blocks of several threads may end in any order."""


def _put_in_force(settings: Config | None) -> None:
    global _current
    _current = settings
    bump()
