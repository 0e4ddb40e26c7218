"""The environment: defaults, legal values, and errors that list them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jitsparse.errors import ConfigError
from jitsparse.jit import config
from jitsparse.jit.environment import Config, parse_arch


def test_defaults() -> None:
    settings = Config.from_environment({"HOME": "/home/someone"})
    assert settings.cache_dir == Path("~/.cache/jitsparse").expanduser()
    assert settings == Config(cache_dir=settings.cache_dir)


def test_every_variable() -> None:
    settings = Config.from_environment(
        {
            "JITSPARSE_CACHE_DIR": "/own",
            "JITSPARSE_CACHE_PATH": "/first:/second:",
            "JITSPARSE_CACHE_MAX_SIZE": "500M",
            "JITSPARSE_TRUST_CACHE": "/first",
            "JITSPARSE_PIN": "dsd=t64",
            "JITSPARSE_JIT": "OFF",
            "JITSPARSE_FIRST_USE": "Fallback",
            "JITSPARSE_LOG": "debug",
            "JITSPARSE_ARCH": "9.0a;8.0",
            "JITSPARSE_RECORD": "/record",
            "CUDA_HOME": "/cuda",
            "CUDA_PATH": "/cuda2",
            "CXX": "clang++",
            "CC": "gcc",
            "MAX_JOBS": "3",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "RANK": "5",
            "LOCAL_RANK": "1",
        }
    )
    assert settings == Config(
        cache_dir=Path("/own"),
        cache_path=(Path("/first"), Path("/second")),
        cache_max_size=500 * 1024**2,
        trust_cache=(Path("/first"),),
        pin="dsd=t64",
        jit=False,
        first_use="fallback",
        log="debug",
        arch=("sm90a", "sm80"),
        record=Path("/record"),
        cuda_home=(Path("/cuda"), Path("/cuda2")),
        cxx="clang++",
        cc="gcc",
        max_jobs=3,
        color=False,
        live=False,
        rank=5,
    )


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"LOCAL_RANK": "2"}, 2),
        ({"RANK": "0", "LOCAL_RANK": "2"}, 0),
        ({"LOCAL_RANK": "-1"}, 0),
        ({"RANK": "none"}, 0),
    ],
)
def test_what_other_launchers_say_of_ranks_is_no_error(
    variables: dict[str, str], rank: int
) -> None:
    assert Config.from_environment(variables).rank == rank


def test_xdg_cache_home_holds_the_default_cache() -> None:
    relative = Config.from_environment({"XDG_CACHE_HOME": "xdg", "HOME": "/home/someone"})
    assert relative.cache_dir == Path("~/.cache/jitsparse").expanduser()
    settings = Config.from_environment({"XDG_CACHE_HOME": "/xdg"})
    assert settings.cache_dir == Path("/xdg/jitsparse")


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("JITSPARSE_JIT", "maybe", "on, off"),
        ("JITSPARSE_FIRST_USE", "never", "wait, fallback"),
        ("JITSPARSE_LOG", "loud", "debug, info, warning, quiet"),
        ("JITSPARSE_ARCH", "hopper", "generic, avx2, avx512, avx512bf16, amx"),
        ("MAX_JOBS", "many", "whole number"),
        ("JITSPARSE_CACHE_MAX_SIZE", "big", "500M"),
        ("JITSPARSE_CACHE_MAX_SIZE", "-1", "unlimited"),
    ],
)
def test_an_illegal_value_lists_the_legal_ones(name: str, value: str, legal: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({name: value})
    assert name in str(caught.value)
    assert legal in str(caught.value)


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("", ()),
        ("9.0a", ("sm90a",)),
        ("9.0a;8.0", ("sm90a", "sm80")),
        ("8.0, 9.0a 8.0", ("sm80", "sm90a")),
        ("sm_90a;sm80", ("sm90a", "sm80")),
        ("10.0a;12.1f", ("sm100a", "sm121f")),
        ("AVX2", ("avx2",)),
    ],
)
def test_architectures(text: str, targets: tuple[str, ...]) -> None:
    assert parse_arch(text) == targets


@pytest.mark.parametrize(
    ("text", "says"), [("6.1", "older than kernels are made for"), ("9.0x", "is not a target")]
)
def test_architectures_that_are_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_arch(text)


def test_a_relative_path_in_a_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="'cache' is a relative path, and the current directory"):
        Config.from_environment({"JITSPARSE_CACHE_DIR": "cache"})


def test_override_is_undone_and_every_change_is_seen() -> None:
    before, generations = config.get(), [config.generation]
    with config.override(jit="off", cache_dir="/other", arch="8.0") as inside:
        generations.append(config.generation)
        assert (inside.jit, inside.cache_dir, inside.arch) == (False, Path("/other"), ("sm80",))
        assert config.get() is inside
    generations.append(config.generation)
    assert config.get() is before
    assert generations == sorted(set(generations))


def test_blocks_of_threads_leave_nothing_behind() -> None:
    """Blocks that begin and end at any moment, of other settings and of one."""
    before, interval, wrong = config.get(), sys.getswitchinterval(), []

    def blocks(name: str, values: Sequence[Any]) -> None:
        for n in range(300):
            value = values[n % len(values)]
            with config.override(**{name: value}):
                if name == "max_jobs" and config.get().max_jobs != value:
                    wrong.append(name)  # which no other thread touches

    tasks = [("max_jobs", [3, 5]), ("log", ["debug"]), ("log", ["quiet"]), ("record", ["a"])]
    threads = [threading.Thread(target=blocks, args=each) for each in tasks]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert config.get() == before
    assert wrong == []


def test_override_takes_what_an_environment_would_hold() -> None:
    with config.override(
        cache_path="/a::/b", trust_cache="/x", cuda_home="/cuda", max_jobs="4", record=""
    ) as inside:
        assert inside.cache_path == (Path("/a"), Path("/b"))
        assert inside.trust_cache == (Path("/x"),)
        assert inside.cuda_home == (Path("/cuda"),)
        assert (inside.max_jobs, inside.record) == (4, None)
        assert config.get().cache_path == inside.cache_path
    with config.override(cache_max_size=0) as inside:  # as the environment says it
        assert inside.cache_max_size is None


@pytest.mark.parametrize(
    "change",
    [{"max_jobs": "some"}, {"max_jobs": -1}, {"rank": "x"}, {"pin": 5}, {"cache_max_size": 1.5}],
)
def test_override_refuses_what_a_setting_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))), config.override(**change):
        pass


def test_who_reads_the_environment_first_replaces_nobodys_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two threads, the other of which begins a block while it is read."""
    for name in ("_environment", "_current"):
        monkeypatch.setattr(config, name, None)
    parse, reading = Config.from_environment, threading.Event()
    seen: list[bool] = []

    def block() -> None:
        reading.wait()
        with config.override(jit="off"):
            seen.append(config.get().jit)

    def slowly(environment: Any) -> Config:
        reading.set()
        other.join(0.2)  # if it can go on, it does
        return parse(environment)

    other = threading.Thread(target=block)
    other.start()
    monkeypatch.setattr(Config, "from_environment", slowly)
    config.get()
    other.join()
    assert seen == [False]


def test_reload_reads_the_environment_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config.get()
    for name in ("_environment", "_current"):
        monkeypatch.setattr(config, name, getattr(config, name))
    generation = config.generation
    monkeypatch.setenv("JITSPARSE_LOG", "debug")
    assert config.get().log != "debug"
    assert config.reload().log == "debug"
    assert config.generation > generation


def test_only_config_reads_the_environment() -> None:
    """Elsewhere os.environ may be passed on to a process, but no variable of ours is read."""
    package = Path(config.__file__).parents[1]
    for path in package.rglob("*.py"):
        if path != Path(config.__file__):
            text = path.read_text()
            for access in ("environ.get(", "environ[", "getenv("):
                assert f'{access}"JITSPARSE' not in text, path
                assert f"{access}'JITSPARSE" not in text, path


def test_an_empty_no_color_asks_for_nothing() -> None:
    assert Config.from_environment({"NO_COLOR": ""}).color
