"""The plainest tar archive: regular files with relative names, and nothing else.

Every tar program reads what is written here. Reading accepts no links, devices, directories, sparse
files or extended headers, so nothing in an archive can name an unintended file, or claim a size
that it does not have. The standard library's reader interprets all of these, and earlier releases
of it loop forever on some headers (CVE-2025-8194).
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["Member", "members", "write_end", "write_member"]

BLOCK = 512
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Member:
    """One file of an archive.

    Attributes:
        name: relative path of harmless characters, no part of which is ``..``.
        content: its content; None if it is longer than was allowed.
        size: its length in bytes.
    """

    name: str
    content: bytes | None
    size: int


def write_member(archive: BinaryIO, name: str, content: bytes) -> None:
    """Append a file. Its owner, mode and time are always the same.

    Raises:
        ValueError: the name is not one that :func:`members` reads, or too long.
    """
    _check_name(name)
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    archive.write(info.tobuf(tarfile.USTAR_FORMAT, "ascii"))
    archive.write(content + bytes(-len(content) % BLOCK))


def write_end(archive: BinaryIO) -> None:
    """Close an archive: two empty blocks."""
    archive.write(bytes(2 * BLOCK))


def members(archive: BinaryIO, limit: int) -> Iterator[Member]:
    """The files of an archive in their order.

    Args:
        archive: a seekable file, opened for reading bytes.
        limit: a file longer than this many bytes is not read; its content is None.

    Raises:
        ValueError: the archive ends too early, or holds something that is not accepted here. What
            came before it has been yielded.
    """
    end = archive.seek(0, io.SEEK_END)
    position = 0
    while True:
        archive.seek(position)
        header = archive.read(BLOCK)
        if len(header) < BLOCK:
            raise ValueError("the archive ends too early")
        if not any(header):
            return
        name, size = _header(header)
        position += BLOCK + size + -size % BLOCK
        if position > end:
            raise ValueError(f"the archive ends within {name}")
        yield Member(name, archive.read(size) if size <= limit else None, size)


def _header(block: bytes) -> tuple[str, int]:
    """Name and size that a header states.

    Raises:
        ValueError: it is not the header of a regular file.
    """
    if block[257:263] != b"ustar\0":
        raise ValueError("it is not a tar archive of the plain kind (ustar)")
    if _octal(block[148:156]) != sum(block[:148]) + sum(block[156:]) + 8 * ord(" "):
        raise ValueError("a header is damaged (checksum)")
    name, prefix = (
        field.partition(b"\0")[0].decode("ascii", "backslashreplace")
        for field in (block[:100], block[345:500])
    )
    path = f"{prefix}/{name}" if prefix else name
    if block[156:157] != b"0":
        raise ValueError(f"{path!r} is not an ordinary file (type {block[156:157]!r})")
    _check_name(path)
    return path, _octal(block[124:136])


def _octal(field: bytes) -> int:
    text = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]{1,12}", text):
        raise ValueError(f"a header is damaged: {field!r} is not an octal number")
    return int(text, 8)


def _check_name(name: str) -> None:
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        raise ValueError(f"{name!r} is not a relative path of letters, digits and _ . -")
