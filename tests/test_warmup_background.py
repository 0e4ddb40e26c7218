"""Warm-up in the background: it returns at once, says what fails, and leaves nothing hanging.

The compiler is a script that waits for a file, so no outcome depends on how fast anything is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import toykernel

import jitsparse as js
from jitsparse.compilation import BackgroundWarmup, Outcome
from jitsparse.jit import background, config
from jitsparse.kernels import cpu

FORWARD = {"backward": False, "device": "cpu", "background": True}


@pytest.fixture
def held(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Iterator[toykernel.Held]:
    compilers = toykernel.Held(tmp_path)
    with config.override(cxx=str(compilers.cxx)):
        yield compilers
        compilers.release()


@pytest.fixture
def layer() -> js.nn.BlockSparseLinear:
    return js.nn.BlockSparseLinear(64, 48, (8, 16), density=0.5)


def test_it_returns_at_once(held: toykernel.Held, layer: js.nn.BlockSparseLinear) -> None:
    told: list[Outcome] = []
    warming = js.warmup(layer, (8, 64), on_outcome=told.append, **FORWARD)
    held.started()
    assert isinstance(warming, BackgroundWarmup)
    assert not warming.done()
    assert warming.outcomes() == []
    assert "0 of 1" in repr(warming)
    with pytest.raises(TimeoutError, match="1 of 1 kernels"):
        warming.wait(timeout=0.05)
    held.release()
    (outcome,) = warming.wait()
    assert (outcome.status, outcome.variant) == ("compiled", warming.variants[0])
    assert warming.done()
    assert warming.outcomes() == told == [outcome]
    assert [each.status for each in js.warmup(layer, (8, 64), **FORWARD).wait()] == ["cached"]


def test_a_call_in_the_meantime_shares_the_build(
    held: toykernel.Held, layer: js.nn.BlockSparseLinear
) -> None:
    js.warmup(layer, (8, 64), **FORWARD)
    held.started()
    x, answers = torch.randn(8, 64), []
    call = threading.Thread(target=lambda: answers.append(layer(x).detach()))
    call.start()
    held.release()
    call.join(120)
    expected = torch.nn.functional.linear(x, layer.weight.to_dense(), layer.bias)
    torch.testing.assert_close(answers[0], expected.detach())
    assert toykernel.compilations(held.notes) == 1


def test_no_more_compilers_than_jobs(held: toykernel.Held, layer: js.nn.BlockSparseLinear) -> None:
    with config.override(max_jobs=2):
        warming = js.warmup(layer, (8, 64), device="cpu", background=True, jobs=1)
        held.started()
        assert len(background._builds.threads) == 1
    held.release()
    assert len(warming.wait()) == 3


def test_what_fails_is_said_and_raised_and_stops_nothing(
    held: toykernel.Held,
    layer: js.nn.BlockSparseLinear,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = cpu._context

    def broken(variant: object) -> dict[str, object]:
        wrong = {"element": "NoSuchType"} if variant.op == "sdd" else {}  # type: ignore[attr-defined]
        return {**context(variant), **wrong}

    monkeypatch.setattr(cpu, "_context", broken)
    held.release()
    warming = js.warmup(layer, (8, 64), device="cpu", background=True)
    with pytest.raises(js.CompileError, match=r"1 of 3 variants[^$]*NoSuchType"):
        warming.wait()
    assert warming.done()
    assert [each.status for each in warming.outcomes()].count("compiled") == 2
    assert capsys.readouterr().err.count("in the background, sdd.") == 1


def test_what_listens_may_fail(held: toykernel.Held, layer: js.nn.BlockSparseLinear) -> None:
    held.release()
    warming = js.warmup(layer, (8, 64), on_outcome=lambda _: 1 / 0, **FORWARD)
    with pytest.raises(ZeroDivisionError):
        warming.wait()
    assert [each.status for each in warming.outcomes()] == ["compiled"]
    assert "1 of 1 kernels done" in repr(warming)


def test_a_job_that_was_cancelled_stops_no_other() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return go.wait(60)

    first = background.submit(hold, 1)
    begun.wait()
    cancelled, last = (background.submit(lambda: True, 1) for _ in range(2))
    assert cancelled.cancel()
    go.set()
    assert last.result(timeout=60)
    assert first.result()


def test_nothing_may_be_compiled(held: toykernel.Held, layer: js.nn.BlockSparseLinear) -> None:
    with config.override(jit="off"):
        warming = js.warmup(layer, (8, 64), **FORWARD)
        command = r"JITSPARSE_JIT=on jitsparse warmup --variant dds\.vec\.\S+"
        with pytest.raises(js.CacheMiss, match=f"to fill the cache: {command}"):
            warming.wait()


PROGRAM = """
import os, signal, sys, torch, jitsparse as js
layer = js.nn.BlockSparseLinear(64, 48, (8, 16), density=0.5)
warming = js.warmup(layer, (8, 64), device="cpu", backward=False, background=True)
def held():
    import time
    while not os.path.getsize({notes!r}): time.sleep(0.02)
"""


def program(code: str, held: toykernel.Held, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return python(PROGRAM.format(notes=str(held.notes)) + code, held, tmp_path)


def python(code: str, held: toykernel.Held, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={
            **os.environ,
            "CXX": str(held.cxx),
            "JITSPARSE_CACHE_DIR": str(tmp_path / "cache"),
        },
    )


@pytest.mark.parametrize("when", ["at once", "while the compiler runs"])
def test_the_end_of_a_program_waits_for_no_compiler(when: str, tmp_path: Path) -> None:
    held = toykernel.Held(tmp_path)
    done = program("sys.exit(7)" if when == "at once" else "held(); sys.exit(7)", held, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    if when != "at once":
        assert toykernel.staged(tmp_path / "cache") == []


def test_the_end_of_a_program_interrupts_what_asks_a_compiler(tmp_path: Path) -> None:
    held = toykernel.Held(tmp_path)
    held.cxx.write_text(f"#!/bin/sh\necho asked >> {held.notes}\nexec sleep 60\n")
    done = program("held(); sys.exit(7)", held, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_what_waits_at_the_end_of_a_program_is_told_that_it_ends(tmp_path: Path) -> None:
    """A handler that runs after those of jitsparse, which were registered later."""
    held = toykernel.Held(tmp_path)
    code = f"""
import atexit, os, signal, jitsparse as js
warming = None
def wait():
    signal.alarm(60)
    try:
        warming.wait()
    except js.JitsparseError as error:
        print(error)
atexit.register(wait)
os.environ["MAX_JOBS"] = "1"
of = dict(op="dsd", dtype="f32", device="cpu")
warming = js.warmup(**of, block_size=[8, 16], background=True)
while not os.path.getsize({str(held.notes)!r}): pass
"""
    done = python(code, held, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the program ended" in done.stdout


def test_a_forked_child_waits_for_builds_of_its_own(tmp_path: Path) -> None:
    held = toykernel.Held(tmp_path)
    code = f"""
held()
child = os.fork()
signal.alarm(120)  # a deadlock ends the process, and the test sees it
if child == 0:
    assert not warming.done()
    open({str(held.go)!r}, "w").close()
assert {{each.status for each in warming.wait()}} <= {{"compiled", "cached"}}
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = program(code, held, tmp_path)
    assert done.returncode == 0, done.stderr
    assert toykernel.compilations(held.notes) == 1
    assert len(toykernel.entries(tmp_path / "cache")) == 1


def test_builders_leave_imports_that_change_the_import_system_to_the_caller(tmp_path: Path) -> None:
    """setuptools takes a finder out of ``sys.meta_path`` when it is imported. Done by a builder, an
    import by the program's own thread might pass over a finder."""
    held = toykernel.Held(tmp_path)
    code = f"""
import sys, threading, torch, jitsparse as js

class Watch:
    def find_spec(self, name, path, target=None):
        if name == "setuptools":
            print(threading.current_thread().name)

sys.meta_path.insert(0, Watch())
js.first_use("fallback")
js.dsd(js.random((8, 8), 8, 1.0), torch.zeros(8, 8))
while not __import__("os").path.getsize({str(held.notes)!r}): __import__("time").sleep(0.02)
"""
    done = python(code, held, tmp_path)
    assert (done.returncode, done.stdout) == (0, "MainThread\n"), done.stderr


def test_an_interrupted_compiler_interrupts_no_call() -> None:
    """Ctrl-C reaches it, too, where the program catches what it is sent itself."""

    def stopped() -> None:
        raise KeyboardInterrupt

    error = background.submit(stopped, 1).exception(timeout=60)
    assert isinstance(error, js.JitsparseError)
    assert "call once more" in str(error)
