"""The settings of jitsparse, as an environment spells them.

The cache is ``$XDG_CACHE_HOME/jitsparse``, else ``~/.cache/jitsparse``, unless it is set
explicitly. Honoured, not redefined: ``CUDA_HOME``, ``CUDA_PATH``, ``CXX``, ``CC``, ``MAX_JOBS``,
``XDG_CACHE_HOME``, ``NO_COLOR``, ``TERM``, ``RANK`` / ``LOCAL_RANK`` as torchrun sets them, and
those that nvcc reads, or torch reads to run it: :data:`NVCC_VARIABLES`.
:mod:`jitsparse.jit.config` says which settings are in force.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitsparse.errors import ConfigError
from jitsparse.jit import jobs
from jitsparse.jit.units import parse_bytes

__all__ = [
    "CACHE_MAX_SIZE",
    "CPU_TARGETS",
    "FIRST_USES",
    "LOG_LEVELS",
    "NO_HOME",
    "NVCC_VARIABLES",
    "VARIABLES",
    "Config",
    "choice",
    "coerce",
    "legal_part",
    "parse_arch",
]

FIRST_USES = ("wait", "fallback")
LOG_LEVELS = ("debug", "info", "warning", "quiet")
CPU_TARGETS = ("generic", "avx2", "avx512", "avx512bf16", "amx")
CACHE_MAX_SIZE = 2 * 1024**3
NO_HOME = Path("/nonexistent")
_OLDEST = 7
"""Oldest major compute capability that families support; before Ampere only ``simt`` does."""

# ASCII: other scripts have digits too, and no compiler knows them.
_CAPABILITY = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)([af]?)", re.ASCII)
_MAX_DIGITS = 9
_MAX_PATH, _MAX_NAME = 3500, 255

NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "PYTORCH_NVCC")

VARIABLES = (
    "JITSPARSE_CACHE_DIR",
    "JITSPARSE_CACHE_PATH",
    "JITSPARSE_PIN",
    "JITSPARSE_JIT",
    "JITSPARSE_FIRST_USE",
    "JITSPARSE_LOG",
    "JITSPARSE_ARCH",
    "JITSPARSE_RECORD",
    "JITSPARSE_CACHE_MAX_SIZE",
    "JITSPARSE_TRUST_CACHE",
    "CUDA_HOME",
    "CUDA_PATH",
    "CXX",
    "CC",
    *NVCC_VARIABLES,
    "MAX_JOBS",
    "XDG_CACHE_HOME",
    "NO_COLOR",
    "TERM",
    "RANK",
    "LOCAL_RANK",
)
"""Every variable that :meth:`Config.from_environment` reads; each is checked separately."""


@dataclass(frozen=True)
class Config:
    """One reading of the environment.

    Attributes:
        cache_dir: root of the cache that is written to.
        cache_path: read-only roots, searched in order before ``cache_dir``.
        cache_max_size: bytes that the entries in ``cache_dir`` may take; None for no limit.
        trust_cache: roots that are used although other users can write to them.
        pin: pins as written, not yet parsed.
        jit: whether compiling is allowed.
        first_use: ``wait`` or ``fallback``: what a call does if its kernel has to be compiled.
        log: one of ``debug``, ``info``, ``warning``, ``quiet``.
        arch: targets to build for; empty means what this machine has.
        record: file to which used variants are appended, or None.
        cuda_home: candidate toolkit roots from the environment, best first.
        cxx: the C++ compiler asked for, or None.
        cc: the host compiler that torch hands to nvcc, or None.
        nvcc: ``NAME=value`` of each of :data:`NVCC_VARIABLES` that is set.
        max_jobs: how many compilers may run at once, or None.
        color: whether colour is welcome on a terminal.
        live: whether a terminal can redraw a line.
        rank: rank of this process under torchrun, else 0.
    """

    cache_dir: Path
    cache_path: tuple[Path, ...] = ()
    cache_max_size: int | None = CACHE_MAX_SIZE
    trust_cache: tuple[Path, ...] = ()
    pin: str = ""
    jit: bool = True
    first_use: str = "wait"
    log: str = "info"
    arch: tuple[str, ...] = ()
    record: Path | None = None
    cuda_home: tuple[Path, ...] = ()
    cxx: str | None = None
    cc: str | None = None
    nvcc: tuple[str, ...] = ()
    max_jobs: int | None = None
    color: bool = True
    live: bool = True
    rank: int = 0

    @property
    def cuda_arch(self) -> tuple[str, ...]:
        """The CUDA targets in :attr:`arch`."""
        return tuple(each for each in self.arch if each not in CPU_TARGETS)

    @property
    def jobs(self) -> int:
        """How many compilers run at a time: ``MAX_JOBS``, else :func:`jitsparse.jit.jobs.limit`."""
        return self.max_jobs or jobs.limit()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """Parse an environment.

        Raises:
            ConfigError: a variable has a value outside its legal set; the message lists the set.
        """

        def variable(name: str) -> str:
            return environment.get(name, "").strip()

        def paths(name: str, separator: str | None = None) -> tuple[Path, ...]:
            parts = variable(name).split(separator) if separator else [variable(name)]
            return tuple(_path(name, part) for part in parts if part)

        # The XDG base directory specification says to ignore relative paths.
        xdg = paths("XDG_CACHE_HOME") if Path(variable("XDG_CACHE_HOME")).is_absolute() else ()
        cache_home = xdg or (_home() / ".cache",)
        return cls(
            cache_dir=next(iter(paths("JITSPARSE_CACHE_DIR")), cache_home[0] / "jitsparse"),
            cache_path=paths("JITSPARSE_CACHE_PATH", ":"),
            cache_max_size=_max_size(
                "JITSPARSE_CACHE_MAX_SIZE", variable("JITSPARSE_CACHE_MAX_SIZE")
            ),
            trust_cache=paths("JITSPARSE_TRUST_CACHE", ":"),
            pin=variable("JITSPARSE_PIN"),
            jit=choice("JITSPARSE_JIT", variable("JITSPARSE_JIT") or "on", ("on", "off")) == "on",
            first_use=choice(
                "JITSPARSE_FIRST_USE", variable("JITSPARSE_FIRST_USE") or "wait", FIRST_USES
            ),
            log=choice("JITSPARSE_LOG", variable("JITSPARSE_LOG") or "info", LOG_LEVELS),
            arch=parse_arch(variable("JITSPARSE_ARCH")),
            record=next(iter(paths("JITSPARSE_RECORD")), None),
            cuda_home=(*paths("CUDA_HOME"), *paths("CUDA_PATH")),
            cxx=variable("CXX") or None,
            cc=variable("CC") or None,
            nvcc=tuple(f"{name}={variable(name)}" for name in NVCC_VARIABLES if variable(name)),
            max_jobs=_count("MAX_JOBS", variable("MAX_JOBS")),
            color=not environment.get("NO_COLOR"),
            live=variable("TERM") != "dumb",
            rank=_rank(variable("RANK") or variable("LOCAL_RANK")),
        )


def legal_part(environment: Mapping[str, str]) -> tuple[Config, dict[str, ConfigError]]:
    """The configuration of an environment without its illegal values, and what is wrong with these.

    For a report that has to go on where a call would stop.
    """
    errors: dict[str, ConfigError] = {}
    for name in VARIABLES:
        if name in environment:
            try:
                Config.from_environment({name: environment[name]})
            except ConfigError as error:
                errors[name] = error
    legal = {name: value for name, value in environment.items() if name not in errors}
    return Config.from_environment(legal), errors


def parse_arch(text: str, name: str = "JITSPARSE_ARCH") -> tuple[str, ...]:
    """Target names of an architecture list.

    Args:
        text: entries separated by ``;``, ``,`` or blanks, each a compute capability (``9.0a``), a
            CUDA target (``sm90a``) or a CPU target (``avx2``).
        name: what the text is the value of, for the error message.

    Returns:
        Target names in the order given, e.g. ``("sm90a", "sm80")``.

    Raises:
        ConfigError: an entry is none of these, or too old a GPU.
    """
    targets = []
    for entry in re.split(r"[;,\s]+", text.strip()):
        if not entry:
            continue
        capability = _CAPABILITY.fullmatch(entry.lower())
        if capability:
            if int(capability[1]) < _OLDEST:
                raise ConfigError(
                    f"{name}: {entry!r} is a GPU older than kernels are made for; their compute "
                    f"capability is {_OLDEST}.0 or later."
                )
            targets.append("sm" + "".join(capability.groups()))
        elif entry.lower() in CPU_TARGETS:
            targets.append(entry.lower())
        else:
            raise ConfigError(
                f"{name}: {entry!r} is not a target. Write compute capabilities such as "
                f"9.0a or 8.0, or CPU targets ({', '.join(CPU_TARGETS)}), separated by ';' or ','."
            )
    return tuple(dict.fromkeys(targets))


_NUMBER = "a whole number of 0 or more"
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "pin": ((str,), "a text as in JITSPARSE_PIN"),
    "rank": ((int,), _NUMBER),
    "max_jobs": ((int, type(None)), f"{_NUMBER}, or None"),
    "cache_max_size": ((int, type(None)), f"{_NUMBER}, or None for no limit"),
}
"""Legal types, with a description, of settings given as :class:`Config` holds them."""


def coerce(name: str, value: Any) -> Any:
    """The value of a setting given as the environment would spell it or :class:`Config` holds it.

    Raises:
        ConfigError: there is no such setting, or the value is illegal.
    """
    if name not in Config.__dataclass_fields__:
        raise ConfigError(
            f"there is no setting {name!r}; settings are {', '.join(Config.__dataclass_fields__)}."
        )
    if name == "jit" and isinstance(value, str):
        return choice("jit", value, ("on", "off")) == "on"
    if name == "first_use":
        return choice("first_use", value, FIRST_USES)
    if name == "log":
        return choice("log", value, LOG_LEVELS)
    if name == "arch" and isinstance(value, str):
        return parse_arch(value)
    if name == "record" and not value:
        return None
    if name in ("cache_dir", "record"):
        return _absolute(value)
    if name == "cache_max_size" and isinstance(value, str):
        return _max_size("cache_max_size", value)
    if name in ("cache_path", "trust_cache", "cuda_home"):
        parts = value.split(":") if isinstance(value, str) else value
        return tuple(_absolute(part) for part in parts if part)
    if name == "max_jobs" and isinstance(value, str):
        return _count("max_jobs", value)
    if name == "cache_max_size" and value == 0:
        return None  # no limit, as in the environment
    if name in _KINDS:
        kinds, legal = _KINDS[name]
        if not isinstance(value, kinds) or (isinstance(value, int) and value < 0):
            raise ConfigError(f"{name}={value!r} is not {legal}.")
    return value


def _home() -> Path:
    """The user's home, or that of Debian's policy for a user without one, as in many containers.

    The latter does not exist, so what would be written there goes to a temporary directory.
    """
    home = os.path.expanduser("~")
    return NO_HOME if home == "~" else Path(os.path.abspath(home))


def _absolute(path: str | os.PathLike[str]) -> Path:
    path = os.path.expanduser(path)
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path!r} is a relative path, and the current directory has been deleted: write an "
            "absolute one, or change to another directory"
        ) from error


def _path(name: str, text: str) -> Path:
    """The path in a variable, if it is short enough for the system.

    The cache adds names of its own below it, so less than the system's limit is left.
    """
    path = _absolute(text)
    if len(os.fsencode(path)) > _MAX_PATH or any(
        len(os.fsencode(part)) > _MAX_NAME for part in path.parts
    ):
        raise ConfigError(
            f"{name} is not a usable path: it has {len(os.fsencode(path))} bytes. At most "
            f"{_MAX_PATH} are possible, and {_MAX_NAME} between two slashes."
        )
    return path


def _max_size(name: str, value: str) -> int | None:
    if not value:
        return CACHE_MAX_SIZE
    if value.lower() == "unlimited":
        return None
    try:
        return parse_bytes(value) or None
    except ValueError as error:
        raise ConfigError(f"{name}={value!r}: {error}; 0 or unlimited for no limit.") from None


def choice(name: str, value: object, legal: tuple[str, ...]) -> str:
    """One of the legal values, compared without regard to case.

    Raises:
        ConfigError: it is none of them.
    """
    chosen = str(value).lower()
    if chosen not in legal:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(legal)}.")
    return chosen


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS


def _rank(value: str) -> int:
    """The rank; 0, the one that prints, if invalid: other launchers set -1. It has no other use."""
    return int(value) if _is_whole(value) else 0


def _count(name: str, value: str) -> int | None:
    if not value:
        return None
    if not _is_whole(value):
        raise ConfigError(
            f"{name}={value!r} is not a whole number of 0 or more, of at most {_MAX_DIGITS} digits."
        )
    return int(value)
