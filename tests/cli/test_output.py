"""What is printed where: tables that fit or stay whole, and outputs that cannot be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from jitsparse.cli.console import counted, print_table

NAME = "dsd.vec.avx512.f32.b32x32.lnn"
ROWS = [
    {"op": "dsd", "size": 2048, "density": density, "us": 1234.5, "variant": NAME + letter}
    for density, letter in ((0.1, "a"), (0.25, "b"))
]


def printed(rows: list[dict[str, object]], width: int, title: str | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_table(rows, list(rows[0]), title=title, console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_table_that_fits_has_all_columns() -> None:
    head, *lines = printed(ROWS, 100)
    assert head.split() == list(ROWS[0])
    assert [line.split()[-1] for line in lines] == [NAME + "a", NAME + "b"]
    assert all(line == line.rstrip() for line in (head, *lines))


def test_what_distinguishes_no_rows_goes_into_the_title_of_one_that_does_not() -> None:
    title, head, *lines = printed(ROWS, 50, "products")
    assert title == "products; op dsd, size 2048, us 1,234"
    assert head.split() == ["density", "variant"]
    assert [line.split() for line in lines] == [["0.1", NAME + "a"], ["0.25", NAME + "b"]]


def test_a_name_is_never_cut() -> None:
    assert [line.split()[-1] for line in printed(ROWS, 20)[-2:]] == [NAME + "a", NAME + "b"]


def test_an_error_is_wrapped() -> None:
    lines = printed([{"failed": "x", "error": "many words " * 20}], 60)
    assert len(lines) > 3
    assert max(map(len, lines)) <= 60


def test_numbers_and_nouns() -> None:
    assert [counted(n, "entry") for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert counted(3, "kernel") == "3 kernels"


def program(redirect: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    command = f'"{sys.executable}" -m jitsparse list --known --op sdd --dtype f32 {redirect}'
    environment = {**os.environ, "JITSPARSE_CACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_output_that_is_full_is_an_error(tmp_path: Path) -> None:
    done = program(">/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("jitsparse: ")
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("redirect", [">&-", "| head -1"])
def test_an_output_that_nobody_reads_is_none(redirect: str, tmp_path: Path) -> None:
    done = program(redirect, tmp_path)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_what_the_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    """And bytes that are no text are printed as they are."""
    cache = os.fsdecode(os.fsencode(tmp_path) + b"/\xff") + "日"
    environment = {**os.environ, "JITSPARSE_CACHE_DIR": cache, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "jitsparse", "cache", "path"]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert done.stdout == os.fsencode(tmp_path) + b"/\xff\\u65e5\n"
