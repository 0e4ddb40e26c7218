"""``jitsparse demo``: train a block-sparse transformer beside its dense twin."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jitsparse.cli.console import counted, one, print_json, print_table, read_device, stderr
from jitsparse.cli.options import at_most, writable_file

__all__ = ["command"]


def command(
    steps: int = typer.Option(
        0,
        min=0,
        help="Steps of each model; 0: 120 on a CPU, 600 on a GPU, fewer if slow.",
    ),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    seed: int = typer.Option(
        0,
        min=0,
        callback=at_most(2**63 - 1),
        help="Of initial weights, patterns and batches.",
    ),
    out: Path = typer.Option(Path("jitsparse-demo"), help="Directory for demo.png and demo.json."),
    as_json: bool = typer.Option(False, "--json", help="Print the table as JSON."),
) -> None:
    """Train a block-sparse character-level transformer beside its dense twin.

    Every linear layer of the sparse model's blocks stores a quarter of its 32 x 32 blocks. The text
    is the source of Python's own standard library. Prints a table; writes the figures to demo.json
    and a picture of them to demo.png.
    """
    from jitsparse.demo.figure import draw, missing_library
    from jitsparse.demo.run import Demo
    from jitsparse.jit import cache

    where = read_device(device)
    console = stderr()
    no_figure = missing_library()
    if no_figure:
        console.print(no_figure, soft_wrap=True)
    demo = Demo(device=where, steps=steps or None, seed=seed)
    for name in ("demo.json",) if no_figure else ("demo.json", "demo.png"):
        one(str(out / name), writable_file, "--out")
    console.print(demo.description(), soft_wrap=True)
    console.print("four steps of each model first: kernels are compiled, and a step is timed")
    compiled = demo.warm_up()
    root = cache.current().root
    if compiled:
        seconds = sum(entry.compile_seconds for entry in compiled)
        took = f"{counted(len(compiled), 'kernel')} compiled in {seconds:.1f} s"
        console.print(f"first use: {took}, kept in {root}", soft_wrap=True)
        for entry in compiled:
            console.print(f"  {entry.compile_seconds:.1f} s  {entry.variant}", soft_wrap=True)
    elif demo.compiled:
        console.print(f"every kernel was already in {root}", soft_wrap=True)
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=demo.settings.steps)
        demo.train(lambda done, text: progress.update(task, completed=done, description=text))
    if as_json:
        print_json(demo.summary())
    else:
        print_table(demo.table(), list(demo.table()[0]))
    written = [demo.write_json(out / "demo.json")]
    if not no_figure:
        written.append(draw(demo, out / "demo.png"))
    console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)
