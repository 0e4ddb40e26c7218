"""A build that fails says the same every time, points at the true line, and recovers."""

from __future__ import annotations

import contextlib
import errno
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import toykernel

from jitsparse.errors import CompileError, ConfigError, ToolchainError
from jitsparse.jit import Template, cache, compile_only, config, load


@pytest.fixture
def template(tmp_path: Path, cache_dir: Path, forget: Callable[[], None]) -> Template:
    return toykernel.write(tmp_path)


def failure(template: Template) -> CompileError:
    with pytest.raises(CompileError) as caught:
        load(template, toykernel.variant())
    return caught.value


def line_of(path: Path, text: str) -> int:
    return path.read_text().splitlines().index(text) + 1


def plant(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text + "\n")


def test_the_same_error_on_every_try_until_the_cause_is_gone(
    template: Template, tmp_path: Path, cache_dir: Path
) -> None:
    header = tmp_path / "headers" / "body" / "axpy.h"
    good = header.read_text()
    plant(header, "int broken = undeclared_name;")
    first, second = failure(template), failure(template)
    assert str(first) == str(second)
    line = line_of(header, "int broken = undeclared_name;")
    assert f"{header}:{line}:" in str(first)
    assert "undeclared_name" in str(first)
    assert first.variant == "axpy.omp.generic.f32.s2"
    assert toykernel.entries(cache_dir) == []
    assert toykernel.staged(cache_dir) == []
    kept = Path(first.log_path).parent
    assert sorted(path.name for path in kept.iterdir()) == ["build.log", "kernel.cpp"]
    header.write_text(good)
    assert toykernel.run(load(template, toykernel.variant()))


def test_the_same_error_in_another_process(
    template: Template, tmp_path: Path, cache_dir: Path
) -> None:
    plant(tmp_path / "headers" / "body" / "axpy.h", "int broken = undeclared_name;")
    error = str(failure(template))
    action = """
from jitsparse.errors import CompileError
try:
    load(template, variant)
except CompileError as error:
    print(error)
"""
    child = toykernel.start(tmp_path, cache_dir, action=action)
    toykernel.release(child)
    assert child.communicate(timeout=120)[0] == f"{error}\n"


def test_only_the_first_error_is_shown_and_the_log_has_all(
    template: Template, tmp_path: Path
) -> None:
    header = tmp_path / "headers" / "body" / "axpy.h"
    plant(header, "int first = undeclared_one;")
    plant(header, "int second = undeclared_two;")
    error = failure(template)
    assert "undeclared_one" in str(error)
    assert "undeclared_two" not in str(error)
    log = Path(error.log_path).read_text()
    assert "undeclared_one" in log
    assert "undeclared_two" in log
    assert error.log_path in str(error)
    assert error.source_path in str(error)
    assert error.command in str(error)


def test_the_command_reproduces_the_failure(template: Template, tmp_path: Path) -> None:
    plant(tmp_path / "headers" / "body" / "axpy.h", "int broken = undeclared_name;")
    again = subprocess.run(failure(template).command, shell=True, capture_output=True, text=True)
    assert again.returncode != 0
    assert "undeclared_name" in again.stderr


def test_an_error_in_the_template_has_the_templates_line(template: Template) -> None:
    """Although a condition before it has vanished from the rendered text, with a branch."""
    plant(template.source, "int broken = undeclared_name;")
    line = line_of(template.source, "int broken = undeclared_name;")
    assert f"{template.source}:{line}:" in str(failure(template))


def test_an_unknown_name_in_the_template_has_the_templates_line(template: Template) -> None:
    plant(template.source, "int broken = {{ no_such_name }};")
    line = line_of(template.source, "int broken = {{ no_such_name }};")
    message = str(failure(template))
    assert f"{template.source}:{line}: 'no_such_name' is undefined" in message
    assert "names it may use: negative, scale, type" in message


def test_a_syntax_error_in_the_template_has_the_templates_line(template: Template) -> None:
    plant(template.source, "int broken = {{ 1 + }};")
    line = line_of(template.source, "int broken = {{ 1 + }};")
    assert f"{template.source}:{line}: " in str(failure(template))


def test_a_launcher_of_the_wrong_type_is_an_error(template: Template) -> None:
    text = template.source.read_text()
    template.source.write_text(
        text.replace("int jitsparse_launch(const void*", "long jitsparse_launch(const void*")
    )
    assert "jitsparse_launch" in str(failure(template))


def test_a_missing_symbol_is_found_when_linking(template: Template, tmp_path: Path) -> None:
    plant(tmp_path / "headers" / "body" / "axpy.h", "int missing(); int used = missing();")
    message = str(failure(template))
    assert "undefined reference to `missing()'" in message


def test_a_template_that_lacks_a_function_is_named(template: Template) -> None:
    """When it is compiled, for this process or for another."""
    text = template.source.read_text()
    template.source.write_text(text[: text.index('extern "C" const char')])
    for _ in range(2):
        message = str(failure(template))
        assert "defines no jitsparse_error" in message
        assert str(template.source) in message
    with pytest.raises(CompileError, match="defines no jitsparse_error"):
        compile_only(template, toykernel.variant())
    assert not list(cache.current().entries())
    template.source.write_text(text)
    assert toykernel.run(load(template, toykernel.variant()))


def test_a_compiler_that_does_nothing(template: Template) -> None:
    with config.override(cxx="true"):
        with pytest.raises(ToolchainError, match=r"no error: .* \S+/true is one"):
            load(template, toykernel.variant())


def test_a_process_that_ignores_what_becomes_of_its_children(template: Template) -> None:
    """Python takes every end for a success, ninja by its version gives up or not."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with config.override(cxx="true"):
            with pytest.raises(ToolchainError, match="SIGCHLD"):
                load(template, toykernel.variant())
        with contextlib.suppress(ToolchainError):
            assert toykernel.run(load(template, toykernel.variant()))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert toykernel.run(load(template, toykernel.variant()))


def test_an_error_of_the_system_before_the_compiler_runs(
    template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as it is: no compiler has reported anything."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.utils.cpp_extension._write_ninja_file", full)
    with pytest.raises(ToolchainError, match=r"could not be built below .*No space left") as caught:
        load(template, toykernel.variant())
    assert "compiler" not in str(caught.value)


def test_a_missing_template_is_named(template: Template, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"template 'axpy' cannot be read.*nothing\.jinja"):
        load(replace(template, source=tmp_path / "nothing.jinja"), toykernel.variant())


def test_a_compiler_that_is_not_there_is_a_toolchain_error_until_it_is_back(
    template: Template, tmp_path: Path
) -> None:
    with config.override(cxx="/nowhere/g++"):
        with pytest.raises(ToolchainError, match=r"CXX='/nowhere/g\+\+' is not"):
            load(template, toykernel.variant())
    assert toykernel.run(load(template, toykernel.variant()))


def test_a_full_disk_is_a_toolchain_error(
    template: Template, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "sync", full)
    with pytest.raises(ToolchainError, match=r"No space left.*JITSPARSE_CACHE_DIR"):
        load(template, toykernel.variant())
    monkeypatch.undo()
    assert toykernel.staged(cache_dir) == []
    assert toykernel.run(load(template, toykernel.variant()))


def test_a_compiler_that_crashes_is_reported_and_tried_again(
    template: Template, tmp_path: Path
) -> None:
    """As one that the system killed for its memory."""
    flaky, _ = toykernel.compiler(
        tmp_path / "flaky",
        before=f'[ -e "{tmp_path}/better" ] || {{ echo "g++: fatal error: Killed signal" '
        '"terminated program cc1plus" >&2; exit 1; }',
    )
    with config.override(cxx=str(flaky)):
        assert "g++: fatal error: Killed signal terminated program" in str(failure(template))
        (tmp_path / "better").touch()
        assert toykernel.run(load(template, toykernel.variant()))
