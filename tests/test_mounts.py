"""A first use on file systems that are full, out of inodes, read-only or mounted noexec.

The file systems are real: memory, mounted in a namespace of the test's own, for which no privilege
is needed where the system allows such namespaces. Elsewhere these tests are skipped, and
`test_system_calls.py` has the same errors from preloaded functions.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
import toykernel
from zygote import Outcome, Zygote, use

TRIALS = int(os.environ.get("JITSPARSE_TEST_TRIALS", "8"))
SEED = int(os.environ.get("JITSPARSE_TEST_SEED", "20"))
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")

pytestmark = pytest.mark.timeout(300 + 4 * TRIALS)


def namespaces() -> bool:
    """Whether file systems can be mounted here without privilege."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError):
        command = [*NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        return subprocess.run(command, capture_output=True).returncode == 0
    return False


mounts = pytest.mark.skipif(not namespaces(), reason="this system lets users mount nothing")


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A file system in memory."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield
    finally:
        # Libraries are still mapped from it.
        subprocess.run(["umount", "--lazy", place], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def use_and_listen(folder: str, cache: Path, scale: int = 2) -> dict[str, Any]:
    """Load the kernel, run it, and note the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        value = use(folder, str(cache), scale)
    return {**value, "warnings": [str(each.message) for each in seen]}


def squeezed(folder: str, place: str, limit: str) -> list[dict[str, Any]]:
    """A first use where there is little room, then one where there is more."""
    cache = Path(place) / "cache"
    with mounted(Path(place), limit):
        first = use_and_listen(folder, cache)
        remount(Path(place), "size=64m,nr_inodes=10k")
        second = use_and_listen(folder, cache)
        staged = cache / "v1" / "staging"
        left = os.listdir(staged) if staged.exists() else []
    return [first, second, {"left": left}]


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    toykernel.write(tmp_path)
    (tmp_path / "temporary").mkdir()
    with Zygote(before=NAMESPACE, TMPDIR=str(tmp_path / "temporary")) as zygote:
        yield zygote


@mounts
@pytest.mark.parametrize(
    ("option", "least", "most", "reason"),
    [("size", 4, 120, "No space left on device"), ("nr_inodes", 2, 40, "No space left on device")],
    ids=["full disk", "no inodes"],
)
def test_room_for_less_than_a_build(
    zygote: Zygote, tmp_path: Path, option: str, least: int, most: int, reason: str
) -> None:
    """Whatever the room ends at: an error that says so, or a cache elsewhere with one warning."""
    chance, found = random.Random(SEED), Counter[str]()
    for trial in range(TRIALS):
        room = chance.randint(least, most) if trial else least
        limit = f"size={room}k" if option == "size" else f"nr_inodes={room}"
        outcome = zygote.run(squeezed, folder=tmp_path, place=tmp_path / "small", limit=limit)
        assert outcome.status == 0, (limit, outcome)
        first, second, rest = outcome.value
        found[verdict(first, reason)] += 1
        assert second["right"], (limit, second)
        if "error" in first:
            assert first["warnings"] == second["warnings"] == []
        assert rest["left"] == []
    print(f"seed {SEED}, {option} of {least} to {most}: {dict(found)}")
    assert set(found) != {"right"}, "there was always room"


def verdict(value: dict[str, Any], reason: str) -> str:
    if "error" in value:
        assert value["error"] in ("ToolchainError", "UnwritableCache", "CompileError"), value
        assert reason in value["text"], value
        return str(value["error"])
    assert value["right"]
    assert len(value["warnings"]) <= 1
    assert all("cannot be written" in text for text in value["warnings"]), value
    return "right, warned" if value["warnings"] else "right"


def read_only(folder: str, place: str) -> list[dict[str, Any]]:
    """A file system that turns read-only when one kernel is cached."""
    cache = Path(place) / "cache"
    with mounted(Path(place), "size=64m"):
        values = [use_and_listen(folder, cache)]
        remount(Path(place), "ro")
        values += [use_and_listen(folder, cache, scale) for scale in (3, 4)]
    return values


@mounts
def test_read_only(zygote: Zygote, tmp_path: Path) -> None:
    outcome = zygote.run(read_only, folder=tmp_path, place=tmp_path / "ro")
    assert outcome.status == 0, outcome
    assert [value["right"] for value in outcome.value] == [True, True, True]
    assert [len(value["warnings"]) for value in outcome.value] == [0, 1, 0]
    assert "cannot be written" in outcome.value[1]["warnings"][0]
    assert os.listdir(tmp_path / "temporary") == []


def without_exec(folder: str, place: str) -> list[dict[str, Any]]:
    """Two first uses on one noexec file system, the first in a child."""
    from test_fork import in_a_fork

    cache = Path(place) / "cache"
    with mounted(Path(place), "size=64m,noexec"):
        built = in_a_fork(lambda: first_use(folder, cache))
        value = use_and_listen(folder, cache)
        aside = (cache / "v1" / "quarantine").exists()
    return [value, {"built": built, "fresh": value["fresh"], "aside": aside}]


def first_use(folder: str, cache: Path) -> bool:
    """In a child that ends as processes do, and not as :func:`in_a_fork` ends them."""
    fresh = use_and_listen(folder, cache)["fresh"]
    atexit._run_exitfuncs()
    return bool(fresh)


@mounts
def test_noexec(zygote: Zygote, tmp_path: Path) -> None:
    """Kernels are mapped from a private copy. The entries are sound, and others may map them."""
    outcome = zygote.run(without_exec, folder=tmp_path, place=tmp_path / "noexec")
    check_without_exec(outcome)
    assert outcome.value[1] == {"built": True, "fresh": False, "aside": False}
    assert os.listdir(tmp_path / "temporary") == []


def check_without_exec(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome
    value = outcome.value[0] if isinstance(outcome.value, list) else outcome.value
    assert value["right"]
    (warning,) = value["warnings"]
    assert "does not allow code to be mapped (noexec)" in warning
    assert "JITSPARSE_CACHE_DIR" in warning


def nowhere_exec(folder: str, place: str) -> dict[str, Any]:
    os.environ["TMPDIR"] = place
    tempfile.tempdir = None
    with mounted(Path(place), "size=64m,noexec"):
        return use_and_listen(folder, Path(place) / "cache")


@mounts
def test_noexec_everywhere(zygote: Zygote, tmp_path: Path) -> None:
    value = zygote.run(nowhere_exec, folder=tmp_path, place=tmp_path / "noexec").value
    assert value["error"] == "ToolchainError"
    assert "neither does" in value["text"]
    assert "mounted without noexec" in value["text"]


def test_noexec_by_a_preloaded_loader(tmp_path: Path) -> None:
    """The same where nothing can be mounted: dlopen and mmap say what they say on such a mount."""
    toykernel.write(tmp_path)
    cache = tmp_path / "cache"
    with Zygote(LD_PRELOAD=str(faults.library(tmp_path))) as zygote:
        for fresh in (True, False):
            outcome = zygote.run(
                faults.use_without_exec, folder=tmp_path, cache=cache, forbidden=cache
            )
            check_without_exec(outcome)
            assert outcome.value["fresh"] is fresh
        everywhere = zygote.run(
            faults.use_without_exec, folder=tmp_path, cache=cache, forbidden="/"
        ).value
    assert everywhere["error"] == "ToolchainError"
    assert "neither does" in everywhere["text"]
    assert not (cache / "v1" / "quarantine").exists()


def test_without_any_room_the_error_names_both_places(tmp_path: Path) -> None:
    toykernel.write(tmp_path)
    (tmp_path / "file").touch()
    with Zygote() as zygote:
        value = zygote.run(no_room, folder=tmp_path, cache=tmp_path / "file" / "cache").value
    assert value["error"] == "UnwritableCache"
    assert str(tmp_path / "file" / "cache") in value["text"]
    assert "TMPDIR" in value["text"]


def no_room(folder: str, cache: str) -> dict[str, Any]:
    tempfile.tempdir = f"{cache}/nowhere"
    return use_and_listen(folder, Path(cache))
