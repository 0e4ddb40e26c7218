"""The environment: misspelt and illegal variables, and what the legal ones mean here."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
from collections.abc import Iterator, Mapping

from jitsparse.doctor.finding import Finding
from jitsparse.doctor.software import Torch
from jitsparse.errors import ConfigError, JitsparseError, PinError
from jitsparse.jit import pins, selection
from jitsparse.jit.cache import Cache
from jitsparse.jit.environment import VARIABLES, Config

__all__ = ["check_jit", "check_rank", "check_variables"]

OURS = tuple(name for name in VARIABLES if name.startswith("JITSPARSE_"))


def check_variables(
    environment: Mapping[str, str],
    settings: Config,
    errors: Mapping[str, ConfigError],
    torch: Torch,
) -> Iterator[Finding]:
    """One finding for each variable that is wrong, and one for all that are correct."""
    wrong = set(errors)
    for name in sorted(name for name in environment if name.startswith("JITSPARSE_")):
        if name not in OURS:
            wrong.add(name)
            near = difflib.get_close_matches(name, OURS, 1)
            remedy = f"Did you mean {near[0]}? " if near else ""
            yield Finding(
                f"variable.{name}",
                "warn",
                f"{name}={environment[name]!r} is set, and jitsparse reads no such variable",
                f"{remedy}There are {', '.join(OURS)}.",
            )
    for name, error in errors.items():
        remedy = f"Set {name} to a legal value, or unset it."
        yield Finding(f"variable.{name}", "fail", str(error), remedy)
    for finding in (*_check_pin(settings, torch), *_check_record(settings)):
        wrong.add(finding.name.partition(".")[2])
        yield finding
    right = [
        f"{name}={environment[name]!r}"
        for name in OURS
        if environment.get(name) and name not in wrong
    ]
    if right or not wrong:
        yield Finding("variables", "ok", ", ".join(right) or "none set")


def check_jit(settings: Config) -> Iterator[Finding]:
    """What ``JITSPARSE_JIT`` means with the existing entries."""
    if settings.jit:
        yield Finding("jit", "ok", "on: a kernel that is not cached is compiled at its first use")
        return
    cache = Cache(settings.cache_dir, settings.cache_path, trusted=settings.trust_cache)
    count = sum(1 for _ in cache.entries())
    text = f"JITSPARSE_JIT=off: nothing is compiled; kernels in the cache: {count}"
    if count:
        yield Finding("jit", "ok", text)
    else:
        remedy = "Fill a cache where there is a compiler: JITSPARSE_CACHE_DIR=... jitsparse warmup"
        yield Finding("jit", "fail", f"{text}, so every call raises CacheMiss", remedy)


def check_rank(settings: Config) -> Iterator[Finding]:
    """A finding only in a process of torchrun other than rank 0, which is the one that reports."""
    if settings.rank:
        text = f"rank {settings.rank}: only rank 0 says what is compiled and who waits for whom"
        yield Finding("rank", "ok", text)


def _check_pin(settings: Config, torch: Torch) -> Iterator[Finding]:
    """Pins that cannot be parsed, and those that the calls they are for cannot obey here."""
    try:
        asked = pins.parse_pins(settings.pin, "JITSPARSE_PIN: ")
        for pinned in asked if torch.usable else ():
            yield from _check_obeyable(pinned, settings, torch)
    except PinError as error:
        remedy = "jitsparse explain prints the variants that a pin may name for a call."
        yield Finding("variable.JITSPARSE_PIN", "fail", str(error), remedy)


def _check_obeyable(pinned: pins.Pin, settings: Config, torch: Torch) -> Iterator[Finding]:
    # These import torch; the registry declares the operations.
    from jitsparse.checks import BLOCK_SIZES
    from jitsparse.kernels import registry

    if pins.is_of_others(pinned.op):
        text = f"{pinned.text!r} pins an operation that jitsparse does not have"
        remedy = f"If no program of yours has {pinned.op!r}, take the pin away."
        yield Finding("variable.JITSPARSE_PIN", "warn", text, remedy)
        return
    pins.check_pin(pinned, "JITSPARSE_PIN")
    targets = [*settings.cuda_arch]
    with contextlib.suppress(JitsparseError):  # which check_targets reports
        targets.append(registry.target_of("cpu"))
        targets += [registry.target_of("cuda", gpu) for gpu in range(len(torch.gpus))]
    words = {*pinned.filters, *pinned.wanted}
    blocks = [
        (rows, cols)
        for rows, cols in itertools.product(BLOCK_SIZES, repeat=2)
        if f"b{rows}x{cols}" in words or (rows == cols and f"b{rows}" in words)
    ]
    found = (
        candidate
        for target in dict.fromkeys(targets)
        for candidate in registry.typical_candidates(target, pinned.op, block_sizes=blocks)
    )
    selection.check_obeyable(pinned, found, "JITSPARSE_PIN")


def _check_record(settings: Config) -> Iterator[Finding]:
    path = settings.record
    if path is None:
        return
    # os.path, for which a path that is too long does not exist.
    target = path if os.path.exists(path) else path.parent
    if os.path.isdir(path) or not os.access(target, os.W_OK):
        yield Finding(
            "variable.JITSPARSE_RECORD",
            "warn",
            f"JITSPARSE_RECORD={str(path)!r} is no file that can be written here",
            "Name a file in a directory that exists and can be written.",
        )
