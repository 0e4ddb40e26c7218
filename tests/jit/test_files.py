"""Small files: read within bounds, replaced whole, removed whatever they are."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import toykernel

from jitsparse.jit import files


def test_what_is_written_is_read_and_replaces(tmp_path: Path) -> None:
    files.write(tmp_path / "file", "first")
    files.write(tmp_path / "file", "zweite ☂")
    (tmp_path / "link").symlink_to("file")
    assert files.read(tmp_path / "link").decode() == "zweite ☂"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_who_cannot_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(tmp_path / "file", "first")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        files.write(tmp_path / "file", "second")
    assert files.read(tmp_path / "file") == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_cannot_be_read_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b-2", "a-1", "other"):
        (tmp_path / name).touch()
    assert [path.name for path in files.listed(tmp_path, "*-*")] == ["a-1", "b-2"]
    # As some versions of Python refuse it.
    toykernel.deny(monkeypatch, Path, "glob", tmp_path)
    assert files.listed(tmp_path) == []


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not an ordinary file"):
        files.read(tmp_path / "pipe")
    files.write(tmp_path / "pipe", "a file")
    assert files.read(tmp_path / "pipe") == b"a file"


def test_what_never_ends_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not an ordinary file"):
        files.read(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        files.read(tmp_path)
    monkeypatch.setattr(files, "LIMIT", 4)
    (tmp_path / "file").write_bytes(b"1234")
    assert files.read(tmp_path / "file") == b"1234"
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        files.read(tmp_path / "file")


def test_anything_is_removed_and_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept" / "inside").mkdir(parents=True)
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("kept")
    for name in ("folder", "file", "link", "absent"):
        files.remove(tmp_path / name)
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["inside"]
