"""Every system call of a first use that touches the cache fails once, in every way that it may.

A full disk, a quota, a file system that turned read-only, a file server that forgot a handle: each
call meets each, once, or from then on. What may come of it is a right answer, with at most one
warning of a kind, or one of our errors, which quotes the system's; and with the cause gone the next
use succeeds. There are thousands of cases, of which 40 are drawn; ``JITSPARSE_TEST_TRIALS`` draws
more, up to all of them. ``JITSPARSE_TEST_SEED`` draws others.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
import toykernel
from zygote import Outcome, Zygote

from jitsparse.jit import Cache
from jitsparse.jit.inventory import verify

TRIALS = int(os.environ.get("JITSPARSE_TEST_TRIALS", "40"))
SEED = int(os.environ.get("JITSPARSE_TEST_SEED", "20"))

pytestmark = pytest.mark.timeout(300 + 4 * TRIALS)

READ = (errno.EACCES, errno.EIO, errno.ESTALE)
ERRORS = {
    "read": READ,
    "write": (*READ, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    # Not ENOSYS: a system without locks has none from the first call on, see test_race.py.
    "lock": (errno.ENOLCK, errno.EIO, errno.ESTALE),
}


class Ground:
    """A template, a cache, and the process whose children meet faults."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        toykernel.write(folder)
        self.folder, self.zygote = folder, zygote
        self.cache, self.saved = folder / "cache", folder / "saved"
        self.header = folder / "headers" / "body" / "axpy.h"

    def use(self, **fault: Any) -> Outcome:
        """A first use that meets a fault."""
        return self.zygote.run(faults.use, folder=self.folder, cache=self.cache, **fault)

    def restore(self) -> None:
        """The cache as it was when it was saved."""
        shutil.rmtree(self.cache, ignore_errors=True)
        if self.saved.exists():
            shutil.copytree(self.saved, self.cache, symlinks=True)


def empty(ground: Ground) -> None:
    """Nothing is cached."""


def cached(ground: Ground) -> None:
    """The kernel is."""
    assert ground.use().value["fresh"]


def damaged(ground: Ground) -> None:
    """It is, and has to be set aside."""
    cached(ground)
    (entry,) = toykernel.entries(ground.cache)
    (entry / "kernel.so").write_bytes(b"damaged")


def littered(ground: Ground) -> None:
    """A builder was killed, and its staging is to be removed."""
    staging = Cache(ground.cache).stage("axpy.omp.generic.f32.s2-0123456789abcdef")
    (staging / "kernel.cpp").touch()
    # No process has this number.
    place, _, rest = staging.name.partition(f".{os.getpid()}.")
    staging.rename(staging.with_name(f"{place}.4194305.{rest}"))


def uncompilable(ground: Ground) -> None:
    """The kernel does not compile, and its source and log are to be kept."""
    ground.header.write_text(ground.header.read_text() + "int broken = undeclared_name;\n")


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults.library(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def ground(tmp_path: Path, preload: Path) -> Iterator[Ground]:
    with Zygote(LD_PRELOAD=str(preload)) as zygote:
        yield Ground(tmp_path, zygote)


def cases(calls: list[str], chance: random.Random) -> list[dict[str, Any]]:
    """What can happen to a row of calls, in random order."""
    found = [
        {"number": number, "error": error, "lasting": lasting}
        for number, call in enumerate(calls, start=1)
        for error in ERRORS[call.split()[0]]
        for lasting in (False, True)
    ]
    chance.shuffle(found)
    return found


@pytest.mark.parametrize("scene", [empty, cached, damaged, littered, uncompilable])
def test_each_call_fails(ground: Ground, scene: Callable[[Ground], None]) -> None:
    scene(ground)
    if ground.cache.exists():
        ground.cache.rename(ground.saved)
    ground.restore()
    calls = ground.use().value["calls"]
    found: Counter[str] = Counter()
    everything = cases(calls, random.Random(SEED))
    share = TRIALS // 5 if TRIALS < len(everything) else len(everything)
    for fault in everything[:share]:
        ground.restore()
        said = check(ground.use(**fault), fault, scene)
        found[said] += 1
        check_recovery(ground, scene)
    print(f"seed {SEED}, {scene.__name__}: {len(calls)} calls, {share} cases: {dict(found)}")


def check(outcome: Outcome, fault: dict[str, Any], scene: Callable[[Ground], None]) -> str:
    """Judge what came of a fault."""
    value = outcome.value
    assert outcome.status == 0, (fault, outcome.stderr)
    where = (fault, value["calls"][fault["number"] - 1 :][:1], value)
    kinds = [text.partition("jitsparse: ")[2].split(" ")[:3] for text in value["warnings"]]
    assert len(kinds) == len({str(kind) for kind in kinds}) <= 2, where
    if "error" not in value:
        assert value["right"], where
        return "right, warned" if value["warnings"] else "right"
    cause = os.strerror(fault["error"])
    if scene is uncompilable and value["error"] == "CompileError":
        cause = "undeclared_name"
    else:
        assert value["error"] in ("ToolchainError", "UnwritableCache"), where
        assert "JITSPARSE_CACHE_DIR" in value["text"], where
    assert cause in value["text"], where
    return str(value["error"])


def check_recovery(ground: Ground, scene: Callable[[Ground], None]) -> None:
    """With the cause gone the next use succeeds, and nothing is left of the last one."""
    value = ground.use().value
    Cache(ground.cache).stage("another-0123456789abcdef").rmdir()
    assert toykernel.staged(ground.cache) == []
    if scene is uncompilable:
        assert value["error"] == "CompileError"
        assert "undeclared_name" in value["text"]
        return
    assert value["right"], value
    assert [each.defect for each in verify(Cache(ground.cache))] == [""]
