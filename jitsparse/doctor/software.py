"""Python, the packages that jitsparse needs, and torch.

Torch is probed in a separate process: a torch that ends the process that imports it, or never
returns, is a finding like any other.
"""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from jitsparse.doctor.finding import Finding

__all__ = ["MINIMUM", "Torch", "check_packages", "check_python", "check_torch", "probe_torch"]

MINIMUM = {"python": (3, 10), "torch": (2, 8)}
"""Oldest versions that jitsparse runs with, as in pyproject.toml."""

PACKAGES = ("ninja", "filelock", "jinja2", "typer", "rich")

IMPORT_TIMEOUT = 120.0
"""Seconds for the import of torch, which takes some on a cold network file system."""

_INSTALL = "https://pytorch.org/get-started/locally"

# Searches for torch where this process would; the script's own directory must not hide it.
_PROBE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import torch
gpus = []
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        gpus.append([torch.cuda.get_device_name(index), *capability])
facts = dict(version=str(torch.__version__), cuda=torch.version.cuda,
             hip=getattr(torch.version, "hip", None), file=str(torch.__file__), gpus=gpus)
print("\\n" + json.dumps(facts))
"""


@dataclass(frozen=True)
class Torch:
    """What torch reports about itself.

    Attributes:
        version: as text.
        file: where it was imported from.
        cuda: CUDA version that it was built with, or None.
        hip: ROCm version that it was built with, or None.
        gpus: name and compute capability of each GPU that it sees.
        error: why it cannot be imported; everything else is empty then.
    """

    version: str = ""
    file: str = ""
    cuda: str | None = None
    hip: str | None = None
    gpus: tuple[tuple[str, int, int], ...] = ()
    error: str = ""

    @property
    def usable(self) -> bool:
        """Whether it can be imported, and is not too old."""
        return not self.error and _numbers(self.version) >= MINIMUM["torch"]


def probe_torch() -> Torch:
    """Import torch in another process and ask it."""
    command = [sys.executable, "-c", _PROBE, json.dumps(sys.path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return Torch(error=f"importing it was not done after {IMPORT_TIMEOUT:.0f} s")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Torch(error=f"importing it ended the process with {name}")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Torch(error=last[0])
    # Whatever else is printed at import is before or after the line of facts.
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    if not lines:
        return Torch(error="the process that imported it ended without an answer")
    facts = json.loads(lines[-1])
    gpus = tuple((str(name), int(major), int(minor)) for name, major, minor in facts.pop("gpus"))
    return Torch(gpus=gpus, **facts)


def check_python() -> Iterator[Finding]:
    """The interpreter, and whether jitsparse can work on this system at all."""
    text = f"{platform.python_version()} at {sys.executable}, {platform.system()}"
    text += f" {platform.machine()}"
    if sys.version_info < MINIMUM["python"]:
        yield Finding("python", "fail", text, f"Install Python {_dotted('python')} or later.")
    elif not sys.platform.startswith("linux"):
        yield Finding("python", "warn", text, "jitsparse is tested on Linux only; use Linux.")
    else:
        yield Finding("python", "ok", text)


def check_packages() -> Iterator[Finding]:
    """The other packages that jitsparse imports."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    text = ", ".join(found)
    # Ninja may be the system's; whether there is one at all is a separate check.
    needed = [name for name in missing if name != "ninja"]
    if needed:
        remedy = f"pip install {' '.join(needed)}"
        yield Finding("packages", "fail", f"{text}; missing: {', '.join(needed)}", remedy)
    else:
        yield Finding("packages", "ok", text)


def check_torch(torch: Torch) -> Iterator[Finding]:
    """Whether torch can be imported and is new enough, and for what it was built."""
    if torch.error:
        install = "pip install torch" if "No module named 'torch'" in torch.error else ""
        remedy = install or f"Reinstall torch as {_INSTALL} says for this system."
        yield Finding("torch", "fail", f"torch cannot be imported: {torch.error}", remedy)
        return
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "no CUDA"
    text = f"{torch.version}, built with {built}, from {torch.file}"
    if not torch.usable:
        remedy = f"pip install 'torch>={_dotted('torch')}'"
        yield Finding("torch", "fail", f"{text}; jitsparse needs {_dotted('torch')}", remedy)
    elif torch.hip:
        remedy = f"AMD GPUs are not supported: use CPU tensors, or a CUDA build from {_INSTALL}."
        yield Finding("torch", "warn", text, remedy)
    else:
        yield Finding("torch", "ok", text)


def _numbers(version: str) -> tuple[int, ...]:
    """``"2.13.0+cpu"`` as ``(2, 13)``; text that is no version sorts before every version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _dotted(name: str) -> str:
    return ".".join(map(str, MINIMUM[name]))
