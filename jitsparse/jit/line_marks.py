"""``#line`` marks, by which the compiler numbers lines as in the template, not as rendered."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["with_line_marks"]

_OWN_LINE_TAG = re.compile(r"[ \t]*\{%(?![-+])(?:(?!%\}).)*(?<![-+])%\}[ \t]*")
_NEWLINE = re.compile(r"\r\n|\r|\n")  # as Jinja has it
_CAPTURING = ("call", "filter", "macro", "set")
"""Jinja's blocks whose text goes elsewhere."""
_OPENING = (*_CAPTURING, "autoescape", "block", "for", "if", "trans", "with")
# Tokens that may hide the beginning of a comment or a raw string in a line of C++, and these two.
_TOKEN = re.compile(
    r'(?<!\w)(?:u8|[uUL])?R"(?:(?P<delimiter>[^()\\\s"]{0,16})\()?'
    r"|\"(?:[^\"\\]|\\.)*(?:\"|$)|'(?:[^'\\]|\\.)'|<[^<>\s]*>|//|/\*"
)
_NEVER = "\0"


@dataclass
class _Survey:
    """What Jinja's lexer finds in a template, by line number.

    Attributes:
        joined: lines whose newline is not output: it is inside Jinja's syntax, or stripped beside
            it.
        begins: lines in which a block tag begins.
        expressions: lines in which ``{{ }}`` begins, whose value may be several lines long.
        tags: block tags of each line: 1 opens a block, -1 closes one, 0 divides one (else).
        captured: blocks whose text goes elsewhere: how many each line opens, less those it closes.
        glued: lines in which a loop begins whose body ends within a line, which then continues with
            the beginning of the next iteration.
        visible: the text that is left of each line.
    """

    joined: set[int] = field(default_factory=set)
    begins: set[int] = field(default_factory=set)
    expressions: set[int] = field(default_factory=set)
    tags: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    captured: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    glued: set[int] = field(default_factory=set)
    visible: dict[int, str] = field(default_factory=lambda: defaultdict(str))


def with_line_marks(
    text: str, environment: Environment, *, long_values: bool = False
) -> tuple[str, list[int]]:
    """The template with a ``#line`` after every block, and the original number of each line.

    A block tag on a line of its own must leave no line behind, a false branch drops its lines, a
    loop repeats them, and Jinja's syntax may itself be several lines long: after each of these the
    compiler must be told where it is. Inside a preprocessor macro of several lines, a comment, a
    raw string or a tag, and inside a block whose text Jinja puts elsewhere, it is told after the
    end of that.

    Args:
        text: text of the template.
        environment: the environment that will render it.
        long_values: whether values of ``{{ }}`` may be several lines long, too: then there is a
            ``#line`` after each, except for those in a preprocessor directive.
    """
    lines = _NEWLINE.split(text)
    last = len(lines) - (not lines[-1])
    survey = _survey(text, environment)
    marked: list[str] = []
    origin: list[int] = []
    tags = ""
    captured = 0
    closing: str | None = None
    inside_macro = due = unfinished = False
    # For each open block: whether the text before it ends within a line; whether that of a branch
    # does.
    blocks: list[tuple[bool, bool]] = []
    for number, line in enumerate(lines[:last], start=1):
        found = survey.tags[number]
        own_line = number in survey.begins and _OWN_LINE_TAG.fullmatch(line) is not None
        if own_line and found and found[0] < 1 and blocks and (unfinished or any(blocks[-1])):
            own_line = False  # its newline ends that text
        for change in found:
            if change == 1:
                blocks.append((unfinished or not own_line, False))
            elif blocks:
                before, ended = blocks.pop()
                ended = ended or unfinished
                unfinished = before if change == 0 else before or ended
                if change == 0:
                    blocks.append((before, ended))
        captured = max(0, captured + survey.captured[number])
        if own_line:
            tags += line.strip()
            due = True
        else:
            marked.append(tags + line)
            origin.append(number)
            tags = ""
            inside_macro = line.endswith("\\")
            closing = _left_open(survey.visible[number], closing)
            unfinished = unfinished if captured else number in survey.joined
            due = due or number - 1 in survey.joined or sum(found) != 0 or 0 in found
            due = due or (long_values and number in survey.expressions and line[:1] != "#")
        unfinished = unfinished or number in survey.glued
        stands_alone = not (unfinished or number in survey.joined)
        if due and stands_alone and not (inside_macro or captured or closing):
            marked.append(f"{tags}#line {number + 1}")
            origin.append(number)
            tags, due = "", False
    return "\n".join([*marked, tags]), [*origin, last or 1]


def _survey(text: str, environment: Environment) -> _Survey:
    from jinja2 import TemplateSyntaxError

    found = _Survey()
    try:
        tokens = list(environment.lexer.tokeniter(text, None))
    except TemplateSyntaxError:  # rendering reports it better
        return found
    block: list[str] | None = None  # its words so far
    begun: list[tuple[str, int]] = []  # open blocks, and the lines in which they begin
    for i, (line, kind, value) in enumerate(tokens):
        breaks = value.count("\n")
        if kind == "data":
            for below, part in enumerate(value.split("\n")):
                found.visible[line + below] += part
        else:
            found.joined.update(range(line, line + breaks))
        # What is stripped beside a tag is in no token.
        after = tokens[i + 1][0] if i + 1 < len(tokens) else line + breaks
        found.joined.update(range(line + breaks, after))
        if kind == "variable_begin":
            found.expressions.add(line)
        elif kind in ("block_begin", "raw_begin", "raw_end"):
            found.begins.add(line)
            block = []
        elif kind == "block_end" and block:
            name, *rest = block
            opens = name in _OPENING and not (name == "set" and "=" in rest)
            change = 1 if opens else -1 if name.startswith("end") else 0
            if change or name in ("else", "elif"):
                found.tags[line].append(change)
            if change < 1 and begun and begun[-1][0] == "for" and name in ("else", "endfor"):
                if found.visible[line].strip() or line - 1 in found.joined:
                    found.glued.add(begun[-1][1])
            if opens:
                begun.append((name, line))
            elif change < 0 and begun:
                begun.pop()
            if name.removeprefix("end") in _CAPTURING:
                found.captured[line] += change
            block = None
        elif block is not None and kind in ("name", "operator"):
            block.append(value)
    return found


def _left_open(line: str, closing: str | None) -> str | None:
    """What closes the comment or raw string that is open at the end of a line, or None.

    Args:
        line: a line of C++.
        closing: the same for the line before.
    """
    at = 0
    while True:
        if closing is not None:
            end = line.find(closing, at)
            if end < 0:
                return closing
            at, closing = end + len(closing), None
        match = _TOKEN.search(line, at)
        if match is None or match[0] == "//":
            return None
        at = match.end()
        if match[0] == "/*":
            closing = "*/"
        elif match["delimiter"] is not None:
            closing = f'){match["delimiter"]}"'
        elif match[0].endswith('R"'):
            return _NEVER  # a tag computes the delimiter: better no marks than some in the string
