"""The cache stays below its cap: least recently used first, and what is in use is safe."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import UnwritableCache
from jitsparse.jit import Cache, config, load
from jitsparse.jit import prune as pruning
from jitsparse.jit.inventory import disk_usage, stored
from jitsparse.jit.prune import mapped, prune

HOUR = 3600.0


def left(cache: Cache) -> list[Path]:
    return [each.path for each in cache.entries()]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_the_least_recently_used_go_first(cache: Cache) -> None:
    paths = [
        toykernel.publish(cache, number, age=age * HOUR) for number, age in enumerate((3, 1, 4, 2))
    ]
    done = prune(cache, max_size=25_000)
    assert done.deleted == (paths[2], paths[0])
    assert (done.kept, done.in_use) == (2, ())
    assert sorted(left(cache)) == sorted([paths[1], paths[3]])
    assert done.kept_bytes == sum(disk_usage(path)[0] for path in left(cache)) <= 25_000
    assert done.deleted_bytes > 20_000
    assert prune(cache, max_size=25_000).deleted == ()


def test_age_alone(cache: Cache) -> None:
    paths = [
        toykernel.publish(cache, number, age=age * HOUR) for number, age in enumerate((3, 1, 4))
    ]
    assert prune(cache, older_than=2 * HOUR).deleted == (paths[2], paths[0])
    assert left(cache) == [paths[1]]


def test_everything_and_nothing(cache: Cache) -> None:
    assert prune(cache, max_size=0).deleted == ()
    paths = [toykernel.publish(cache, number, age=number) for number in range(3)]
    assert len(prune(cache, max_size=0, dry_run=True).deleted) == 3
    assert len(left(cache)) == 3
    assert set(prune(cache, max_size=0).deleted) == set(paths)
    assert left(cache) == []
    assert list((cache.root / "v1" / "quarantine").iterdir()) == []


def test_a_stamp_of_a_clock_that_was_ahead_is_an_old_one(cache: Cache) -> None:
    """As from before a clock was set right; it would never age, and never be stamped anew."""
    toykernel.publish(cache, 1, age=-3 * HOUR)
    (entry,) = cache.entries()
    assert prune(cache, max_size=0, grace=HOUR, dry_run=True).deleted == (entry.path,)
    assert prune(cache, older_than=2 * HOUR, dry_run=True).deleted == (entry.path,)
    cache.used(entry)
    assert disk_usage(entry.path)[1] <= time.time()
    assert prune(cache, max_size=0, grace=HOUR).deleted == ()


def test_layers_and_builds_in_progress_are_left_alone(tmp_path: Path) -> None:
    layer = Cache(tmp_path / "layer")
    toykernel.publish(layer, 1, age=HOUR)
    cache = Cache(tmp_path / "cache", (layer.root,))
    toykernel.publish(cache, 2, age=HOUR)
    building = cache.stage("v-1")
    assert len(prune(cache, max_size=0).deleted) == 1
    assert len(left(layer)) == 1
    assert building.exists()


def test_what_cannot_be_deleted_is_said(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted read-only; permissions do not stop root."""
    entry = toykernel.publish(cache, 1, age=HOUR)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "rename", read_only)
    for delete in (lambda: prune(cache, max_size=0), cache.clear):
        with pytest.raises(UnwritableCache, match=r"Read-only file system.*JITSPARSE_CACHE_DIR"):
            delete()
    pruning.enforce(cache, 1, 1)
    assert left(cache) == [entry]


def test_what_failed_or_was_damaged_is_removed_in_time(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = toykernel.publish(cache, 1, age=0)
    with pytest.warns(RuntimeWarning):
        cache.set_aside(entry, "for the test")
    failed = cache.keep_failure(cache.stage("v-1"), "v-1")
    (aside,) = (cache.root / "v1" / "quarantine").iterdir()
    prune(cache, max_size=0)
    assert (failed.exists(), aside.exists()) == (True, True)
    monkeypatch.setattr(pruning, "LEFTOVER_AGE", -1.0)
    prune(cache, max_size=0, dry_run=True)
    assert (failed.exists(), aside.exists()) == (True, True)
    prune(cache, max_size=0)
    assert (failed.exists(), aside.exists()) == (False, False)


def test_loading_is_use_and_finding_is_not(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    template = toykernel.write(tmp_path)
    path = load(template, toykernel.variant()).entry.path
    long_ago = time.time() - 50 * HOUR
    os.utime(path / "meta.json", (long_ago, long_ago))
    load(template, toykernel.variant())
    assert disk_usage(path)[1] == pytest.approx(long_ago), "a warm call writes nothing"
    (each,) = stored(Cache(cache_dir))
    assert each.last_use == pytest.approx(long_ago)
    forget()
    load(template, toykernel.variant())
    assert time.time() - disk_usage(path)[1] < HOUR


def test_use_is_noted_once_a_minute_and_never_in_a_layer(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for age, noted in ((30.0, False), (90.0, True)):
        path = toykernel.publish(cache, int(age), age=age)
        (entry,) = [each for each in cache.entries() if each.path == path]
        for reader in (Cache(tmp_path / "own", (cache.root,)), cache):
            before = disk_usage(path)[1]
            reader.used(entry)
            assert (disk_usage(path)[1] != before) == (noted and reader is cache)


def test_the_cap_is_kept_after_a_build(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    template = toykernel.write(tmp_path)
    old = [
        toykernel.publish(Cache(cache_dir), n, age=(n + 1) * HOUR, size=200_000) for n in range(3)
    ]
    with config.override(cache_max_size="500K", log="info"):
        kernel = load(template, toykernel.variant())
    assert toykernel.run(kernel)
    assert sorted(left(Cache(cache_dir))) == sorted([*old[:2], kernel.entry.path])
    assert "1 cached kernels (195.6 KiB)" in capfd.readouterr().err
    with config.override(cache_max_size="1"):
        fresh = load(template, toykernel.variant(3)).entry.path
    assert set(left(Cache(cache_dir))) == {fresh, kernel.entry.path}, "built just now"


def test_a_cache_is_not_measured_after_every_build(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm-up of a thousand kernels would look at a million files."""
    measured, real = [], pruning.directories
    monkeypatch.setattr(pruning, "directories", lambda root: measured.append(root) or real(root))
    for n in range(20):
        path = toykernel.publish(cache, n, age=HOUR, size=1000)
        pruning.enforce(cache, 100_000, disk_usage(path)[0])
    assert len(measured) == 1
    for n in range(20, 200):
        path = toykernel.publish(cache, n, age=HOUR, size=1000)
        pruning.enforce(cache, 100_000, disk_usage(path)[0])
        assert sum(disk_usage(each)[0] for each in left(cache)) <= 100_000 * (1 + 1 / 64)
    monkeypatch.setattr(pruning, "MEASURED_EVERY", -1.0)  # what others add is seen in time
    measured.clear()
    for added in (100_000, 1, 1):
        pruning.enforce(cache, 100_000, added)
    assert len(measured) >= 3


def test_the_cap_leaves_what_was_used_just_now(cache: Cache) -> None:
    """Another process may have found it, and be about to map it."""
    old, new = toykernel.publish(cache, 1, age=HOUR), toykernel.publish(cache, 2, age=60.0)
    pruning.enforce(cache, 1, 1)
    assert left(cache) == [new]
    assert prune(cache, max_size=1, dry_run=True).deleted == (new,)
    assert not old.exists()


@pytest.mark.parametrize("value", ["0", "unlimited", "UNLIMITED"])
def test_without_a_cap_nothing_goes(value: str, tmp_path: Path, cache_dir: Path) -> None:
    old = toykernel.publish(Cache(cache_dir), 1, age=1000 * HOUR)
    with config.override(cache_max_size=value):
        load(toykernel.write(tmp_path), toykernel.variant())
    assert old in left(Cache(cache_dir))


LOOP = """\
kernel = load(template, variant)
print(toykernel.run(kernel), flush=True)
for line in sys.stdin:
    print(toykernel.run(kernel), kernel.entry.path.exists(), flush=True)
"""


def test_a_kernel_that_a_live_process_has_loaded_is_safe(tmp_path: Path) -> None:
    """It is not chosen; and where it cannot be seen, the process goes on with what it has."""
    toykernel.write(tmp_path)
    cache = Cache(tmp_path / "cache")
    child = toykernel.start(tmp_path, cache.root, action=LOOP)

    def answer(question: str = "\n") -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(question)
        child.stdin.flush()
        return child.stdout.readline().strip()

    try:
        toykernel.release(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        (entry,) = toykernel.entries(cache.root)
        idle = toykernel.publish(cache, 9, age=HOUR)
        assert mapped(cache.root) == {entry.name}
        done = prune(cache, max_size=0)
        assert (done.deleted, done.in_use) == ((idle,), (entry,))
        assert [answer() for _ in range(3)] == ["True True"] * 3
        # As from another container, where /proc does not show the process.
        assert cache.discard(entry)
        assert [answer() for _ in range(100)] == ["True False"] * 100
    finally:
        child.communicate(timeout=60)
    assert mapped(cache.root) == set()


def test_a_link_to_the_cache_hides_nobody(tmp_path: Path) -> None:
    toykernel.write(tmp_path)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    child = toykernel.start(tmp_path, tmp_path / "link", action=LOOP)
    try:
        toykernel.release(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        for root in (tmp_path / "link", tmp_path / "real"):
            assert prune(Cache(root), max_size=0).deleted == ()
    finally:
        child.communicate(timeout=60)
    assert len(prune(Cache(tmp_path / "link"), max_size=0).deleted) == 1


def test_what_has_been_made_read_only_is_not_stamped(cache: Cache) -> None:
    path = toykernel.publish(cache, 1, age=HOUR)
    (entry,) = cache.entries()
    (path / "meta.json").chmod(0o444)
    cache.used(entry)
    assert disk_usage(path)[1] < time.time() - HOUR / 2
