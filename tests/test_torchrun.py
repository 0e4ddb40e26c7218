"""Under torchrun the first rank speaks and the others are silent, whoever compiles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import toykernel

SCRIPT = """\
import os, sys, time
sys.path.insert(0, {tests!r})
import toykernel
from pathlib import Path
from jitsparse.jit import load, progress

rank, folder = int(os.environ["RANK"]), Path({folder!r})
say = progress.say
def told(level, message):
    say(level, message)
    if level == "info":
        (folder / "said").touch()  # which the compilers wait for
if rank == 0:
    progress.say = told
template = toykernel.template(folder)
if {together}:
    # The last rank compiles what the first one waits for.
    while rank == 0 and not (folder / "slow" / "compilations").read_text():
        time.sleep(0.02)
    kernel = load(template, toykernel.variant(2))
else:
    kernel = load(template, toykernel.variant(2 + rank))
sys.stdout.write(f"rank {{rank}} is {{os.getpid()}}: {{toykernel.run(kernel)}}\\n")
"""


def run(folder: Path, *, together: bool) -> subprocess.CompletedProcess[str]:
    """Two ranks of torchrun; compilers end 1.5 s after the first rank has said something."""
    toykernel.write(folder)
    before = f'until [ -e "{folder / "said"}" ]; do sleep 0.05; done; sleep 1.5'
    slow, _ = toykernel.compiler(folder / "slow", before=before)
    script = folder / "script.py"
    tests = str(Path(__file__).parent)
    script.write_text(SCRIPT.format(tests=tests, folder=str(folder), together=together))
    environment = {
        **os.environ,
        "JITSPARSE_CACHE_DIR": str(folder / "cache"),
        "JITSPARSE_LOG": "info",
        "CXX": str(slow),
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )


def said(outcome: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in outcome.stderr.splitlines() if line.startswith("jitsparse: ")]


def pids(outcome: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Pid of each rank; each had the right answer."""
    found = dict(re.findall(r"^rank (\d) is (\d+): True$", outcome.stdout, re.MULTILINE))
    if len(found) != 2:
        pytest.fail(outcome.stdout + outcome.stderr)
    return found


def test_only_the_first_rank_announces_what_it_compiles(tmp_path: Path) -> None:
    outcome = run(tmp_path, together=False)
    pids(outcome)
    opening, closing = said(outcome)
    assert opening.startswith("jitsparse: compiling axpy.omp.generic.f32.s2 (first use; kept in ")
    assert closing.startswith("jitsparse: compiled axpy.omp.generic.f32.s2 in ")


def test_the_first_rank_says_which_one_it_waits_for(tmp_path: Path) -> None:
    outcome = run(tmp_path, together=True)
    opening, closing = said(outcome)
    holder = rf"pid {pids(outcome)['1']} on \S+"
    name = re.escape("axpy.omp.generic.f32.s2")
    assert re.fullmatch(rf"jitsparse: waiting for {holder}, which is compiling {name}", opening)
    assert re.fullmatch(rf"jitsparse: waited for {holder} to compile {name}, \d\.\d s", closing)
