"""How many compilers run at a time: processors, quotas and memory, of both versions of cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jitsparse.jit import config, jobs

GIB = 1024**3
UNLIMITED_V1 = "9223372036854771712"


@pytest.fixture(autouse=True)
def sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def machine(root: Path, cgroup: str, files: dict[str, str], available: int = 64 * GIB) -> Path:
    """A file system with what the kernel would show."""
    files = {
        "proc/self/cgroup": cgroup,
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n",
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_processors_alone(tmp_path: Path) -> None:
    assert jobs.limit(machine(tmp_path, "0::/", {})) == 16


def test_nothing_to_read(tmp_path: Path) -> None:
    assert jobs.limit(tmp_path) == 16


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 16), ("200000 100000", 2), ("250000 100000", 3), ("10000 100000", 1)],
)
def test_quota_of_version_2(quota: str, expected: int, tmp_path: Path) -> None:
    assert jobs.limit(machine(tmp_path, "0::/", {"cpu.max": quota})) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 16), ("400000", 4), ("150000", 2)])
def test_quota_of_version_1(quota: str, expected: int, tmp_path: Path) -> None:
    """The container's groups have the host's names, which do not exist inside."""
    files = {"cpu,cpuacct/cpu.cfs_quota_us": quota, "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    groups = "11:cpu,cpuacct:/docker/0123\n3:memory:/docker/0123\n1:name=systemd:/docker/0123"
    assert jobs.limit(machine(tmp_path, groups, files)) == expected


def test_an_outer_group_limits_too(tmp_path: Path) -> None:
    files = {
        "user.slice/cpu.max": "300000 100000",
        "user.slice/job.scope/cpu.max": "max 100000",
        "user.slice/job.scope/memory.max": "max",
        "user.slice/job.scope/memory.current": "5",
    }
    assert jobs.limit(machine(tmp_path, "0::/user.slice/job.scope", files)) == 3


def test_memory_of_version_2(tmp_path: Path) -> None:
    """Cache of files that nobody reads any more is no reason to wait."""
    files = {
        "memory.max": str(2 * GIB),
        "memory.current": str(GIB + GIB // 2),
        "memory.stat": f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file 0",
    }
    assert jobs.limit(machine(tmp_path, "0::/", files)) == GIB // jobs.JOB_BYTES


def test_memory_of_version_1(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": str(GIB),
        "memory/memory.usage_in_bytes": str(GIB // 2),
        "memory/memory.stat": "inactive_file 12345\ntotal_inactive_file 0",
    }
    groups = "5:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123"
    root = machine(tmp_path, groups, files)
    assert jobs.limit(root) == GIB // 2 // jobs.JOB_BYTES
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(UNLIMITED_V1)
    assert jobs.limit(root) == 16


def test_memory_of_the_machine(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/", {}, available=3 * jobs.JOB_BYTES + 1024)
    assert jobs.limit(root) == 3


def test_there_is_always_one(tmp_path: Path) -> None:
    files = {"memory.max": str(GIB), "memory.current": str(2 * GIB), "cpu.max": "1 100000"}
    assert jobs.limit(machine(tmp_path, "0::/", files, available=0)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cpu.max", "many"),
        ("cpu.max", "max"),
        ("cpu.max", "1000 0"),
        ("cpu.max", ""),
        ("memory.max", "a lot"),
        ("memory.max", "-5"),
        ("memory.max", "9" * 40),
    ],
)
def test_what_cannot_be_understood_is_no_limit(name: str, text: str, tmp_path: Path) -> None:
    files = {"memory.max": str(64 * GIB), "memory.current": "0", name: text}
    assert jobs.limit(machine(tmp_path, "0::/", files)) == 16


def test_odd_groups(tmp_path: Path) -> None:
    groups = "0::/../elsewhere\nnonsense\n7::\n:cpu"
    assert jobs.limit(machine(tmp_path, groups, {"cpu.max": "200000 100000"})) == 2


def test_max_jobs_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, "0::/", {"cpu.max": "200000 100000"})
    monkeypatch.setattr(jobs.limit, "__defaults__", (root,))
    with config.override(max_jobs=None):
        assert config.get().jobs == 2
    with config.override(max_jobs=40):
        assert config.get().jobs == 40
