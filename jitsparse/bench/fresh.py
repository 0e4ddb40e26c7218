"""Fresh processes, for what happens once in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitsparse.errors import JitsparseError

__all__ = ["Process", "answer", "run", "start"]


class Process(subprocess.Popen[str]):
    """A process whose errors go to a file: a full pipe that nobody reads would stop it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.said = tempfile.TemporaryFile("w+", errors="replace")
        super().__init__(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            env=environment,
        )


def start(arguments: Sequence[str], cache: str | Path, **environment: str) -> Process:
    """Start Python with its own arguments and its own cache.

    It does not inherit the ``JITSPARSE_*`` settings of this process, which are not measured.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JITSPARSE_")}
    # An installed package has its bytecode; without this, a checkout would be compiled every time.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [package, inherited.get("PYTHONPATH")]))
    own = {"PYTHONPATH": paths, "JITSPARSE_CACHE_DIR": str(cache), **environment}
    return Process([sys.executable, *arguments], {**inherited, **own})


def answer(process: Process) -> Any:
    """Wait for a process to end and parse the last line that it printed as JSON.

    Raises:
        JitsparseError: it failed; with its errors.
    """
    out, _ = process.communicate()
    with process.said as file:
        if process.returncode:
            file.seek(0)
            raise JitsparseError(f"a process that was to be measured failed:\n{file.read()}")
    return json.loads(out.splitlines()[-1])


def run(arguments: Sequence[str], cache: str | Path, **environment: str) -> Any:
    """Run Python in a fresh process and parse the last line that it printed as JSON.

    Raises:
        JitsparseError: it failed.
    """
    return answer(start(arguments, cache, **environment))
