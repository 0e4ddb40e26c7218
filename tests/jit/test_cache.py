"""The cache with bytes for libraries: no compiler, no torch."""

from __future__ import annotations

import ast
import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitsparse.jit import Cache, builders, cache_info, clear_cache, config, key
from jitsparse.jit import cache as caches

VARIANT = "axpy.omp.generic.f32.s2"


CORE = (
    *("builders", "bundle", "cache", "config", "entry", "inventory", "lookup", "miss", "prune"),
    *("roots", "trust", "tuned", "units", "ustar", "variant"),
)


def meta(compiler: str = "1.0", variant: str = VARIANT) -> dict[str, Any]:
    fields = {"variant": variant, "compiler": compiler}
    return {"key": key.digest(fields), "fields": fields, "compile_seconds": 1.5}


def name(about: dict[str, Any]) -> str:
    return f"{about['fields']['variant']}-{about['key'][:16]}"


def stage(cache: Cache, about: dict[str, Any], content: bytes = b"library") -> Path:
    staging = cache.stage(name(about))
    (staging / "kernel.so").write_bytes(content)
    return staging


def publish(cache: Cache, about: dict[str, Any], content: bytes = b"library") -> caches.Entry:
    return cache.publish(stage(cache, about, content), name(about), about)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_what_is_published_is_found(cache: Cache) -> None:
    about = meta()
    assert cache.find(name(about), about["key"]) is None
    entry = publish(cache, about)
    assert entry.fresh
    assert entry.library.read_bytes() == b"library"
    found = cache.find(name(about), about["key"])
    assert found is not None
    assert not found.fresh
    assert (found.path, found.variant, found.key) == (entry.path, VARIANT, about["key"])
    assert (found.library_bytes, found.compile_seconds) == (7, 1.5)
    assert found.created == entry.created
    assert list((cache.root / "v1" / "staging").iterdir()) == []


def test_looking_writes_nothing(cache: Cache) -> None:
    about = meta()
    cache.repair(name(about))
    assert cache.find(name(about), about["key"]) is None
    assert cache.find_any_compiler(about["fields"]) is None
    assert list(cache.entries()) == []
    assert cache.info()["entries"] == 0
    assert cache.last_seconds(VARIANT) is None
    assert not cache.root.exists()


def test_all_reaches_the_disk_before_it_appears(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power may fail after the rename: by then the content is there, and later the name is."""
    about = meta()
    staging = stage(cache, about)
    happened: list[Path | str] = []
    rename = os.rename

    def note_sync(descriptor: int) -> None:
        happened.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def note_rename(source: Path, target: Path) -> None:
        happened.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    entry = cache.publish(staging, name(about), about)
    at = happened.index("rename")
    assert set(happened[:at]) == {staging / "kernel.so", staging / "meta.json", staging}
    assert happened[at + 1 :] == [entry.path.parent]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_what_does_not_reach_the_disk_does_not_appear(
    code: int, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = meta()
    staging = stage(cache, about)
    _fail(monkeypatch, os, "fsync", code)
    with pytest.raises(OSError, match=os.strerror(code)):
        cache.publish(staging, name(about), about)
    assert list(cache.entries()) == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_be_told_to_write_is_used(
    code: int, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, os, "fsync", code)
    assert publish(cache, meta()).fresh


def _fail(monkeypatch: pytest.MonkeyPatch, module: object, function: str, code: int) -> None:
    """Have a system call fail, whatever it is called with."""

    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module, function, failing)


def test_the_second_of_two_builders_gets_the_entry_of_the_first(cache: Cache) -> None:
    about = meta()
    first, second = stage(cache, about, b"first"), stage(cache, about, b"second")
    winner = cache.publish(first, name(about), about)
    loser = cache.publish(second, name(about), about)
    assert winner.fresh
    assert not loser.fresh
    assert loser.library.read_bytes() == b"first"
    assert not second.exists()


def test_a_damaged_entry_does_not_stand_in_the_way(cache: Cache) -> None:
    about = meta()
    publish(cache, about).library.write_bytes(b"damage!")
    assert cache.find(name(about), about["key"]) is None
    with pytest.warns(RuntimeWarning, match="sha256"):
        entry = publish(cache, about)
    assert entry.fresh
    assert cache.find(name(about), about["key"]) is not None


def test_what_was_just_rebuilt_may_be_set_aside_without_the_lock(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import holds none. Its entry is then there instead, which is one of the same key."""
    about = meta()
    damaged = publish(cache, about)
    damaged.library.write_bytes(b"damage!")
    other, examine = Cache(cache.root), cache.examine
    seen: list[Path] = []

    def meanwhile(path: Path) -> tuple[dict[str, Any] | None, str]:
        found = examine(path)
        seen.append(path)
        if len(seen) == 2:  # as repair is about to set it aside
            shutil.rmtree(path)
            publish(other, about, b"rebuilt")
        return found

    imported, building = stage(cache, about, b"imported"), stage(other, about, b"building")
    monkeypatch.setattr(cache, "examine", meanwhile)
    with pytest.warns(RuntimeWarning, match="is unusable"):
        entry = cache.publish(imported, name(about), about)
    assert len(seen) == 2
    assert entry.library.read_bytes() == b"imported"
    late = other.publish(building, name(about), about)
    assert (late.path, late.fresh) == (entry.path, False), "a build in progress ends as ever"
    assert other.find(name(about), about["key"]) is not None


def test_an_empty_directory_in_the_way(cache: Cache) -> None:
    about = meta()
    (cache.root / "v1" / name(about)).mkdir(parents=True)
    assert publish(cache, about).fresh


def test_layers_come_first_and_in_order(tmp_path: Path) -> None:
    about = meta()
    roots = [tmp_path / each for each in ("one", "two", "own")]
    for root in roots:
        publish(Cache(root), about, str(root).encode())
    cache = Cache(roots[2], (roots[0], roots[1]))
    for root in roots:
        found = cache.find(name(about), about["key"])
        assert found is not None
        assert found.path.is_relative_to(root)
        shutil.rmtree(root)


def test_a_layer_knows_how_long_compiling_took(tmp_path: Path) -> None:
    layer = Cache(tmp_path / "layer")
    publish(layer, meta())
    assert Cache(tmp_path / "own").last_seconds(VARIANT) is None
    assert Cache(tmp_path / "own", (layer.root,)).last_seconds(VARIANT) == 1.5


@pytest.mark.parametrize("damage", [b"", b"soon", b"nan", b"-1", b"1e999", b"\xff"])
def test_a_damaged_note_of_how_long_compiling_took_says_nothing(
    damage: bytes, cache: Cache
) -> None:
    publish(cache, meta())
    (cache.root / "v1" / "seconds" / VARIANT).write_bytes(damage)
    assert cache.last_seconds(VARIANT) is None


def test_any_compiler_finds_the_newest(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for created, compiler in ((2.0, "b"), (3.0, "c"), (1.0, "a")):
        monkeypatch.setattr(caches.time, "time", lambda created=created: created)
        publish(cache, meta(compiler))
    publish(cache, meta("d", variant=f"{VARIANT}0"))
    monkeypatch.undo()
    found = cache.find_any_compiler({"variant": VARIANT, "compiler": ""})
    assert found is not None
    assert found.meta["fields"]["compiler"] == "c"
    assert cache.find_any_compiler({"variant": VARIANT, "compiler": "", "more": 1}) is None


def test_staging_of_the_dead_is_removed_and_of_the_living_kept(cache: Cache) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    alive = cache.stage("a.b-1")
    dead = alive.with_name(alive.name.replace(f".{os.getpid()}.", f".{child}."))
    elsewhere = alive.with_name(alive.name.replace(builders._place(), "another-host"))
    ancient = elsewhere.with_name(f"{elsewhere.name}0")
    for path in (dead, elsewhere, ancient):
        path.mkdir()
        (path / "kernel.o").touch()
    os.utime(ancient, (1, 1))
    cache.stage("a.b-2")
    assert [path.exists() for path in (alive, dead, elsewhere, ancient)] == [
        True,
        False,
        True,
        False,
    ]


def test_an_interrupted_probe_leaves_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C arrives when the directory has just been made."""
    make = os.mkdir

    def interrupted(path: Any, *args: Any, **kwargs: Any) -> None:
        make(path, *args, **kwargs)
        if Path(path).name.startswith("probe."):
            raise KeyboardInterrupt

    assert cache.writable()
    monkeypatch.setattr(os, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.writable()
    assert list((cache.root / "v1" / "staging").iterdir()) == []


def test_a_failure_is_kept_once(cache: Cache) -> None:
    about = meta()
    for content in (b"one", b"two"):
        kept = cache.keep_failure(stage(cache, about, content), name(about))
        assert (kept / "kernel.so").read_bytes() == content
    assert list((cache.root / "v1" / "staging").iterdir()) == []
    assert cache.find(name(about), about["key"]) is None


def test_clear_leaves_layers_and_builds_in_progress(tmp_path: Path) -> None:
    layer, cache = Cache(tmp_path / "layer"), Cache(tmp_path / "own", (tmp_path / "layer",))
    publish(layer, meta())
    publish(cache, meta("b"))
    publish(cache, meta("c"))
    failed = cache.keep_failure(stage(cache, meta("d")), name(meta("d")))
    building = stage(cache, meta("e"))
    assert cache.clear() == 2
    assert [entry.path.is_relative_to(layer.root) for entry in cache.entries()] == [True]
    assert (building.exists(), failed.exists()) == (True, False)
    assert list((cache.root / "v1" / "quarantine").glob("*")) == []
    assert cache.clear() == 0


def test_clear_deletes_locks_that_nobody_holds(cache: Cache) -> None:
    def unexpected(holder: str) -> contextlib.AbstractContextManager[None]:
        raise AssertionError(holder)

    locks = cache.root / "v1" / "locks"
    with cache.locked("v-1", unexpected):
        pass
    with cache.locked("v-2", unexpected):
        cache.clear()
        assert {path.name for path in locks.iterdir()} == {"2.lock", "2.holder"}
    cache.clear()
    assert list(locks.iterdir()) == []
    with cache.locked("v-2", unexpected):  # as if it had never been there
        assert (locks / "2.lock").exists()


def test_info_and_the_public_functions(cache_dir: Path, tmp_path: Path) -> None:
    with config.override(cache_path=[tmp_path / "layer"]):
        here = caches.current()
        publish(here, meta("a"), b"1")
        publish(here, meta("b"), b"22")
        assert cache_info() == {
            "path": str(cache_dir),
            "layers": [str(tmp_path / "layer")],
            "entries": 2,
            "bytes": 3,
            "compile_seconds": 3.0,
        }
        assert clear_cache() == 2
        assert cache_info()["entries"] == 0


def test_the_lock_excludes(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "LOCK_PATIENCE", 0.0)
    inside, waited = [], threading.Event()

    @contextlib.contextmanager
    def waiting(holder: str) -> Iterator[None]:
        waited.set()
        yield
        inside.append("waited")

    def other() -> None:
        with cache.locked("v-1", waiting):
            inside.append("other")

    thread = threading.Thread(target=other)
    with cache.locked("v-1", waiting):
        thread.start()
        assert waited.wait(60)
        inside.append("first")
    thread.join(60)
    assert inside == ["first", "waited", "other"]


def test_a_lock_that_is_never_released_is_passed_by(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builders, "LOCK_PATIENCE", 0.0)
    monkeypatch.setattr(builders, "LOCK_TIMEOUT", 0.1)
    holders: list[str] = []
    entered = False

    def waiting(holder: str) -> contextlib.AbstractContextManager[None]:
        holders.append(holder)
        return contextlib.nullcontext()

    with cache.locked("v-1", waiting):
        with pytest.warns(RuntimeWarning, match=f"waited 0 s for pid {os.getpid()} on"):
            with cache.locked("v-1", waiting):
                entered = True
    assert entered
    assert len(holders) == 1


def test_who_waits_for_a_lock_in_a_cache_that_is_deleted_goes_on(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builders, "LOCK_PATIENCE", 0.0)

    @contextlib.contextmanager
    def waiting(holder: str) -> Iterator[None]:
        shutil.rmtree(cache.root)
        yield

    inside = 0
    with cache.locked("v-1", waiting), cache.locked("v-1", waiting):
        inside += 1
    assert inside == 1


def test_clearing_together(cache: Cache) -> None:
    """Nobody is told that a cache cannot be written because another has cleared it."""
    errors: list[BaseException] = []

    def clear() -> None:
        try:
            for _ in range(100):
                for name in ("v-1", "v-2", "v-3"):
                    with contextlib.suppress(FileExistsError):
                        (cache.root / "v1" / name).mkdir(parents=True)
                cache.clear()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=clear) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_nobody_waits(
    code: int, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for a file that stands for a lock, which a killed process would leave for ever."""
    monkeypatch.setattr(builders, "LOCK_PATIENCE", 0.0)
    monkeypatch.setattr(builders, "LOCK_TIMEOUT", 0.1)
    _fail(monkeypatch, fcntl, "flock", code)
    waited: list[str] = []

    def waiting(holder: str) -> contextlib.AbstractContextManager[None]:
        waited.append(holder)
        return contextlib.nullcontext()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cache.locked("v-1", waiting), cache.locked("v-1", waiting):
            pass
    assert waited == []


def test_a_build_that_cannot_be_looked_at_is_left_alone(cache: Cache) -> None:
    """Of another host, as on a file server that does not answer now."""
    elsewhere = cache.stage("a.b-1").with_name("1.another-host.1.1")
    assert not builders.abandoned(elsewhere, 1e12)


def test_the_core_imports_neither_torch_nor_a_compiler() -> None:
    allowed = {"filelock"}
    for module in CORE:
        spec = importlib.util.find_spec(f"jitsparse.jit.{module}")
        assert spec is not None
        assert spec.origin is not None
        for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
            imported: list[str] = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [str(node.module)]
            for each in imported:
                top = each.partition(".")[0]
                assert top == "jitsparse" or top in allowed or top in _standard(), (module, each)


def _standard() -> frozenset[str]:
    import sys

    return sys.stdlib_module_names


@pytest.mark.parametrize("label", ["created", "compile_seconds"])
def test_an_entry_of_years_to_come_is_damaged(label: str, cache: Cache) -> None:
    path = publish(cache, meta()).path
    content = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**content, label: 1e300}))
    assert cache.open(path) is None
