"""A builder killed with -9, at any stage, leaves nothing that hangs or breaks the next call."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel

from jitsparse.jit import load

DIE = "import os, signal\ndef die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"

STAGES = {
    "rendering": "from jitsparse.jit import build; build.render = die",
    "the library is complete": "from jitsparse.jit import cache; cache.sync = die",
    "meta.json is written": (
        "from jitsparse.jit import cache\n"
        "sync = cache.sync\n"
        "cache.sync = lambda path: die() if path.name == 'meta.json' else sync(path)"
    ),
    "before the rename": (
        "from jitsparse.jit import cache\n"
        "publish = cache.Cache.publish\n"
        "def dying(self, *arguments):\n"
        "    os.rename = die\n"
        "    return publish(self, *arguments)\n"
        "cache.Cache.publish = dying"
    ),
    "after the rename": "from jitsparse.jit import cache; cache.Cache._remember_seconds = die",
}


def check_recovery(folder: Path, cache: Path, killed: int, fresh: bool) -> None:
    assert killed == -signal.SIGKILL
    kernel = load(toykernel.template(folder), toykernel.variant())
    assert toykernel.run(kernel)
    assert kernel.entry.fresh is fresh
    assert toykernel.entries(cache) == [kernel.entry.path]
    if fresh:
        assert toykernel.staged(cache) == []


@pytest.mark.parametrize("stage", STAGES)
def test_killed_between_steps(
    stage: str, tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    toykernel.write(tmp_path)
    child = toykernel.start(tmp_path, cache_dir, prologue=DIE + STAGES[stage])
    toykernel.release(child)
    killed = child.wait(timeout=120)
    child.communicate()
    check_recovery(tmp_path, cache_dir, killed, fresh=stage != "after the rename")


def test_interrupted_while_the_compiler_runs(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    """Ctrl-C is no crash: the builder removes what it had begun."""
    toykernel.write(tmp_path)
    slow, notes = toykernel.compiler(tmp_path / "slow", before="sleep 300")
    listen = toykernel.HEARS_CTRL_C
    child = toykernel.start(tmp_path, cache_dir, prologue=listen, CXX=str(slow))
    toykernel.release(child)
    toykernel.wait_for_the_compiler(notes)
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=60)[1]
    # Nor does the compiler go on for nobody: the slow one would for five minutes. It was told to
    # end, and on a busy machine has done so a moment later.
    compiler = int(notes.read_text().split()[0])
    toykernel.wait_until(lambda: toykernel.gone(compiler), "the compiler goes on", 60)
    assert toykernel.staged(cache_dir) == []
    assert toykernel.entries(cache_dir) == []
    assert toykernel.run(load(toykernel.template(tmp_path), toykernel.variant()))


def test_killed_while_the_compiler_runs(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    """The compiler outlives its builder, and can write nowhere but into the dead one's staging."""
    toykernel.write(tmp_path)
    slow, notes = toykernel.compiler(tmp_path / "slow", before="sleep 2")
    child = toykernel.start(tmp_path, cache_dir, CXX=str(slow))
    toykernel.release(child)
    toykernel.wait_for_the_compiler(notes)
    child.kill()
    check_recovery(tmp_path, cache_dir, child.wait(timeout=60), fresh=True)
    child.communicate()
    # The orphan has had its chance to do harm when it has ended.
    pid = notes.read_text().split()[0]
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the orphaned compiler did not end"
        time.sleep(0.05)
    assert len(toykernel.entries(cache_dir)) == 1
