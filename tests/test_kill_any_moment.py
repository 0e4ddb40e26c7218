"""kill -9 and Ctrl-C at random moments of a build: no hang, no wrong kernel, nothing left behind.

Moments are drawn uniformly over the measured length of a first use. What is counted are signals
that reached a living process: 6 of each kind, or ``JITSPARSE_TEST_TRIALS``. Another
``JITSPARSE_TEST_SEED`` draws other moments. `test_kill.py` does the same at named stages.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toykernel
from zygote import Child, Hang, Outcome, Zygote, use

from jitsparse.jit import Cache
from jitsparse.jit.inventory import verify

TRIALS = int(os.environ.get("JITSPARSE_TEST_TRIALS", "6"))
SEED = int(os.environ.get("JITSPARSE_TEST_SEED", "20"))

pytestmark = pytest.mark.timeout(300 + 4 * TRIALS)


class Ground:
    """Where trials take place, and how long a first use lasts here."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        toykernel.write(folder)
        self.folder, self.zygote = folder, zygote
        self.cache = folder / "cache"
        self.chance = random.Random(SEED)
        self.seconds = statistics.median(self._first_use() for _ in range(5))

    def _first_use(self) -> float:
        started = time.perf_counter()
        outcome = self.begin().wait()
        assert outcome.value["right"], outcome
        shutil.rmtree(self.cache)
        return time.perf_counter() - started

    def begin(self) -> Child:
        """A child that compiles the kernel and uses it."""
        return self.zygote.fork(use, folder=self.folder, cache=self.cache)

    def wait_for_a_moment(self) -> None:
        """Any moment between the start and a little after the end."""
        time.sleep(self.chance.uniform(0, 1.05 * self.seconds))

    def check_recovery(self, child: Child) -> str:
        """The next use works, the cache is sound, and the next build clears up.

        Returns:
            Whether the next use had to compile.
        """
        entries = toykernel.entries(self.cache) if self.cache.exists() else []
        after = self.begin().wait()
        assert after.status == 0, after
        assert after.value["right"], after
        assert "unusable" not in after.stderr
        assert after.value["fresh"] == (not entries), (after, entries)
        assert [str(path) for path in toykernel.entries(self.cache)] == [after.value["path"]]
        # What outlives its builder, compilers, can write only until it has ended.
        deadline = time.monotonic() + 60
        while child.others():
            assert time.monotonic() < deadline, "a compiler outlives its builder for a minute"
            time.sleep(0.005)
        Cache(self.cache).stage("another-0123456789abcdef").rmdir()
        assert toykernel.staged(self.cache) == []
        assert [each.defect for each in verify(Cache(self.cache))] == [""]
        assert not (self.cache / "v1" / "quarantine").exists()
        shutil.rmtree(self.cache)
        return "compiled again" if after.value["fresh"] else "found the entry"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Zygote() as zygote:
        yield Ground(tmp_path_factory.mktemp("ground"), zygote)


def conduct(ground: Ground, trial: Callable[[Ground], str | None]) -> Counter[str]:
    """Trials until enough of them have hit, and what came of them."""
    found: Counter[str] = Counter()
    for _ in range(10 * TRIALS):
        said = trial(ground)
        if said is not None:
            found[said] += 1
        if found.total() == TRIALS:
            break
    print(f"seed {SEED}, first use {ground.seconds:.3f} s: {dict(found)}")
    assert found.total() == TRIALS, f"signals came too late: {found}"
    return found


def ended_by(outcome: Outcome, number: int) -> bool:
    return outcome.status == -number


@pytest.mark.parametrize("group", [False, True], ids=["builder", "builder and compilers"])
def test_killed(ground: Ground, group: bool) -> None:
    """Alone, its compilers live on for a while and write to the staging directory of the dead."""

    def trial(ground: Ground) -> str | None:
        child = ground.begin()
        ground.wait_for_a_moment()
        child.signal(signal.SIGKILL, group=group)
        hit = ended_by(child.wait(), signal.SIGKILL)
        said = ground.check_recovery(child)
        return f"killed; the next use {said}" if hit else None

    conduct(ground, trial)


def test_a_compiler_is_killed(ground: Ground) -> None:
    """As by the system, for its memory. The builder says so, and the next use compiles."""

    def trial(ground: Ground) -> str | None:
        child = ground.begin()
        ground.wait_for_a_moment()
        victims: list[int] = []
        while not victims and Path(f"/proc/{child.pid}").exists() and not toykernel.gone(child.pid):
            victims = child.others()
        killed = bool(victims) and kill(ground.chance.choice(victims))
        outcome = child.wait()
        assert outcome.status == 0, outcome
        assert "Traceback" not in outcome.stderr
        said = ground.check_recovery(child)
        return f"{verdict(outcome.value)}; the next use {said}" if killed else None

    found = conduct(ground, trial)
    assert any("CompileError" in each for each in found)


def verdict(value: dict[str, Any]) -> str:
    """What the builder made of it: the kernel all the same, or an error that names the variant."""
    if "error" not in value:
        assert value["right"], value
        return "answered rightly"
    assert value["error"] in ("CompileError", "ToolchainError"), value
    assert "axpy.omp.generic.f32.s2" in value["text"] or "compiler" in value["text"], value
    return str(value["error"])


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("group", [False, True], ids=["process", "terminal"])
def test_interrupted(ground: Ground, group: bool) -> None:
    """In a terminal Ctrl-C reaches the compilers too. It is no crash: nothing stays in staging."""

    def trial(ground: Ground) -> str | None:
        child = ground.begin()
        ground.wait_for_a_moment()
        child.signal(signal.SIGINT, group=group)
        outcome = child.wait()
        if outcome.status == 0:
            assert outcome.value["right"], outcome
        else:
            assert ended_by(outcome, signal.SIGINT), outcome
            assert "KeyboardInterrupt" in outcome.stderr
        left = toykernel.staged(ground.cache) if (ground.cache / "v1/staging").exists() else []
        assert left == [], outcome
        said = ground.check_recovery(child)
        return f"interrupted; the next use {said}" if outcome.status else None

    conduct(ground, trial)


def test_a_hang_would_be_seen() -> None:
    """The guard of all trials works."""
    with Zygote(patience=0.5) as zygote, pytest.raises(Hang):
        zygote.run(sleep, seconds=60)


def sleep(seconds: float) -> None:
    time.sleep(seconds)
