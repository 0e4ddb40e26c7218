"""``jitsparse explain``: which kernel a call would run, why, and whether it is compiled."""

from __future__ import annotations

from dataclasses import asdict

import typer

from jitsparse.cli.console import one, print_json
from jitsparse.cli.options import MAX_SIZE, read_arch, read_density

__all__ = ["command"]


def command(
    op: str = typer.Argument(help="dsd, dds or sdd."),
    dtype: str = typer.Option("f32", help="f64, f32, tf32, f16, bf16."),
    block_size: str = typer.Option("32", help="32 or 32x64."),
    m: int = typer.Option(4096, min=1, max=MAX_SIZE, help="Rows of the product."),
    n: int = typer.Option(4096, min=1, max=MAX_SIZE, help="Columns of the product."),
    k: int = typer.Option(4096, min=1, max=MAX_SIZE, help="The extent that is summed over."),
    density: str = typer.Option("0.25", help="Share of blocks stored, above 0 and at most 1."),
    layout: str = typer.Option(
        "nn", help="A letter an operand: n as stored (last axis contiguous), t transposed."
    ),
    aligned: bool = typer.Option(True, help="Matrices and rows begin at multiples of 16 bytes."),
    device: str = typer.Option("", help="cpu or cuda; by default the GPU if there is one."),
    arch: str = typer.Option("", help="Target, e.g. 9.0a or avx512; by default this machine's."),
    gpu: str = typer.Option(
        "",
        help="H200 or H100: whose prices count on 9.0a; by default this machine's, or an H200's.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print which kernel a product runs, why, and where it is kept. Compiles nothing.

    The product is (m, k) @ (k, n). The left operand of dsd is sparse, the right one of dds and the
    result of sdd. ``--arch`` and ``--gpu`` explain another machine's choice.
    """
    from jitsparse.explain import explain
    from jitsparse.kernels import price_table, registry
    from jitsparse.kernels.problem import product_problem

    for what, value, legal in (
        ("OP", op, registry.OPS),
        ("--dtype", dtype, registry.DTYPES),
        ("--layout", layout, ("nn", "nt", "tn", "tt")),
        ("--device", device, ("", "cpu", "cuda")),
        ("--gpu", gpu, ("", *price_table.GPUS)),
    ):
        if value not in legal:
            names = ", ".join(name for name in legal if name)
            raise typer.BadParameter(f"{value!r} is not one of {names}", param_hint=what)
    share = one(density, read_density, "--density")
    block = one(block_size, registry.parse_block_size, "--block-size")
    targets = one(arch, read_arch, "--arch")
    if len(targets) > 1:
        raise typer.BadParameter(
            f"explain takes one target, got {', '.join(targets)}", param_hint="--arch"
        )
    where = _device(device, targets)
    if gpu and where == "cpu":
        raise typer.BadParameter("the product is for a CPU: say --arch 9.0a", param_hint="--gpu")
    problem = product_problem(op, where, dtype, block, layout, (m, n, k), share, aligned)
    explanation = explain(
        problem.rounded(), target=targets[0] if targets else None, gpu=gpu or None
    )
    print_json(asdict(explanation)) if as_json else print(explanation)


def _device(asked: str, targets: tuple[str, ...]) -> str:
    """The device of a request: the one named, else the target's, else the GPU if there is one."""
    import torch

    from jitsparse.kernels import registry

    implied = registry.device_of(targets[0]) if targets else ""
    if asked and implied and asked != implied:
        raise typer.BadParameter(
            f"target {targets[0]} is for {implied}, not for {asked}", param_hint="--arch"
        )
    return asked or implied or ("cuda" if torch.cuda.is_available() else "cpu")
