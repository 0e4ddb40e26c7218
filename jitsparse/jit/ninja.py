"""What ninja knows about a finished build: its commands, and the files the compiler read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from jitsparse.jit import forks, toolchain

__all__ = ["commands", "dependencies"]


def commands(staging: Path, source: str) -> list[str]:
    """The command lines of the build, written so that they work in any copy of the directory."""
    path = f"{staging}/{source}"
    # How ninja quotes for the shell, where it has to.
    quoted = "'" + path.replace("'", "'\\''") + "'"
    text = _ask("commands", staging)
    text = text.replace(quoted, source).replace(path, source).replace(f"{staging}/", "")
    return [line for line in text.splitlines() if line]


def dependencies(staging: Path, roots: tuple[str, ...]) -> set[str]:
    """Real paths of the files below some directories that the compiler reports to have read.

    A C++ compiler's own headers are not reported. Empty where a wrapper suppresses the report.

    Args:
        staging: the build directory, whose files do not count.
        roots: real paths of the directories.
    """
    lines = _ask("deps", staging).splitlines()
    here = os.path.realpath(staging)
    directories: dict[str, str] = {}  # nvcc names hundreds of files in few
    paths = set()
    for line in lines:
        if not line.startswith(" "):
            continue
        directory, name = os.path.split(os.path.join(here, line.strip()))
        if directory not in directories:
            directories[directory] = os.path.realpath(directory)
        path = os.path.join(directories[directory], name)
        paths.add(os.path.realpath(path) if name == ".." or os.path.islink(path) else path)
    below = tuple(root + os.sep for root in roots)
    elsewhere = (
        each for each in paths if each.startswith(below) and not each.startswith(here + os.sep)
    )
    # ninja takes ".." after a link for the directory before it, where there may be no such file.
    return {path for path in elsewhere if os.path.isfile(path)}


def _ask(what: str, staging: Path) -> str:
    """ninja's answer, or an empty string if there is none."""
    directory = toolchain.ninja_directory()
    program = str(directory / "ninja") if directory else "ninja"
    try:
        answer = forks.programs().run(
            [program, "-t", what], cwd=staging, capture_output=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(os.fsdecode(answer.stdout))
