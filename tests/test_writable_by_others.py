"""A cache that other users can write to is refused, unless it is trusted by its very name."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import CacheMiss, UntrustedCache, UnwritableCache
from jitsparse.jit import Template, cache, cache_info, compile_only, config, load, trust, tuned
from jitsparse.jit.environment import Config
from jitsparse.jit.prune import prune

NOBODY = 65534


@pytest.fixture
def built(tmp_path: Path, forget: Callable[[], None]) -> Template:
    """The template; its kernel is in ``cache``."""
    template = toykernel.write(tmp_path)
    with config.override(cache_dir=tmp_path / "cache"):
        compile_only(template, toykernel.variant())
    return template


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
@pytest.mark.parametrize("part", ["", "v1"])
@pytest.mark.parametrize("role", ["cache_dir", "cache_path"])
def test_it_is_refused(mode: int, part: str, role: str, built: Template, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    (root / part).chmod(mode)
    settings = {"cache_dir": root} if role == "cache_dir" else {"cache_path": [root]}
    settings = {"cache_dir": tmp_path / "own", **settings}
    with config.override(**settings):
        for use in (
            lambda: load(built, toykernel.variant()),
            lambda: compile_only(built, toykernel.variant(3)),
            lambda: tuned.lookup("a problem", "a machine"),
            cache_info,
        ):
            with pytest.raises(UntrustedCache) as caught:
                use()
    message = str(caught.value)
    assert f"the cache directory {root / part}".rstrip("/") in message
    assert f"{mode:04o}" in message
    assert f"chmod go-w {root / part}".rstrip("/") in message
    assert f"JITSPARSE_TRUST_CACHE={root}" in message
    with config.override(**settings, trust_cache=[root]):
        assert toykernel.run(load(built, toykernel.variant()))
    with config.override(**settings, trust_cache=[root.parent, root / "v1"]):
        with pytest.raises(UntrustedCache):
            cache_info()


def test_another_users_is_refused(
    built: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the same user, under another name: what is ours now is somebody's."""
    monkeypatch.setattr(trust.os, "geteuid", lambda: NOBODY)
    if os.getuid() == 0:
        for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
            os.chown(path, 12345, -1)
    with config.override(cache_dir=tmp_path / "cache"):
        with pytest.raises(UntrustedCache, match="who is neither this one nor root"):
            load(built, toykernel.variant())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_roots_is_anybodys(
    built: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image that was filled by root and is run by a user."""
    monkeypatch.setattr(trust.os, "geteuid", lambda: NOBODY)
    with config.override(cache_dir=tmp_path / "own", cache_path=[tmp_path / "cache"], jit="off"):
        assert toykernel.run(load(built, toykernel.variant()))


def test_below_a_directory_of_everyone_it_is_used(tmp_path: Path) -> None:
    """As in /tmp, where what others could put in its place would be theirs."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    template = toykernel.write(tmp_path)
    with config.override(cache_dir=shared / "mine"):
        assert compile_only(template, toykernel.variant()).fresh
        assert not compile_only(template, toykernel.variant()).fresh


@pytest.mark.parametrize("name", [".", "kernel.so", "meta.json"])
def test_an_entry_that_others_can_write_is_built_again(
    name: str, built: Template, tmp_path: Path, forget: Callable[[], None]
) -> None:
    (entry,) = toykernel.entries(tmp_path / "cache")
    (entry / name).chmod(0o777)
    with config.override(cache_dir=tmp_path / "cache"):
        with pytest.warns(RuntimeWarning, match="other users can write to it: its mode is 0777"):
            assert load(built, toykernel.variant()).entry.fresh


def test_a_lax_umask_makes_nothing_that_others_can_write(tmp_path: Path) -> None:
    template = toykernel.write(tmp_path)
    before = os.umask(0)
    try:
        with config.override(cache_dir=tmp_path / "cache"):
            entry = compile_only(template, toykernel.variant())
    finally:
        os.umask(before)
    for path in (entry.path, *entry.path.iterdir()):
        assert not path.stat().st_mode & 0o022, path


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o007, 0o077])
def test_a_shared_cache_lets_in_whom_the_umask_admits(umask: int, tmp_path: Path) -> None:
    """What one user compiled and may read, the others may; nobody may change what will be run."""
    template = toykernel.write(tmp_path)
    root = tmp_path / "shared"
    root.mkdir(mode=0o777)
    before = os.umask(umask)
    try:
        with config.override(cache_dir=root, trust_cache=[root]):
            entry = compile_only(template, toykernel.variant())
            tuned.record("a problem", "a machine", "a variant", {"a variant": 1.0})
    finally:
        os.umask(before)
    for path in (root / "v1", root / "v1" / "locks", root / "v1" / "staging", root / "tuned"):
        assert path.stat().st_mode & 0o777 == 0o777 & ~umask, path
    (lock,) = (root / "v1" / "locks").glob("*.lock")
    assert lock.stat().st_mode & 0o777 == 0o666 & ~umask
    assert entry.path.stat().st_mode & 0o777 == 0o755 & ~umask
    assert entry.library.stat().st_mode & 0o044 == 0o044 & ~umask


def test_what_another_user_compiled_and_may_not_be_read_is_compiled_again(
    built: Template, tmp_path: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For this process alone, since it can be neither used nor replaced."""
    (entry,) = toykernel.entries(tmp_path / "cache")
    for name in ("open", "rename"):
        toykernel.deny(monkeypatch, os, name, entry)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(entry)))
    with config.override(cache_dir=tmp_path / "cache", jit="off"):
        with pytest.raises(CacheMiss, match=r"not usable: meta.json cannot be read \(Permission"):
            load(built, toykernel.variant())
    with (
        config.override(cache_dir=tmp_path / "cache"),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        kernel = load(built, toykernel.variant())
    assert len(seen) == 1
    assert f"{entry} is unusable: meta.json cannot be read (Permission" in str(seen[0].message)
    assert f"chmod -R a+rX {entry}, or delete it" in str(seen[0].message)
    assert toykernel.run(kernel)


def test_what_another_user_keeps_stops_no_cleaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = toykernel.write(tmp_path)
    with config.override(cache_dir=tmp_path / "cache"):
        for clean in (lambda: cache.current().clear(), lambda: prune(cache.current(), max_size=0)):
            for scale in (1, 2, 3):
                compile_only(template, toykernel.variant(scale))
            first, *_ = toykernel.entries(tmp_path / "cache")
            # Moving a directory takes the right to write to it.
            toykernel.deny(monkeypatch, os, "rename", first)
            monkeypatch.setattr("jitsparse.jit.prune.mapped", lambda root: set())
            with pytest.raises(UnwritableCache, match=f"{first.name}: Permission denied"):
                clean()
            monkeypatch.undo()
            assert toykernel.entries(tmp_path / "cache") == [first]


def test_a_file_in_the_place_of_the_locks_stops_nobody(built: Template, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache" / "v1" / "locks")
    (tmp_path / "cache" / "v1" / "locks").touch()
    with config.override(cache_dir=tmp_path / "cache"):
        assert toykernel.run(load(built, toykernel.variant(3)))


def test_the_variable_names_paths() -> None:
    settings = Config.from_environment({"JITSPARSE_TRUST_CACHE": "/a/../b:/c:"})
    assert settings.trust_cache == (Path("/b"), Path("/c"))
