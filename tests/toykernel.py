"""A template that is none of ours, and child processes that load it: what the toolkit's tests use.

The kernel computes y += scale * x for n floats. Its body lives in a header.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jitsparse.jit import Cache, Kernel, Template, Variant, background, key

if TYPE_CHECKING:
    import pytest  # child processes import this module, too

# A shell's background job inherits SIGINT ignored, and Python leaves it so.
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"

HEADER = """\
#pragma once
template <typename T>
void axpy(const T* x, T* y, long long n, T scale) {
#pragma omp parallel for
  for (long long i = 0; i < n; ++i) y[i] += scale * x[i];
}
"""

SOURCE = """\
#include "body/axpy.h"
{% if negative %}
#define SIGN -1
{% else %}
#define SIGN 1
{% endif %}
extern "C" int jitsparse_launch(const void* words) {
  const long long* w = static_cast<const long long*>(words);
  if (w[2] < 0) return 7;
  axpy<{{ type }}>(reinterpret_cast<const {{ type }}*>(w[0]), reinterpret_cast<{{ type }}*>(w[1]),
                   w[2], SIGN * {{ scale }});
  return 0;
}
extern "C" const char* jitsparse_error(int code) { return code == 7 ? "n is negative" : "?"; }
"""

PROGRAM = """\
import sys
sys.path.insert(0, {tests!a})
import toykernel
from jitsparse.jit import load
template, variant = toykernel.template({folder!a}), toykernel.variant({scale!r})
{prologue}
print("ready", flush=True)
sys.stdin.readline()
{action}
"""

ACTION = "print(toykernel.run(load(template, variant)))"


def write(folder: Path) -> Template:
    """Write the template and its header below a folder."""
    (folder / "headers" / "body").mkdir(parents=True, exist_ok=True)
    (folder / "headers" / "body" / "axpy.h").write_text(HEADER)
    (folder / "axpy.cpp.jinja").write_text(SOURCE)
    return template(folder)


def template(folder: Path | str) -> Template:
    """The template that :func:`write` wrote."""
    return Template(
        name="axpy",
        source=Path(folder) / "axpy.cpp.jinja",
        language="c++",
        include_dirs=(Path(folder) / "headers",),
        arguments=3,
        context=_context,
    )


def _context(variant: Variant) -> dict[str, str | int | bool]:
    return {"type": "float", "scale": int(variant.knob("s")), "negative": False}


def variant(scale: int = 2, target: str = "generic") -> Variant:
    """The variant that multiplies by ``scale``."""
    return Variant("axpy", "omp", target, "f32", (("s", str(scale)),))


def run(kernel: Kernel, n: int = 100) -> bool:
    """Whether the kernel computes what its variant says, on 0, 1, 2, ..."""
    x = (ctypes.c_float * n)(*range(n))
    y = (ctypes.c_float * n)(*([1.0] * n))
    kernel(ctypes.addressof(x), ctypes.addressof(y), n)
    scale = int(kernel.variant.knob("s"))
    return list(y) == [1.0 + scale * i for i in range(n)]


def start(
    folder: Path,
    cache: Path,
    *,
    prologue: str = "",
    action: str = ACTION,
    scale: int = 2,
    stderr: IO[str] | None = None,
    **environment: str,
) -> subprocess.Popen[str]:
    """A process that imports everything, says "ready", waits for a line and loads the kernel."""
    program = PROGRAM.format(
        tests=str(Path(__file__).parent),
        folder=str(folder),
        scale=scale,
        prologue=prologue,
        action=action,
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if stderr is None else stderr,
        text=True,
        env={**os.environ, "JITSPARSE_CACHE_DIR": str(cache), **environment},
    )


def release(*processes: subprocess.Popen[str]) -> None:
    """Let processes go on, all at once, when all of them are ready."""
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"child said {line!r}: {process.communicate()[1]}")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def compiler(folder: Path, *, version: str = "", before: str = "") -> tuple[Path, Path]:
    """A compiler that notes every compilation, and the file in which it does.

    Args:
        folder: where to write it.
        version: what it says of itself instead of the real version.
        before: shell commands to run before each compilation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program, notes = folder / "counting-g++", folder / "compilations"
    notes.touch()
    answer = f'--version*) echo "{version}"; exit 0 ;;' if version else ""
    program.write_text(
        f"""#!/bin/sh
case "$*" in
  {answer}
  *" -c "*) echo "$$" >> "{notes}"
    {before or ":"} ;;
esac
exec g++ "$@"
"""
    )
    program.chmod(0o755)
    return program, notes


def compilations(notes: Path) -> int:
    """How often the compiler of :func:`compiler` has compiled."""
    return len(notes.read_text().splitlines())


def gone(pid: int) -> bool:
    """Whether a process has ended, and waits for its parent to hear of it at most."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], object], otherwise: str, patience: float = 120) -> None:
    """Wait for what another process does; fail with ``otherwise`` after so many seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def wait_for_the_compiler(notes: Path) -> None:
    wait_until(lambda: compilations(notes), "the compiler was not started")


def publish(cache: Cache, number: int, *, age: float, size: int = 10_000) -> Path:
    """An entry of about a size, no library at all, that was last used so many seconds ago.

    What a process has compiled it has mapped, so it is in use; this is not.
    """
    fields = {"variant": f"axpy.omp.generic.f32.s{number}"}
    about = {"key": key.digest(fields), "fields": fields, "compile_seconds": 1.0}
    name = f"{fields['variant']}-{about['key'][:16]}"
    staging = cache.stage(name)
    (staging / "kernel.so").write_bytes(bytes(size))
    path = cache.publish(staging, name, about).path
    os.utime(path / "meta.json", (time.time() - age,) * 2)
    return path


def deny(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, path: Path) -> None:
    """Let a function refuse a path, and what is below it, as the system refuses it to another user.

    Taking the right away by a mode would not stop root.
    """
    whole = getattr(owner, name)

    def refuse(place: object, *arguments: Any, **options: Any) -> Any:
        if f"{place}/".startswith(f"{path}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return whole(place, *arguments, **options)

    monkeypatch.setattr(owner, name, refuse)


def entries(cache: Path) -> list[Path]:
    """Directories of the entries in a cache."""
    return sorted(path for path in (cache / "v1").glob("*-*") if path.is_dir())


def replace_library(entry: Path, content: bytes) -> None:
    """Put a new file in place of an entry's library: who has loaded the old one still maps it, and
    would die of a shorter one (SIGBUS), at the latest on exit."""
    (entry / "new").write_bytes(content)
    os.replace(entry / "new", entry / "kernel.so")


def staged(cache: Path) -> list[Path]:
    """Directories of builds in progress in a cache."""
    return list((cache / "v1" / "staging").iterdir())


class Held:
    """Compilers that wait for :meth:`release`."""

    def __init__(self, folder: Path) -> None:
        self.go = folder / "go"
        wait = f'until [ -e "{self.go}" ]; do sleep 0.02; done'
        self.cxx, self.notes = compiler(folder / "held", before=wait)

    def release(self) -> None:
        """Let them go on, and wait until all builds of this process are done."""
        self.go.touch()
        for thread in list(background._builds.threads):
            thread.join(120)
            assert not thread.is_alive()

    def started(self) -> list[int]:
        """Process ids of the compilers, when there is one."""
        wait_for_the_compiler(self.notes)
        return [int(line) for line in self.notes.read_text().split()]
