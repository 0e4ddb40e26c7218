"""A bundle made here runs elsewhere: another root, another path, no compiler, the same bytes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import BundleError, CacheMiss, UnwritableCache
from jitsparse.jit import Cache, Variant, compile_only, config, load, tuned
from jitsparse.jit import cache as caches
from jitsparse.jit.exporting import Exported, export
from jitsparse.jit.importing import import_bundle


@pytest.fixture
def bundle(tmp_path: Path, forget: Callable[[], None]) -> Exported:
    """Two kernels and a tuned entry, exported from a cache that is gone."""
    template = toykernel.write(tmp_path)
    with config.override(cache_dir=tmp_path / "filled"):
        for scale in (2, 3):
            compile_only(template, toykernel.variant(scale))
        tuned.record("a problem", "A machine", toykernel.variant().name, {"a": 1.0})
        exported = export(caches.current(), tmp_path / "bundle.tar")
    os.rename(tmp_path / "filled", tmp_path / "moved away")
    return exported


def test_it_runs_where_there_is_no_compiler(bundle: Exported, tmp_path: Path) -> None:
    elsewhere = tmp_path / "ein anderer Ort, é" / "cache"
    without_compiler = {
        "PATH": str(tmp_path),
        "JITSPARSE_JIT": "off",
        "JITSPARSE_CACHE_DIR": str(elsewhere),
    }
    action = (
        "from jitsparse.jit import cache\n"
        "from jitsparse.jit.importing import import_bundle\n"
        "from pathlib import Path\n"
        f"done = import_bundle(cache.current(), Path({str(bundle.path)!r}))\n"
        "print(len(done.imported), done.tuned, done.rejected)\n" + toykernel.ACTION
    )
    child = toykernel.start(tmp_path, elsewhere, action=action, **without_compiler)
    toykernel.release(child)
    out, err = child.communicate(timeout=120)
    assert out == "2 1 ()\nTrue\n", err


def test_what_is_imported_is_what_was_exported(bundle: Exported, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    import_bundle(cache, bundle.path)
    for name in bundle.entries:
        there, here = tmp_path / "moved away" / "v1" / name, cache.root / "v1" / name
        assert sorted(path.name for path in here.iterdir()) == sorted(
            path.name for path in there.iterdir()
        )
        for path in here.iterdir():
            assert path.read_bytes() == (there / path.name).read_bytes()
    with config.override(cache_dir=cache.root):
        found = tuned.lookup("a problem", "A machine")
    assert found is not None
    assert found.variant == toykernel.variant().name
    assert list((cache.root / "v1" / "staging").iterdir()) == []


def test_equal_entries_make_equal_bundles(bundle: Exported, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    import_bundle(cache, bundle.path)
    again = export(cache, tmp_path / "again.tar")
    assert again.path.read_bytes() == bundle.path.read_bytes()


def test_any_tar_program_lists_it(bundle: Exported) -> None:
    listed = subprocess.run(
        ["tar", "-tf", bundle.path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert listed[0] == "bundle.json"
    assert {Path(name).parts[1] for name in listed[1:] if name.startswith("v1/")} == set(
        bundle.entries
    )
    with tarfile.open(bundle.path) as archive:
        assert all(member.isreg() and member.mtime == 0 for member in archive)


def test_layers_are_exported_too_and_only_what_is_asked_for(
    bundle: Exported, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "own", (tmp_path / "moved away",))
    wanted = toykernel.variant(3)
    done = export(cache, tmp_path / "one.tar", keep=lambda variant: variant == wanted)
    assert [name.rpartition("-")[0] for name in done.entries] == [wanted.name]
    assert done.tuned == 0
    with pytest.raises(BundleError, match=r"nothing of what was asked for.*jitsparse cache ls"):
        export(cache, tmp_path / "none.tar", keep=lambda variant: variant.op == "dsd")
    assert not (tmp_path / "none.tar").exists()


def test_a_damaged_entry_is_left_out_and_named(bundle: Exported, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "moved away")
    first, second = toykernel.entries(cache.root)
    toykernel.replace_library(first, b"damaged")
    done = export(cache, tmp_path / "rest.tar")
    assert done.entries == (second.name,)
    assert done.skipped == ((str(first), done.skipped[0][1]),)
    assert "kernel.so has 7 bytes" in done.skipped[0][1]


def test_entries_that_are_there_stay(bundle: Exported, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    import_bundle(cache, bundle.path)
    before = {path: path.stat().st_mtime_ns for path in cache.root.rglob("kernel.so")}
    again = import_bundle(cache, bundle.path)
    assert (again.imported, again.tuned, again.rejected) == ((), 0, ())
    assert len(again.present) == 2
    assert {path: path.stat().st_mtime_ns for path in cache.root.rglob("kernel.so")} == before


def test_a_damaged_entry_in_the_way_is_replaced(
    bundle: Exported, tmp_path: Path, forget: Callable[[], None]
) -> None:
    cache = Cache(tmp_path / "new")
    import_bundle(cache, bundle.path)
    damaged = toykernel.entries(cache.root)[0]
    toykernel.replace_library(damaged, b"damaged")
    with pytest.warns(RuntimeWarning, match=r"kernel\.so has 7 bytes"):
        done = import_bundle(cache, bundle.path)
    assert done.imported == (damaged,)
    with config.override(cache_dir=cache.root, jit="off"):
        assert toykernel.run(load(toykernel.template(tmp_path), toykernel.variant()))


def test_a_bundle_is_a_layer_when_it_is_imported_into_one(
    bundle: Exported, tmp_path: Path, forget: Callable[[], None]
) -> None:
    import_bundle(Cache(tmp_path / "layer"), bundle.path)
    with config.override(cache_dir=tmp_path / "own", cache_path=[tmp_path / "layer"], jit="off"):
        assert toykernel.run(load(toykernel.template(tmp_path), toykernel.variant()))
        with pytest.raises(CacheMiss):
            load(toykernel.template(tmp_path), toykernel.variant(7))


def test_the_cap_is_kept_after_an_import(bundle: Exported, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    old = toykernel.publish(cache, 9, age=3600.0)
    with config.override(cache_max_size="1"):
        done = import_bundle(cache, bundle.path)
    assert not old.exists()
    assert toykernel.entries(cache.root) == sorted(done.imported), "imported just now"


def test_what_was_tuned_in_two_roots_is_exported_once(bundle: Exported, tmp_path: Path) -> None:
    for root, variant in (("own", toykernel.variant(2)), ("layer", toykernel.variant(3))):
        with config.override(cache_dir=tmp_path / root):
            tuned.record("a problem", "A machine", variant.name, {})
    both = Cache(tmp_path / "own", (tmp_path / "layer",))
    done = import_bundle(Cache(tmp_path / "new"), export(both, tmp_path / "tuned.tar").path)
    assert (done.tuned, done.rejected) == (1, ())
    with config.override(cache_dir=tmp_path / "new"):
        found = tuned.lookup("a problem", "A machine")
    assert found is not None
    assert found.variant == toykernel.variant(2).name


def test_an_import_that_stops_leaves_nothing_half_done(
    bundle: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = Cache(tmp_path / "new")
    monkeypatch.setattr(cache, "adopt", full)
    with pytest.raises(BundleError, match="No space left on device"):
        import_bundle(cache, bundle.path)
    assert toykernel.entries(cache.root) == []
    assert toykernel.staged(cache.root) == []


def test_a_truncated_bundle_is_said_even_if_nothing_is_missed(
    bundle: Exported, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "new")
    import_bundle(cache, bundle.path)
    bundle.path.write_bytes(bundle.path.read_bytes()[:-3000])
    done = import_bundle(cache, bundle.path)
    assert (done.imported, len(done.present)) == ((), 2)
    assert "announces more than can be read: the archive ends" in dict(done.rejected)["bundle.json"]


def test_a_cache_that_cannot_be_written_is_said(bundle: Exported, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableCache, match=r"cannot be written.*JITSPARSE_CACHE_DIR"):
        import_bundle(Cache(tmp_path / "file" / "cache"), bundle.path)
    with pytest.raises(BundleError, match=r"nowhere/b\.tar cannot be written"):
        export(Cache(tmp_path / "moved away"), tmp_path / "nowhere" / "b.tar")


def test_what_is_no_bundle_is_said(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    other = tmp_path / "other.tar"
    with tarfile.open(other, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(__file__, "bundle.py")
    future = tmp_path / "future.tar"
    (tmp_path / "bundle.json").write_text(json.dumps({"format": 2, "files": {}}))
    with tarfile.open(future, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(tmp_path / "bundle.json", "bundle.json")
    (tmp_path / "text.tar").write_text("not a tar archive" * 100)
    (tmp_path / "empty.tar").touch()
    for name, reason in (
        ("other", r"first file is not bundle\.json"),
        ("future", "its format is 2, and this release reads 1"),
        ("text", "plain kind"),
        ("empty", "ends too early"),
    ):
        with pytest.raises(BundleError, match=rf"is not a bundle.*{reason}"):
            import_bundle(cache, tmp_path / f"{name}.tar")
    with pytest.raises(BundleError, match="could not be imported"):
        import_bundle(cache, tmp_path / "absent.tar")
    assert toykernel.entries(cache.root) == []


def test_names_of_variants_fit(tmp_path: Path) -> None:
    """The longest name of the default tables, and one with every part long."""
    from jitsparse.jit.ustar import members, write_end, write_member
    from jitsparse.kernels import registry

    names = [v.name for t in ("sm90a", "sm80", "amx") for v in registry.default_variants(t)]
    names.append(Variant("operation", "family", "avx512", "bf16", (("b", "9" * 80),)).name)
    for name in (max(names, key=len), names[-1]):
        with (tmp_path / "archive").open("wb") as archive:
            write_member(archive, f"v1/{name}-{'0' * 16}/kernel.so", b"content")
            write_end(archive)
        with (tmp_path / "archive").open("rb") as archive:
            (member,) = members(archive, 100)
        assert member.name == f"v1/{name}-{'0' * 16}/kernel.so"
        assert member.content == b"content"
