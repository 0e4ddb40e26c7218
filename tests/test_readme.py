"""What the README and the pages that it leads to tell people to type works, and what they list
exists."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import jitsparse as js
from jitsparse import errors
from jitsparse.bench import disturbance
from jitsparse.cli import main
from jitsparse.jit import environment
from jitsparse.kernels import registry
from jitsparse.kernels.problem import Problem

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMPILING, TEMPLATES = (
    (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("compiling", "templates")
)


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line
    for page in (README, COMPILING)
    for block in blocks("bash", page)
    for line in block.splitlines()
    if line.startswith("jitsparse ")
]


def run(*pages: str) -> str:
    """What the Python of pages prints, one after the other, in a process of its own, as a reader
    would have it: what a block needs must stand above it."""
    program = "\n".join(block for page in pages for block in blocks("python", page))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_python_blocks_run_in_order() -> None:
    printed = run(README, COMPILING)
    assert "Pattern(shape=(256, 256)" in printed
    assert "variant" in printed


def test_the_template_of_a_readers_own_runs() -> None:
    run(TEMPLATES)


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("line", COMMANDS)
def test_command(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other tests keep the processors busy, which `tune` reports as a failure.
    monkeypatch.setattr(disturbance, "DISTURBED", math.inf)
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(line)[1:])
    assert stop.value.code == 0, capsys.readouterr().err


def test_lists_the_variables_that_are_read() -> None:
    table = set(re.findall(r"^\| `(JITSPARSE_\w+)`", README, re.MULTILINE))
    source = Path(environment.__file__).read_text(encoding="utf-8")
    assert table == set(re.findall(r'"(JITSPARSE_[A-Z_]+)"', source))


def test_lists_the_families_that_there_are() -> None:
    table = set(re.findall(r"^\| `([a-z]+)` \|", README, re.MULTILINE))
    targets = ("amx", "avx512bf16", "avx512", "avx2", "generic", "sm80", "sm90a")
    assert table == {v.family for target in targets for v in registry.default_variants(target)}


def test_the_pin_is_one_that_can_be_satisfied() -> None:
    (name,) = re.findall(r"`(\w+\.\w+\.sm80\.\S+)`", COMPILING)
    (text,) = {*re.findall(r'JITSPARSE_PIN="(.+?)"', README + COMPILING)}
    dsd = Problem("dsd", "cuda", "bf16", (64, 64), "nn", True, 4096, 4096, 1024, 4096, 1)
    sdd = Problem("sdd", "cuda", "f16", (32, 32), "nn", True, 4096, 4096, 4096, 4096, 1)
    assert name in {each.variant.name for each in registry.candidates(dsd, "sm80")}
    with js.pin(text):
        for problem in (dsd, sdd):
            assert js.explain(problem, target="sm80").source == "context"


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_continuous_integration_types_the_readme_line() -> None:
    line = next(line for block in blocks("bash") for line in block.splitlines() if "pytest" in line)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    pattern = re.search(r"grep -m1 -E '(.+?)' README.md", script)
    assert pattern is not None
    assert re.search(pattern[1], README, re.MULTILINE)[0] == line  # type: ignore[index]


def test_the_errors_are_listed_with_their_standard_classes() -> None:
    section = README.split("## Errors")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?\)) \|", section, re.MULTILINE)
    listed = {name: row for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"JitsparseError", *listed} == set(errors.__all__)
    for name, row in listed.items():
        standard = re.search(r"\((\w+)\)", row)
        assert standard
        assert standard[1] in {each.__name__ for each in getattr(errors, name).__mro__}
