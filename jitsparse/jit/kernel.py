"""Loading a variant as a callable: from memory, then the caches, then a build."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from jitsparse.errors import ArgumentError, CacheMiss, LaunchError, ToolchainError
from jitsparse.jit import cache as caches
from jitsparse.jit import config, private, progress, toolchain
from jitsparse.jit.entry import Entry
from jitsparse.jit.resolve import Permission, Request, resolve
from jitsparse.jit.template import Template
from jitsparse.jit.variant import Variant

__all__ = ["Kernel", "compile_only", "is_cached", "load", "obstacle"]


class Kernel:
    """A compiled variant, mapped into this process.

    Calling it packs the 64-bit arguments and launches. :attr:`launch` and :attr:`pack` are the two
    halves, for a caller that wants no Python frame in between.

    Attributes:
        variant: which kernel it is.
        entry: the cache entry that it came from.
        arguments: how many 64-bit arguments it reads.
        launch: takes the packed arguments as bytes; returns 0 or an error code.
        pack: takes the arguments, signed 64-bit integers; returns bytes.
        note: for the caller's own use between calls; initially None.
    """

    __slots__ = ("_error", "_library", "arguments", "entry", "launch", "note", "pack", "variant")

    def __init__(self, variant: Variant, entry: Entry, arguments: int) -> None:
        self.variant = variant
        self.entry = entry
        self.arguments = arguments
        self._library = _open(entry)
        launch = self._library.jitsparse_launch
        launch.argtypes = [ctypes.c_char_p]
        launch.restype = ctypes.c_int
        self._error = self._library.jitsparse_error
        self._error.argtypes = [ctypes.c_int]
        self._error.restype = ctypes.c_char_p
        self.launch: Callable[[bytes], int] = launch
        self.pack: Callable[..., bytes] = struct.Struct(f"{arguments}q").pack
        self.note: object = None

    def __call__(self, *words: int) -> None:
        """Launch with the 64-bit arguments that the template's launcher reads.

        Raises:
            ArgumentError: their number is wrong, or one is not a signed 64-bit integer.
            LaunchError: the launcher returned a code other than 0.
        """
        try:
            packed = self.pack(*words)
        except (struct.error, TypeError) as error:
            raise ArgumentError(
                f"{self.variant.name} takes {self.arguments} signed 64-bit integers, got {words}: "
                f"{error}"
            ) from error
        code = self.launch(packed)
        if code:
            self.fail(code)

    def fail(self, code: int) -> None:
        """Raise the error that a nonzero code from :attr:`launch` stands for.

        Raises:
            LaunchError: always.
        """
        text = self._error(code)
        reason = text.decode(errors="replace") if text else "no explanation"
        if self.variant.target.startswith("sm"):
            reason += (
                ". Earlier work on this GPU may have caused it: rerun with CUDA_LAUNCH_BLOCKING=1 "
                "to find out"
            )
        raise LaunchError(f"{self.variant.name} failed with code {code}: {reason}")

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Kernel:
        return self  # so that a module that holds one can be copied

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is mapped into this process and cannot be pickled: keep its template and "
            "variant, and jit.load them where the pickle is read"
        )

    def __repr__(self) -> str:
        return f"Kernel({self.variant.name})"


def load(
    template: Template,
    variant: Variant,
    *,
    allow_build: bool = True,
    why_not: str = "",
    hint: Callable[[], str] | None = None,
    position: tuple[int, int] | None = None,
) -> Kernel:
    """The kernel of a variant, compiled if no cache has it.

    Args:
        template: what it is rendered from.
        variant: the variant to load.
        allow_build: whether a miss may compile now. ``JITSPARSE_JIT=off`` forbids it too.
        why_not: why it may not, for the error message.
        hint: returns the command that would fill the cache, for the same message.
        position: ``(n, m)`` if this is the n-th of m kernels that the caller needs.

    Raises:
        CacheMiss: nothing is cached and nothing may be compiled.
        ToolchainError: a compiler is missing, or the compiled library cannot be mapped here.
        CompileError: the template cannot be rendered, does not compile, or lacks a function.
        UnwritableCache: there is no directory to compile in.
    """
    request = Request(template, variant)
    # The number of arguments does not affect what is compiled.
    known = request.key, template.arguments
    kernel = _mapped.get(known)
    if kernel is None:
        with _one_at_a_time(request.key):
            kernel = _mapped.get(known)
            if kernel is None:
                kernel = _map(request, Permission(allow_build, why_not, hint), position)
                # Under the key of what was compiled: an edit in between changes it.
                _mapped[request.key, template.arguments] = kernel
    # It may have been mapped earlier without being recorded, as js.tune does.
    _record(template, variant)
    return kernel


def compile_only(
    template: Template,
    variant: Variant,
    *,
    hint: Callable[[], str] | None = None,
    show_progress: bool = True,
    position: tuple[int, int] | None = None,
) -> Entry:
    """Make sure that a variant is cached, possibly for a machine other than this one.

    Args:
        template: what it is rendered from.
        variant: the variant to compile.
        hint: as for :func:`load`.
        show_progress: whether to say what is compiled.
        position: as for :func:`load`.

    Returns:
        The entry; its ``fresh`` says whether this call compiled it.

    Raises:
        CacheMiss: nothing is cached and ``JITSPARSE_JIT=off``.
        ToolchainError: a compiler is missing.
        CompileError: the template cannot be rendered or does not compile.
    """
    request = Request(template, variant)
    with _one_at_a_time(request.key):
        return resolve(request, Permission(hint=hint), position=position, show=show_progress)


def obstacle(template: Template, variant: Variant) -> CacheMiss | ToolchainError | None:
    """The error of loading a variant that is neither cached nor can be compiled here, or None."""
    error: CacheMiss | ToolchainError = CacheMiss("it is not cached, and JITSPARSE_JIT=off")
    if config.get().jit:
        try:
            toolchain.find(template.language)
        except ToolchainError as missing:
            error = missing.with_traceback(None)
        else:
            return None
    return None if is_cached(template, variant) else error


def is_cached(template: Template, variant: Variant) -> bool:
    """Whether this process has mapped a variant, or a cache has a valid entry for it."""
    request = Request(template, variant)
    mapped = (request.key, template.arguments) in _mapped
    return mapped or request.find(caches.current()) is not None


_mapped: dict[tuple[str, int], Kernel] = {}
"""This process's kernels, by key (which edits of sources change) and number of arguments."""

_guard = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_recorded: set[tuple[Path, str, str]] = set()


def _map(request: Request, permission: Permission, position: tuple[int, int] | None) -> Kernel:
    entry = resolve(request, permission, position=position)
    try:
        return _kernel_of(request, entry)
    except OSError as error:
        if entry.library.exists():
            if entry.fresh:
                raise _unusable(request, error) from error
            # Intact as published, yet it cannot be mapped: it was built on another system.
            caches.current().set_aside(entry.path, f"it cannot be mapped ({error})")
    # An entry that vanished after it was found or built is neither damaged nor unusable.
    entry = resolve(request, permission, position=position)
    try:
        return _kernel_of(request, entry)
    except OSError as error:
        raise _unusable(request, error) from error


def _kernel_of(request: Request, entry: Entry) -> Kernel:
    try:
        kernel = Kernel(request.variant, entry, request.template.arguments)
    except AttributeError as error:
        from jitsparse.jit.diagnostics import incomplete

        symbol = str(error).rpartition(": ")[2]
        raise incomplete(request.variant.name, request.template.source, symbol) from error
    caches.current().used(entry)
    return kernel


def _open(entry: Entry) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(entry.library))
    except OSError:
        # A restriction of the mount is not the entry's fault: others may use it in place.
        if not private.is_forbidden(entry.library):
            raise
        return ctypes.CDLL(str(private.executable_copy(entry.library)))


def _unusable(request: Request, error: Exception) -> ToolchainError:
    return ToolchainError(
        f"{request.variant.name} was compiled, but the library cannot be used here: {error}. "
        "Its target, or a library that it links, does not fit this machine."
    )


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Serialize the threads of this process that want the same key."""
    with _guard:
        lock = _locks.setdefault(name, threading.Lock())
    with lock:
        yield


def _after_fork() -> None:
    """Locks held by other threads of the parent would stay locked in the child forever."""
    global _guard
    _guard = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)


def _record(template: Template, variant: Variant) -> None:
    """Append a variant's first use in this process to the file of ``JITSPARSE_RECORD``."""
    path = config.get().record
    if path is None or (use := (path, variant.name, template.name)) in _recorded:
        return
    _recorded.add(use)
    line = json.dumps({"variant": variant.name, "template": template.name}) + "\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # no waiting for a pipe's reader
    try:
        # One write of less than a page, appended: lines of several processes do not mix.
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        progress.say("warning", f"JITSPARSE_RECORD={path} cannot be written: {error.strerror}")
