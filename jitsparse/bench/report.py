"""How figures are reported: tables in rich text, Markdown or JSON, and a header on their origin."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    import torch

__all__ = ["Table", "cell", "header", "processor"]


@dataclass
class Table:
    """Rows that share their columns.

    Attributes:
        title: what was measured.
        columns: names of the columns, in order.
        rows: column to value.
        notes: lines below the table: absent contestants, and why.
    """

    title: str
    columns: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The table as docs/performance.md holds it."""
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join("---" for _ in self.columns) + "|",
        ]
        for row in self.rows:
            lines.append("| " + " | ".join(cell(row.get(c)) for c in self.columns) + " |")
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n" + notes

    def pivot(self, value: str, across: str = "density") -> Table:
        """One column of figures for each value of ``across``, and a row for each of the rest.

        Args:
            value: the column whose figures are shown.
            across: the column that becomes columns; those that distinguish no rows are left out.

        Raises:
            ArgumentError: the table has no such column.
        """
        for name in (value, across):
            if name not in self.columns:
                raise ArgumentError(
                    f"there is no column {name!r}; there are {', '.join(self.columns)}"
                )
        # The columns left of the first figure identify a case.
        facts = [c for c in self.columns[: self.columns.index("us")] if c != across]
        heads = list(dict.fromkeys(f"{across} {cell(row[across])}" for row in self.rows))
        grouped: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.rows:
            key = tuple(row[fact] for fact in facts)
            line = grouped.setdefault(key, {fact: row[fact] for fact in facts})
            line[f"{across} {cell(row[across])}"] = row.get(value)
        lines = [line for line in grouped.values() if any(line.get(h) is not None for h in heads)]
        kept = [f for f in facts if len({line[f] for line in lines}) > 1] or facts[:1]
        fixed = ", ".join(f"{fact} {lines[0][fact]}" for fact in facts if fact not in kept)
        title = f"{value}; {fixed}" if fixed else value
        return Table(title, [*kept, *heads], lines, [])

    def as_json(self) -> dict[str, Any]:
        """Unrounded values."""
        return {"title": self.title, "rows": self.rows, "notes": self.notes}


def cell(value: object) -> str:
    """Three significant digits for a figure, a dash for an absent one."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if value == 0:
            return "0"
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def header(device: torch.device) -> dict[str, str]:
    """Where, with what and by which command something was measured."""
    import torch

    facts = {
        "device": processor(device),
        "threads": str(torch.get_num_threads()),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    commit = _commit()
    if commit:
        facts["commit"] = commit
    program = Path(sys.argv[0]).name
    if program == "__main__.py":
        program = "jitsparse"
    facts["command"] = shlex.join([program, *sys.argv[1:]])
    return facts


def processor(device: torch.device) -> str:
    """Name of the GPU, or model name and core count of the CPU."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{_cpu_model()}, {cores} cores, {instructions}"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The git commit of this package, marked if files were changed since; None outside git."""
    directory = Path(__file__).parent
    git = ["git", "-C", str(directory)]
    try:
        # An installed package may be inside a repository that is not its own.
        subprocess.run(
            [*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True
        )
        run = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()
