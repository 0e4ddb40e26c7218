"""Fresh processes, for what happens once in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jitsparse.errors import JitsparseError

__all__ = ["answer", "run", "start"]


def start(arguments: Sequence[str], cache: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start Python with arguments of its own and a cache of its own.

    ``JITSPARSE_*`` settings of this process are not what is measured, and do not reach it.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JITSPARSE_")}
    # An installed package has its bytecode; without this, a checkout would be compiled every time.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [package, inherited.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **inherited,
            "PYTHONPATH": paths,
            "JITSPARSE_CACHE_DIR": str(cache),
            **environment,
        },
    )


def answer(process: subprocess.Popen[str]) -> Any:
    """What a process prints last, as JSON, when it has ended.

    Raises:
        JitsparseError: it failed; with what it said.
    """
    out, err = process.communicate()
    if process.returncode:
        raise JitsparseError(f"a process that was to be measured failed:\n{err}")
    return json.loads(out.splitlines()[-1])


def run(arguments: Sequence[str], cache: str | Path, **environment: str) -> Any:
    """What Python prints last, as JSON, run in a process of its own.

    Raises:
        JitsparseError: it failed.
    """
    return answer(start(arguments, cache, **environment))
