"""First use, fallback: plain torch answers, the kernel takes over, and nothing is left hanging.

The compiler is a script that waits for a file, so no outcome depends on how fast anything is.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import toykernel
from toykernel import Held

import jitsparse as js
from jitsparse import jit
from jitsparse.jit import background, config
from jitsparse.kernels import choice, cpu, dispatch


@pytest.fixture
def held(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Iterator[Held]:
    compilers = Held(tmp_path)
    with config.override(cxx=str(compilers.cxx), first_use="fallback"):
        yield compilers
        compilers.release()


@pytest.fixture
def operands() -> tuple[js.BlockSparse, torch.Tensor]:
    torch.manual_seed(0)
    return js.random((40, 50), (8, 16), 0.5), torch.randn(50, 6)


def kernels() -> list[object]:
    """What the keys of the calls so far are mapped to."""
    return list(dispatch._kernels.values())


Operands = tuple[js.BlockSparse, torch.Tensor]


def test_the_reference_answers_until_the_kernel_is_there(held: Held, operands: Operands) -> None:
    a, x = operands
    expected = a.to_dense() @ x
    for _ in range(3):
        torch.testing.assert_close(js.dsd(a, x), expected)
    held.started()
    assert kernels() == [choice.REFERENCE]
    assert not js.explain("dsd", a, x).cached
    held.release()
    torch.testing.assert_close(js.dsd(a, x), expected)
    (kernel,) = kernels()
    assert isinstance(kernel, jit.Kernel)
    assert kernel.variant.name == js.explain("dsd", a, x).variant
    assert toykernel.compilations(held.notes) == 1


def test_gradients_and_the_fused_epilogue(held: Held, operands: Operands) -> None:
    a, x = operands
    bias = torch.randn(40)
    dense = a.to_dense()

    def check() -> None:
        weight, right = a.detach().requires_grad_(), x.clone().requires_grad_()
        js.dsd(weight, right).sum().backward()
        ones = torch.ones(40, 6)
        torch.testing.assert_close(right.grad, dense.T @ ones)
        expected = js.BlockSparse.from_dense(ones @ x.T, (8, 16), mask=a.pattern.to_mask())
        torch.testing.assert_close(weight.grad, expected.values)
        y = js.linear(x.T, a, bias, "silu")
        torch.testing.assert_close(y, torch.nn.functional.silu(x.T @ dense.T + bias))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = js.linear(x.T, a, bias)
        torch.testing.assert_close(z.float(), x.T @ dense.T + bias, atol=0.1, rtol=0.02)
        low = x.T.bfloat16(), a.to(torch.bfloat16), bias.bfloat16()
        assert torch.equal(z, js.linear(*low)), "sums are no less precise under autocast"

    check()
    assert set(kernels()) == {choice.REFERENCE}
    held.release()
    check()
    assert len(kernels()) == 5
    assert all(isinstance(kernel, jit.Kernel) for kernel in kernels())


def test_cached_kernels_are_used_at_once(held: Held, operands: Operands) -> None:
    held.release()
    with js.first_use("wait"):
        js.dsd(*operands)
    js.dsd(*operands)
    assert isinstance(kernels()[0], jit.Kernel)


def test_threads_share_a_build(held: Held, operands: Operands) -> None:
    a, x = operands
    together = threading.Barrier(4)

    def call(_: int) -> torch.Tensor:
        together.wait(60)
        return js.dsd(a, x)

    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(call, range(4)):
            torch.testing.assert_close(answer, a.to_dense() @ x)
    held.release()
    js.dsd(a, x)
    assert isinstance(kernels()[0], jit.Kernel)
    assert toykernel.compilations(held.notes) == 1


def test_no_more_compilers_than_jobs(held: Held, operands: Operands) -> None:
    a, x = operands
    with config.override(max_jobs=1):
        js.dsd(a, x)
        js.dds(x.T, a.T)
        js.sdd(x @ x.T, x @ x.T, js.Pattern.random((50, 50), 16, 0.5))
        held.started()
        assert len(background._builds.threads) == 1
        held.release()
    assert toykernel.compilations(held.notes) == 3


def test_a_waiting_call_takes_over_the_build(held: Held, operands: Operands) -> None:
    """The setting may change while a kernel compiles: then the call waits for that compilation."""
    a, x = operands
    js.dsd(a, x)
    held.started()
    with js.first_use("wait"), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(js.dsd, a, x)
        held.release()
        torch.testing.assert_close(answer.result(120), a.to_dense() @ x)
        assert isinstance(kernels()[0], jit.Kernel)
    assert toykernel.compilations(held.notes) == 1


def test_an_error_is_raised_by_every_later_call(
    held: Held, operands: Operands, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = cpu._context
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_context", lambda v: {**context(v), "element": "NoSuchType"})
        js.dsd(*operands)
        held.release()
        depths = []
        for _ in range(3):
            with pytest.raises(js.CompileError, match="NoSuchType") as caught:
                js.dsd(*operands)
            depths.append(len(caught.traceback))
        assert depths == depths[:1] * 3
        with js.first_use("wait"), pytest.raises(js.CompileError) as waited:
            js.dsd(*operands)
        assert str(waited.value) == str(caught.value)
    # Leaving the block changed a setting, which is a reason to try again.
    js.dsd(*operands)
    held.release()
    js.dsd(*operands)
    assert isinstance(kernels()[0], jit.Kernel)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (KeyboardInterrupt(), True),
        (OSError("some system call"), True),
        (js.CompileError("as: cannot write: No space left on device"), True),
        (js.CompileError("body.h:1:2: error: expected ';'"), False),
    ],
    ids=["interrupted", "system", "no room", "source"],
)
def test_a_failure_that_may_pass_is_raised_once(
    error: BaseException,
    passes: bool,
    held: Held,
    operands: Operands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    def settle() -> None:
        for future in background._builds.known.values():
            future.exception(120)

    a, x = operands
    with monkeypatch.context() as patch:
        patch.setattr(background, "load", fail)
        js.dsd(a, x)
        settle()
        with pytest.raises((js.JitsparseError, OSError)) as caught:
            js.dsd(a, x)
    held.release()
    if passes:
        torch.testing.assert_close(js.dsd(a, x), a.to_dense() @ x)
        settle()
        js.dsd(a, x)
        assert isinstance(kernels()[0], jit.Kernel)
    else:
        with pytest.raises(js.CompileError) as again:
            js.dsd(a, x)
        assert again.value is caught.value


def test_jit_off_has_nothing_to_wait_for(held: Held, operands: Operands) -> None:
    with config.override(jit="off"), pytest.raises(js.CacheMiss):
        js.dsd(*operands)


def test_a_capture_does_not_keep_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(js.CacheMiss, match="captured"):
        dispatch._run_reference(lambda: torch.zeros(()), 0)


def test_the_setting() -> None:
    usual = config.get()
    assert usual.first_use == "wait"
    with js.first_use("fallback"):
        assert config.get().first_use == "fallback"
        with js.first_use("wait"):
            assert config.get().first_use == "wait"
        assert config.get().first_use == "fallback"
    assert config.get() == usual
    with config.override(first_use="wait"):
        js.first_use("fallback")
        assert config.get().first_use == "fallback"
    with pytest.raises(js.ConfigError, match="'soon' is not one of wait, fallback"):
        js.first_use("soon")
    assert config.get() == usual


PROGRAM = """
import os, signal, sys, warnings
warnings.simplefilter("always")
import torch, jitsparse as js
torch.set_num_threads(1)
a, x = js.random((40, 50), (8, 16), 0.5), torch.randn(50, 6)
expected = a.to_dense() @ x
def check():
    torch.testing.assert_close(js.dsd(a, x), expected)
check()
"""


def start(code: str, tmp_path: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "JITSPARSE_CACHE_DIR": str(tmp_path / "cache"),
            "JITSPARSE_FIRST_USE": "fallback",
            "JITSPARSE_LOG": "info",
            **environment,
        },
    )


@pytest.mark.parametrize("when", ["at once", "while the compiler runs"])
def test_the_end_of_a_program_waits_for_no_compiler(when: str, tmp_path: Path) -> None:
    held = Held(tmp_path)
    notes, code = str(held.notes), "sys.exit(7)"
    if when != "at once":
        code = f"import time\nwhile not os.path.getsize({notes!r}): time.sleep(0.02)\nsys.exit(7)"
    child = start(code, tmp_path, CXX=str(held.cxx))
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out) == (7, ""), err
    assert "Traceback" not in err
    assert "failed" not in err
    assert err.count("plain torch operations answer") == 1
    if when != "at once":
        # The compiler was told to end, and its builder has cleared up.
        toykernel.wait_until(
            lambda: all(toykernel.gone(pid) for pid in held.started()), "a compiler goes on"
        )
        assert toykernel.staged(tmp_path / "cache") == []
    # The next process finds a cache in which nothing is in its way.
    after = start("", tmp_path, JITSPARSE_FIRST_USE="wait")
    assert after.communicate(timeout=240)[1].count("plain torch") == 0
    assert after.returncode == 0
    assert len(toykernel.entries(tmp_path / "cache")) == 1


def test_a_fork_while_a_build_is_under_way(tmp_path: Path) -> None:
    """The child has none of the threads that build, and gets its kernel nevertheless."""
    held = Held(tmp_path)
    code = f"""
import time
while not os.path.getsize({str(held.notes)!r}): time.sleep(0.02)
child = os.fork()
signal.alarm(120)  # a deadlock ends the process, and the test sees it
check()
if child == 0:
    open({str(held.go)!r}, "w").close()
from jitsparse.kernels import choice, dispatch
while list(dispatch._kernels.values()) == [choice.REFERENCE]:
    time.sleep(0.02)
check()
if child != 0:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    parent = start(code, tmp_path, CXX=str(held.cxx))
    _, err = parent.communicate(timeout=240)
    assert parent.returncode == 0, err
    assert toykernel.compilations(held.notes) == 1
    assert len(toykernel.entries(tmp_path / "cache")) == 1


def test_blocks_of_threads_may_end_in_any_order() -> None:
    """And what one of them changes otherwise is left to the others."""
    assert config.get().first_use == "wait"
    first, second = js.first_use("fallback"), js.first_use("fallback")
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        one.enter_context(first)
        other.enter_context(second)
        one.close()
        assert config.get().first_use == "fallback"
    assert config.get().first_use == "wait"
    with contextlib.ExitStack() as block:
        with config.override(log="quiet"):
            block.enter_context(js.first_use("fallback"))
        assert config.get().first_use == "fallback"
    assert config.get().first_use == "wait"


def test_the_end_of_a_block_does_not_depend_on_who_holds_what() -> None:
    """What was set inside ends with it, whether or not its value is kept; a block that is never
    left, in a generator that nothing refers to, ends when that is collected."""
    usual = config.get()
    with js.first_use("wait"):
        kept = js.first_use("fallback")
        assert config.get().first_use == "fallback"
    assert config.get() == usual
    for _ in range(2):  # one after the other, and one in the other
        with kept, kept:
            assert config.get().first_use == "fallback"
        assert config.get() == usual

    def suspended(cycle: list[object]) -> Iterator[None]:
        with js.first_use("fallback"):
            yield

    cycle: list[object] = []
    generator = suspended(cycle)
    cycle.append(generator)
    next(generator)
    assert config.get().first_use == "fallback"
    del generator, cycle
    gc.collect()
    assert config.get() == usual


def test_setting_it_again_and_again_keeps_nothing() -> None:
    with config.override(first_use="wait"):
        layers = len(config._layers)
        for answer in ("fallback", "wait") * 5:
            kept = js.first_use(answer)
        assert config.get().first_use == "wait"
        assert len(config._layers) <= layers + 3
        with kept:
            assert config.get().first_use == "wait"
        assert config.get().first_use == "fallback"


def test_without_a_compiler_it_is_as_if_it_waited(tmp_path: Path) -> None:
    """The calls go on with plain torch, and one warning says why."""
    code = """
import time
from jitsparse.jit import background
for thread in list(background._builds.threads): thread.join()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    check()
    check()
print(len(caught), caught[0].message)
"""
    nowhere = {"PATH": str(tmp_path), "CXX": "", "CC": ""}
    out, err = start(code, tmp_path, **nowhere).communicate(timeout=120)
    assert out.startswith("1 jitsparse runs on plain torch operations"), err


def test_a_program_that_is_interrupted_ends(tmp_path: Path) -> None:
    """Ctrl-C reaches the program, and its builds end with it."""
    held = Held(tmp_path)
    # The handler is set first: a shell's background jobs inherit that Ctrl-C is ignored.
    listen = """
signal.signal(signal.SIGINT, signal.default_int_handler)
print(flush=True)
signal.pause()
"""
    child = start(listen, tmp_path, CXX=str(held.cxx))
    held.started()
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=120)[1]
    assert toykernel.staged(tmp_path / "cache") == []
