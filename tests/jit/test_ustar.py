"""Our plain tar archives against the standard library's."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitsparse.jit.ustar import members, write_end, write_member

NAMES = st.lists(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True), min_size=1, max_size=4
).map("/".join)


@given(st.dictionaries(NAMES, st.binary(max_size=2000), max_size=5))
def test_both_read_what_is_written(files: dict[str, bytes]) -> None:
    buffer = io.BytesIO()
    for name, content in files.items():
        write_member(buffer, name, content)
    write_end(buffer)
    assert {each.name: each.content for each in members(buffer, 2000)} == files
    buffer.seek(0)
    with tarfile.open(fileobj=buffer, mode="r:") as archive:
        assert {m.name: archive.extractfile(m).read() for m in archive} == files  # type: ignore[union-attr]


@given(st.binary(max_size=3000))
def test_noise_is_a_value_error(noise: bytes) -> None:
    with pytest.raises(ValueError, match=r"archive|header"):
        list(members(io.BytesIO(b"x" + noise), 100))


def test_what_is_too_long_is_passed_over() -> None:
    buffer = io.BytesIO()
    write_member(buffer, "long", bytes(1000))
    write_member(buffer, "short", b"x")
    write_end(buffer)
    assert [(each.name, each.content, each.size) for each in members(buffer, 999)] == [
        ("long", None, 1000),
        ("short", b"x", 1),
    ]


def test_what_is_not_all_there_is_none() -> None:
    buffer = io.BytesIO()
    write_member(buffer, "whole", bytes(1000))
    write_member(buffer, "cut", bytes(1000))
    archive = io.BytesIO(buffer.getvalue()[:-100])
    read = members(archive, 1000)
    assert next(read).name == "whole"
    with pytest.raises(ValueError, match="the archive ends within cut"):
        next(read)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "..", "a/../b", ".a", "a b", "é", "-a"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a relative path"):
        write_member(io.BytesIO(), name, b"")
