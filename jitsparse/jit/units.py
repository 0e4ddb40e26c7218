"""Sizes and ages as people write them."""

from __future__ import annotations

import re

__all__ = ["format_bytes", "parse_bytes", "parse_seconds"]

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_bytes(text: str) -> int:
    """Parse a size: a number with K, M, G or T, which are powers of 1024.

    Example:
        >>> parse_bytes("500M"), parse_bytes("1.5 GiB"), parse_bytes("0")
        (524288000, 1610612736, 0)

    Raises:
        ValueError: the text is not a size.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.I)
    if match is None:
        raise ValueError("a size is a number with K, M, G or T after it, as in 500M or 2G")
    number, unit = match.groups()
    return int(float(number) * 1024 ** _POWERS[unit.upper()])


def parse_seconds(text: str) -> float:
    """Parse a length of time: a number with s, m, h, d or w.

    Example:
        >>> parse_seconds("36h"), parse_seconds("30d")
        (129600.0, 2592000.0)

    Raises:
        ValueError: the text is not a length of time.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhdw])", text.strip())
    if match is None:
        raise ValueError("an age is a number with s, m, h, d or w after it, as in 12h or 30d")
    number, unit = match.groups()
    return float(number) * _SECONDS[unit]


def format_bytes(count: float) -> str:
    """Format a size for people to read.

    Example:
        >>> format_bytes(512), format_bytes(2 * 1024**3)
        ('512 B', '2.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
