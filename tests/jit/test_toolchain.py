"""Finding compilers, and saying what was searched when there is none."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import CompilerNotFound, ToolchainError
from jitsparse.jit import config, toolchain
from jitsparse.jit.environment import Config
from jitsparse.jit.toolchain import Compiler, Memo


def program(path: Path, text: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def toolkit(home: Path) -> Path:
    program(home / "bin" / "nvcc", 'echo "nvcc: release 99.0"')
    (home / "include").mkdir(parents=True)
    (home / "include" / "cuda_runtime.h").touch()
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but a C++ compiler, and no toolkit at the usual places."""
    program(tmp_path / "bin" / "c++", 'echo "c++ (Some) 1.0"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain, "USUAL_CUDA_HOME", tmp_path / "no-cuda")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    return tmp_path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for compilers here is a script, and shall count as a program of its own."""
    monkeypatch.setattr(toolchain, "_script", lambda program: None)


def found_home(**settings: object) -> Path | None:
    with config.override(**{"cuda_home": (), "cxx": None, "cc": None, **settings}):
        return toolchain.find("cuda").cuda_home


def test_cuda_home_comes_first(bare: Path) -> None:
    toolkit(bare / "asked")
    toolkit(bare / "on-path")
    (bare / "bin" / "nvcc").symlink_to(bare / "on-path" / "bin" / "nvcc")
    assert found_home(cuda_home=[bare / "asked"]) == bare / "asked"
    assert found_home() == bare / "on-path"


def test_a_wrapper_script_on_path_is_not_a_toolkit(bare: Path) -> None:
    program(bare / "bin" / "nvcc")
    assert toolkit(bare / "no-cuda") == found_home()


def test_the_toolkit_of_pip_is_found(bare: Path) -> None:
    home = toolkit(bare / "site-packages" / "nvidia" / "cu99")
    assert found_home() == home


def test_without_a_toolkit_everything_searched_is_listed(bare: Path) -> None:
    (bare / "site-packages" / "nvidia" / "cu99").mkdir(parents=True)
    with pytest.raises(ToolchainError) as caught:
        found_home(cuda_home=[bare / "asked"])
    message = str(caught.value)
    for place in ("asked", "nvcc on PATH", "no-cuda", "site-packages/nvidia/cu99"):
        assert place in message
    assert "nvidia-cuda-nvcc" in message
    assert "CUDA_HOME" in message


def test_the_compiler_asked_for_is_the_one_used(bare: Path) -> None:
    other = program(bare / "elsewhere" / "my-c++")
    with config.override(cxx=str(other)):
        assert toolchain.find("c++").cxx.path == other
    with config.override(cxx=None):
        assert toolchain.find("c++").cxx.path == bare / "bin" / "c++"


@pytest.mark.parametrize("asked", ["c++ -O3", "ccache g++", "c+++", "/nowhere/c++"])
def test_a_wrong_cxx_is_not_a_missing_compiler(asked: str, bare: Path) -> None:
    """Without a compiler calls run on plain torch, which nobody asked for who named one."""
    with config.override(cxx=asked), pytest.raises(ToolchainError) as caught:
        toolchain.find("c++")
    message = str(caught.value)
    assert not isinstance(caught.value, CompilerNotFound)
    assert f"CXX={asked!r} is not the name or path of a program" in message
    for part in ("without arguments", str(bare / "bin"), "unset CXX", "a script"):
        assert part in message


def test_without_any_compiler_the_names_searched_are_listed(bare: Path) -> None:
    (bare / "bin" / "c++").unlink()
    with config.override(cxx=None), pytest.raises(CompilerNotFound) as caught:
        toolchain.find("c++")
    assert "Searched for c++, g++ in" in str(caught.value)


def test_other_names_are_tried(bare: Path) -> None:
    (bare / "bin" / "c++").rename(bare / "bin" / "g++")
    with config.override(cxx=None):
        assert toolchain.find("c++").cxx.path == bare / "bin" / "g++"


@pytest.mark.usefixtures("compiled")
def test_the_host_compiler_of_nvcc_is_part_of_the_version(bare: Path) -> None:
    home = toolkit(bare / "cuda")
    cc = program(bare / "bin" / "my-cc", 'echo "my-cc (Host) 7.7"')
    with config.override(cuda_home=[home], cxx=None, cc=str(cc)):
        version = toolchain.find("cuda").version(Memo((bare / "memo" / "v1" / "m.json",)))
    assert version == "nvcc: nvcc: release 99.0\nccbin: (Host) 7.7\nc++: (Some) 1.0"


def test_what_the_environment_tells_nvcc_is_part_of_the_version(bare: Path) -> None:
    """It is given to nvcc by the system that starts it, and changes what is built."""
    home = toolkit(bare / "cuda")
    memo = Memo((bare / "memo" / "v1" / "m.json",))
    found = set()
    for variables in (
        {},
        {"NVCC_APPEND_FLAGS": "-lineinfo"},
        {"NVCC_PREPEND_FLAGS": "-lineinfo"},
        {"NVCC_APPEND_FLAGS": "-G"},
        {"NVCC_CCBIN": "clang++"},
        {"PYTORCH_NVCC": "ccache nvcc"},
    ):
        settings = Config.from_environment({"CUDA_HOME": str(home), **variables})
        with config.use(settings):
            found.add(toolchain.find("cuda").version(memo))
            assert "NVCC" not in toolchain.find("c++").version(memo)
    assert len(found) == 6


@pytest.mark.usefixtures("compiled")
def test_a_version_is_asked_for_once(tmp_path: Path) -> None:
    compiler = program(tmp_path / "cc", f'echo asked >> {tmp_path}/asked; echo "cc (A) 1"')
    memo = Memo((tmp_path / "cache" / "v1" / "compilers.json",))
    assert Compiler(compiler).version(memo) == "(A) 1"
    (tmp_path / "link").symlink_to(compiler)
    assert Compiler(tmp_path / "link").version(memo) == "(A) 1"
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


@pytest.mark.usefixtures("compiled")
def test_a_compiler_that_may_be_run_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = program(tmp_path / "cc", 'echo "cc (A) 1"')
    toykernel.deny(monkeypatch, Path, "open", compiler)
    assert Compiler(compiler).version(Memo((tmp_path / "v1" / "compilers.json",))) == "(A) 1"


@pytest.mark.usefixtures("compiled")
def test_a_compiler_replaced_by_one_of_its_size_is_asked_again(tmp_path: Path) -> None:
    """As by an update of the distribution, at the same path."""
    memo = Memo((tmp_path / "v1" / "compilers.json",))
    compiler = program(tmp_path / "cc", 'echo "cc (A) 1"')
    os.utime(compiler, (1, 1))
    assert Compiler(compiler).version(memo) == "(A) 1"
    program(compiler, 'echo "cc (A) 2"')
    os.utime(compiler, (2, 2))
    assert Compiler(compiler).version(memo) == "(A) 2"


def test_a_version_depends_on_neither_language_nor_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is part of the key, which processes in other locales and on other machines share."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    says = f'echo "clang 1, $LC_ALL"; echo "InstalledDir: {tmp_path}"'
    compiler = program(tmp_path / "clang++", says)
    assert Compiler(compiler).ask() == "clang 1, C"


def test_an_answer_that_cannot_be_kept_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced as a whole, so that no process reads half of it."""
    memo = Memo((tmp_path / "v1" / "compilers.json",))
    memo.write("one", "1")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    memo.write("two", "2")
    assert (memo.read("one"), memo.read("two")) == ("1", None)
    assert [path.name for path in (tmp_path / "v1").iterdir()] == ["compilers.json"]


def test_a_version_behind_a_wrapper_is_never_remembered(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "ccache", 'echo "g++ (A) 1"')
    (tmp_path / "c++").symlink_to(wrapper)
    memo = Memo((tmp_path / "v1" / "compilers.json",))
    before = wrapper.stat()
    assert Compiler(tmp_path / "c++").version(memo) == "(A) 1"
    program(wrapper, 'echo "g++ (A) 2"')
    os.utime(wrapper, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Compiler(tmp_path / "c++").version(memo) == "(A) 2"


def test_a_script_is_part_of_the_version_and_asked_each_time(tmp_path: Path) -> None:
    """It may add flags, and start what it says of itself is another compiler by now."""
    memo = Memo((tmp_path / "v1" / "compilers.json",))
    (tmp_path / "number").write_text("1")
    compiler = program(tmp_path / "c++", f'echo "g++ (A) $(cat {tmp_path}/number)"')
    before = Compiler(compiler).version(memo)
    assert Compiler(compiler).version(memo) == before
    (tmp_path / "number").write_text("2")
    behind = Compiler(compiler).version(memo)
    program(compiler, f'echo "g++ (A) $(cat {tmp_path}/number)" # -DFAST')
    assert len({before, behind, Compiler(compiler).version(memo)}) == 3


@pytest.mark.usefixtures("compiled")
def test_a_damaged_memo_is_ignored(tmp_path: Path) -> None:
    compiler = program(tmp_path / "cc", 'echo "cc (A) 1"')
    file = tmp_path / "cache" / "v1" / "compilers.json"
    file.parent.mkdir(parents=True)
    for damage in ("", "[]", "{", '{"x": 1}', "[" * 100_000):
        file.write_text(damage)
        assert Compiler(compiler).version(Memo((file,))) == "(A) 1"
    file.unlink()
    os.mkfifo(file)
    assert Compiler(compiler).version(Memo((file,))) == "(A) 1"


@pytest.mark.usefixtures("compiled")
def test_a_version_may_have_bytes_that_are_no_text(tmp_path: Path) -> None:
    """clang says where it lies."""
    clang = program(tmp_path / "clang", "printf 'clang 9\\nInstalled: /opt/\\377\\n'")
    version = Compiler(clang).version(Memo((tmp_path / "v1" / "m.json",)))
    assert version == "clang 9\nInstalled: /opt/\N{REPLACEMENT CHARACTER}"


def test_a_compiler_that_does_not_run_is_named(tmp_path: Path) -> None:
    broken = program(tmp_path / "broken", "exit 3")
    with pytest.raises(ToolchainError, match=r"broken does not run"):
        Compiler(broken).version(Memo((tmp_path / "v1" / "m.json",)))


def test_ninja_is_found_although_it_is_not_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shutil.which("ninja") is None or toolchain.ninja_directory() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    directory = toolchain.ninja_directory()
    assert directory is not None
    assert shutil.which("ninja", path=str(directory))


def test_without_ninja_everything_searched_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ninja", None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ToolchainError, match="pip install ninja") as caught:
        toolchain.ninja_directory()
    assert str(tmp_path) in str(caught.value)
