"""Sixteen processes that miss together: one compilation, and right answers even without locks."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
import toykernel
from zygote import Zygote

from jitsparse.jit import Cache
from jitsparse.jit.inventory import verify

PROCESSES = 16
HOUR = 3600


class Track:
    """A cold cache, a compiler that counts, and processes that start when all are there."""

    def __init__(self, folder: Path, preload: Path) -> None:
        toykernel.write(folder)
        self.folder, self.cache, self.go = folder, folder / "cache", folder / "go"
        self.notes = folder / "counting" / "compilations"
        # Compilers begin when the file is there or, without locks, when all have been asked for.
        counting, _ = toykernel.compiler(
            folder / "counting",
            before=f'until [ -e "{self.go}" ] || '
            f'[ "$(wc -l < "{self.notes}")" -ge {PROCESSES} ]; do sleep 0.02; done',
        )
        self.zygote = Zygote(CXX=str(counting), LD_PRELOAD=str(preload))

    def race(self, *, locks: bool, ahead: list[int]) -> None:
        """Have sixteen processes load the kernel, and look at what they and the cache hold.

        Args:
            locks: whether the file system has any.
            ahead: by how many seconds the processes' clocks are ahead of the file system's.
        """
        self.notes.write_text("")
        self.go.unlink(missing_ok=True)
        lost = [errno.ENOLCK, errno.ENOSYS, errno.EIO]
        children = [
            self.zygote.fork(
                faults.use_elsewhere,
                folder=self.folder,
                cache=self.cache,
                ahead=ahead[number],
                locks=0 if locks else lost[number % len(lost)],
            )
            for number in range(PROCESSES)
        ]
        if locks:
            self.go.touch()
        values: list[dict[str, Any]] = []
        for child in children:
            outcome = child.wait()
            assert outcome.status == 0, outcome
            assert outcome.stderr == ""
            values.append(outcome.value)
        assert all(value["right"] for value in values), values
        assert sum(value["fresh"] for value in values) == 1
        assert toykernel.compilations(self.notes) == (1 if locks else PROCESSES)
        (entry,) = toykernel.entries(self.cache)
        assert {value["path"] for value in values} == {str(entry)}
        assert [each.defect for each in verify(Cache(self.cache))] == [""]
        assert toykernel.staged(self.cache) == []
        assert not (self.cache / "v1" / "quarantine").exists()
        shutil.rmtree(self.cache)


@pytest.fixture
def track(tmp_path: Path) -> Iterator[Track]:
    track = Track(tmp_path, faults.library(tmp_path))
    with track.zygote:
        yield track


TOGETHER = [0] * PROCESSES


def test_one_compiles_and_the_others_wait(track: Track) -> None:
    track.race(locks=True, ahead=TOGETHER)


def test_without_locks_all_answers_are_right(track: Track) -> None:
    """As on network file systems that have none: all compile, the first rename wins."""
    track.race(locks=False, ahead=TOGETHER)


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_with_clocks_that_differ(track: Track, locks: bool) -> None:
    """By up to two days, either way: nothing that is decided rests on a time."""
    chance = random.Random(20)
    ahead = [chance.randint(-48 * HOUR, 48 * HOUR) for _ in range(PROCESSES)]
    track.race(locks=locks, ahead=ahead)


def test_the_clock_of_the_trials_is_another(track: Track) -> None:
    """The means of the test above work: the time of an entry is that of its builder's clock."""
    track.go.touch()
    track.zygote.run(faults.use_elsewhere, folder=track.folder, cache=track.cache, ahead=48 * HOUR)
    (entry,) = Cache(track.cache).entries()
    assert entry.created - time.time() == pytest.approx(48 * HOUR, abs=HOUR)


@pytest.mark.parametrize("ahead", [-48, 48])
def test_a_build_on_another_host_is_left_alone_whatever_the_clock(track: Track, ahead: int) -> None:
    """Its age is taken by the clock of the file system. What is old by that clock is removed."""
    track.go.touch()
    own = Cache(track.cache).stage("another-0123456789abcdef")
    living, dead = (own.with_name(f"{key}.otherhost-1.77.0") for key in ("1" * 16, "2" * 16))
    own.rename(living)
    shutil.copytree(living, dead)
    long_ago = time.time() - 25 * HOUR
    (dead / "kernel.cpp").touch()
    os.utime(dead, (long_ago, long_ago))
    value = track.zygote.run(
        faults.use_elsewhere, folder=track.folder, cache=track.cache, ahead=ahead * HOUR
    ).value
    assert value["right"]
    assert toykernel.staged(track.cache) == [living]


def test_a_waiter_names_the_process_that_it_waits_for(tmp_path: Path) -> None:
    """And it gets the other's kernel: nothing is compiled twice."""
    toykernel.write(tmp_path)
    slow, notes = toykernel.compiler(
        tmp_path / "slow", before=f'until [ -e "{tmp_path}/go" ]; do sleep 0.05; done'
    )
    said = [tmp_path / "said0", tmp_path / "said1"]
    children = []
    for path in said:
        with path.open("w") as stderr:
            child = toykernel.start(
                tmp_path, tmp_path / "cache", stderr=stderr, CXX=str(slow), JITSPARSE_LOG="info"
            )
        children.append(child)
    toykernel.release(*children)
    toykernel.wait_until(
        lambda: any("waiting for" in path.read_text() for path in said), "nobody says that it waits"
    )
    (tmp_path / "go").touch()
    assert [child.communicate(timeout=120)[0] for child in children] == ["True\n", "True\n"]
    assert toykernel.compilations(notes) == 1
    waiter = next(n for n, path in enumerate(said) if "waiting for" in path.read_text())
    builder = children[1 - waiter].pid
    assert f"jitsparse: waiting for pid {builder} on " in said[waiter].read_text()
    assert "which is compiling axpy.omp.generic.f32.s2" in said[waiter].read_text()
