"""Processes by the hundred: forks of one that has imported everything a build needs.

A trial that starts Python and imports torch costs seconds, a forked one a fifth of a second with
its build. Every child has a session of its own, so its compilers can be found and signalled.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import toykernel

from jitsparse.errors import JitsparseError
from jitsparse.jit import config, load

PATIENCE = 120.0
"""Seconds after which a child hangs. A trial takes less than one, and machines may be busy."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended.

    Attributes:
        status: exit status, or minus the signal that ended it.
        value: what its function returned, or None if it did not get there.
        stderr: what it said.
    """

    status: int
    value: Any
    stderr: str


class Hang(Exception):
    """A child that did not end."""


class Child:
    """A running function."""

    def __init__(self, zygote: Zygote, pid: int, files: Path) -> None:
        self.pid = pid
        self._zygote = zygote
        self._files = files

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to it and its compilers, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def others(self) -> list[int]:
        """Processes of its session other than itself: ninja, compilers, the linker."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # After the name, which may hold anything: state, parent, group, session.
                fields = stat.read_text().rpartition(")")[2].split()
                pid = int(stat.parent.name)
                if int(fields[3]) == self.pid and pid != self.pid and fields[0] != "Z":
                    found.append(pid)
        return found

    def wait(self) -> Outcome:
        """Wait for its end.

        Raises:
            Hang: it does not come.
        """
        status = self._zygote.ask({"wait": self.pid, "patience": self._zygote.patience})
        stderr = self._files.with_suffix(".err").read_text(errors="replace")
        if status is None:
            self.signal(signal.SIGKILL, group=True)
            raise Hang(stderr)
        value = self._files.with_suffix(".json")
        return Outcome(status, json.loads(value.read_text()) if value.exists() else None, stderr)


class Zygote:
    """A process that forks itself on demand. One user at a time.

    Args:
        patience: seconds that a child may take.
        before: a command that runs the program in surroundings of its own.
        environment: variables to set for it.
    """

    def __init__(
        self, *, patience: float = PATIENCE, before: tuple[str, ...] = (), **environment: str
    ) -> None:
        self.patience = patience
        self._folder = tempfile.TemporaryDirectory(prefix="jitsparse-zygote-")
        self._count = 0
        program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        self._process = subprocess.Popen(
            [*before, sys.executable, "-c", f"{program}import zygote; zygote.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JITSPARSE_LOG": "warning", **environment},
        )

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def fork(self, function: Callable[..., Any], **arguments: Any) -> Child:
        """Run a function of a test module in a child. Arguments and result are JSON, paths text."""
        self._count += 1
        files = Path(self._folder.name) / str(self._count)
        job = {
            "module": function.__module__,
            "function": function.__name__,
            "arguments": arguments,
            "files": str(files),
        }
        return Child(self, self.ask(job), files)

    def run(self, function: Callable[..., Any], **arguments: Any) -> Outcome:
        """Run a function in a child and wait for its end."""
        return self.fork(function, **arguments).wait()

    def ask(self, question: dict[str, Any]) -> Any:
        """The zygote's answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question, default=str) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def serve() -> None:
    """Answer questions; in each child, run what was asked for."""
    # The result of the import is that no child has to.
    import filelock  # noqa: F401
    import jinja2  # noqa: F401
    import torch.utils.cpp_extension  # noqa: F401

    from jitsparse.jit import prune  # noqa: F401

    # Collecting garbage would copy every page that parent and child share.
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        if "wait" in job:
            answer = _wait(job["wait"], job["patience"])
        else:
            function = getattr(importlib.import_module(job["module"]), job["function"])
            ready, done = os.pipe()
            answer = os.fork()
            if answer == 0:
                _live(Path(job["files"]), done, function, job["arguments"])
            os.read(ready, 1)
            os.close(ready)
            os.close(done)
        print(json.dumps(answer), flush=True)


def _live(
    files: Path, ready: int, function: Callable[..., Any], arguments: dict[str, Any]
) -> NoReturn:
    """What Python does with a program, less the second that it takes to forget torch."""
    _detach(files.with_suffix(".err"))
    os.write(ready, b".")
    status = 1
    try:
        value = function(**arguments)
        files.with_suffix(".part").write_text(json.dumps(value))
        files.with_suffix(".part").rename(files.with_suffix(".json"))
        status = 0
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)


def _detach(stderr: Path) -> None:
    os.setsid()
    # A process started in the background ignores SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)


def _wait(pid: int, patience: float) -> int | None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def use(folder: str, cache: str, scale: int = 2) -> dict[str, Any]:
    """What most children do: load the kernel and run it.

    Returns:
        ``right``: whether it computed what it should, ``fresh``: whether it was compiled here,
        ``path``: where its entry is; or ``error`` and ``text``, if that is an error of ours.
    """
    with config.override(cache_dir=cache):
        try:
            kernel = load(toykernel.template(folder), toykernel.variant(scale))
        except JitsparseError as error:
            return {"error": type(error).__name__, "text": str(error)}
        return {
            "right": toykernel.run(kernel),
            "fresh": kernel.entry.fresh,
            "path": str(kernel.entry.path),
        }
