"""The command line: ``jitsparse`` and ``python -m jitsparse``, one module per command.

Data goes to stdout, progress and errors to stderr. Exit codes: 0 done, 1 failed, 2 asked for
something that does not exist, 3 ``warmup --check`` found a kernel missing, 130 interrupted, 143
ended by SIGTERM.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType

import typer

from jitsparse.cli import bench, cache, demo, doctor, explain, listing, tune, warmup
from jitsparse.errors import JitsparseError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Block-sparse matrices for PyTorch, with kernels compiled on first use.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("demo")(demo.command)
app.command("warmup")(warmup.command)
app.command("list")(listing.command)
app.command("explain")(explain.command)
app.command("tune")(tune.command)
app.command("doctor")(doctor.command)
app.add_typer(cache.app, name="cache")
app.command("bench")(bench.command)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        from jitsparse import __version__

        print(f"jitsparse {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: by default those of the process.

    Returns:
        The exit code of a command that fails. Everything else, such as usage errors and ``--help``,
        exits through SystemExit.
    """
    # Closed by the parent process. Printing to a stream that is None would print to stdout.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="jitsparse-path")
    try:
        try:
            with _as_a_program():
                app(args=None if arguments is None else list(arguments), prog_name="jitsparse")
        finally:
            sys.stdout.flush()
    except JitsparseError as error:
        print(f"jitsparse: {error}", file=sys.stderr)
        # A ValueError: what was asked for is wrong; any other error: doing it failed.
        return 2 if isinstance(error, ValueError) else 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader wants no more
            print(f"jitsparse: {error}", file=sys.stderr)
        _drop_output()
        return 1
    except (MemoryError, RuntimeError) as error:
        # torch has no error of its own for a CPU that is out of memory.
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        print(f"jitsparse: out of memory: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(
            f"jitsparse: {error}. What this installation lacks is said by: jitsparse doctor",
            file=sys.stderr,
        )
        return 1
    return 0


def _encode_path(error: UnicodeError) -> tuple[str | bytes, int]:
    """A path may contain bytes that are not text, which are printed as they are, and characters
    that the output's encoding lacks, which are escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = (error.object, error.start, error.start + 1)
    one = UnicodeEncodeError(error.encoding, *first, error.reason)
    try:
        return codecs.lookup_error("surrogateescape")(one)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(one)


codecs.register_error("jitsparse-path", _encode_path)


@contextlib.contextmanager
def _as_a_program() -> Iterator[None]:
    """Let a scheduler's SIGTERM end compilers and clean up, as Ctrl-C does. Print warnings as text
    alone, without the place in a command's code."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # Another handler, or ignoring the signal, was someone's choice.
    main = threading.current_thread() is threading.main_thread()
    handles = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if handles:
        signal.signal(signal.SIGTERM, end)
    usual, warnings.formatwarning = warnings.formatwarning, lambda text, *_, **__: f"{text}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual
        if handles:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _drop_output() -> None:
    """Drop what is still buffered, so that writing it does not fail again when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
