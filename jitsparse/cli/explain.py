"""``jitsparse explain``: which kernel a call would run, why, and whether it is compiled."""

from __future__ import annotations

from dataclasses import asdict

import typer

from jitsparse.cli.console import one, print_json
from jitsparse.cli.options import MAX_SIZE, at_most, one_of, read_arch, read_density
from jitsparse.errors import ToolchainError

__all__ = ["command"]

SIZE = at_most(MAX_SIZE)


def command(
    op: str = typer.Argument(help="dsd, dds or sdd."),
    dtype: str = typer.Option("f32", help="f64, f32, tf32, bf32, f16, bf16."),
    block_size: str = typer.Option("32", help="32 or 32x64."),
    m: int = typer.Option(4096, min=1, callback=SIZE, help="Rows of the product."),
    n: int = typer.Option(4096, min=1, callback=SIZE, help="Columns of the product."),
    k: int = typer.Option(4096, min=1, callback=SIZE, help="The extent that is summed over."),
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
    from jitsparse.kernels.roles import LAYOUTS

    if op == "linear":
        raise typer.BadParameter(
            "explain takes products, dsd, dds or sdd; that of a layer is dds with --layout nt. "
            'With its operands at hand, call js.explain("linear", x, weight) in Python',
            param_hint="OP",
        )
    one(op, one_of(registry.OPS), "OP")
    dtype = one(dtype, one_of(registry.DTYPES), "--dtype")
    one(layout, one_of(LAYOUTS), "--layout")
    if device:
        one(device, one_of(("cpu", "cuda")), "--device")
    if gpu:
        one(gpu, one_of(price_table.GPUS), "--gpu")
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
    try:
        target = targets[0] if targets else registry.target_of(where)
    except ToolchainError as error:  # there is no GPU, nor a target that JITSPARSE_ARCH names
        raise typer.BadParameter(str(error), param_hint="--device") from error
    problem = product_problem(op, where, dtype, block, layout, (m, n, k), share, aligned)
    explanation = explain(problem.rounded(), target=target, gpu=gpu or None)
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
