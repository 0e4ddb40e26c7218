"""``jitsparse cache ls``, ``verify``, ``prune`` and ``explain-miss``."""

from __future__ import annotations

import time
from dataclasses import asdict

import typer

from jitsparse import jit
from jitsparse.cli.console import counted, one, print_json, print_table, stderr
from jitsparse.cli.listing import facts
from jitsparse.jit import cache as caches
from jitsparse.jit import roots
from jitsparse.jit.inventory import stored
from jitsparse.jit.units import format_bytes, parse_bytes, parse_seconds

__all__ = ["explain_miss", "ls", "prune", "verify"]

JSON = typer.Option(False, "--json", help="Print JSON.")


def ls(as_json: bool = JSON) -> None:
    """List every entry: size, target, compile time, last use. The last used come first."""
    cache = roots.require_directories(caches.current())
    entries = sorted(stored(cache), key=lambda each: -each.last_use)
    if as_json:
        print_json([facts(each) for each in entries])
        return
    rows = [
        {
            "variant": each.entry.variant,
            "target": jit.Variant.parse(each.entry.variant).target,
            "size": format_bytes(each.bytes),
            "compile s": round(each.entry.compile_seconds, 2),
            "last use": time.strftime("%Y-%m-%d %H:%M", time.localtime(each.last_use)),
            "in": str(each.entry.path.parent.parent),
        }
        for each in entries
    ]
    if rows:
        print_table(rows, list(rows[0]))
    total = format_bytes(sum(each.bytes for each in entries))
    stderr().print(f"{counted(len(rows), 'entry')}, {total}", soft_wrap=True)


def verify(as_json: bool = JSON) -> None:
    """Examine every entry: owner, metadata, key, size and sha256. Loads and changes nothing.

    Exits with 1 if an entry is damaged. A damaged entry is never loaded; it is built again when it
    is needed.
    """
    from jitsparse.jit import inventory

    verdicts = list(inventory.verify(roots.require_directories(caches.current())))
    bad = [each for each in verdicts if each.defect]
    if as_json:
        print_json([{**asdict(each), "sound": not each.defect} for each in verdicts])
    else:
        for each in bad:
            print(f"{each.path}: {each.defect}")
        stderr().print(f"{counted(len(verdicts), 'entry')}, {len(bad)} damaged", soft_wrap=True)
    if bad:
        raise typer.Exit(1)


def prune(
    max_size: str = typer.Option(
        "", help="Delete until no more than this is left: 500M, 2G, or 0 for everything."
    ),
    older_than: str = typer.Option("", help="Delete what was not used for so long: 12h, 30d."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would go, and stop."),
    as_json: bool = JSON,
) -> None:
    """Delete entries of the writable cache, the least recently used first.

    Kernels that a process has loaded are safe, and so are builds in progress and read-only caches.
    """
    from jitsparse.jit import prune as pruning

    if not (max_size or older_than):
        raise typer.BadParameter("say what is to go: --max-size, --older-than or both")
    done = pruning.prune(
        caches.current(),
        max_size=one(max_size, parse_bytes, "--max-size") if max_size else None,
        older_than=one(older_than, parse_seconds, "--older-than") if older_than else None,
        dry_run=dry_run,
    )
    if as_json:
        print_json({**asdict(done), "dry_run": dry_run})
        return
    for path in done.deleted:
        print(path)
    what = "would be deleted" if dry_run else "deleted"
    busy = f", {len(done.in_use)} more are in use" if done.in_use else ""
    stderr().print(
        f"{counted(len(done.deleted), 'entry')} ({format_bytes(done.deleted_bytes)}) {what}{busy}; "
        f"{done.kept} ({format_bytes(done.kept_bytes)}) are left",
        soft_wrap=True,
    )


def explain_miss(
    variant: str = typer.Argument(help="Name of a variant of ours, as explain and list print it."),
    as_json: bool = JSON,
) -> None:
    """Print why a kernel would be compiled: how the nearest entry of its name differs."""
    from jitsparse.kernels import registry

    parsed = one(variant, registry.variant_named, "VARIANT")
    found = jit.explain_miss(registry.template_of(parsed), parsed)
    if as_json:
        print_json(asdict(found))
    elif found.path is not None:
        print(f"{found.variant} is no miss: {found.path}")
    else:
        print(f"{found.variant} is a miss")
        for path, defect in found.damaged:
            print(f"  damaged: {path}: {defect}")
        if found.differences:
            print(f"  the nearest entry, {found.nearest}, differs:")
            for each in found.differences:
                print(f"    {each.sentence}")
        elif not found.damaged:
            print("  no entry of this variant is there")
        if found.other_targets:
            print(f"  kernels like it are there for {', '.join(found.other_targets)}")
        for note in roots.notes(caches.current()):
            print(f"  {note}")
