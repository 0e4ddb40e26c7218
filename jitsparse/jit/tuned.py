"""The tuned table: which variant was fastest for a problem on this kind of machine.

One small JSON file a problem under ``<root>/tuned/<machine>/``, written whole and renamed into
place, so that processes tuning different problems do not overwrite each other. Times of one
processor say nothing about another, so the name of the processor is part of the path.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import uuid
from pathlib import Path

from jitsparse.jit import cache, config
from jitsparse.jit.targets import processor

__all__ = ["lookup", "record"]

FORMAT = 1


def record(problem: str, timings: dict[str, float]) -> Path:
    """Keep the outcome of tuning one problem.

    Args:
        problem: readable name of the problem; equal problems must have equal names.
        timings: seconds of each variant that was measured, by variant name.

    Returns:
        The file.

    Raises:
        OSError: the cache cannot be written.
    """
    path = _path(cache.current().root, problem)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    best = min(timings, key=lambda name: timings[name])
    content = {"format": FORMAT, "problem": problem, "variant": best, "seconds": timings}
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(temporary, path)
    config.bump()
    return path


def lookup(problem: str) -> str | None:
    """Name of the variant that was fastest for the problem on this kind of machine, if tuned."""
    here = cache.current()
    for root in (here.root, *here.layers):
        if not (root / "tuned").is_dir():
            continue
        try:
            content = json.loads(_path(root, problem).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("format") == FORMAT:
            return str(content["variant"])
    return None


def _path(root: Path, problem: str) -> Path:
    name = hashlib.sha256(problem.encode()).hexdigest()[:32]
    return root / "tuned" / _machine() / f"{name}.json"


@functools.cache
def _machine() -> str:
    """The GPU if there is one, else the processor, as a directory name."""
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    else:
        name = f"{processor().get('model name', os.uname().machine)} x{os.cpu_count()}"
    return re.sub(r"\W+", "-", name).strip("-").lower()
