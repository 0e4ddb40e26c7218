"""``jitsparse warmup``: what it prints and how it ends when a kernel does not compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jitsparse.cli import main
from jitsparse.errors import CompileError, ToolchainError
from jitsparse.jit import Variant
from jitsparse.kernels import registry

FILTERS = ["--op", "dsd", "--dtype", "f32", "--block-size", "32", "--device", "cpu"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["warmup", *arguments])
    return int(stop.value.code or 0)


@pytest.fixture
def broken_layout(monkeypatch: pytest.MonkeyPatch) -> str:
    """One variant of the table has a template that does not compile."""
    victim = registry.select_variants(
        [registry.target_of("cpu")], ops=["dsd"], dtypes=["f32"], block_sizes=[(32, 32)]
    )[0]
    compile_only = "jitsparse.jit.compile_only"
    import jitsparse.jit

    original = jitsparse.jit.compile_only

    def fail_for_one(template: object, variant: object, **options: object) -> object:
        if variant == victim:
            raise CompileError(
                f"{victim.name} did not compile\nkernel.cpp:3: error: no\nmore\nlast"
            )
        return original(template, variant, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(compile_only, fail_for_one)
    return victim.name


def test_failure_ends_in_a_table_and_1(
    broken_layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*FILTERS) == 1
    captured = capsys.readouterr()
    assert broken_layout in captured.out
    assert "kernel.cpp:3: error: no" in captured.out
    assert "last" not in captured.out
    assert "1 failed" in captured.err


def test_an_error_of_every_variant_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(template: object, variant: Variant, **options: object) -> None:
        raise ToolchainError(f"{variant.name} cannot be built: no compiler")

    monkeypatch.setattr("jitsparse.jit.compile_only", fail)
    assert run(*FILTERS) == 1
    out = capsys.readouterr().out
    assert out.count("no compiler") == 1
    assert "4 variants" in out


def test_failure_as_json(broken_layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*FILTERS, "--json") == 1
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    failed = [outcome for outcome in outcomes if outcome["status"] == "failed"]
    assert [outcome["variant"] for outcome in failed] == [broken_layout]
    assert "kernel.cpp:3" in failed[0]["error"]
    assert len(outcomes) > 1


def test_summary_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*FILTERS) == 0
    assert run(*FILTERS) == 0
    captured = capsys.readouterr()
    assert "cached" in captured.out
    assert "0 failed" in captured.err


def test_from_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = registry.select_variants(
        [registry.target_of("cpu")], ops=["dsd"], dtypes=["f32"], block_sizes=[(32, 32)]
    )[:1]
    record = tmp_path / "used.jsonl"
    record.write_text("".join(json.dumps({"variant": v.name}) + "\n" for v in wanted))
    assert run("--from", str(record), "--json") == 0
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert [outcome["variant"] for outcome in outcomes] == [v.name for v in wanted]
