from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import toykernel
import typer

import jitsparse as js
from jitsparse import jit
from jitsparse.cli import bundle as bundles
from jitsparse.cli import main
from jitsparse.cli.options import variant_filter
from jitsparse.jit import Cache, config
from jitsparse.kernels import registry


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


WARM = [
    "warmup",
    "--op",
    "dsd",
    "--dtype",
    "f32",
    "--block-size",
    "32",
    "--device",
    "cpu",
    "--json",
]


def test_a_life_of_the_cache(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, filled by warm-up, listed, found by explain, warm, cleared."""

    def output(*arguments: str) -> object:
        assert run(*arguments) == 0
        return json.loads(capsys.readouterr().out)

    assert output("cache", "path", "--json") == {"path": str(cache_dir)}
    assert output("cache", "info", "--json")["entries"] == 0  # type: ignore[index]
    assert output("list", "--json") == []
    explained = output("explain", "dsd", "--device", "cpu", "--json")
    assert explained["cached"] is False  # type: ignore[index]

    outcomes = output(*WARM)["outcomes"]  # type: ignore[index]
    names = {outcome["variant"] for outcome in outcomes}
    assert {outcome["status"] for outcome in outcomes} == {"compiled"}
    assert all(outcome["compile_seconds"] > 0 for outcome in outcomes)

    listed = output("list", "--json")
    assert {row["variant"] for row in listed} == names  # type: ignore[union-attr]
    assert output("list", "--op", "sdd", "--json") == []
    assert len(output("list", "--block-size", "32", "--json")) == len(names)  # type: ignore[arg-type]
    info = output("cache", "info", "--json")
    assert info == js.cache_info()
    assert info["entries"] == len(names)  # type: ignore[index]
    explained = output("explain", "dsd", "--device", "cpu", "--json")
    assert explained["cached"] is True  # type: ignore[index]
    assert explained["variant"] in names  # type: ignore[index]

    again = output(*WARM)["outcomes"]  # type: ignore[index]
    assert {outcome["status"] for outcome in again} == {"cached"}
    assert output("cache", "clear", "--json") == {"path": str(cache_dir), "deleted": len(names)}
    assert output("list", "--json") == []


def test_known_variants_are_what_warmup_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    from jitsparse.warmup import plan

    filters = ["--op", "dsd,sdd", "--dtype", "bf16", "--block-size", "64", "--arch", "9.0a"]
    assert run("list", "--known", "--json", *filters) == 0
    listed = [row["variant"] for row in json.loads(capsys.readouterr().out)]
    planned = plan(op=["dsd", "sdd"], dtype="bf16", block_size=64, arch="9.0a")
    assert [*listed, registry.INDEX.name] == [variant.name for variant in planned]


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--known", "--op", "dsd", "--dtype", "f32", "--arch", "sm80") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].strip() == "variant"
    assert all(line.startswith("dsd.") for line in lines[1:])
    assert f"{len(lines) - 1} known variants" in captured.err


@pytest.mark.parametrize(
    ("number", "admit", "refuse"),
    [
        (0, ["sdd,dsd"], ["sdd"]),
        (1, ["f64", "f32"], ["bf16,f16"]),
        (2, ["16", "32x64"], ["32", "64x32"]),
        (3, ["9.0a;avx2"], ["avx512"]),
        (4, ["x*", "dsd.vec.*"], ["vec"]),
    ],
    ids=["op", "dtype", "block size", "arch", "name"],
)
def test_a_filter_admits_what_it_names(number: int, admit: list[str], refuse: list[str]) -> None:
    """Of list and of export."""
    variant = jit.Variant.parse("dsd.vec.avx2.f32.b32x64.lnn")
    assert variant_filter([], [], [], [])(variant)
    for words, expected in ((admit, True), (refuse, False)):
        asked: list[list[str]] = [[], [], [], [], []]
        asked[number] = words
        assert variant_filter(*asked)(variant) == expected


@pytest.fixture
def warm(tmp_path: Path, cache_dir: Path) -> list[Path]:
    """Two toy kernels in the cache of the test."""
    template = toykernel.write(tmp_path)
    return [jit.compile_only(template, toykernel.variant(scale)).path for scale in (2, 3)]


@pytest.mark.usefixtures("warm")
def test_a_filter_knows_the_kernels_of_others() -> None:
    """By what the cache has of them."""
    keep = variant_filter(["axpy"], [], [], [])
    assert keep(toykernel.variant())
    assert not keep(jit.Variant.parse("dsd.vec.avx2.f32.b32x64.lnn"))
    with pytest.raises(typer.BadParameter, match="not one of dsd, dds, sdd, axpy"):
        variant_filter(["axpi"], [], [], [])


def test_ls(warm: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "ls", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["path"] for row in rows} == {str(path) for path in warm}
    for row in rows:
        assert (row["target"], row["read_only"]) == ("generic", False)
        assert row["bytes"] > 10_000
        assert row["compile_seconds"] > 0
        assert row["last_use"] >= row["created"] - 1
    assert run("cache", "ls") == 0
    captured = capsys.readouterr()
    assert "axpy.omp.generic.f32.s2" in captured.out
    assert "2 entries" in captured.err


def test_verify(warm: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "verify") == 0
    assert "2 entries, 0 damaged" in capsys.readouterr().err
    toykernel.replace_library(warm[0], b"damaged")
    (warm[1] / "meta.json").unlink()
    assert run("cache", "verify") == 1
    captured = capsys.readouterr()
    assert f"{warm[0]}: kernel.so has 7 bytes" in captured.out
    assert f"{warm[1]}: meta.json cannot be read" in captured.out
    assert run("cache", "verify", "--json") == 1
    assert [each["sound"] for each in json.loads(capsys.readouterr().out)] == [False, False]
    assert all(path.exists() for path in warm)


def test_verify_looks_into_read_only_caches(
    warm: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toykernel.replace_library(warm[0], b"damaged")
    with config.override(cache_dir=tmp_path / "own", cache_path=[warm[0].parents[1]]):
        assert run("cache", "verify") == 1
    assert f"{warm[0]}: kernel.so has 7 bytes" in capsys.readouterr().out


def test_a_read_only_cache_that_does_not_exist_is_named(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may come later, so it is no error; but it is why kernels are missing."""
    note = f"the cache {tmp_path / 'typo'} (JITSPARSE_CACHE_PATH) does not exist"
    name = registry.select_variants(["generic"], ops=["sdd"], dtypes=["f32"])[0].name
    with config.override(cache_path=[tmp_path / "typo"]):
        for options in ([], ["--json"]):
            assert run("cache", "info", *options) == 0
            assert note in capsys.readouterr().err
        assert run("cache", "ls") == run("cache", "verify") == 0
        assert note not in capsys.readouterr().err
        assert run("cache", "explain-miss", name) == 0
        assert note in capsys.readouterr().out
    (tmp_path / "typo").mkdir()
    with config.override(cache_path=[tmp_path / "typo"]):
        assert run("cache", "info") == 0
    assert "does not exist" not in capsys.readouterr().err, "as the writable one may"


def refusals(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """What the commands say that would report a cache as empty, and refuse it."""
    for command in ("ls", "verify"):
        assert main(["cache", command]) == 2
        yield capsys.readouterr().err


@pytest.mark.parametrize(("below", "reason"), [("", "is a file, not"), ("v", "lies below a file")])
@pytest.mark.parametrize("setting", ["cache_dir", "cache_path"])
def test_a_file_is_no_cache_without_entries(
    setting: str, below: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / "file" / below
    with config.override(cache_dir=tmp_path / "own"), config.override(**{setting: str(root)}):
        for said in refusals(capsys):
            assert f"the cache {root} {reason}" in said
            assert f"Set JITSPARSE_{setting.upper()} to a directory" in said
        assert run("cache", "info") == 0
        assert f"(JITSPARSE_{setting.upper()}) {reason}" in capsys.readouterr().err


def test_a_file_inside_is_said_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v1").touch()
    with config.override(cache_dir=tmp_path):
        for said in refusals(capsys):
            assert f"the cache {tmp_path} has a file where its v1 should be" in said


@pytest.mark.parametrize("part", ["", "v1"])
@pytest.mark.parametrize("setting", ["cache_dir", "cache_path"])
def test_a_cache_that_may_not_be_read_is_no_cache_without_entries(
    setting: str,
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "cache"
    (root / "v1").mkdir(parents=True)
    toykernel.deny(monkeypatch, os, "scandir", root / part)
    with config.override(cache_dir=tmp_path / "own"), config.override(**{setting: str(root)}):
        for said in refusals(capsys):
            assert f"the cache {root} cannot be read: Permission denied" in said
            assert f"or set JITSPARSE_{setting.upper()}" in said
        assert run("cache", "info") == 0
        assert "cannot be read: Permission denied" in capsys.readouterr().err


def test_an_archive_has_a_directory_that_exists(
    warm: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None is created: it would be a mistyped one."""
    assert run("cache", "export", str(tmp_path / "typo" / "x.tar")) == 2
    assert "there is no directory" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "typo").exists()
    (tmp_path / "typo").mkdir()
    assert run("cache", "export", str(tmp_path / "typo" / "x.tar")) == 0


def test_export_and_import(
    warm: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle.tar"
    assert run("cache", "export", str(bundle), "--variant", "*.s3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["entries"] == [warm[1].name]
    for options in (["--arch", "generic"], ["--dtype", "f32,f64"], []):
        assert run("cache", "export", str(bundle), *options) == 0
        assert "2 entries and 0 of the tuned table written" in capsys.readouterr().err
    with config.override(cache_dir=tmp_path / "other"):
        assert run("cache", "import", str(bundle), "--json") == 0
        assert len(json.loads(capsys.readouterr().out)["imported"]) == 2
        assert run("cache", "import", str(bundle)) == 0
        assert "0 entries and 0 of the tuned table imported" in capsys.readouterr().err
    toykernel.replace_library(warm[0], b"damaged")
    assert run("cache", "export", str(bundle)) == 1
    assert str(warm[0]) in capsys.readouterr().out


def test_kernels_of_a_gpu_are_exported_with_what_patterns_there_want() -> None:
    """Which no filter on operations, dtypes or targets would name."""
    names = ("dsd.mma.sm80.bf16.b32x32.lnn", "dsd.vec.avx2.f32.b32x32.lnn")
    cache = SimpleNamespace(entries=lambda: [SimpleNamespace(variant=name) for name in names])
    gpu, cpu = (jit.Variant.parse(name) for name in names)
    for asked, others in ((gpu, cpu), (cpu, gpu)):
        keep = bundles._with_index(lambda variant, asked=asked: variant == asked, cache)
        assert keep(asked)
        assert not keep(others)
        assert keep(registry.INDEX) == (asked is gpu)


def test_a_damaged_bundle(
    warm: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle.tar"
    assert run("cache", "export", str(bundle)) == 0
    bundle.write_bytes(bundle.read_bytes()[:-10_000])
    capsys.readouterr()
    with config.override(cache_dir=tmp_path / "other"):
        assert run("cache", "import", str(bundle)) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith(warm[1].name)
    assert "bundle.json: announces more than can be read: the archive ends within" in captured.out
    assert "1 entry and 0 of the tuned table imported" in captured.err
    bundle.write_bytes(b"no bundle")
    assert main(["cache", "import", str(bundle)]) == 1
    assert "is not a bundle" in capsys.readouterr().err


def test_prune(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, old = (toykernel.publish(Cache(cache_dir), n, age=n * 86400 * 31) for n in (0, 1))
    assert run("cache", "prune", "--older-than", "30d", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == [str(old)]
    assert old.exists()
    assert run("cache", "prune", "--older-than", "30d") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{old}\n"
    assert "1 entry" in captured.err
    assert [path.exists() for path in (new, old)] == [True, False]
    assert run("cache", "prune", "--max-size", "0") == 0
    assert not new.exists()


def test_explain_miss(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jitsparse.kernels import registry

    variant = next(iter(registry.default_variants("generic")))
    assert run("cache", "explain-miss", variant.name) == 0
    assert "no entry of this variant is there" in capsys.readouterr().out
    path = jit.compile_only(registry.template_of(variant), variant).path
    assert run("cache", "explain-miss", variant.name) == 0
    assert f"is no miss: {path}" in capsys.readouterr().out
    meta = json.loads((path / "meta.json").read_text())
    meta["fields"]["compiler"] = "c++: g++ 4.8"
    meta["key"] = jit.key.digest(meta["fields"])
    (path / "meta.json").write_text(json.dumps(meta))
    os.rename(path, path.with_name(f"{variant.name}-{meta['key'][:16]}"))
    assert run("cache", "explain-miss", variant.name) == 0
    assert "compiler: c++: g++ 4.8 -> c++: " in capsys.readouterr().out
    assert run("cache", "explain-miss", variant.name, "--json") == 0
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert difference["field"] == "compiler"


@pytest.mark.parametrize(
    "arguments",
    [
        ["prune"],
        ["prune", "--max-size", "big"],
        ["prune", "--older-than", "30"],
        ["import", "/nonexistent/bundle.tar"],
        ["export", "x.tar", "--op", "ddd"],
        ["export", "x.tar", "--block-size", "24"],
        ["explain-miss", "nonsense"],
    ],
    ids=" ".join,
)
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", *arguments) == 2
    assert "Usage: jitsparse" in capsys.readouterr().err


def test_a_kernel_that_there_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", "explain-miss", "dsd.nofamily.avx2.f32.b32x32") == 2
    error = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    assert "no call can run variant dsd.nofamily" in error


def test_a_cache_that_others_can_write(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache_dir.mkdir()
    cache_dir.chmod(0o777)
    for command in ("path", "info", "ls", "verify", "clear"):
        assert main(["cache", command]) == 1
        assert f"JITSPARSE_TRUST_CACHE={cache_dir}" in capsys.readouterr().err
    # What is known is asked of no cache.
    assert run("list", "--known", "--op", "sdd", "--block-size", "32") == 0
