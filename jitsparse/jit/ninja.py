"""What ninja knows of a build that it has done: commands, and what the compiler read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from jitsparse.jit import forks, toolchain

__all__ = ["commands", "dependencies"]


def commands(staging: Path, source: str) -> list[str]:
    """The command lines of the build, written so that they work in any copy of the directory."""
    path = f"{staging}/{source}"
    # ninja's way to quote for the shell, where it has to.
    quoted = "'" + path.replace("'", "'\\''") + "'"
    text = _ask("commands", staging)
    text = text.replace(quoted, source).replace(path, source).replace(f"{staging}/", "")
    return [line for line in text.splitlines() if line]


def dependencies(staging: Path) -> set[str]:
    """Real paths of the files elsewhere that the compiler read, by its own account; of those that
    belong to a C++ compiler it keeps none. Empty where a wrapper keeps the account back."""
    lines = _ask("deps", staging).splitlines()
    named = (line.strip() for line in lines if line.startswith(" "))
    here = os.path.realpath(staging)
    paths = {os.path.realpath(os.path.join(here, name)) for name in named}
    # ninja takes ".." behind a link for the directory before it, where there may be nothing.
    return {path for path in paths if not path.startswith(here + os.sep) and os.path.isfile(path)}


def _ask(what: str, staging: Path) -> str:
    """The answer, or an empty text where there is none."""
    directory = toolchain.ninja_directory()
    program = str(directory / "ninja") if directory else "ninja"
    try:
        answer = forks.programs().run(
            [program, "-t", what], cwd=staging, capture_output=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(os.fsdecode(answer.stdout))
