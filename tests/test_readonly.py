"""A cache that cannot be written is read; what it lacks is built elsewhere, after one warning."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import UnwritableCache
from jitsparse.jit import cache, compile_only, config, load


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Everything below a directory, with sizes and modification times."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in [root, *root.rglob("*")]
    }


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    """A cache that holds the kernel and that nobody may write to."""
    root = tmp_path / "sealed"
    with config.override(cache_dir=root):
        compile_only(toykernel.write(tmp_path), toykernel.variant())
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755)


def test_a_read_only_layer_hits(sealed: Path, tmp_path: Path, forget: Callable[[], None]) -> None:
    before = tree(sealed)
    with config.override(cache_dir=tmp_path / "own", cache_path=[sealed]):
        kernel = load(toykernel.template(tmp_path), toykernel.variant())
    assert toykernel.run(kernel)
    assert kernel.entry.path.is_relative_to(sealed)
    assert not (tmp_path / "own").exists()
    assert tree(sealed) == before


def test_a_layer_is_searched_once(sealed: Path, tmp_path: Path) -> None:
    """However often it is named, and if it is the writable one not besides."""
    own = tmp_path / "own"
    with config.override(cache_dir=own, cache_path=[sealed, own, sealed]):
        assert cache.current().layers == (sealed,)


def test_a_read_only_root_hits(sealed: Path, tmp_path: Path, forget: Callable[[], None]) -> None:
    before = tree(sealed)
    with config.override(cache_dir=sealed):
        assert not load(toykernel.template(tmp_path), toykernel.variant()).entry.fresh
    assert tree(sealed) == before


def test_what_the_layer_lacks_is_built_in_front_of_it(
    sealed: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    before = tree(sealed)
    with config.override(cache_dir=tmp_path / "own", cache_path=[sealed]):
        kernel = load(toykernel.template(tmp_path), toykernel.variant(scale=3))
    assert toykernel.run(kernel)
    assert kernel.entry.path.is_relative_to(tmp_path / "own")
    assert tree(sealed) == before


def test_a_damaged_entry_of_a_layer_is_looked_past(
    sealed: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    (entry,) = toykernel.entries(sealed)
    (entry / "kernel.so").chmod(0o644)
    # A new file: this process still maps the old one, and would die of a shorter one.
    (entry / "kernel.so").unlink()
    (entry / "kernel.so").write_bytes(b"damaged")
    before = tree(sealed)
    with config.override(cache_dir=tmp_path / "own", cache_path=[sealed]):
        with pytest.warns(RuntimeWarning, match=r"kernel\.so has 7 bytes") as caught:
            kernel = load(toykernel.template(tmp_path), toykernel.variant())
    assert toykernel.run(kernel)
    assert len(caught) == 1
    assert tree(sealed) == before


def test_an_entry_of_a_layer_that_cannot_be_mapped_is_looked_past(
    tmp_path: Path, forget: Callable[[], None]
) -> None:
    """It is as it was published, only for another system: reading it finds no fault."""
    template, layer = toykernel.write(tmp_path), tmp_path / "layer"
    with config.override(cache_dir=layer):
        entry = compile_only(template, toykernel.variant())
    with config.override(cache_dir=tmp_path / "foreign"):
        here = cache.current()
        staging = here.stage(entry.path.name)
        (staging / "kernel.so").write_bytes(b"\x7fELF of another system")
        there = here.publish(staging, entry.path.name, entry.meta).path
    before = tree(tmp_path / "foreign")
    with config.override(cache_dir=tmp_path / "own", cache_path=[tmp_path / "foreign"]):
        with pytest.warns(RuntimeWarning, match="it cannot be mapped") as caught:
            kernel = load(template, toykernel.variant())
        forget()
        again = load(template, toykernel.variant())
    assert toykernel.run(kernel)
    assert len(caught) == 1
    assert kernel.entry.path.is_relative_to(tmp_path / "own")
    assert again.entry.path == kernel.entry.path
    assert there.is_dir()
    assert tree(tmp_path / "foreign") == before


def test_an_unwritable_root_is_replaced_for_the_process_after_one_warning(
    tmp_path: Path, forget: Callable[[], None]
) -> None:
    # Below a file nothing can be created, not even by root, whom permissions do not stop.
    (tmp_path / "file").touch()
    template = toykernel.write(tmp_path)
    with config.override(cache_dir=tmp_path / "file" / "cache"):
        with pytest.warns(RuntimeWarning, match=r"cannot be written.*JITSPARSE_CACHE_DIR") as seen:
            first = load(template, toykernel.variant())
        assert len(seen) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            second = load(template, toykernel.variant(scale=3))
        private = cache.current().root
    assert toykernel.run(first)
    assert toykernel.run(second)
    assert second.entry.path.is_relative_to(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_root_that_is_a_file_is_called_one(tmp_path: Path, forget: Callable[[], None]) -> None:
    root = tmp_path / "file"
    root.touch()
    with config.override(cache_dir=root):
        with pytest.raises(UnwritableCache, match="because it is a file, not a directory, so no"):
            cache.current().require_writable("nothing would be kept")
        with pytest.warns(RuntimeWarning, match="because it is a file, not a directory") as seen:
            kernel = load(toykernel.write(tmp_path), toykernel.variant())
        assert len(seen) == 1
    assert toykernel.run(kernel)


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_what_an_unwritable_root_holds_is_used_beside_the_replacement(
    mode: int, tmp_path: Path, forget: Callable[[], None]
) -> None:
    """Also where others can write to it, and the user has said that this is all right."""
    template, root = toykernel.write(tmp_path), tmp_path / "cache"
    with config.override(cache_dir=root):
        there = compile_only(template, toykernel.variant()).path
    # Nothing can be staged below a file, not even by root.
    shutil.rmtree(root / "v1" / "staging")
    (root / "v1" / "staging").touch()
    root.chmod(mode)
    with config.override(cache_dir=root, trust_cache=[root]):
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            new = load(template, toykernel.variant(scale=3))
        old = load(template, toykernel.variant())
    assert toykernel.run(new)
    assert toykernel.run(old)
    assert (old.entry.path, old.entry.fresh) == (there, False)


def test_the_replacement_is_gone_when_the_process_has_ended(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    toykernel.write(tmp_path)
    (tmp_path / "temporary").mkdir()
    child = toykernel.start(
        tmp_path, tmp_path / "file" / "cache", TMPDIR=str(tmp_path / "temporary")
    )
    toykernel.release(child)
    out, err = child.communicate(timeout=120)
    assert out == "True\n", err
    assert err.count("cannot be written") == 1
    assert list((tmp_path / "temporary").glob("jitsparse-*")) == []


def test_a_forked_child_that_ends_leaves_the_replacement_to_its_parent(tmp_path: Path) -> None:
    """It inherits what is to be done at exit."""
    (tmp_path / "file").touch()
    toykernel.write(tmp_path)
    action = """\
import os
kernel = load(template, variant)
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(kernel.entry.path.exists(), toykernel.run(load(template, toykernel.variant(3))))
"""
    child = toykernel.start(tmp_path, tmp_path / "file" / "cache", action=action)
    toykernel.release(child)
    out, err = child.communicate(timeout=120)
    assert out == "True True\n", err


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_has_a_replacement_of_its_own_and_leaves_nothing(
    method: str, tmp_path: Path
) -> None:
    """Workers of multiprocessing end without what atexit does, and may outlive their parent."""
    (tmp_path / "file").touch()
    toykernel.write(tmp_path)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "worker.py").write_text("""\
import toykernel
from jitsparse.jit import cache, load

def use(folder, scale):
    kernel = load(toykernel.template(folder), toykernel.variant(scale))
    return kernel.entry.path.is_relative_to(cache.current().root), str(cache.current().root)
""")
    action = f"""\
import multiprocessing
sys.path.insert(0, {str(tmp_path)!r})
import worker
mine = worker.use({str(tmp_path)!r}, 2)
with multiprocessing.get_context({method!r}).Pool(1) as pool:
    theirs = pool.apply(worker.use, ({str(tmp_path)!r}, 3))
    pool.close()
    pool.join()
print(mine[0], theirs[0], mine[1] != theirs[1])
"""
    child = toykernel.start(
        tmp_path,
        tmp_path / "file" / "cache",
        action=action,
        TMPDIR=str(tmp_path / "temporary"),
    )
    toykernel.release(child)
    out, err = child.communicate(timeout=120)
    assert out == "True True True\n", err
    assert list((tmp_path / "temporary").glob("jitsparse-*")) == []


def test_directories_are_private(cache_dir: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        compile_only(toykernel.write(tmp_path), toykernel.variant())
    finally:
        os.umask(before)
    for path in [cache_dir, *cache_dir.rglob("*")]:
        if path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_a_library_needs_no_torch(cache_dir: Path, tmp_path: Path) -> None:
    """Entries serve any torch version, because none of its libraries is linked."""
    entry = compile_only(toykernel.write(tmp_path), toykernel.variant())
    text = subprocess.run(
        ["readelf", "-d", entry.library], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.rpartition("[")[2].rstrip("]") for line in text.splitlines() if "NEEDED" in line]
    assert needed
    assert not [name for name in needed if "torch" in name or "c10" in name or "python" in name]
