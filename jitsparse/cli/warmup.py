"""``jitsparse warmup``: compile kernels before they are needed."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jitsparse.cli.console import one, print_json, print_table, split, stderr
from jitsparse.cli.factory import (
    AUTOCAST,
    FORWARD_ONLY,
    INPUT_SHAPE,
    check_model_options,
    with_model,
)
from jitsparse.cli.options import one_of, read_arch
from jitsparse.errors import ArgumentError, CacheMiss

if TYPE_CHECKING:
    from jitsparse.compilation import Outcome
    from jitsparse.jit import Variant

__all__ = ["command"]

_LOG_PATH = re.compile(r"^ +log: .*$", re.MULTILINE)
MISSING = 3
"""Exit code of ``--check`` if a kernel would be compiled."""


def command(
    op: list[str] = typer.Option([], help="dsd, dds, sdd; by default all."),
    dtype: list[str] = typer.Option(
        [], help="f64, f32, tf32, bf32, f16, bf16; by default all, or a model's own."
    ),
    block_size: list[str] = typer.Option(
        [], help="32 or 32x64; by default those of the default table."
    ),
    device: str = typer.Option("", help="cpu or cuda; by default the GPU if there is one."),
    arch: list[str] = typer.Option(
        [], help="Targets, e.g. 9.0a, 8.0, avx512; by default this machine's. Needs no GPU."
    ),
    model: str = typer.Option(
        "", help="module:factory, a function that returns a model: compile what it will run."
    ),
    input_shape: list[str] = INPUT_SHAPE,
    forward_only: bool = FORWARD_ONLY,
    autocast: str = AUTOCAST,
    variant: list[str] = typer.Option(
        [], help="A variant's name, as js.explain and a CacheMiss give it: compile just that one."
    ),
    record: Path = typer.Option(
        None, "--from", help="A file that JITSPARSE_RECORD wrote: compile exactly those kernels."
    ),
    check: bool = typer.Option(
        False,
        "--check",
        help="Compile nothing; list what would be, and exit with 3 if so.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Compile nothing; list what would be compiled and what is cached."
    ),
    jobs: int = typer.Option(
        0, min=0, help="Compilers at a time; 0: as CPUs and memory allow, or MAX_JOBS."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compile the kernels that calls will choose, in parallel, into the cache.

    Options may be repeated and may hold several values between commas. Needs no GPU for CUDA
    targets, only nvcc and a torch built with CUDA. Exits with 1 if a kernel failed to compile.
    """
    from jitsparse.compilation import compile_variants, require_cuda, survey
    from jitsparse.jit import cache as caches
    from jitsparse.jit import config, roots
    from jitsparse.kernels import registry
    from jitsparse.warmup import plan, recorded

    if check and dry_run:
        raise typer.BadParameter("it lists what --check lists, and more", param_hint="--dry-run")
    check_model_options(
        model,
        {"--op": op, "--block-size": block_size},
        {"--input-shape": input_shape, "--forward-only": forward_only, "--autocast": autocast},
    )
    if record is not None or variant:
        exact = "--variant" if variant else "--from"
        if op or dtype or block_size or device or arch or model or (variant and record):
            raise typer.BadParameter(
                "it names the kernels, and takes no filters and no model beside it",
                param_hint=exact,
            )
    if variant:
        variants = list(dict.fromkeys(split(variant, registry.variant_named, "--variant")))
    elif record is not None:
        try:
            variants = recorded(record)
        except ArgumentError as error:
            raise typer.BadParameter(str(error), param_hint="--from") from error
    else:
        dtypes = split(dtype, one_of(registry.DTYPES), "--dtype")
        where = one(device, one_of(("cpu", "cuda")), "--device") if device else None
        targets = [name for names in split(arch, read_arch, "--arch") for name in names] or None
        if model:
            variants = _of_model(
                model, input_shape, dtypes, autocast, where, targets, not forward_only
            )
        else:
            variants = plan(
                op=split(op, one_of(registry.OPS), "--op"),
                dtype=dtypes,
                block_size=split(block_size, registry.parse_block_size, "--block-size") or None,
                device=where,
                arch=targets,
            )
    if not check:
        require_cuda(variants)
    if check or dry_run:
        missing = _print_survey(survey(variants), everything=dry_run, as_json=as_json)
        for note in roots.notes(caches.current()) if missing else ():
            stderr().print(note, soft_wrap=True)
        raise typer.Exit(MISSING if check and missing else 0)
    cache = caches.current()
    if not (config.get().jit and cache.writable()):
        missing = sum(each.status == "missing" for each in survey(variants))
        if missing and not config.get().jit:
            raise CacheMiss(
                f"{missing} of {len(variants)} kernels are not in the cache ({cache.root}), and "
                "JITSPARSE_JIT=off has nothing compiled. Set JITSPARSE_JIT=on for this command, or "
                "list them with --check." + "".join(f"\n  {note}" for note in roots.notes(cache))
            )
        if missing:
            cache.require_writable("nothing that is compiled would be kept")
    progress = Progress(
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=stderr(),
    )
    workers = jobs or config.get().jobs
    started = time.perf_counter()
    with progress:
        task = progress.add_task("", total=len(variants))

        def done(outcome: Outcome) -> None:
            progress.update(task, advance=1, description=f"{outcome.status} {outcome.variant.name}")

        try:
            outcomes = compile_variants(variants, jobs=workers, on_outcome=done)
        except (KeyboardInterrupt, SystemExit):
            ready = int(progress.tasks[task].completed)
            progress.stop()
            stderr().print(f"interrupted: {ready} of {len(variants)} are in the cache")
            raise
    if _print_outcomes(outcomes, time.perf_counter() - started, workers, as_json=as_json):
        raise typer.Exit(1)


def _of_model(
    name: str,
    inputs: Sequence[str],
    dtypes: Sequence[str],
    autocast: str,
    device: str | None,
    targets: Sequence[str] | None,
    backward: bool,
) -> list[Variant]:
    import torch

    from jitsparse.warmup import plan

    if device is None and targets is None and torch.cuda.is_available():
        device = "cuda"

    def find(
        model: torch.nn.Module, examples: list[torch.Tensor], dtype: str | None
    ) -> list[Variant]:
        return plan(model, examples, dtype=dtype, device=device, arch=targets, backward=backward)

    return with_model(name, inputs, dtypes, autocast, find)


def _print_survey(outcomes: Sequence[Outcome], *, everything: bool, as_json: bool) -> int:
    """Print what would be compiled, and everything else if asked; returns the former's number."""
    counts = Counter(outcome.status for outcome in outcomes)
    shown = [each for each in outcomes if everything or each.status == "missing"]
    if as_json:
        print_json({"missing": counts["missing"], "outcomes": [_facts(each) for each in shown]})
    elif shown:
        print_table(
            [
                {"status": each.status, "variant": each.variant.name, "took s": each.seconds}
                for each in shown
            ],
            ["status", "variant", "took s"],
        )
    stderr().print(
        f"{counts['missing']} would be compiled, {counts['cached']} cached", soft_wrap=True
    )
    return counts["missing"]


def _print_outcomes(
    outcomes: Sequence[Outcome], seconds: float, jobs: int, *, as_json: bool
) -> bool:
    """Print the results; returns whether something failed."""
    counts = Counter(outcome.status for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if as_json:
        facts = [_facts(each) for each in outcomes]
        print_json({"seconds": seconds, "jobs": jobs, "outcomes": facts})
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
    took = [each.seconds for each in outcomes if each.status == "compiled" and each.seconds]
    slowest = f"; the slowest took {max(took):.1f} s, {jobs} at a time" if took else ""
    stderr().print(
        f"{counts['compiled']} compiled, {counts['cached']} already cached, {len(failed)} failed, "
        f"{seconds:.1f} s{slowest}",
        soft_wrap=True,
    )
    return bool(failed)


def _facts(outcome: Outcome) -> dict[str, object]:
    return {
        "variant": outcome.variant.name,
        "status": outcome.status,
        "compile_seconds": outcome.seconds,
        "path": outcome.path,
        "error": None if outcome.error is None else str(outcome.error),
    }


def _failures(failed: list[Outcome]) -> list[dict[str, object]]:
    """A row per error: a missing compiler fails every variant with the same one."""
    grouped: dict[str, list[tuple[str, str]]] = {}
    for outcome in failed:
        name = outcome.variant.name
        # The first lines hold the compiler's first error; the log has the rest.
        text = "\n".join(str(outcome.error).strip().splitlines()[:3])
        # What differs from one to the next: the name, and the log, whose path contains it, too.
        common = _LOG_PATH.sub("", text).replace(name, "the kernel")
        grouped.setdefault(common, []).append((name, text))
    return [
        {"failed": each[0][0] if len(each) == 1 else f"{len(each)} variants", "error": each[0][1]}
        for each in grouped.values()
    ]
