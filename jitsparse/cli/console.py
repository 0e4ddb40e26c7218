"""What the commands share: where output goes, how tables look, how options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitsparse.bench.report import cell

if TYPE_CHECKING:
    import torch

__all__ = [
    "counted",
    "one",
    "print_json",
    "print_table",
    "read_device",
    "split",
    "stderr",
    "stdout",
]

T = TypeVar("T")

DEVICE = "--device"

PROSE = "error"
"""The column whose cells are text, which is wrapped."""


def stdout() -> Console:
    """Console for data. When redirected it has no width limit, so that no cell is ever cut.

    Without markup: a path or a compiler's message may contain square brackets.
    """
    width = None if sys.stdout.isatty() else 10_000
    return Console(highlight=False, markup=False, emoji=False, width=width)


def stderr() -> Console:
    """Console for progress."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def counted(number: int, noun: str) -> str:
    """``"1 entry"``, ``"2 entries"``, ``"2 kernels"``."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else several}"


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, indent=2, default=str))


def print_table(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str],
    *,
    title: str | None = None,
    console: Console | None = None,
) -> None:
    """Rows as a table on stdout; figures to three digits, flush right.

    If the terminal is too narrow, columns that distinguish no rows go into the title; what is
    still too wide is left to the terminal, so that a name stays whole and can be copied.
    """
    console = console or stdout()
    rows, shown = list(rows), list(columns)
    table = _table(rows, shown)
    if _width(console, table) > console.width and len(rows) > 1:
        same = [c for c in columns if len({cell(row.get(c)) for row in rows}) == 1]
        shown = [c for c in columns if c not in same] or shown[:1]
        facts = ", ".join(f"{c} {cell(rows[0].get(c))}" for c in same if c not in shown)
        title = "; ".join(filter(None, (title, facts)))
        table = _table(rows, shown)
    if title:
        console.print(Text(title, "bold"), soft_wrap=True)
    terminal, console.width = console.width, _width(console, table)
    with console.capture() as captured:
        console.print(table)
    console.width = terminal
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        numeric = rows and all(isinstance(row.get(column), int | float | None) for row in rows)
        justify: Literal["right", "left"] = "right" if numeric else "left"
        table.add_column(column, justify=justify, no_wrap=column != PROSE, overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    return table


def _width(console: Console, table: Table) -> int:
    """Width of a table if nothing limits it; with text, the width of the terminal."""
    if any(column.header == PROSE for column in table.columns):
        return console.width
    return console.measure(table, options=console.options.update(width=100_000)).maximum


def split(values: Sequence[str], read: Callable[[str], T], option: str) -> list[T]:
    """The entries of an option that may be repeated and may hold several between commas.

    Raises:
        typer.BadParameter: ``read`` raised ValueError for one of them; or the option was given and
            holds nothing, as where a script's variable is empty.
    """
    parts = [part.strip() for value in values for part in value.split(",") if part.strip()]
    if values and not parts:
        raise typer.BadParameter("it holds nothing", param_hint=option)
    return [one(part, read, option) for part in parts]


def one(value: str, read: Callable[[str], T], option: str) -> T:
    """The value of an option.

    Raises:
        typer.BadParameter: ``read`` raised ValueError.
    """
    try:
        return read(value)
    except ValueError as error:
        said = str(error)
        names_it = repr(value) in said or f"{value} is " in said
        raise typer.BadParameter(
            said if names_it else f"{value!r}: {said}", param_hint=option
        ) from error


def read_device(name: str) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        typer.BadParameter: there is no such device here.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(
            f"{name!r} is not a device; use auto, cpu or cuda", param_hint=DEVICE
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise typer.BadParameter(
            f"{name!r}: kernels are compiled for cpu and cuda", param_hint=DEVICE
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise typer.BadParameter(
            f"torch sees no CUDA GPU here (torch {torch.__version__}, built with {built})",
            param_hint=DEVICE,
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise typer.BadParameter(
            f"{name!r}: torch sees {torch.cuda.device_count()} CUDA GPUs here, counted from 0",
            param_hint=DEVICE,
        )
    return device
