"""Where the compiler is in a template: lines of the rendered text with the numbers of its own."""

from __future__ import annotations

import re

__all__ = ["with_line_marks"]

_OWN_LINE_TAG = re.compile(r"[ \t]*\{%(?![-+])(?:(?!%\}).)*(?<![-+])%\}[ \t]*")
_READ_BY_JINJA = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
_RAW = re.compile(r"\{%[-+]?\s*(raw|endraw)\b")
_NEWLINE = re.compile(r"\r\n|\r|\n")  # as Jinja has it
_OPENING = re.compile(r'R"([^()\\\s]{0,16})\(|"(?:\\.|[^"\\])*"|//|/\*')
_TAG = re.compile(r"\{%[-+]?\s*(\w+)([^%]*)")
_ASSIGNMENT = re.compile(r"[\w.,\s]+=(?!=)")
_CAPTURING = ("call", "filter", "macro", "set")
"""Jinja's blocks whose text goes elsewhere."""


def with_line_marks(text: str) -> tuple[str, list[int]]:
    """The template with a ``#line`` after every block tag, and where each of its lines was.

    A block tag on a line of its own shall leave no line behind, a false branch leaves out all its
    lines and a loop repeats them, and what Jinja reads may itself be several lines long: after each
    of them the compiler must be told where it is. Inside a preprocessor's macro of several lines, a
    comment, a raw string or a tag, and inside a block whose text Jinja puts elsewhere or leaves
    alone, it is told when that has ended.
    """
    lines = _NEWLINE.split(text)
    last = len(lines) - (not lines[-1])
    marked: list[str] = []
    origin: list[int] = []
    tags = ""
    captured = 0
    closing: str | None = None
    inside_macro = due = raw = False
    joined = _joined(text)
    for number, line in enumerate(lines[:last], start=1):
        raw_tags = _RAW.findall(line)
        verbatim = raw and not raw_tags
        if not verbatim and _OWN_LINE_TAG.fullmatch(line):
            tags += line.strip()
            due = True
        else:
            marked.append(tags + line)
            origin.append(number)
            tags = ""
            inside_macro = line.endswith("\\")
            closing = _left_open(line, closing)
            due = due or number - 1 in joined or (not verbatim and _TAG.search(line) is not None)
        if not verbatim:
            captured = max(0, captured + sum(map(_opened, _TAG.finditer(line))))
        raw = raw_tags[-1] == "raw" if raw_tags else raw
        if due and not (inside_macro or captured or raw or closing or number in joined):
            marked.append(f"{tags}#line {number + 1}")
            origin.append(number)
            tags, due = "", False
    return "\n".join([*marked, tags]), [*origin, last or 1]


def _joined(text: str) -> set[int]:
    """Numbers of lines after which Jinja sees no new line: it is within what Jinja reads, or
    stripped beside it."""
    joined: set[int] = set()
    for match in _READ_BY_JINJA.finditer(text):
        begin, end = match.span()
        if match[0][2] == "-":
            begin = len(text[:begin].rstrip())
        if match[0][-3] == "-":
            end = len(text) - len(text[end:].lstrip())
        first = len(_NEWLINE.findall(text, 0, begin)) + 1
        joined.update(range(first, first + len(_NEWLINE.findall(text, begin, end))))
    return joined


def _left_open(line: str, closing: str | None) -> str | None:
    """What will end the comment or the raw string that a line is in when it ends, if it is.

    Args:
        line: of C++, with tags.
        closing: the same of the line before.
    """
    at = 0
    while True:
        if closing is not None:
            end = line.find(closing, at)
            if end < 0:
                return closing
            at, closing = end + len(closing), None
        match = _OPENING.search(line, at)
        if match is None or match[0] == "//":
            return None
        at = match.end()
        if match[0] == "/*":
            closing = "*/"
        elif match[1] is not None:
            closing = f'){match[1]}"'


def _opened(tag: re.Match[str]) -> int:
    """1 of a tag that begins a block whose text goes elsewhere, -1 of one that ends it."""
    name, rest = tag.groups()
    if name.startswith("end") and name[3:] in _CAPTURING:
        return -1
    # What is set to a value has no block.
    return int(name in _CAPTURING and not (name == "set" and _ASSIGNMENT.match(rest)))
