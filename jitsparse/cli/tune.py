"""``jitsparse tune``: time the kernels of problems and keep the fastest in the tuned table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jitsparse.cli.console import counted, one, print_json, print_table, read_device, split, stderr
from jitsparse.cli.factory import (
    AUTOCAST,
    FORWARD_ONLY,
    INPUT_SHAPE,
    check_model_options,
    with_model,
)
from jitsparse.cli.options import one_of, read_density, read_size, writable_file
from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from jitsparse.kernels.problem import Problem
    from jitsparse.tune import Tuning

__all__ = ["command"]


def command(
    op: list[str] = typer.Option([], help="dsd, dds, sdd; by default all."),
    dtype: list[str] = typer.Option(
        [], help="f64, f32, tf32, bf32, f16, bf16; by default f32 on a CPU and bf16 on a GPU."
    ),
    block_size: list[str] = typer.Option([], help="32 or 32x64; by default 32."),
    size: list[str] = typer.Option([], help="m = n = k, or MxNxK; by default 2048, on a GPU 4096."),
    density: list[str] = typer.Option([], help="Share of blocks stored; by default 0.25."),
    layout: list[str] = typer.Option(
        [],
        help="A letter an operand: n as stored (last axis contiguous), t transposed; default nn.",
    ),
    model: str = typer.Option(
        "", help="module:factory, a function that returns a model: tune what it will call."
    ),
    input_shape: list[str] = INPUT_SHAPE,
    forward_only: bool = FORWARD_ONLY,
    autocast: str = AUTOCAST,
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    seconds: float = typer.Option(1.0, min=0.0, help="Rough time for each problem."),
    jobs: int = typer.Option(
        0, min=0, help="Compilers at a time; 0: as CPUs and memory allow, or MAX_JOBS."
    ),
    export: Path = typer.Option(
        None, help="Then write the whole table of this machine to one file, as it is shipped."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would be timed, and stop."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Time every legal kernel of products and have calls on this kind of machine use the fastest.

    Options may be repeated and may hold several values between commas; every combination is
    tuned. With --model the products that it computes are tuned, on random patterns. Exits with 1 if
    a product could not be tuned, as on a busy machine, or a kernel did not compile, did not run or
    gave wrong results. --export alone writes the existing table.
    """
    from jitsparse.jit import cache as caches
    from jitsparse.kernels import registry
    from jitsparse.warmup import problems_of

    where = read_device(device)
    if export is not None:
        one(str(export), writable_file, "--export")
    on_gpu = where.type == "cuda"
    products: dict[str, Any] = {
        "--op": split(op, one_of(registry.OPS), "--op"),
        "--block-size": split(block_size, registry.parse_block_size, "--block-size"),
        "--size": split(size, read_size, "--size"),
        "--density": split(density, read_density, "--density"),
        "--layout": split(layout, one_of(("nn", "nt", "tn", "tt")), "--layout"),
    }
    dtypes = split(dtype, one_of(registry.DTYPES), "--dtype")
    asked = (model, *products.values(), dtypes)
    of_model = {
        "--input-shape": input_shape,
        "--forward-only": forward_only,
        "--autocast": autocast,
    }
    check_model_options(model, products, of_model)
    problems: Sequence[Problem]
    if model:
        problems = with_model(
            model,
            input_shape,
            dtypes,
            autocast,
            lambda made, examples, named: problems_of(
                made, examples, where.type, dtype=named, backward=not forward_only
            ),
        )
    else:
        problems = list(
            dict.fromkeys(
                _problems(
                    where.type,
                    products["--op"] or registry.OPS,
                    dtypes or ["bf16" if on_gpu else "f32"],
                    products["--block-size"] or [(32, 32)],
                    products["--size"] or [(4096 if on_gpu else 2048,) * 3],
                    products["--density"] or [0.25],
                    products["--layout"] or ["nn"],
                )
            )
        )
    if export is not None and dry_run:
        raise typer.BadParameter("--dry-run writes nothing, --export does", param_hint="--export")
    if export is not None and not any(asked):
        count = _export(export, where)
        if as_json:
            print_json({"path": str(export), "problems": count})
        return
    if dry_run:
        _print_plans(problems, where, as_they_are=bool(model), as_json=as_json)
        return
    caches.current().require_writable("no winner would be kept")
    # A problem asked for by its sizes must exist; a model may have problems that do not.
    done, untuned = _time(problems, where, seconds, jobs or None, all_exist=not model)
    failures = _print_tunings(done, untuned, as_json=as_json)
    if export is not None:
        _export(export, where)
    if failures:
        raise typer.Exit(1)


def _print_plans(
    problems: Sequence[Problem], device: torch.device, *, as_they_are: bool, as_json: bool
) -> None:
    """The variants that would be timed for each problem."""
    from jitsparse import calls
    from jitsparse.tune import legal_candidates

    plans = []
    for problem in problems:
        # If sizes are odd, tensors as torch allocates them have another problem. A model's problems
        # are those of its own tensors.
        real = problem if as_they_are else calls.sample(problem, device).problem
        names = [each.variant.name for each in legal_candidates(real, _index(device))]
        plans.append({"problem": real.name, "variants": names})
    if as_json:
        print_json(plans)
    else:
        rows = [
            {"problem": plan["problem"], "variant": name}
            for plan in plans
            for name in plan["variants"]
        ]
        print_table(rows, ["problem", "variant"])


def _time(
    problems: Sequence[Problem],
    device: torch.device,
    seconds: float,
    jobs: int | None,
    *,
    all_exist: bool,
) -> tuple[list[Tuning], dict[Problem, str]]:
    """The tuning of each problem, and why others have no call that could be timed.

    Raises:
        ArgumentError: one has none, and ``all_exist``.
    """
    from jitsparse import calls
    from jitsparse.compilation import compile_variants
    from jitsparse.tune import legal_candidates, tune_call

    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=stderr(),
        transient=True,
    )
    done: list[Tuning] = []
    untuned: dict[Problem, str] = {}
    variants = dict.fromkeys(
        each.variant
        for problem in problems
        for each in legal_candidates(problem.rounded(), _index(device))
    )
    with progress:
        # All at once, so that no compiler waits for another problem's timing, or disturbs it. What
        # fails here fails again, and is reported, where it is needed.
        task = progress.add_task("compiling", total=len(variants))
        compile_variants(variants, jobs=jobs, on_outcome=lambda _: progress.advance(task))
        task = progress.add_task("", total=len(problems))
        for problem in problems:
            progress.update(task, description=problem.name)
            try:
                call = calls.sample(problem, device)
            except ArgumentError as error:
                if all_exist:
                    raise
                untuned[problem] = str(error)
            else:
                done.append(tune_call(call, seconds=seconds, jobs=jobs))
            progress.advance(task)
    return done, untuned


def _print_tunings(
    done: Sequence[Tuning], untuned: Mapping[Problem, str], *, as_json: bool
) -> list[dict[str, Any]]:
    """Print the results; returns what failed."""
    failures = [
        {"problem": each.problem.name, "failed": name, "error": error}
        for each in done
        for name, error in each.failures
    ]
    disturbed = {each.problem: each.error for each in done if each.error is not None}
    failures += [
        {"problem": problem.name, "failed": "tuning", "error": error}
        for problem, error in (disturbed | dict(untuned)).items()
    ]
    if as_json:
        told = [{"problem": asdict(each), "error": error} for each, error in untuned.items()]
        print_json([*(asdict(each) for each in done), *told])
    else:
        columns = ["problem", "us", "winner", "gain", "before", "source", "timed"]
        print_table([_row(each) for each in done], columns)
        if failures:
            print()
            print_table(failures, ["problem", "failed", "error"])
    changed = sum(each.winner not in (None, each.before) for each in done)
    stderr().print(
        f"{counted(len(done) - len(disturbed), 'problem')} tuned, "
        f"{changed} with another kernel than before, {counted(len(failures), 'failure')}",
        soft_wrap=True,
    )
    return failures


def _index(device: torch.device) -> int:
    """Index of a GPU; -1 for the current one, or a CPU."""
    return -1 if device.index is None else device.index


def _problems(
    device: str,
    ops: Sequence[str],
    dtypes: Sequence[str],
    blocks: Sequence[tuple[int, int]],
    sizes: Sequence[tuple[int, ...]],
    densities: Sequence[float],
    layouts: Sequence[str],
) -> Iterator[Problem]:
    """Every combination as a problem, in the sizes that were asked for."""
    from jitsparse.kernels.problem import product_problem

    for op, dtype, size, block, layout, density in product(
        ops, dtypes, sizes, blocks, layouts, densities
    ):
        m, n, k = size
        yield product_problem(op, device, dtype, block, layout, (m, n, k), density)


def _row(tuning: Tuning) -> dict[str, Any]:
    return {
        "problem": tuning.problem.name,
        "us": None if tuning.winner is None else 1e6 * tuning.seconds[tuning.winner],
        "winner": tuning.winner,
        "gain": tuning.gain,
        "before": tuning.before,
        "source": tuning.source,
        "timed": len(tuning.seconds),
    }


def _export(path: Path, device: torch.device) -> int:
    from jitsparse.bench.report import header
    from jitsparse.jit import targets, tuned
    from jitsparse.kernels import registry

    count = tuned.export(
        path,
        registry.machine_of(device.type, _index(device)),
        driver=targets.cuda_driver() if device.type == "cuda" else None,
        commit=header(device).get("commit"),
    )
    stderr().print(f"{counted(count, 'problem')} written to {path}", soft_wrap=True)
    return count
