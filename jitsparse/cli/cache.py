"""``jitsparse cache``: where compiled kernels are, and everything that is done with them.

Exit codes: 0 fine; 1 something is bad: a damaged entry, a file that is not a bundle, a cache that
others can write to; 2 the arguments are not understood, or a setting is wrong: a cache that is a
file.
"""

from __future__ import annotations

import typer

from jitsparse import jit
from jitsparse.cli import bundle, upkeep
from jitsparse.cli.console import counted, print_json, print_table, stderr
from jitsparse.jit import cache as caches
from jitsparse.jit import roots
from jitsparse.jit.units import format_bytes

__all__ = ["app"]

app = typer.Typer(help="The cache of compiled kernels.", no_args_is_help=True)

JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command("path")
def path(as_json: bool = JSON) -> None:
    """Print the directory that entries are written to."""
    where = jit.cache_info()["path"]
    print_json({"path": where}) if as_json else print(where)


@app.command("info")
def info(as_json: bool = JSON) -> None:
    """Print where the cache is, what it holds and how long that took to compile."""
    facts = jit.cache_info()
    for note in roots.notes(caches.current()):
        stderr().print(note, soft_wrap=True)
    if as_json:
        print_json(facts)
        return
    rows = [
        ("path", facts["path"]),
        ("read-only caches", ", ".join(facts["layers"]) or "none"),
        ("entries", str(facts["entries"])),
        ("libraries", format_bytes(facts["bytes"])),
        ("compiled in", f"{facts['compile_seconds']:.1f} s"),
    ]
    print_table([{"": name, " ": value} for name, value in rows], ["", " "])


@app.command("clear")
def clear(as_json: bool = JSON) -> None:
    """Delete every entry of the writable cache. Read-only caches and the tuned table are kept."""
    where = jit.cache_info()["path"]
    count = jit.clear_cache()
    if as_json:
        print_json({"path": where, "deleted": count})
    else:
        print(f"{counted(count, 'entry')} deleted from {where}")


app.command("ls")(upkeep.ls)
app.command("verify")(upkeep.verify)
app.command("prune")(upkeep.prune)
app.command("explain-miss")(upkeep.explain_miss)
app.command("export")(bundle.export)
app.command("import")(bundle.import_)
