from __future__ import annotations

import pytest

from jitsparse.jit.units import format_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("0", 0), ("12", 12), ("12B", 12), ("1K", 1024), ("1k", 1024), ("500M", 500 * 1024**2)),
        *(("2G", 2 * 1024**3), (" 1.5 GiB ", 3 * 1024**3 // 2), ("1TB", 1024**4)),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("2 w", 1209600)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1X", "1 2", "G", "1e9", "nan", "٣", "9" * 400])
def test_what_is_neither(text: str) -> None:
    for parse, example in ((parse_bytes, "500M"), (parse_seconds, "30d")):
        with pytest.raises(ValueError, match=example):
            parse(text)


def test_sizes_for_people() -> None:
    assert [format_bytes(count) for count in (0, 1023, 1024, 5 * 1024**4)] == [
        *("0 B", "1023 B", "1.0 KiB", "5.0 TiB")
    ]
