"""Directories whose names hold blanks, quotes, other scripts, and what shells interpret."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import CompileError, ToolchainError
from jitsparse.jit import cache, compile_only, config, environment, load
from jitsparse.jit.environment import Config

NAMES = [
    "a blank, ünïcödé and 日本語",
    'it\'s "quoted" with back\\slash',
    "#hash;semi&more (round)[square]{curly} star*? percent%20 a=b tilde~ ",
]


@pytest.mark.parametrize("name", NAMES)
def test_cache_and_templates(name: str, tmp_path: Path, forget: Callable[[], None]) -> None:
    template = toykernel.write(tmp_path / name / "templates")
    root = tmp_path / name / "cache"
    with config.override(cache_dir=root):
        kernel = load(template, toykernel.variant())
        assert toykernel.run(kernel)
        forget()
        assert not load(template, toykernel.variant()).entry.fresh
    assert kernel.entry.path.is_relative_to(root)


@pytest.mark.parametrize(
    "name", ["$HOME", "${in}", "colon:colon", "pi|pe", "line\nbreak", "back\rward"]
)
def test_what_ninja_would_interpret_is_refused(name: str, tmp_path: Path) -> None:
    template = toykernel.write(tmp_path / "templates")
    root = tmp_path / name / "cache"
    with config.override(cache_dir=root):
        with pytest.raises(ToolchainError, match=r"(?s)in the path .* JITSPARSE_CACHE_DIR"):
            compile_only(template, toykernel.variant())
    assert toykernel.staged(root) == []


def test_a_compiler_whose_path_ninja_would_interpret_is_refused(tmp_path: Path) -> None:
    path, _ = toykernel.compiler(tmp_path / "g++$x", version="g++ (Odd) 1.1")
    with config.override(cache_dir=tmp_path / "cache", cxx=str(path)):
        with pytest.raises(ToolchainError, match=r"there is a '\$' in the path .*g\+\+\$x"):
            compile_only(toykernel.write(tmp_path / "templates"), toykernel.variant())


def test_a_process_without_path(tmp_path: Path) -> None:
    """Programs are found in the system's directories then, and have to find their own parts."""
    if not shutil.which("c++", path=os.defpath):
        pytest.skip("no compiler in the system's directories")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import toykernel, jitsparse\n"
        f"kernel = jitsparse.jit.load(toykernel.template({str(tmp_path)!r}), toykernel.variant())\n"
        "print(toykernel.run(kernel))\n"
    )
    toykernel.write(tmp_path)
    environment = {"JITSPARSE_CACHE_DIR": str(tmp_path / "cache"), "JITSPARSE_LOG": "quiet"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "True\n", done.stderr


def test_what_has_a_meaning_in_the_path_of_an_output_has_none_in_that_of_a_header(
    tmp_path: Path, forget: Callable[[], None]
) -> None:
    path, _ = toykernel.compiler(tmp_path / "a:b", version="g++ (Odd) 1.1")
    with config.override(cache_dir=tmp_path / "cache", cxx=str(path)):
        assert toykernel.run(load(toykernel.write(tmp_path / "c:d"), toykernel.variant()))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    template = toykernel.write(tmp_path / "templates")
    root = tmp_path / os.fsdecode(b"latin-\xff-1") / "cache"
    with config.override(cache_dir=root):
        with pytest.raises(ToolchainError, match="bytes that are no text in"):
            compile_only(template, toykernel.variant())
    assert toykernel.staged(root) == []


def test_an_error_has_the_templates_line_and_a_command_that_works(
    tmp_path: Path, forget: Callable[[], None]
) -> None:
    folder = tmp_path / "ein Ordner's Näme"
    template = toykernel.write(folder)
    template.source.write_text(template.source.read_text() + "int broken = undeclared_name;\n")
    with config.override(cache_dir=folder / "cache"):
        with pytest.raises(CompileError) as caught:
            load(template, toykernel.variant())
    line = template.source.read_text().splitlines().index("int broken = undeclared_name;") + 1
    assert f"{template.source}:{line}:" in str(caught.value)

    again = subprocess.run(caught.value.command, shell=True, capture_output=True, text=True)
    assert "undeclared_name" in again.stderr


def test_another_locale(tmp_path: Path) -> None:
    """A process whose locale knows ASCII alone."""
    folder = tmp_path / "日本 語"
    toykernel.write(folder)
    child = toykernel.start(folder, folder / "cache", LC_ALL="POSIX")
    toykernel.release(child)
    out, err = child.communicate(timeout=120)
    assert out == "True\n", err


def test_a_user_without_a_home(
    tmp_path: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that is run under some number: nothing is written to where it happens to
    be, and no error comes from looking for the home."""

    def nobody(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "JITSPARSE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    # A file, so that not even root can create the directory.
    (tmp_path / "nonexistent").touch()
    monkeypatch.setattr(environment, "NO_HOME", tmp_path / "nonexistent")
    template = toykernel.write(tmp_path / "templates")
    before = sorted(os.listdir(tmp_path))
    with config.use(Config.from_environment({"JITSPARSE_LOG": "info"})):
        with pytest.warns(RuntimeWarning, match=r"cannot be written.*JITSPARSE_CACHE_DIR"):
            kernel = load(template, toykernel.variant())
        assert cache.current().root != tmp_path / "nonexistent" / ".cache" / "jitsparse"
    assert toykernel.run(kernel)
    assert sorted(os.listdir(tmp_path)) == before
