"""``jitsparse list``: the kernels in the cache, or those that could be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from jitsparse.cli.console import counted, print_json, print_table, split, stderr
from jitsparse.cli.options import one_of, read_arch, variant_filter
from jitsparse.jit.units import format_bytes

if TYPE_CHECKING:
    from jitsparse.jit import Variant
    from jitsparse.jit.inventory import Stored

__all__ = ["command", "facts"]

_KEY_DIGITS = 8
"""Digits of a key that tell entries of one variant apart."""


def command(
    known: bool = typer.Option(
        False, "--known", help="List the default table of variants instead of the cache."
    ),
    op: list[str] = typer.Option([], help="dsd, dds, sdd."),
    dtype: list[str] = typer.Option([], help="f64, f32, tf32, bf32, f16, bf16."),
    block_size: list[str] = typer.Option([], help="32 or 32x64."),
    arch: list[str] = typer.Option(
        [], help="Targets, e.g. 9.0a, 8.0, avx512; with --known, by default this machine's."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List cached kernels, newest last; with --known every variant of the default table.

    Filters may be repeated and may hold several values between commas.
    """
    if known:
        _list_known(op, dtype, block_size, arch, as_json=as_json)
    else:
        _list_cached(variant_filter(op, dtype, block_size, arch), as_json=as_json)


def facts(stored: Stored) -> dict[str, Any]:
    """An entry as JSON has it; the name of the directory ends with 16 digits of its key."""
    from jitsparse.jit import Variant

    return {
        "variant": stored.entry.variant,
        "target": Variant.parse(stored.entry.variant).target,
        "bytes": stored.bytes,
        "compile_seconds": stored.entry.compile_seconds,
        "created": stored.entry.created,
        "last_use": stored.last_use,
        "read_only": stored.read_only,
        "path": str(stored.entry.path),
    }


def _list_cached(keep: Callable[[Variant], bool], *, as_json: bool) -> None:
    from jitsparse.jit import Variant, roots
    from jitsparse.jit import cache as caches
    from jitsparse.jit.inventory import stored

    cache = roots.require_directories(caches.current())
    entries = sorted(
        (each for each in stored(cache) if keep(Variant.parse(each.entry.variant))),
        key=lambda each: each.entry.created,
    )
    if as_json:
        print_json([facts(each) for each in entries])
        return
    rows = [
        {
            "variant": each.entry.variant,
            "key": each.entry.key[:_KEY_DIGITS],
            "size": format_bytes(each.bytes),
            "compile s": round(each.entry.compile_seconds, 2),
            "compiled": time.strftime("%Y-%m-%d %H:%M", time.localtime(each.entry.created)),
        }
        for each in entries
    ]
    if rows:
        print_table(rows, list(rows[0]))
    where = ", ".join(str(root) for root in cache.roots)
    stderr().print(f"{counted(len(rows), 'cached kernel')} in {where}", soft_wrap=True)


def _list_known(
    op: Sequence[str],
    dtype: Sequence[str],
    block_size: Sequence[str],
    arch: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """The default table, which needs no cache: that may be one that is refused."""
    from jitsparse.kernels import registry

    targets = [name for names in split(arch, read_arch, "--arch") for name in names]
    rows = [
        {"variant": variant.name}
        for variant in registry.select_variants(
            targets or _targets_here(),
            ops=split(op, one_of(registry.OPS), "--op"),
            dtypes=split(dtype, one_of(registry.DTYPES), "--dtype"),
            block_sizes=split(block_size, registry.parse_block_size, "--block-size"),
        )
    ]
    if as_json:
        print_json(rows)
        return
    print_table(rows, ["variant"])
    stderr().print(counted(len(rows), "known variant"), soft_wrap=True)


def _targets_here() -> list[str]:
    import torch

    from jitsparse.kernels import registry

    here = [registry.target_of("cpu")]
    if torch.cuda.is_available():
        here.append(registry.target_of("cuda"))
    return here
