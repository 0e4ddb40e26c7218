"""``jitsparse list``: the kernels in the cache, or those that could be."""

from __future__ import annotations

import time
from typing import Any

import typer

from jitsparse.cli.console import counted, print_json, print_table, split, stderr
from jitsparse.cli.options import one_of, read_arch, variant_filter
from jitsparse.jit.units import format_bytes

__all__ = ["command"]


def command(
    known: bool = typer.Option(
        False, "--known", help="List the default table of variants instead of the cache."
    ),
    op: list[str] = typer.Option([], help="dsd, dds, sdd."),
    dtype: list[str] = typer.Option([], help="f64, f32, tf32, f16, bf16."),
    block_size: list[str] = typer.Option([], help="32 or 32x64."),
    arch: list[str] = typer.Option(
        [], help="Targets, e.g. 9.0a, 8.0, avx512; with --known, by default this machine's."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List cached kernels, newest last; with --known every variant of the default table.

    Filters may be repeated and may hold several values between commas.
    """
    from jitsparse.jit import Variant, cache
    from jitsparse.kernels import registry

    if known:
        targets = [name for names in split(arch, read_arch, "--arch") for name in names]
        rows: list[dict[str, Any]] = [
            {"variant": variant.name}
            for variant in registry.select_variants(
                targets or _targets_here(),
                ops=split(op, one_of(registry.OPS), "--op"),
                dtypes=split(dtype, one_of(registry.DTYPES), "--dtype"),
                block_sizes=split(block_size, registry.parse_block_size, "--block-size"),
            )
        ]
    else:
        keep = variant_filter(op, dtype, block_size, arch)
        rows = [
            {
                "variant": entry.variant,
                "library_bytes": entry.library_bytes,
                "compile s": round(entry.compile_seconds, 2),
                "compiled": time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.created)),
                "path": str(entry.path),
            }
            for entry in sorted(cache.current().entries(), key=lambda each: each.created)
            if keep(Variant.parse(entry.variant))
        ]
    if as_json:
        print_json(rows)
        return
    if known and rows:
        print_table(rows, ["variant"])
    elif rows:
        sized = [row | {"library": format_bytes(row["library_bytes"])} for row in rows]
        print_table(sized, ["variant", "library", "compile s", "compiled"])
    number = counted(len(rows), "known variant" if known else "cached kernel")
    # The default table needs no cache, which may be one that is refused.
    where = "" if known else f" in {', '.join(str(root) for root in cache.current().roots)}"
    stderr().print(f"{number}{where}", soft_wrap=True)


def _targets_here() -> list[str]:
    import torch

    from jitsparse.kernels import registry

    here = [registry.target_of("cpu")]
    if torch.cuda.is_available():
        here.append(registry.target_of("cuda"))
    return here
