"""Finding the error that a reader needs in a compiler's output: the first, at its own line."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from jitsparse.errors import CompileError

__all__ = ["compile_error", "first_error", "incomplete"]

# gcc and clang: file:line:column: error: text      nvcc: file(line): error: text
_LOCATED = re.compile(
    r"^\S[^\n]*?(?::\d+(?::\d+)?|\(\d+\)): "
    r"(?:(?:fatal |catastrophic |internal compiler )?error|Error)\b"
)
# ptxas, the linker and the drivers give no line of the source.
_PLAIN = re.compile(
    r"^(?:ptxas\b.*(?:error|fatal)|nvcc (?:error|fatal)|nvlink (?:error|fatal)"
    r"|[^\s:]+: (?:fatal |internal compiler )?error:|.*: undefined reference to"
    r"|\S*ld(?:\.\w+)?: (?!.*: in function))"
)
_MAX_LINES = 6


def first_error(output: str) -> str:
    """The first error in a compiler's output, with the excerpt that the compiler shows for it.

    Returns an empty string if no line looks like an error.
    """
    lines = output.splitlines()
    for pattern in (_LOCATED, _PLAIN):
        for number, line in enumerate(lines):
            if pattern.match(line):
                excerpt = [line]
                for follower in lines[number + 1 : number + _MAX_LINES]:
                    if not follower.startswith(" "):
                        break
                    excerpt.append(follower)
                return "\n".join(excerpt).rstrip()
    return ""


def incomplete(variant: str, template: Path, function: str) -> CompileError:
    """The error for a template without one of the two functions that each has to define."""
    return CompileError(
        f"{variant} was compiled, but its template {template} defines no {function}: a template "
        "defines jitsparse_launch and jitsparse_error",
        variant=variant,
        source_path=str(template),
    )


def compile_error(variant: str, output: str, source: Path, log: Path, command: str) -> CompileError:
    """The exception for a build that failed.

    Args:
        variant: name of the variant.
        output: everything that the compiler printed.
        source: the rendered source, where it is kept.
        log: the log, where it is kept.
        command: shell command that compiles the source again.
    """
    reason = first_error(output) or output.strip()[-2000:] or "the compiler printed nothing"
    indented = "\n".join(f"  {line}" for line in reason.splitlines())
    # os.path: an unreadable path must not raise an error of its own here.
    lost = "" if os.path.isfile(source) else " (neither could be kept)"
    return CompileError(
        f"{variant} did not compile\n{indented}\n"
        f"  log: {log}\n  source: {source}{lost}\n"
        f"  to reproduce: cd {shlex.quote(str(source.parent))} && {command}",
        variant=variant,
        log_path=str(log),
        source_path=str(source),
        command=f"cd {shlex.quote(str(source.parent))} && {command}",
    )
