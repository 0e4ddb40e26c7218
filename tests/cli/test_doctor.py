"""``jitsparse doctor`` from outside: what it prints, how it ends, and that no torch stops it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jitsparse import doctor
from jitsparse.cli import main
from jitsparse.doctor import Finding

OK = Finding("python", "ok", "3.12 at /opt/[venv]/bin/python")
WARN = Finding("cache.locks", "warn", "files cannot be locked", "Nothing breaks.")
FAIL = Finding("c++", "fail", "no C++ compiler was found", "Install one.")
SKIP = Finding("smoke.cpu", "skip", "not tried: --no-compile")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["doctor", *arguments])
    return int(stop.value.code or 0)


def process(
    tmp_path: Path, *arguments: str, before: Path | None = None, **variables: str
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, findings by name and stderr of the program in a process of its own."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JITSPARSE_") and name not in ("CXX", "CC", "CUDA_HOME", "CUDA_PATH")
    }
    if before is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(before), environment["PYTHONPATH"]])
    environment |= {"JITSPARSE_CACHE_DIR": str(tmp_path / "cache"), **variables}
    command = [sys.executable, "-m", "jitsparse", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    findings = json.loads(done.stdout)
    assert all(set(each) == {"name", "status", "found", "remedy"} for each in findings)
    return done.returncode, {each["name"]: each for each in findings}, done.stderr


@pytest.mark.parametrize(("worst", "code"), [(OK, 0), (WARN, 0), (SKIP, 0), (FAIL, 1)])
def test_only_a_failure_exits_with_1(
    worst: Finding, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda **_: [OK, worst])
    assert run() == code
    assert run("--json") == code


def test_a_table_with_remedies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda **_: [OK, WARN, FAIL, SKIP])
    assert run() == 1
    captured = capsys.readouterr()
    lines = [line.split(maxsplit=2) for line in captured.out.splitlines()]
    assert [line[0] for line in lines] == ["ok", "!", "->", "x", "->", "-"]
    assert lines[0][2].strip() == OK.found  # square brackets are no markup
    assert "Install one." in captured.out
    assert "1 failure" in captured.err


def test_json_is_a_list_of_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {}

    def examine(**options: bool) -> list[Finding]:
        asked.update(options)
        return [OK, FAIL]

    monkeypatch.setattr(doctor, "examine", examine)
    run("--json", "--no-compile")
    assert json.loads(capsys.readouterr().out) == [
        {"name": "python", "status": "ok", "found": OK.found, "remedy": ""},
        {"name": "c++", "status": "fail", "found": FAIL.found, "remedy": "Install one."},
    ]
    assert asked == {"smoke_compile": False}


def test_a_healthy_machine(tmp_path: Path) -> None:
    """That which runs these tests: a kernel is compiled, and nothing is left behind."""
    code, findings, _ = process(tmp_path)
    assert code == 0, [each for each in findings.values() if each["status"] == "fail"]
    assert findings["smoke.cpu"]["status"] == "ok"
    assert "compiled in" in findings["smoke.cpu"]["found"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("raise OSError('libcudart.so.12: not found')", "libcudart.so.12: not found"),
        ("raise ImportError('undefined symbol: ncclCommAbort')", "undefined symbol"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
        ("", "has no attribute"),
        ("import sys; sys.exit(0)", "without an answer"),
    ],
    ids=["library", "symbol", "killed", "empty", "exit"],
)
def test_a_broken_torch_is_a_finding(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text(content + "\n")
    code, findings, _ = process(tmp_path, before=tmp_path / "broken")
    assert code == 1
    assert findings["torch"]["status"] == "fail"
    assert said in findings["torch"]["found"]
    assert "pytorch.org" in findings["torch"]["remedy"]
    assert findings["smoke.cpu"]["status"] == findings["gpu"]["status"] == "skip"
    assert findings["c++"]["status"] == "ok"


def test_a_torch_that_is_too_old_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "old" / "torch").mkdir(parents=True)
    (tmp_path / "old" / "torch" / "__init__.py").write_text(
        "from types import SimpleNamespace as N\n"
        "__version__ = '2.5.1+cpu'\n"
        "version, cuda = N(cuda=None), N(is_available=lambda: False)\n"
        "print('a word of its own')\n"
    )
    code, findings, _ = process(tmp_path, before=tmp_path / "old")
    assert code == 1
    assert "2.5.1+cpu" in findings["torch"]["found"]
    assert findings["torch"]["remedy"] == "pip install 'torch>=2.8'"
    assert findings["smoke.cpu"]["status"] == "skip"


def test_other_commands_point_at_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: not found')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    command = [sys.executable, "-m", "jitsparse", "warmup", "--op", "dsd"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("jitsparse: libtorch.so: not found")
    assert "jitsparse doctor" in done.stderr


def test_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    code, findings, _ = process(tmp_path, PATH=str(tmp_path / "bin"))
    assert code == 1
    assert findings["c++"]["status"] == "fail"
    assert "apt install g++" in findings["c++"]["remedy"]
    assert findings["smoke.cpu"]["status"] == "fail"
    assert findings["torch"]["status"] == "ok"


def test_illegal_and_misspelt_variables(tmp_path: Path) -> None:
    variables = {
        "JITSPARSE_LOG": "loud",
        "JITSPARSE_ARCH": "pentium",
        "JITSPARSE_PINS": "dsd=mma",
        "JITSPARSE_PIN": "=?",
        "MAX_JOBS": "many",
    }
    code, findings, _ = process(tmp_path, "--no-compile", **variables)
    assert code == 1
    for name in ("JITSPARSE_LOG", "JITSPARSE_ARCH", "JITSPARSE_PIN", "MAX_JOBS"):
        finding = findings[f"variable.{name}"]
        assert finding["status"] == "fail"
        assert name in finding["found"]
    assert "debug, info, warning, quiet" in findings["variable.JITSPARSE_LOG"]["found"]
    assert findings["variable.JITSPARSE_PINS"]["status"] == "warn"
    assert "Did you mean JITSPARSE_PIN?" in findings["variable.JITSPARSE_PINS"]["remedy"]
    assert str(tmp_path / "cache") in findings["variables"]["found"]


def test_the_order_is_the_same_in_every_run(tmp_path: Path) -> None:
    variables = {"JITSPARSE_CACHE_PATH": f"{tmp_path}:/nowhere", "RANK": "3"}
    first, second = (list(process(tmp_path, "--no-compile", **variables)[1]) for _ in range(2))
    assert first == second
    assert {"layer1.mount", "layer2.directory", "rank"} < set(first)
