"""``jitsparse cache export`` and ``import``: kernels from one machine to another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jitsparse.cli.console import counted, one, print_json, split, stderr
from jitsparse.cli.options import readable_file, variant_filter, writable_file
from jitsparse.jit import cache as caches
from jitsparse.jit.units import format_bytes

if TYPE_CHECKING:
    from jitsparse.jit import Variant
    from jitsparse.jit.cache import Cache

__all__ = ["export", "import_"]

JSON = typer.Option(False, "--json", help="Print JSON.")


def export(
    bundle: Path = typer.Argument(help="The archive to write."),
    op: list[str] = typer.Option([], help="dsd, dds, sdd."),
    dtype: list[str] = typer.Option([], help="f64, f32, tf32, bf32, f16, bf16."),
    block_size: list[str] = typer.Option([], help="32 or 32x64."),
    arch: list[str] = typer.Option([], help="Targets, e.g. 9.0a, 8.0, avx512."),
    variant: list[str] = typer.Option([], help="Names, with * and ?, as in 'dsd.wgmma.*'."),
    as_json: bool = JSON,
) -> None:
    """Write entries and the tuned table, of read-only caches too, to one archive.

    Without filters everything is exported. Filters may be repeated and may hold several values
    between commas. Kernels for a GPU come with the function that computes patterns' indices there,
    unless variants are named. Exits with 1 if something asked for is damaged; the rest is written.
    """
    from jitsparse.jit.exporting import export as write

    cache = caches.current()
    asked = variant_filter(op, dtype, block_size, arch, split(variant, str, "--variant"))
    keep = asked if variant else _with_index(asked, cache)
    done = write(cache, one(str(bundle), _archive, "BUNDLE"), keep=keep)
    if as_json:
        print_json(asdict(done))
    else:
        for name, reason in done.skipped:
            print(f"{name}: {reason}")
        stderr().print(
            f"{counted(len(done.entries), 'entry')} and {done.tuned} of the tuned table written "
            f"to {done.path} ({format_bytes(done.bytes)}), {len(done.skipped)} left out",
            soft_wrap=True,
        )
    if done.skipped:
        raise typer.Exit(1)


def _archive(text: str) -> Path:
    """A file to write in a directory that exists: for a mistyped one, none is created."""
    parent = Path(text).parent
    # os.path, for which a path that is too long does not exist.
    if not os.path.isdir(parent):
        raise ValueError(f"there is no directory {parent}; create it, or name another")
    return writable_file(text)


def _with_index(asked: Callable[[Variant], bool], cache: Cache) -> Callable[[Variant], bool]:
    """What is asked for, and with kernels for a GPU the function that patterns on a GPU need, which
    no filter on operations, dtypes or targets names."""
    from jitsparse.jit import Variant
    from jitsparse.kernels import registry

    found = (Variant.parse(entry.variant) for entry in cache.entries())
    if not any(asked(each) and registry.device_of(each.target) == "cuda" for each in found):
        return asked
    return lambda variant: variant == registry.INDEX or asked(variant)


def import_(
    bundle: Path = typer.Argument(help="An archive of cache export."),
    as_json: bool = JSON,
) -> None:
    """Bring the entries of a bundle into the writable cache. Runs nothing that is in it.

    A bundle is code: import it only from someone whose programs you would run. Existing entries
    stay. Exits with 1 if something in the bundle is damaged; the rest is imported.
    """
    from jitsparse.jit.importing import import_bundle

    cache = caches.current()
    done = import_bundle(cache, one(str(bundle), readable_file, "BUNDLE"))
    if as_json:
        print_json(asdict(done))
    else:
        for name, reason in done.rejected:
            print(f"{name}: {reason}")
        stderr().print(
            f"{counted(len(done.imported), 'entry')} and {done.tuned} of the tuned table imported "
            f"into {cache.root}, {len(done.present)} were there, {len(done.rejected)} rejected",
            soft_wrap=True,
        )
    if done.rejected:
        raise typer.Exit(1)
