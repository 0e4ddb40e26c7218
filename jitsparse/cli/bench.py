"""``jitsparse bench``: jitsparse and its peers, timed in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jitsparse.bench.report import Table, header
from jitsparse.cli.console import print_json, print_table, read_device, split, stderr, stdout
from jitsparse.cli.options import one_of, read_density, read_size
from jitsparse.errors import ArgumentError
from jitsparse.jit import config

if TYPE_CHECKING:
    import torch

    from jitsparse.bench.section import Section

__all__ = ["command"]


def command(
    suite: str = typer.Option(
        "", help="A published table: cpu, portable, patterns, hopper, overhead or first-use."
    ),
    section: list[str] = typer.Option(
        [],
        help="hopper: products, float32, patterns, experts, f16, skew, linear, tokens, epilogue, "
        "model, choice. first-use: one, twenty (kernels; peers take minutes), together "
        "(processes).",
    ),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    op: list[str] = typer.Option([], help="dsd, dds, sdd."),
    layout: list[str] = typer.Option(
        [],
        help="nn, nt, tn, tt: a letter an operand, n as stored or last axis contiguous, t a "
        "transposed view.",
    ),
    dtype: list[str] = typer.Option([], help="f64, f32, tf32, bf32, f16, bf16."),
    block_size: list[str] = typer.Option([], help="32 or 32x64."),
    size: list[str] = typer.Option([], help="m = n = k, or MxNxK."),
    density: list[str] = typer.Option([], help="Share of blocks that are stored."),
    pattern: list[str] = typer.Option([], help="random, banded, diagonal, causal, powerlaw."),
    pivot: list[str] = typer.Option(
        [], help="Show this column alone, one column a density; e.g. 'ratio to dense'."
    ),
    seconds: float = typer.Option(1.0, min=0.0, help="Rough time for each case."),
    torch_tuned: bool = typer.Option(
        False, help="Also time torch's BSR product after its own tuning, minutes a case."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    markdown: bool = typer.Option(False, "--markdown", help="Print Markdown."),
) -> None:
    """Time products against torch's dense and block-sparse ones, interleaved in one process.

    Options may be repeated and may hold several values between commas; every combination is
    measured. With --suite they replace that part of the suite; with --suite hopper, whose sections
    measure more than products, they select among its cases. The hopper suite has large sizes on
    CUDA; on a CPU it has small sizes, which only show that it works.
    """
    from jitsparse.bench.cases import DTYPES, OPERATIONS
    from jitsparse.bench.first_use import SECTIONS
    from jitsparse.bench.patterns import PATTERNS
    from jitsparse.bench.section import Unfinished
    from jitsparse.bench.suites import GRIDS
    from jitsparse.kernels.registry import parse_block_size
    from jitsparse.kernels.roles import LAYOUTS

    where = read_device(device)
    suites = (*GRIDS, "hopper", *_AROUND)
    if suite and suite not in suites:
        known = ", ".join(suites)
        raise typer.BadParameter(
            f"there is no suite {suite!r}; there are {known}", param_hint="--suite"
        )
    if section and suite not in ("hopper", "first-use"):
        raise typer.BadParameter(
            "it selects from --suite hopper or first-use, which was not asked for",
            param_hint="--section",
        )
    chosen: dict[str, Any] = {
        "ops": split(op, one_of(OPERATIONS), "--op"),
        "layouts": split(layout, one_of(LAYOUTS), "--layout"),
        "dtypes": split(dtype, one_of(tuple(DTYPES)), "--dtype"),
        "blocks": split(block_size, parse_block_size, "--block-size"),
        "sizes": split(size, read_size, "--size"),
        "densities": split(density, read_density, "--density"),
        "patterns": split(pattern, one_of(PATTERNS), "--pattern"),
    }
    chosen = {name: values for name, values in chosen.items() if values}
    if suite in _AROUND and (chosen or pivot or torch_tuned):
        raise typer.BadParameter(
            f"--suite {suite} measures no products: of the options that select or show them it "
            "takes none",
        )
    if as_json and (pivot or markdown):
        raise typer.BadParameter(
            "--json prints whole tables", param_hint="--pivot" if pivot else "--markdown"
        )
    parts = split(section, one_of(SECTIONS), "--section") if suite == "first-use" else []
    sections = []
    if suite == "hopper":
        sections = _hopper(where, split(section, str, "--section"), chosen, torch_tuned)
    elif suite not in _AROUND:
        sections = [_grid(suite, where, chosen, torch_tuned)]
    measured = header(where)
    if not as_json:
        facts = "; ".join(f"{name} {value}" for name, value in measured.items())
        stdout().print(facts, soft_wrap=True)
    if suite in _AROUND:
        found = _around(suite, where, parts)
        if as_json:
            print_json({"measured": measured, "tables": [each.as_json() for each in found]})
        else:
            for each in found:
                _print([], each, markdown)
        return
    tables: list[dict[str, Any]] = []
    stopped: BaseException | None = None
    for part in sections:
        try:
            table = _measure(part, seconds, where)
        except Unfinished as unfinished:  # keep what was measured
            table, stopped = unfinished.table, unfinished.__cause__
        if as_json:
            tables.append({"section": part.name, **table.as_json()})
        else:
            # Of several tables some may lack the column; those are shown as usual.
            columns = [c for c in pivot if len(sections) == 1 or c in table.columns]
            try:
                views = [table.pivot(column) for column in columns]
            except ArgumentError:  # keep it after a misspelt name, too
                _print(part.shown(table), table, markdown)
                raise
            _print(views or part.shown(table), table, markdown)
        if stopped is not None:
            break
    if as_json:
        print_json(
            {"measured": measured, **({"tables": tables} if suite == "hopper" else tables[0])}
        )
    if stopped is not None:
        raise stopped


def _grid(suite: str, device: torch.device, chosen: dict[str, Any], torch_tuned: bool) -> Section:
    """The products of a suite, or those of the options alone."""
    from jitsparse.bench.peers import PEERS, TORCH_TUNED, usual_peers
    from jitsparse.bench.suites import GRIDS, Axes, cube, products

    on_gpu = device.type == "cuda"
    default = Axes(
        dtypes=("bf16" if on_gpu else "f32",),
        sizes=(cube(4096 if on_gpu else 2048),),
        densities=(0.25,),
    )
    grids = [replace(axes, **chosen) for axes in (GRIDS[suite] if suite else (default,))]
    peers = PEERS if suite else usual_peers()
    if torch_tuned:
        peers = (*peers, TORCH_TUNED)
    return products(suite or "products", grids, device, peers=peers)


def _hopper(
    device: torch.device, names: Sequence[str], chosen: dict[str, Any], torch_tuned: bool
) -> list[Section]:
    """The named sections of the hopper suite, with the chosen ones of their cases."""
    from jitsparse.bench.cases import block_name, size_name
    from jitsparse.bench.hopper import hopper

    sections = hopper(device, torch_tuned=torch_tuned)
    known = [each.name for each in sections]
    for name in names:
        if name not in known:
            raise typer.BadParameter(
                f"there is no section {name!r}; there are {', '.join(known)}",
                param_hint="--section",
            )
    written: dict[str, Callable[[Any], object]] = {
        "block": block_name,
        "size": lambda size: size_name(*size),
    }
    wanted = {
        fact: [written[fact](value) if fact in written else value for value in chosen[axis]]
        for axis, fact in _FACTS.items()
        if axis in chosen
    }
    narrowed = [each.narrowed(wanted) for each in sections if not names or each.name in names]
    kept = [each for each in narrowed if each.cases]
    if not kept:
        asked = ", ".join(f"{name} {' or '.join(map(str, v))}" for name, v in wanted.items())
        raise typer.BadParameter(f"no case of {', '.join(names) or 'the suite'} has {asked}")
    return kept


_FACTS = {
    "ops": "op",
    "layouts": "layout",
    "dtypes": "dtype",
    "blocks": "block",
    "sizes": "size",
    "densities": "density",
    "patterns": "pattern",
}
"""Axes of a grid and the fact of a case that each sets."""


def _measure(section: Section, seconds: float, device: torch.device) -> Table:
    # A call that has to be compiled must not be answered by plain torch, and timed.
    with config.override(first_use="wait"), _progress() as progress:
        task = progress.add_task("", total=len(section.cases))
        table = section.table(
            seconds=seconds,
            on_case=lambda done, label: progress.update(task, completed=done, description=label),
        )
    if device.type == "cuda":
        import torch

        # The next section's tensors have other sizes.
        torch.cuda.empty_cache()
    return table


_AROUND = ("overhead", "first-use")
"""Suites that measure what surrounds products."""


def _around(suite: str, device: torch.device, sections: Sequence[str]) -> list[Table]:
    from jitsparse.bench.first_use import first_use_tables
    from jitsparse.bench.overhead import overhead_table

    with config.override(first_use="wait"), _progress() as progress:
        task = progress.add_task("", total=None)

        def on_step(what: str) -> None:
            progress.update(task, description=what)

        if suite == "overhead":
            return [overhead_table(device, on_step=on_step)]
        return first_use_tables(device, sections=sections, on_step=on_step)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=stderr(),
        transient=True,
    )


def _print(views: Sequence[Table], table: Table, markdown: bool) -> None:
    """The views of a table, or all of it if there is none, with its notes below."""
    views = list(views) or [table]
    views[-1].notes = table.notes
    console = stdout()
    for view in views:
        console.print()
        if markdown:
            print(view.markdown(), end="", flush=True)
            continue
        print_table(view.rows, view.columns, title=view.title)
        for note in view.notes:
            console.print(note, soft_wrap=True)
