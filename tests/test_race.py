"""Eight processes that miss together: one compilation, and right answers even without the lock."""

from __future__ import annotations

import time
from pathlib import Path

import toykernel

from jitsparse.jit import Cache

PROCESSES = 8

WITHOUT_LOCK = """\
from jitsparse.jit import cache, config
root = config.get().cache_dir
cache._caches[(root,), (), ()] = cache.Cache(root, lock=False)
"""


def race(folder: Path, cache: Path, prologue: str, **environment: str) -> None:
    children = [
        toykernel.start(folder, cache, prologue=prologue, **environment) for _ in range(PROCESSES)
    ]
    toykernel.release(*children)
    for child in children:
        out, err = child.communicate(timeout=240)
        assert out == "True\n", err
        assert child.returncode == 0
        assert "unusable" not in err


def check_single_valid_entry(folder: Path, cache: Path) -> None:
    assert len(toykernel.entries(cache)) == 1
    assert toykernel.staged(cache) == []
    (entry,) = Cache(cache).entries()
    assert Cache(cache).find(entry.path.name, entry.key) == entry
    assert not (cache / "v1" / "quarantine").exists()


def test_one_compiles_and_the_others_wait(tmp_path: Path) -> None:
    toykernel.write(tmp_path)
    counting, notes = toykernel.compiler(tmp_path / "counting")
    race(tmp_path, tmp_path / "cache", "", CXX=str(counting))
    assert toykernel.compilations(notes) == 1
    check_single_valid_entry(tmp_path, tmp_path / "cache")


def test_without_the_lock_all_answers_are_right(tmp_path: Path) -> None:
    """As where locks exclude nobody (network file systems): all compile, the first rename wins."""
    toykernel.write(tmp_path)
    # No compilation begins before all have been asked for, so that all builds do overlap.
    all_here = f'until [ "$(wc -l < "{{notes}}")" -ge {PROCESSES} ]; do sleep 0.05; done'
    notes = tmp_path / "counting" / "compilations"
    counting, _ = toykernel.compiler(tmp_path / "counting", before=all_here.format(notes=notes))
    race(tmp_path, tmp_path / "cache", WITHOUT_LOCK, CXX=str(counting))
    assert toykernel.compilations(notes) == PROCESSES
    check_single_valid_entry(tmp_path, tmp_path / "cache")


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
    deadline = time.monotonic() + 120
    while not any("waiting for" in path.read_text() for path in said):
        assert time.monotonic() < deadline, "nobody says that it waits"
        time.sleep(0.05)
    (tmp_path / "go").touch()
    assert [child.communicate(timeout=120)[0] for child in children] == ["True\n", "True\n"]
    assert toykernel.compilations(notes) == 1
    waiter = next(n for n, path in enumerate(said) if "waiting for" in path.read_text())
    builder = children[1 - waiter].pid
    assert f"jitsparse: waiting for pid {builder} on " in said[waiter].read_text()
    assert "which is compiling axpy.omp.generic.f32.s2" in said[waiter].read_text()
