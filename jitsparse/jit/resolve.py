"""Finding or building a variant's entry: the caches, then a build under the lock of its key."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitsparse.errors import (
    ArgumentError,
    CacheMiss,
    CompileError,
    ToolchainError,
    UnwritableCache,
)
from jitsparse.jit import cache as caches
from jitsparse.jit import config, forks, key, progress, roots, toolchain
from jitsparse.jit.cache import Cache
from jitsparse.jit.entry import LOG, Entry
from jitsparse.jit.template import Template
from jitsparse.jit.variant import Variant

if TYPE_CHECKING:
    from jitsparse.jit.miss import Difference

__all__ = ["Permission", "Request", "resolve"]

_TRIES = 3
"""How often to build a variant whose sources are edited during each build."""


@dataclass(frozen=True)
class Permission:
    """Whether a miss may compile now, and what to say if not.

    Attributes:
        granted: whether it may. ``JITSPARSE_JIT=off`` forbids it too.
        why_not: why it may not.
        hint: returns the command that would fill the cache.
    """

    granted: bool = True
    why_not: str = ""
    hint: Callable[[], str] | None = None


class Request:
    """A variant with its key and the compilers that would build it.

    Without a compiler, or with ``JITSPARSE_JIT=off``, an entry from a different compiler could not
    be rebuilt here, so the compiler need not match: an image is filled on a machine that has one
    and runs where there is none.

    Attributes:
        version: version text of the compilers, as part of the key.
        fields: the labelled fields of the key.
        key: their digest.
        tools: the compilers, or None if nothing can be compiled here.
        missing: why there are no compilers, if they were looked for.
    """

    def __init__(self, template: Template, variant: Variant) -> None:
        if not isinstance(variant, Variant):
            raise ArgumentError(
                f"a kernel is asked for by a Variant, got {variant!r}: Variant.parse reads a name"
            )
        self.template = template
        self.variant = variant
        self.tools: toolchain.Toolchain | None = None
        self.missing: ToolchainError | None = None
        self.version = ""
        if config.get().jit:
            try:
                self.tools = toolchain.find(template.language)
                cache = caches.current()
                memo = toolchain.Memo(cache.compiler_memos, shared=cache.shared)
                self.version = self.tools.version(memo)
            except ToolchainError as error:
                self.tools, self.missing = None, error
        self.fields: dict[str, Any] = {}
        self.read()

    def read(self) -> bool:
        """Compute the key from the template and its headers as they are now.

        Returns:
            Whether it changed.
        """
        fields = key.fields_of(self.template, self.variant, self.version)
        changed = fields != self.fields
        self.fields = fields
        self.key = key.digest(fields)
        self.name = f"{self.variant.name}-{self.key[:16]}"
        return changed

    def path(self, cache: Cache) -> Path:
        """Where the entry is or would be."""
        return cache.root / caches.VERSION / self.name

    def find(self, cache: Cache) -> Entry | None:
        """The valid entry, or None."""
        if self.tools is None:
            return cache.find_any_compiler(self.fields)
        return cache.find(self.name, self.key)

    def nearest(self, cache: Cache) -> tuple[Entry | None, tuple[Difference, ...]]:
        """The nearest other entry of the variant and how it differs, which explains a miss."""
        # Imported here: a hit does not need it.
        from jitsparse.jit.miss import differences, nearest

        entry = nearest(self.fields, cache.entries())
        if entry is None:
            return None, ()
        found = differences(entry.meta["fields"], self.fields)
        return entry, tuple(each for each in found if self.tools or each.field != "compiler")

    def other_targets(self, cache: Cache) -> tuple[str, ...]:
        """Targets other than the variant's for which the cache has kernels like it."""
        from jitsparse.jit.miss import other_targets

        return other_targets(self.variant, cache.entries())


def resolve(
    request: Request,
    permission: Permission,
    *,
    position: tuple[int, int] | None = None,
    show: bool = True,
) -> Entry:
    """The valid entry of a variant, built if no cache has it.

    Args:
        request: the variant, with its key.
        permission: whether a miss may compile.
        position: ``(n, m)`` if this is the n-th of m that the caller needs.
        show: whether to announce a long compilation.

    Raises:
        CacheMiss: nothing is cached and nothing may be compiled.
        ToolchainError: a compiler is missing.
        CompileError: the template cannot be rendered or does not compile.
        UnwritableCache: there is no directory to compile in.
    """
    cache = caches.current()
    name = request.variant.name
    entry = request.find(cache)
    if entry is not None:
        progress.say("debug", f"{name} found in {entry.path}")
        return entry
    if not (permission.granted and config.get().jit):
        raise _miss(request, cache, permission)
    # Imported here: a hit does not need them, and importing them takes a tenth of its time.
    forks.ready("jitsparse.jit.build")
    from jitsparse.jit.build import check_backend

    check_backend(request.template, request.variant)
    if request.tools is None:
        raise request.missing or _miss(request, cache, permission)
    if not cache.writable():
        cache = caches.private_instead(cache, cache.refusal())
    elif blocked := cache.blocked(request.name):
        remedy = f"Its owner can mend it: chmod -R a+rX {request.path(cache)}, or delete it."
        cache = caches.private_instead(cache, blocked, remedy)
        cache.ignore(request.name)

    asked = time.perf_counter()

    def waiting(holder: str) -> contextlib.AbstractContextManager[None]:
        return progress.waiting(name, holder, asked, show=show)

    for _ in range(_TRIES):
        with cache.locked(request.name, waiting):
            cache.repair(request.name)
            entry = request.find(cache)
            if entry is not None:
                return entry
            last = cache.last_seconds(name)
            with progress.compiling(
                name, cache.root, last_seconds=last, position=position, show=show
            ):
                entry = _build(request, request.tools, cache)
            if entry is not None:
                return entry
        progress.say("debug", f"{name}: its sources were edited meanwhile, once more")
    raise ToolchainError(
        f"{name} was compiled {_TRIES} times, and each time its template or a header was edited "
        "meanwhile: load it again when they rest"
    )


def _build(request: Request, tools: toolchain.Toolchain, cache: Cache) -> Entry | None:
    """The new entry, or None if the sources no longer match the key."""
    from jitsparse.jit import build
    from jitsparse.jit.diagnostics import compile_error

    staging = cache.staging_path(request.name)
    progress.say("debug", f"building {request.variant.name} (key {request.key}) in {staging}")
    try:
        cache.make_staging(staging)
        try:
            seconds = build.build(request.template, request.variant, request.name, tools, staging)
        except (build.BuildFailure, CompileError):
            if request.read():
                return None
            raise
        if request.read():
            return None
        meta = {"key": request.key, "fields": request.fields, "compile_seconds": seconds}
        entry = cache.publish(staging, request.name, meta)
        if entry.fresh:
            forks.ready("jitsparse.jit.prune")
            from jitsparse.jit import inventory, prune

            prune.enforce(cache, config.get().cache_max_size, inventory.disk_usage(entry.path)[0])
        return entry
    except build.BuildFailure as failure:
        kept = cache.keep_failure(staging, request.name)
        raise compile_error(
            request.variant.name,
            failure.output,
            kept / f"kernel{request.template.suffix}",
            kept / LOG,
            failure.command,
        ) from None
    except UnwritableCache:
        raise
    except OSError as error:
        raise ToolchainError(
            f"{request.variant.name} could not be built below {cache.root}: {error}. Make room "
            "there, or set JITSPARSE_CACHE_DIR to another directory."
        ) from error
    finally:
        # It has been published or kept, so only an interrupt leaves something to remove.
        shutil.rmtree(staging, ignore_errors=True)


def _miss(request: Request, cache: Cache, permission: Permission) -> CacheMiss:
    searched = ", ".join(str(root) for root in (*cache.layers, cache.root))
    remedy = permission.hint() if permission.hint else "load it once with JITSPARSE_JIT=on"
    _, changed = request.nearest(cache)
    near = ""
    paths = cache.paths_of(request.variant.name)
    if changed:
        labels = ", ".join(each.field for each in changed)
        near = f"\n  an entry of this variant is there, but differs in: {labels}"
    elif defects := [*filter(None, (cache.examine(path)[1] for path in paths))]:
        near = f"\n  an entry of this variant is there, but not usable: {defects[0]}"
    elif targets := request.other_targets(cache):
        near = (
            f"\n  kernels of {request.variant.op} in {request.variant.dtype} are there for "
            f"{', '.join(targets)}: fill the cache for {request.variant.target}, or use these, by "
            f'JITSPARSE_ARCH="{";".join(targets)}", where the machine runs them'
        )
    unsearched = "".join(f"\n  {note}" for note in roots.notes(cache))
    return CacheMiss(
        f"{request.variant.name} is not in the cache ({searched}) and must not be compiled now: "
        f"{permission.why_not or 'JITSPARSE_JIT=off'}.{near}{unsearched}\n"
        f"  to fill the cache: {remedy}"
    )
