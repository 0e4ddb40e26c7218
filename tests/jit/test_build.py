"""The build leaves the process as it found it, and says early what it cannot do."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toykernel
from torch.utils import cpp_extension

from jitsparse.errors import ToolchainError
from jitsparse.jit import (
    Template,
    Variant,
    build,
    compile_only,
    config,
    extensions,
    load,
    toolchain,
)
from jitsparse.jit.targets import compile_flags
from jitsparse.jit.template import render

CUDA = """\
struct Args {
  const float* x;
  float* y;
  long long n;
  void* stream;
};
template <typename T>
__global__ void axpy(const T* x, T* y, long long n) {
  long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] += {{ scale }} * x[i];
}
extern "C" int jitsparse_launch(const void* words) {
  const Args& a = *static_cast<const Args*>(words);
  axpy<<<(a.n + 255) / 256, 256, 0, static_cast<cudaStream_t>(a.stream)>>>(a.x, a.y, a.n);
  return cudaGetLastError();
}
extern "C" const char* jitsparse_error(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}
"""


@pytest.fixture
def template(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Template:
    return toykernel.write(tmp_path)


@pytest.fixture
def cuda_template(tmp_path: Path) -> Template:
    (tmp_path / "axpy.cu.jinja").write_text(CUDA)
    return Template(
        name="axpy_cuda",
        source=tmp_path / "axpy.cu.jinja",
        language="cuda",
        include_dirs=(),
        arguments=4,
        context=lambda variant: {"scale": int(variant.knob("s"))},
    )


def cuda_variant(target: str = "sm90a") -> Variant:
    return Variant("axpy", "simple", target, "f32", (("s", "2"),))


def test_the_environment_is_as_before(template: Template) -> None:
    before = dict(os.environ)
    compile_only(template, toykernel.variant())
    assert dict(os.environ) == before


def test_torchs_module_is_as_before(template: Template) -> None:
    """For those who build extensions of their own with it."""
    before = dict(vars(cpp_extension))
    compile_only(template, toykernel.variant())
    assert {name: value for name, value in vars(cpp_extension).items() if name in before} == before


def test_a_private_directory_has_no_lock_of_torchs(tmp_path: Path) -> None:
    """Which the file system may not have; from torch 2.14 on a build takes one."""
    locked: list[str] = []

    @contextlib.contextmanager
    def real(path: str) -> Iterator[None]:
        locked.append(path)
        yield

    module = SimpleNamespace(subprocess=subprocess, sys=sys, FileLock=real)
    tools = toolchain.Toolchain(toolchain.Compiler(Path("/bin/c++")))
    with extensions._changed(module, tools, tmp_path):
        for folder in (tmp_path, tmp_path / "others"):
            with module.FileLock(str(folder / "lock")):
                pass
    assert locked == [str(tmp_path / "others" / "lock")]
    assert module.FileLock is real


def test_ninja_off_path_and_a_compiler_of_another_name(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook kernel of a virtual environment on a system without the link ``c++``."""
    (tmp_path / "bin").mkdir()
    for tool in ("g++", "as", "ld", "sh", "rm", "cat"):
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=True)
        (tmp_path / "bin" / tool).symlink_to(found.stdout.strip())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    with config.override(cxx=None):
        kernel = load(template, toykernel.variant())
    assert kernel.entry.fresh
    assert toykernel.run(kernel)
    assert os.environ["PATH"] == str(tmp_path / "bin")
    assert "CXX" not in os.environ


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({"LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LANG": "C", "LC_MESSAGES": "ja_JP.UTF-8"}, "C.UTF-8"),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en_US.UTF-8"),
        ({"LANG": "C.UTF-8"}, ""),
    ],
)
def test_the_compiler_speaks_english(
    variables: dict[str, str],
    asked: str,
    template: Template,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By whose words the first error is found."""
    for name in ("LANG", "LC_MESSAGES", "LC_ALL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANGUAGE", "de:en")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen = f'echo "$LC_ALL $LANGUAGE" > "{tmp_path}/locale"'
    cxx, _ = toykernel.compiler(tmp_path / "cxx", before=seen)
    with config.override(cxx=str(cxx)):
        compile_only(template, toykernel.variant())
    assert (tmp_path / "locale").read_text() == f"{asked} en\n"
    assert os.environ.get("LC_ALL") == variables.get("LC_ALL")
    assert os.environ["LANGUAGE"] == "de:en"


def test_the_environment_stays_until_the_last_of_overlapping_builds_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the first ends while the second looks for what it needs."""
    monkeypatch.setenv("PATH", "/bin")
    tools = toolchain.Toolchain(toolchain.Compiler(Path("/bin/c++")))
    first, second = (extensions._changed(cpp_extension, tools, Path("/private")) for _ in range(2))
    leaving = threading.Thread(target=first.__exit__, args=(None, None, None))
    looking: list[str] = []

    def ninja_directory() -> str | None:
        looking.append(os.environ["PATH"])
        if len(looking) == 2:
            leaving.start()
            leaving.join(0.1)
        return None if "/ninja" in looking[-1] else "/ninja"

    monkeypatch.setattr(toolchain, "ninja_directory", ninja_directory)
    first.__enter__()
    second.__enter__()
    leaving.join()
    assert os.environ["PATH"] == "/ninja:/bin"
    second.__exit__(None, None, None)
    assert os.environ["PATH"] == "/bin"
    assert len(looking) == 2


def test_a_child_forked_during_a_build_has_the_environment_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr(toolchain, "ninja_directory", lambda: "/ninja")
    programs = cpp_extension.subprocess
    tools = toolchain.Toolchain(toolchain.Compiler(Path("/bin/c++")))
    with extensions._changed(cpp_extension, tools, Path("/private")):
        child = os.fork()
        if child == 0:
            os._exit(os.environ["PATH"] != "/bin" or cpp_extension.subprocess is not programs)
        assert os.environ["PATH"] == "/ninja:/bin"
    assert os.waitpid(child, 0)[1] == 0


class Unread(io.StringIO):
    """What is printed has nobody who reads it any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


class Closed(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.close()


@pytest.mark.parametrize("stream", [None, Unread(), Closed(), SimpleNamespace(write=len)])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_streams_are_no_reason_not_to_build(
    name: str, stream: object, template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon has none, and a program may put there what it likes."""
    monkeypatch.setattr(sys, name, stream)
    with config.override(log="debug"):
        assert toykernel.run(load(template, toykernel.variant()))
    assert getattr(sys, name) is stream


def test_others_who_build_print_where_they_did(
    template: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_only(template, toykernel.variant())
    from torch.utils import cpp_extension

    print("theirs", file=cpp_extension.sys.stderr)
    assert capsys.readouterr().err.endswith("theirs\n")


def test_nothing_is_printed(template: Template, capfd: pytest.CaptureFixture[str]) -> None:
    with config.override(log="quiet"):
        compile_only(template, toykernel.variant())
    assert capfd.readouterr() == ("", "")


def test_what_torch_logs_goes_to_the_builds_log(
    template: Template, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It remarks on a compiler that does not say that it is one it knows."""
    strange = tmp_path / "strange"
    strange.write_text('#!/bin/sh\n[ "$1" = -v ] && exit 0\nexec g++ "$@"\n')
    strange.chmod(0o755)
    with config.override(cxx=str(strange)):
        entry = compile_only(template, toykernel.variant())
    assert "Your compiler" in entry.log.read_text()
    assert caplog.records == []


def test_a_word_of_torchs_that_lacks_an_argument_is_kept_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That of torch 2.9 on compilers that it does not know."""
    said: list[str] = []
    with extensions._captured_logger("somebody", said):
        logging.getLogger("somebody").warning("Your %s may be %s", "compiler")
    assert said == ["Your %s may be %s ('compiler',)"]
    assert caplog.records == []


def test_what_torch_says_on_import_is_not_said(
    template: Template,
    cache_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CUDA build without a GPU does, where images are made that have no GPU."""

    def ready(*modules: str) -> None:
        for module in modules:
            logging.getLogger(module).warning("No CUDA runtime is found")

    monkeypatch.setattr(build.forks, "ready", ready)
    compile_only(template, toykernel.variant())
    said = {record.name for record in caplog.records}
    assert "jinja2" in said, "which does not log"
    assert "torch.utils.cpp_extension" not in said


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch can build CUDA kernels")
def test_a_torch_without_cuda_says_so(cuda_template: Template, cache_dir: Path) -> None:
    for attempt in (load, compile_only):
        with pytest.raises(ToolchainError) as caught:
            attempt(cuda_template, cuda_variant())
        message = str(caught.value)
        assert "axpy.simple.sm90a.f32.s2 is a CUDA kernel" in message
        assert torch.__version__ in message
        assert "built without CUDA" in message
        assert "Install a CUDA build of torch" in message
    assert not (cache_dir / "v1" / "staging").exists()


def test_the_runtime_library_is_found_where_torch_does_not_look(tmp_path: Path) -> None:
    home, staging = tmp_path / "cuda", tmp_path / "staging"
    tools = toolchain.Toolchain(toolchain.Compiler(Path("c++")), home)
    for folder in (home / "lib", home / "lib64", staging):
        folder.mkdir(parents=True)
    assert build._cudart(tools, staging) == []
    (home / "lib" / "libcudart.so.13").touch()
    assert build._cudart(tools, staging) == ["-L."]
    assert (staging / "libcudart.so").resolve() == home / "lib" / "libcudart.so.13"
    (home / "lib" / "libcudart.so").touch()
    assert build._cudart(tools, staging) == [f"-L{home}/lib"]
    (home / "lib64" / "libcudart.so").touch()
    assert build._cudart(tools, staging) == [f"-L{home}/lib64"]


def test_torch_is_told_of_the_toolkit_that_was_found(
    cuda_template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for one when it was imported, and takes a wrapper script's directory for one."""
    home, asked = tmp_path / "cuda", {}
    tools = toolchain.Toolchain(toolchain.Compiler(Path("/usr/bin/c++")), home)
    torchs = SimpleNamespace(
        CUDA_HOME="/elsewhere",
        subprocess=subprocess,
        sys=sys,
        JIT_EXTENSION_VERSIONER=SimpleNamespace(entries={}),
        load=lambda **arguments: asked.update(arguments, home=torchs.CUDA_HOME),
    )
    monkeypatch.setattr(extensions, "_module", lambda: torchs)
    source = tmp_path / "kernel.cu"
    _, failed = build._load(cuda_template, cuda_variant(), "kernel", tools, tmp_path, source)
    assert not failed
    assert asked["home"] == str(home)
    assert torchs.CUDA_HOME == "/elsewhere"
    assert asked["with_cuda"]
    assert asked["extra_cuda_cflags"] == list(compile_flags("cuda", "sm90a"))
    assert asked["extra_cflags"] == []


@pytest.mark.nvcc
@pytest.mark.parametrize("target", ["sm80", "sm90a"])
def test_a_cuda_template_compiles(
    target: str, cuda_template: Template, nvcc: Path, tmp_path: Path
) -> None:
    """With the very flags of a build, except for those by which torch finds its headers."""
    source = tmp_path / "kernel.cu"
    source.write_text(render(cuda_template, cuda_template.context(cuda_variant(target))))
    command = [nvcc, *compile_flags("cuda", target), "-cubin", "-o", tmp_path / "cubin", source]
    subprocess.run(command, check=True)
    assert (tmp_path / "cubin").stat().st_size > 0
    steps = subprocess.run([*command, "--dryrun"], capture_output=True, text=True, check=True)
    assert set(re.findall(r"\bsm_\w+", steps.stderr)) == {f"sm_{target[2:]}"}


@pytest.mark.gpu
def test_a_cuda_template_runs(
    cuda_template: Template, cache_dir: Path, forget: Callable[[], None]
) -> None:
    from jitsparse.jit import cuda_target

    kernel = load(cuda_template, cuda_variant(cuda_target()))
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    y = torch.ones_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    kernel(x.data_ptr(), y.data_ptr(), x.numel(), stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(y, 1 + 2 * x)
    again = load(cuda_template, cuda_variant(cuda_target()))
    assert again is kernel
    forget()
    assert not load(cuda_template, cuda_variant(cuda_target())).entry.fresh
