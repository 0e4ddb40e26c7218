"""``jitsparse doctor``: what is wrong on this machine, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from jitsparse.cli.console import counted, print_json, stderr, stdout

if TYPE_CHECKING:
    from jitsparse.doctor import Finding

__all__ = ["command"]

MARKS = {"ok": ("ok", "green"), "warn": ("!", "yellow"), "fail": ("x", "red"), "skip": ("-", "dim")}
"""Mark and style of a finding; plain characters, which every terminal and log can show."""


def command(
    no_compile: bool = typer.Option(False, "--no-compile", help="Compile no kernel to try it."),
    as_json: bool = typer.Option(False, "--json", help="Print a list of findings as JSON."),
) -> None:
    """Look at compilers, torch, driver, settings and caches, and compile one kernel for the CPU
    and, if there is nvcc, one with it.

    Each problem comes with its remedy. Exits with 1 if one of them makes calls fail, run what
    others could have written, or lose what they compile (x); a problem that costs time or may
    surprise (!) leaves the exit code 0. Works when torch cannot be imported.
    """
    from jitsparse.doctor import examine

    findings = examine(smoke_compile=not no_compile)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        stdout().print(_table(findings))
    counts = Counter(finding.status for finding in findings)
    stderr().print(
        f"{counted(len(findings), 'finding')}: {counts['ok']} as they should be, "
        f"{counted(counts['warn'], 'warning')}, {counted(counts['fail'], 'failure')}, "
        f"{counts['skip']} not looked at",
        soft_wrap=True,
    )
    if counts["fail"]:
        raise typer.Exit(1)


def _table(findings: Sequence[Finding]) -> Table:
    """One row per finding, with its remedy, if any, below."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.status]
        # Text, not markup: a path or a compiler's message may contain square brackets.
        table.add_row(Text(mark, style), Text(finding.name), Text(finding.found))
        if finding.remedy:
            table.add_row("", "", Text(f"-> {finding.remedy}", "bold"))
    return table
