"""``jitsparse warmup``: compile kernels before they are needed."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jitsparse.cli.console import one, print_json, print_table, split, stderr
from jitsparse.cli.options import one_of, read_arch
from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    from jitsparse.warmup import Outcome

__all__ = ["command"]


def command(
    op: list[str] = typer.Option([], help="dsd, dds, sdd; by default all."),
    dtype: list[str] = typer.Option([], help="f64, f32, tf32, f16, bf16; by default all."),
    block_size: list[str] = typer.Option([], help="32 or 32x64; by default all."),
    device: str = typer.Option("", help="cpu or cuda; by default the GPU if there is one."),
    arch: list[str] = typer.Option(
        [], help="Targets, e.g. 9.0a, 8.0, avx512; by default this machine's. Needs no GPU."
    ),
    jobs: int = typer.Option(0, min=0, help="Compilers at a time; 0: one a core, or MAX_JOBS."),
    record: Path = typer.Option(
        None, "--from", help="A file that JITSPARSE_RECORD wrote: compile exactly those kernels."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compile the kernels that calls will choose, in parallel, into the cache.

    Options may be repeated and may hold several values between commas. Needs no GPU for CUDA
    targets, only nvcc and a torch built with CUDA. Exits with 1 if a kernel failed to compile.
    """
    from jitsparse.kernels import registry
    from jitsparse.warmup import compile_variants, plan, recorded

    if record is not None:
        if op or dtype or block_size or device or arch:
            raise typer.BadParameter(
                "it names the kernels, and takes no filters beside it", param_hint="--from"
            )
        try:
            variants = recorded(record)
        except ArgumentError as error:
            raise typer.BadParameter(str(error), param_hint="--from") from error
    else:
        variants = plan(
            op=split(op, one_of(registry.OPS), "--op"),
            dtype=split(dtype, one_of(registry.DTYPES), "--dtype"),
            block_size=split(block_size, registry.parse_block_size, "--block-size") or None,
            device=one(device, one_of(("cpu", "cuda")), "--device") if device else None,
            arch=[name for names in split(arch, read_arch, "--arch") for name in names] or None,
        )
    progress = Progress(
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=stderr(),
    )
    started = time.perf_counter()
    with progress:
        task = progress.add_task("", total=len(variants))

        def done(outcome: Outcome) -> None:
            progress.update(task, advance=1, description=f"{outcome.status} {outcome.variant.name}")

        outcomes = compile_variants(variants, jobs=jobs or None, on_outcome=done)
    seconds = time.perf_counter() - started
    counts = Counter(outcome.status for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if as_json:
        print_json(
            {
                "seconds": seconds,
                "outcomes": [
                    {
                        "variant": outcome.variant.name,
                        "status": outcome.status,
                        "compile_seconds": outcome.seconds,
                        "path": outcome.path,
                        "error": None if outcome.error is None else str(outcome.error),
                    }
                    for outcome in outcomes
                ],
            }
        )
    else:
        summary: dict[tuple[str, ...], Counter[str]] = {}
        for outcome in outcomes:
            variant = outcome.variant
            group = (variant.op, variant.dtype, variant.target, variant.family)
            summary.setdefault(group, Counter())[outcome.status] += 1
        columns = ("op", "dtype", "target", "family", "compiled", "cached", "failed")
        print_table(
            [
                dict(zip(columns, (*group, *(n[each] for each in columns[4:])), strict=True))
                for group, n in summary.items()
            ],
            columns,
        )
        if failed:
            print()
            print_table(_failures(failed), ["failed", "error"])
    stderr().print(
        f"{counts['compiled']} compiled, {counts['cached']} already cached, {len(failed)} failed, "
        f"{seconds:.1f} s",
        soft_wrap=True,
    )
    if failed:
        raise typer.Exit(1)


def _failures(failed: list[Outcome]) -> list[dict[str, object]]:
    """A row for each error: a missing compiler fails every variant with the same one."""
    grouped: dict[str, list[str]] = {}
    for outcome in failed:
        name = outcome.variant.name
        # The first lines hold the compiler's first error; the log has the rest.
        text = "\n".join(str(outcome.error).strip().splitlines()[:3])
        grouped.setdefault(text.replace(name, "the kernel"), []).append(name)
    return [
        {"failed": names[0] if len(names) == 1 else f"{len(names)} variants", "error": error}
        for error, names in grouped.items()
    ]
