"""Kernels: calling, failing, threads, forks, records and descriptions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toykernel
from torch.utils import cpp_extension

from jitsparse.errors import ArgumentError, LaunchError
from jitsparse.jit import Template, compile_only, config, describe, load
from jitsparse.jit import kernel as kernels
from jitsparse.jit.entry import Entry


@pytest.fixture
def template(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Template:
    return toykernel.write(tmp_path)


def test_a_kernel_computes(template: Template) -> None:
    kernel = load(template, toykernel.variant(scale=4))
    assert toykernel.run(kernel, n=100_000)
    assert repr(kernel) == "Kernel(axpy.omp.generic.f32.s4)"


def test_a_nonzero_code_is_an_error_with_the_templates_words(template: Template) -> None:
    kernel = load(template, toykernel.variant())
    with pytest.raises(LaunchError, match=r"axpy\.omp\.generic\.f32\.s2.*code 7: n is negative"):
        kernel(0, 0, -1)
    assert kernel.launch(kernel.pack(0, 0, -1)) == 7


@pytest.mark.parametrize("words", [(), (1, 2, 3, 4), (1.5, 2, 3), (2**63, 2, 3), ("a", 2, 3)])
def test_other_words_than_a_launcher_reads(words: tuple[Any, ...], template: Template) -> None:
    kernel = load(template, toykernel.variant())
    with pytest.raises(ArgumentError, match=r"s2 takes 3 signed 64-bit integers, got \("):
        kernel(*words)


def test_the_same_kernel_is_mapped_once(template: Template) -> None:
    assert load(template, toykernel.variant()) is load(template, toykernel.variant())


def test_an_edited_template_is_another_kernel(template: Template, tmp_path: Path) -> None:
    """In the same process: an author edits, runs the cell again and gets the new kernel."""
    before = load(template, toykernel.variant())
    header = tmp_path / "headers" / "body" / "axpy.h"
    header.write_text(header.read_text().replace("+= scale", "+= 1 + scale - 1 + scale"))
    after = load(template, toykernel.variant())
    assert after is not before
    assert not toykernel.run(after)
    assert toykernel.run(before)


def test_the_number_of_words_is_corrected(template: Template) -> None:
    """Likewise: it is no part of what is compiled."""
    before = load(replace(template, arguments=2), toykernel.variant())
    with pytest.raises(struct.error):
        before.pack(1, 2, 3)
    after = load(template, toykernel.variant())
    assert toykernel.run(after)
    assert after.entry.path == before.entry.path


def test_kernels_do_not_see_each_others_symbols(template: Template) -> None:
    """All of them define the same function, and the first was mapped by torch, globally."""
    one, two = load(template, toykernel.variant(1)), load(template, toykernel.variant(5))
    assert toykernel.run(one)
    assert toykernel.run(two)


def test_what_is_deleted_as_soon_as_it_is_built_is_built_again(
    template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its publication and the mapping, as by a cache that somebody clears."""
    resolve, built = kernels.resolve, []

    def resolve_and_delete(*arguments: Any, **options: Any) -> Entry:
        entry = resolve(*arguments, **options)
        built.append(entry)
        if len(built) == 1:
            shutil.rmtree(entry.path)
        return entry

    monkeypatch.setattr(kernels, "resolve", resolve_and_delete)
    assert toykernel.run(load(template, toykernel.variant()))
    assert [entry.fresh for entry in built] == [True, True]


def test_threads_that_miss_together_compile_once(template: Template, tmp_path: Path) -> None:
    counting, notes = toykernel.compiler(tmp_path / "counting")
    barrier = threading.Barrier(8)

    def go(_: int) -> kernels.Kernel:
        barrier.wait(60)
        return load(template, toykernel.variant())

    with config.override(cxx=str(counting)), ThreadPoolExecutor(8) as pool:
        found = list(pool.map(go, range(8)))
    assert len(set(map(id, found))) == 1
    assert toykernel.compilations(notes) == 1


def test_threads_build_different_kernels_at_once(template: Template, tmp_path: Path) -> None:
    """As warm-up does. Each compilation waits for the other to begin."""
    notes = tmp_path / "counting" / "compilations"
    both = f'until [ "$(wc -l < "{notes}")" -ge 2 ]; do sleep 0.02; done'
    counting, _ = toykernel.compiler(tmp_path / "counting", before=both)
    with config.override(cxx=str(counting)), ThreadPoolExecutor(2) as pool:
        entries = list(pool.map(lambda s: compile_only(template, toykernel.variant(s)), (1, 2)))
    assert all(entry.fresh for entry in entries)
    assert toykernel.run(load(template, toykernel.variant(1)))
    assert toykernel.run(load(template, toykernel.variant(2)))


def test_threads_build_kernels_of_one_name_at_once(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two templates, say an edited one and its copy; torch tells modules apart by their names,
    and would call the one that comes second by another."""
    barrier, torch_load = threading.Barrier(2), cpp_extension.load

    def together(**arguments: Any) -> Any:
        barrier.wait(60)
        return torch_load(**arguments)

    monkeypatch.setattr(cpp_extension, "load", together)
    edited = toykernel.write(tmp_path / "edited")
    edited.source.write_text(edited.source.read_text().replace("return 0;", "return 3;"))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: load(each, toykernel.variant()), (template, edited)))
    assert [kernel.launch(kernel.pack(0, 0, 0)) for kernel in found] == [0, 3]


def test_a_fork_while_another_thread_builds(template: Template) -> None:
    """The child inherits the locks, held by a thread that it does not have."""
    variant = toykernel.variant()
    compile_only(template, variant)
    key = kernels.Request(template, variant).key
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with kernels._one_at_a_time(key), kernels._guard:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a deadlock ends the child, and the test sees it
        os._exit(0 if not load(template, variant).entry.fresh else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_library_works_where_torch_is_not_loaded(template: Template) -> None:
    entry = compile_only(template, toykernel.variant())
    program = f"""
import ctypes, struct, sys
library = ctypes.CDLL({str(entry.library)!r})
x, y = (ctypes.c_float * 3)(1, 2, 3), (ctypes.c_float * 3)()
words = struct.pack("3q", ctypes.addressof(x), ctypes.addressof(y), 3)
code = library.jitsparse_launch(words)
print(code, list(y), "torch" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout == "0 [2.0, 4.0, 6.0] False\n", answer.stderr


def test_compile_only_for_another_target(template: Template) -> None:
    """For a machine that is not this one: whether it would run here does not matter."""
    entry = compile_only(template, toykernel.variant(target="amx"))
    assert entry.fresh
    assert "-mamx-bf16" in entry.log.read_text()
    assert not compile_only(template, toykernel.variant(target="amx")).fresh


def test_an_entry_can_be_read_by_people(template: Template) -> None:
    entry = compile_only(template, toykernel.variant())
    names = sorted(path.name for path in entry.path.iterdir())
    assert names == ["build.log", "kernel.cpp", "kernel.so", "meta.json"]
    assert "axpy<float>(" in (entry.path / "kernel.cpp").read_text()
    commands = entry.log.read_text().splitlines()
    assert "-c kernel.cpp -o kernel.o" in commands[0]
    meta = json.loads((entry.path / "meta.json").read_text())
    assert meta["fields"]["context"]["scale"] == 2


def test_describe(template: Template, tmp_path: Path, cache_dir: Path) -> None:
    variant = toykernel.variant()
    before = describe(template, variant)
    assert (before.cached, before.compile_seconds, before.changed) == (False, None, ())
    assert not cache_dir.exists() or not toykernel.entries(cache_dir)
    entry = compile_only(template, variant)
    after = describe(template, variant)
    assert after.cached
    assert after.path == before.path == entry.path
    assert after.key == before.key == entry.key
    assert after.compile_seconds == entry.compile_seconds
    assert after.library_bytes == entry.library.stat().st_size
    header = tmp_path / "headers" / "body" / "axpy.h"
    header.write_text(header.read_text() + "\n")
    changed = describe(template, variant)
    assert (changed.cached, changed.changed) == (False, ("headers",))
    assert changed.compile_seconds == pytest.approx(entry.compile_seconds, abs=1e-3)


def test_every_variant_used_is_recorded_once(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_recorded", set())
    with config.override(record=tmp_path / "record"):
        for scale in (1, 2, 1):
            load(template, toykernel.variant(scale))
    lines = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
    assert lines == [
        {"variant": "axpy.omp.generic.f32.s1", "template": "axpy"},
        {"variant": "axpy.omp.generic.f32.s2", "template": "axpy"},
    ]
    # A second record is as complete as the first.
    with config.override(record=tmp_path / "second"):
        load(template, toykernel.variant(2))
    assert [json.loads(line) for line in (tmp_path / "second").read_text().splitlines()] == lines[
        1:
    ]


def test_a_record_that_cannot_be_written_stops_nobody(
    template: Template,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kernels, "_recorded", set())
    with config.override(record=tmp_path / "no" / "record"):
        assert toykernel.run(load(template, toykernel.variant()))
    assert "cannot be written" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    # No reader is waited for. If one is, it comes, and nothing is said.
    reader = threading.Timer(20, os.open, (tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK))
    reader.start()
    with config.override(record=tmp_path / "pipe"):
        assert toykernel.run(load(template, toykernel.variant()))
    reader.cancel()
    assert "cannot be written" in capsys.readouterr().err


def test_a_warm_first_use_imports_no_tools(template: Template, tmp_path: Path) -> None:
    """Neither Jinja nor cpp_extension nor filelock, and no process is started."""
    load(template, toykernel.variant())
    action = """
import subprocess
class Forbidden:
    def __init__(self, *args, **kwargs): raise AssertionError(f"started {args}")
subprocess.Popen = Forbidden
print(toykernel.run(load(template, variant)))
tools = ("jinja2", "torch.utils.cpp_extension", "filelock", "rich")
print([name for name in tools if name in sys.modules])
"""
    child = toykernel.start(
        tmp_path,
        config.get().cache_dir,
        prologue="before = set(sys.modules)",
        action=action.replace(
            "if name in sys.modules", "if name in sys.modules and name not in before"
        ),
    )
    toykernel.release(child)
    out, err = child.communicate(timeout=120)
    assert out == "True\n[]\n", err
