"""``jitsparse bench``: jitsparse and its peers, timed in one run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jitsparse.bench.report import header
from jitsparse.cli.console import print_json, print_table, read_device, split, stderr, stdout
from jitsparse.cli.options import one_of, read_density, read_size

__all__ = ["command"]


def command(
    suite: str = typer.Option("", help="A published table: cpu, portable, patterns or overhead."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    op: list[str] = typer.Option([], help="dsd, dds, sdd."),
    dtype: list[str] = typer.Option([], help="f64, f32, tf32, f16, bf16."),
    block_size: list[str] = typer.Option([], help="32 or 32x64."),
    size: list[str] = typer.Option([], help="m = n = k, or MxNxK."),
    density: list[str] = typer.Option([], help="Share of blocks that are stored."),
    pattern: list[str] = typer.Option([], help="random, banded, diagonal."),
    pivot: list[str] = typer.Option(
        [], help="Show this column alone, one column a density; e.g. 'ratio to dense'."
    ),
    seconds: float = typer.Option(1.0, min=0.0, help="Rough time for each case."),
    torch_headers: bool = typer.Option(
        False, help="overhead: also compile a kernel that includes torch's headers."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    markdown: bool = typer.Option(False, "--markdown", help="Print Markdown."),
) -> None:
    """Time products against torch's dense and block-sparse ones, interleaved in one process.

    Options may be repeated and may hold several values between commas; every combination is
    measured. With --suite they replace that part of the suite.
    """
    from jitsparse.bench.cases import DTYPES, OPERATIONS, PATTERNS
    from jitsparse.bench.overhead import overhead_table
    from jitsparse.bench.products import SUITES, Axes, cases, product_table
    from jitsparse.kernels.registry import parse_block_size

    where = read_device(device)
    if suite and suite != "overhead" and suite not in SUITES:
        known = ", ".join([*SUITES, "overhead"])
        raise typer.BadParameter(f"there is no suite {suite!r}; there are {known}")
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=stderr(),
        transient=True,
    )
    if suite == "overhead":
        with progress:
            task = progress.add_task("", total=None)
            table = overhead_table(
                where,
                torch_headers=torch_headers,
                on_step=lambda what: progress.update(task, description=what),
            )
    else:
        on_gpu = where.type == "cuda"
        default = Axes(
            dtypes=("bf16" if on_gpu else "f32",),
            sizes=((4096,) * 3 if on_gpu else (2048,) * 3,),
            densities=(0.25,),
        )
        chosen: dict[str, Any] = {
            "ops": split(op, one_of(OPERATIONS)),
            "dtypes": split(dtype, one_of(tuple(DTYPES))),
            "blocks": split(block_size, parse_block_size),
            "sizes": split(size, read_size),
            "densities": split(density, read_density),
            "patterns": split(pattern, one_of(PATTERNS)),
        }
        chosen = {name: values for name, values in chosen.items() if values}
        grids = SUITES[suite] if suite else (default,)
        todo = [case for axes in grids for case in cases(replace(axes, **chosen), where)]
        todo = list(dict.fromkeys(todo))
        with progress:
            task = progress.add_task("", total=len(todo))
            done = iter(range(len(todo)))
            table = product_table(
                suite or "products",
                todo,
                seconds=seconds,
                on_case=lambda case: progress.update(
                    task,
                    completed=next(done),
                    description=f"{case.op} {case.dtype} b{case.block[0]} d={case.density}",
                ),
            )
    measured = header(where)
    if as_json:
        print_json({"measured": measured, **table.as_json()})
        return
    views = [table.pivot(column) for column in pivot] or [table]
    views[-1].notes = table.notes
    console = stdout()
    console.print("; ".join(f"{name} {value}" for name, value in measured.items()), soft_wrap=True)
    for view in views:
        console.print()
        if markdown:
            print(view.markdown(), end="")
            continue
        print_table(view.rows, view.columns, title=view.title)
        for note in view.notes:
            console.print(note, soft_wrap=True)
