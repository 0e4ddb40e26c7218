"""What is said of the cache's layers."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from jitsparse.doctor import storage
from jitsparse.doctor.finding import Finding
from jitsparse.errors import UntrustedCache
from jitsparse.jit.cache import Cache
from jitsparse.jit.environment import Config

TABLE = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw,nosuid,noexec 0 0
server:/home /home/a\\040b nfs4 rw,vers=4.2 0 0
/dev/vdb {} xfs rw,noexec 0 0
"""


def root(path: Path, **settings: object) -> dict[str, Finding]:
    found = list(storage.check_root(Config(cache_dir=path, **settings)))  # type: ignore[arg-type]
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_a_cache_that_is_not_there_yet_is_not_created(tmp_path: Path) -> None:
    found = root(tmp_path / "a" / "b")
    assert {each.status for each in found.values()} == {"ok"}
    assert "created at the first use" in found["cache.directory"].found
    assert list(tmp_path.iterdir()) == []


def test_a_sound_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    found = root(tmp_path / "cache")
    assert {each.status for each in found.values()} == {"ok"}
    assert "mode 0700" in found["cache.directory"].found
    assert list((tmp_path / "cache").iterdir()) == []


def test_read_only() -> None:
    """/proc takes no directory from anybody, not even root."""
    found = root(Path("/proc/jitsparse"))
    assert found["cache.directory"].status == "fail"
    assert "JITSPARSE_CACHE_DIR" in found["cache.directory"].remedy
    assert root(Path("/proc/jitsparse"), jit=False)["cache.directory"].status == "ok"


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "is not a directory" in root(path)["cache.directory"].found


@pytest.mark.parametrize("part", ["v1", "v1/staging", "v1/locks"])
def test_a_file_in_the_way_of_a_part(part: str, tmp_path: Path) -> None:
    path = tmp_path / "cache" / part
    path.parent.mkdir(parents=True, mode=0o700)
    path.touch()
    found = root(tmp_path / "cache")["cache.directory"]
    assert found.status == "fail"
    assert f"{path} is not a directory" in found.found


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "nowhere")
    assert root(tmp_path / "cache")["cache.directory"].status == "fail"


@pytest.mark.parametrize("name", ["a$b", "a:b", "a\nb", os.fsdecode(b"a\xffb")])
def test_names_that_nothing_can_be_built_below(name: str, tmp_path: Path) -> None:
    found = root(tmp_path / name)["cache.directory"]
    assert (found.status, found.found.split(":")[0]) == ("fail", "nothing can be compiled there")
    assert root(tmp_path / name, jit=False)["cache.directory"].status == "ok"


@pytest.mark.parametrize(("mode", "status"), [(0o700, "ok"), (0o775, "fail"), (0o777, "fail")])
def test_who_else_can_write(tmp_path: Path, mode: int, status: str) -> None:
    """What calls refuse fails, and what they are told to trust does not."""
    path = tmp_path / "cache"
    path.mkdir()
    path.chmod(mode)
    finding = root(path)["cache.directory"]
    assert finding.status == status
    assert ("chmod" in finding.remedy) == (status != "ok")
    assert root(path, trust_cache=(path,))["cache.directory"].status == "ok"
    for trusted, said in (((), status), ((path,), "ok")):
        (of_layer, *_) = storage.check_layer("layer1", path, trusted)
        assert of_layer.status == said
    if status == "fail":
        with pytest.raises(UntrustedCache):
            Cache(path).check()


def test_a_stranger_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = list(tmp_path.stat())
    facts[4] = os.geteuid() + 1
    monkeypatch.setattr(Path, "stat", lambda *_, **__: os.stat_result(facts))
    finding = storage._owned("cache.directory", tmp_path, "there", ())
    assert finding.status == "fail"
    assert "neither this one nor root" in finding.found
    assert storage._owned("cache.directory", tmp_path, "there", (tmp_path,)).status == "ok"


def test_noexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    table.write_text(TABLE.format(str(tmp_path / "cache")))
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(storage, "MOUNT_TABLE", table)
    finding = root(tmp_path / "cache")["cache.mount"]
    assert finding.status == "warn"
    assert "xfs" in finding.found
    assert "remount,exec" in finding.remedy
    layer = {each.name: each for each in storage.check_layer("layer1", tmp_path / "cache")}
    assert layer["layer1.mount"].status == "warn"


def test_the_innermost_mount_counts() -> None:
    table = TABLE.format("/nonexistent/cache")
    assert storage.mount_of(Path("/usr"), table) == ("/", "ext4", frozenset({"rw", "relatime"}))
    inner = storage.mount_of(Path("/nonexistent/cache/v1"), table)
    assert inner is not None
    assert inner[1] == "xfs"
    beside = storage.mount_of(Path("/nonexistent/cache-two"), table)
    assert beside is not None
    assert beside[1] == "ext4"
    blank = storage.mount_of(Path("/home/a b/x"), table)
    assert blank is not None
    assert blank[1] == "nfs4"
    over = storage.mount_of(
        Path("/nonexistent/cache"), f"{table}tmp /nonexistent/cache tmpfs rw 0 0\n"
    )
    assert over is not None
    assert over[1] == "tmpfs"
    assert storage.mount_of(Path("/usr"), "") is None


def test_no_mount_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOUNT_TABLE", tmp_path / "none")
    assert root(tmp_path / "cache")["cache.mount"].status == "skip"


def test_files_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(mmap, "mmap", refuse)
    assert root(tmp_path / "cache")["cache.mapping"].status == "warn"


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert root(tmp_path / "cache")["cache.locks"].status == "warn"

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "No locks available" in root(tmp_path / "cache")["cache.locks"].found


def test_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7200)
    finding = root(tmp_path / "cache")["cache.clock"]
    assert finding.status == "warn"
    assert "-7200 s" in finding.found


@pytest.mark.parametrize(
    ("blocks", "inodes", "status"),
    [(1 << 30, 10**6, "ok"), (40, 10**6, "fail"), (30000, 7, "warn")],
)
def test_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, inodes: int, status: str
) -> None:
    facts = (4096, 4096, 1 << 31, blocks, blocks, 10**7, inodes, inodes, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(facts))
    assert root(tmp_path / "cache")["cache.space"].status == status


def test_a_file_system_that_counts_no_inodes_has_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As btrfs, which says that there are none at all."""
    facts = (4096, 4096, 1 << 31, 10**7, 10**7, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(facts))
    finding = root(tmp_path / "cache")["cache.space"]
    assert finding.status == "ok"
    assert "inodes" not in finding.found


def test_entries(tmp_path: Path) -> None:
    import toykernel

    from jitsparse.jit import compile_only, config

    cache = tmp_path / "cache"
    with config.override(cache_dir=cache):
        entry = compile_only(toykernel.write(tmp_path), toykernel.variant())
    assert root(cache)["cache.entries"].found.startswith("kernels: 1, ")
    (entry.path / "meta.json").write_text("{")
    finding = {each.name: each for each in storage.check_layer("layer1", cache)}["layer1.entries"]
    assert finding.status == "warn"
    assert "1 more without a usable meta.json" in finding.found


def test_a_layer_that_is_missing(tmp_path: Path) -> None:
    (finding,) = storage.check_layer("layer2", tmp_path / "none")
    assert (finding.name, finding.status) == ("layer2.directory", "warn")
    assert "JITSPARSE_CACHE_PATH" in finding.remedy
