"""The settings in force: the environment's, read once, and over them those made since, in order.

Values are parsed at the first :func:`get` and kept. :func:`reload` reads the environment again and
:func:`override` replaces values for the duration of a ``with`` block. Each change increments
``config.generation``, which tells every table built from configuration that it is stale.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from weakref import ref

from jitsparse.jit.environment import FIRST_USES, Config, choice, coerce

__all__ = ["bump", "first_use", "generation", "get", "override", "reload", "use"]

generation = 0
"""Incremented at every change of configuration or pin. Read it as ``config.generation``."""

_environment: Config | None = None
"""The environment's settings, once read."""

_layers: list[_Layer] = []
"""What overrides it, each layer over those before."""

_current: Config | None = None
"""All of it combined, once asked for."""

lock = threading.RLock()
"""Held while settings are read and replaced: threads may enter and leave blocks concurrently."""


def _after_fork() -> None:
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(eq=False)
class _Layer:
    """Values that are set by a ``with`` block, or without one."""

    values: dict[str, Any]
    setter: ref[_FirstUse] | None = None  # if without: what may still be entered as a block


def get() -> Config:
    """The configuration in force.

    Raises:
        ConfigError: a variable of the environment has an illegal value.
    """
    return _current or _put_together()


def _put_together() -> Config:
    global _environment, _current
    with lock:
        if _current is None:
            values = {name: value for each in _layers for name, value in each.values.items()}
            if len(values) == len(fields(Config)):  # whatever the environment says
                _current = Config(**values)
            else:
                _environment = _environment or Config.from_environment(os.environ)
                _current = replace(_environment, **values) if values else _environment
        return _current


def reload() -> Config:
    """Read the environment again, for a process that changed it after importing jitsparse.

    Settings made without a block are dropped; blocks stay in force.
    """
    global _environment
    settings = Config.from_environment(os.environ)
    with lock:
        _environment = settings
        _layers[:] = [each for each in _layers if each.setter is None]
        _changed()
        return get()


def _changed() -> None:
    global _current
    _current = None
    bump()


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
    values = {name: coerce(name, value) for name, value in changes.items()}
    get()
    with _block(values):
        yield get()


@contextmanager
def use(settings: Config) -> Iterator[Config]:
    """Put a configuration in force inside a ``with`` block, whatever the environment says."""
    with _block({each.name: getattr(settings, each.name) for each in fields(settings)}):
        yield settings


@contextmanager
def _block(values: dict[str, Any]) -> Iterator[None]:
    layer = _Layer(values)
    with lock:
        _layers.append(layer)
        _changed()
    try:
        yield
    finally:
        with lock:
            _end(layer)


def _end(block: _Layer) -> None:
    """Remove a block's layer, and settings of its values made inside it without a block.

    Blocks of several threads may end in any order.
    """
    place = _layers.index(block)
    inside = [
        each
        for each in _layers[place + 1 :]
        if each.setter is None or not each.values.keys() <= block.values.keys()
    ]
    _layers[place:] = inside
    _changed()


def first_use(answer: str) -> AbstractContextManager[None]:
    """Set what a call does if its kernel has to be compiled, from now on, for the whole process.

    ``"wait"``, the default: it waits. ``"fallback"``: plain torch operations compute its result,
    and those of later calls while the kernel compiles in the background; then calls use the kernel.
    The results agree to within rounding. Plain torch works on the dense matrix, and takes the time
    and the memory of a dense product. If the compilation fails, later calls raise what a waiting
    call would have raised. Kernels in the cache are used at once. There is no fallback while a CUDA
    graph is captured: a call whose kernel has not run yet raises CacheMiss.

    Args:
        answer: ``"wait"`` or ``"fallback"``, as in ``JITSPARSE_FIRST_USE``.

    Returns:
        A context manager, for a ``with`` block at whose end the former setting is restored, even if
        it was changed without a block meanwhile. Entering or leaving a block makes all calls look
        up their kernels again, so do not use one in a loop.

    Raises:
        ConfigError: the answer is neither.

    Example:
        >>> import torch, jitsparse as js
        >>> with js.first_use("fallback"):
        ...     y = js.random((64, 64), 32, 0.5) @ torch.ones(64, 8)
    """
    return _FirstUse(choice("first_use", answer, FIRST_USES))


class _FirstUse(AbstractContextManager[None]):
    """The setting made by :func:`first_use`: at once, and by a block if it is entered as one."""

    def __init__(self, answer: str) -> None:
        get()
        self._layer = _Layer({"first_use": answer}, ref(self))
        self._blocks: list[AbstractContextManager[None]] = []
        with lock:
            _forget_what_was_set_before()
            _layers.append(self._layer)
            _changed()

    def __enter__(self) -> None:
        with lock:
            if self._layer in _layers:
                _layers.remove(self._layer)
            self._blocks.append(_block(self._layer.values))
            self._blocks[-1].__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._blocks.pop().__exit__(*raised)


def _forget_what_was_set_before() -> None:
    """Drop all but the last of the layers that can no longer become blocks, since it hides them."""
    hidden = False
    for n in reversed(range(len(_layers))):
        setter = _layers[n].setter
        if setter is None:
            break  # the layers before that block count again when it ends
        if setter() is None:
            if hidden:
                del _layers[n]
            hidden = True
