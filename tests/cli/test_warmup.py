"""``jitsparse warmup``: what it prints and how it ends when a kernel does not compile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import toykernel
import warmmodels

from jitsparse.cli import main
from jitsparse.compilation import Outcome, compile_variants, require_cuda
from jitsparse.errors import ArgumentError, CompileError, ToolchainError
from jitsparse.jit import Variant, config
from jitsparse.kernels import registry
from jitsparse.warmup import plan, recorded, warmup

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


def test_errors_that_differ_in_their_logs_are_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of the first, at the path that it has."""

    def fail(template: object, variant: Variant, **options: object) -> None:
        name = variant.name
        raise CompileError(f"{name} did not compile\n  no\n  log: /failed/{name}/build.log")

    monkeypatch.setattr("jitsparse.jit.compile_only", fail)
    assert run(*FILTERS, "--jobs", "1") == 1
    out = capsys.readouterr().out.replace("\n", "")
    assert "4 variants" in out
    paths = re.findall(r"/failed/(.*?)/build.log", out)
    assert len(paths) == 1
    assert Variant.parse(paths[0].replace(" ", "")).op == "dsd"


def test_a_cache_that_cannot_be_written_is_no_success(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a call compiles in a place of its own is lost when the command ends."""
    monkeypatch.setattr("jitsparse.jit.cache.Cache.writable", lambda self: False)
    assert main(["warmup", *FILTERS]) == 1
    assert "nothing that is compiled would be kept" in capsys.readouterr().err


def test_a_full_cache_need_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(*FILTERS) == 0
    monkeypatch.setattr("jitsparse.jit.cache.Cache.writable", lambda self: False)
    assert run(*FILTERS) == 0


def test_where_nothing_may_be_compiled_that_is_said_once(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.override(jit="off"):
        assert main(["warmup", *FILTERS]) == 1
    assert "4 of 4 kernels are not in the cache" in capsys.readouterr().err
    assert run(*FILTERS) == 0
    with config.override(jit="off"):
        assert run(*FILTERS) == 0


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


def test_what_a_record_may_be(tmp_path: Path) -> None:
    """A file or a pipe; of the user's own template, too, which its own program can compile."""
    (ours, *_) = plan(op="sdd", device="cpu")
    theirs = Variant("axpy", "omp", "generic", "f32", (("s", "2"),))
    lines = "".join(json.dumps({"variant": v.name}) + "\n" for v in (ours, theirs, ours))
    (tmp_path / "file").write_text(lines)
    with pytest.warns(RuntimeWarning, match=re.escape(theirs.name)):
        assert recorded(tmp_path / "file") == [ours]
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(lines,))
    writer.start()
    with pytest.warns(RuntimeWarning, match=re.escape(theirs.name)):
        assert recorded(tmp_path / "pipe") == [ours]
    writer.join()
    for path in (Path("/dev/null"), tmp_path):
        with pytest.raises(ArgumentError, match="it is no file"):
            recorded(path)
    for text in ("{", "[]", "{}", '{"variant": "sdd"}'):
        (tmp_path / "file").write_text(text)
        with pytest.raises(ArgumentError, match="not"):
            recorded(tmp_path / "file")


MODEL = ["--model", "warmmodels:transformer", "--input-shape", "2x16x64", "--device", "cpu"]


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert run(*arguments, "--json") == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def names(variants: Iterable[Variant]) -> list[str]:
    return [variant.name for variant in variants]


def test_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    expected = names(plan(warmmodels.transformer(), (2, 16, 64), device="cpu", dtype="bf16"))
    done = as_json(capsys, *MODEL, "--dtype", "bf16")
    assert [each["variant"] for each in done["outcomes"]] == expected
    assert {each["status"] for each in done["outcomes"]} <= {"compiled", "cached"}
    assert as_json(capsys, *MODEL, "--dtype", "bf16", "--check") == {"missing": 0, "outcomes": []}


def test_check_and_dry_run_compile_nothing(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, *others) = plan(op="dsd", dtype="f32", block_size=32, device="cpu")
    with config.override(cxx="/no/such/compiler"):
        missing = as_json(capsys, *FILTERS, "--check", code=3)
    assert [each["variant"] for each in missing["outcomes"]] == names([first, *others])
    assert {each["status"] for each in missing["outcomes"]} == {"missing"}
    assert run(*FILTERS, "--check") == 3
    captured = capsys.readouterr()
    assert first.name in captured.out
    assert f"{1 + len(others)} would be compiled, 0 cached" in captured.err
    assert not list(cache_dir.glob("v1/dsd*"))

    compile_variants([first])
    listed = as_json(capsys, *FILTERS, "--dry-run")
    assert listed["missing"] == len(others)
    statuses = {each["variant"]: each["status"] for each in listed["outcomes"]}
    assert statuses == {first.name: "cached"} | dict.fromkeys(names(others), "missing")
    assert as_json(capsys, *FILTERS, "--check", code=3)["missing"] == len(others)
    assert len(list(cache_dir.glob("v1/dsd*"))) == 1


def test_check_finds_what_another_compiler_made(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a machine that may not compile: what matters is whether calls would find it."""
    (first, *_) = plan(op="dsd", dtype="f32", block_size=32, device="cpu")
    compile_variants([first])
    for override in ({"jit": "off"}, {"cxx": "/no/such/compiler"}):
        with config.override(**override):
            listed = as_json(capsys, *FILTERS, "--dry-run")
        assert [each["variant"] for each in listed["outcomes"] if each["path"]] == [first.name]


def test_a_torch_without_cuda_is_said_before_anything_is_compiled(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, and by a dry run too. What is cached needs no compiler, and is no error."""
    monkeypatch.setattr(torch.version, "cuda", None)
    filters = ["--op", "dsd", "--dtype", "bf16", "--block-size", "32", "--arch", "9.0a;generic"]
    for option in ([], ["--dry-run"]):
        assert main(["warmup", *filters, *option]) == 1
        captured = capsys.readouterr()
        assert captured.err.count("built without CUDA") == 1
        assert "Install a CUDA build of torch" in captured.err
        assert captured.out == ""
    assert not list(cache_dir.glob("v1/*-*"))
    with pytest.raises(ToolchainError, match="built without CUDA"):
        warmup(op="dsd", dtype="bf16", block_size=32, arch="9.0a", background=True)
    assert run(*filters, "--check") == 3
    with config.override(jit="off"):
        assert main(["warmup", *filters]) == 1
    assert "JITSPARSE_JIT=off" in capsys.readouterr().err

    variants = plan(op="dsd", dtype="bf16", block_size=32, arch="9.0a")
    monkeypatch.setattr(
        "jitsparse.compilation.survey",
        lambda asked: [Outcome(each, "cached", None, None) for each in asked],
    )
    require_cuda(variants)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the target is that of the GPU")
@pytest.mark.parametrize(("built", "advice"), [(None, "CUDA build"), ("12.8", "Name one: ")])
def test_without_a_gpu_the_advice_is_what_helps(
    built: str | None,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A target that is named does not help a torch that cannot compile for it."""
    monkeypatch.setattr(torch.version, "cuda", built)
    assert main(["warmup", "--device", "cuda"]) == 1
    error = capsys.readouterr().err
    assert advice in error
    assert ("built without CUDA" in error) == (built is None)


def test_a_read_only_cache_that_does_not_exist_is_named(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = f"the cache {tmp_path / 'typo'} (JITSPARSE_CACHE_PATH) does not exist"
    with config.override(cache_path=[tmp_path / "typo"]):
        assert run(*FILTERS, "--check") == 3
        assert note in capsys.readouterr().err
        with config.override(jit="off"):
            assert main(["warmup", *FILTERS]) == 1
        assert note in capsys.readouterr().err
        assert run(*FILTERS) == 0
        assert run(*FILTERS, "--check") == 0
    assert note not in capsys.readouterr().err


def test_a_record_can_be_checked(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "used.jsonl"
    record.write_text(json.dumps({"variant": plan(op="sdd", device="cpu")[0].name}))
    assert as_json(capsys, "--from", str(record), "--check", code=3)["missing"] == 1


def test_targets_of_a_gpu_that_is_not_here(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "warmmodels:transformer", "--input-shape", "2x16x64"]
    listed = as_json(capsys, *arguments, "--arch", "9.0a,8.0", "--dtype", "bf16", "--check", code=3)
    targets = {Variant.parse(each["variant"]).target for each in listed["outcomes"]}
    assert targets == {"sm90a", "sm80", registry.INDEX.target}


def test_the_forward_pass_alone(capsys: pytest.CaptureFixture[str]) -> None:
    listed = as_json(capsys, *MODEL, "--forward-only", "--dry-run")
    assert {Variant.parse(each["variant"]).op for each in listed["outcomes"]} == {"dds"}


def test_token_ids(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--input-shape", "2x24:int64", "--input-shape", "24x1"]
    listed = as_json(
        capsys, "--model", "warmmodels:Tokens", *shapes, "--device", "cpu", "--dry-run"
    )
    assert len(listed["outcomes"]) == 3


def test_a_module_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_of_this_test.py").write_text(
        "import jitsparse as js\n"
        "print('what it prints does not stand before our JSON')\n"
        "class Models:\n"
        "    @staticmethod\n"
        "    def small():\n"
        "        print('nor this')\n"
        "        return js.nn.BlockSparseLinear(64, 64, 32, density=0.5)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", ".")])
    model = ["--model", "module_of_this_test:Models.small", "--input-shape", "4x64"]
    assert as_json(capsys, *model, "--device", "cpu", "--dry-run")["outcomes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "warmmodels"], "write module:factory"),
        (["--model", "..:x"], "write module:factory"),
        (["--model", "no_such_module.models:build"], "no module no_such_module"),
        (["--model", "toykernel.models:build"], "no module toykernel.models"),
        (["--model", "broken_module:build"], "ZeroDivisionError: division by zero"),
        (["--model", "lacking_module:build"], "No module named 'something_else'"),
        (["--model", "ending_module:build"], "ending_module cannot be imported: SystemExit: 0"),
        (["--model", "sys:exit"], "exit() raised SystemExit"),
        (["--model", "warmmodels:no_such"], "warmmodels has no no_such"),
        (["--model", "warmmodels:not_a_function"], "no function, but of type int"),
        (["--model", "warmmodels:fails"], "fails() raised RuntimeError: no such checkpoint"),
        (["--model", "builtins:list"], "no torch.nn.Module, but list"),
        (["--model", "warmmodels:dense"], "does not run: "),
        (["--model", "torch.nn:Identity"], "calls no kernel"),
        (["--model", "warmmodels:ReadsData"], "JITSPARSE_RECORD"),
        (
            ["--model", "warmmodels:transformer", "--op", "dsd"],
            "what is computed, so no --op",
        ),
        (["--model", "warmmodels:transformer", "--dtype", "f32,bf16"], "has one dtype"),
        (["--model", "warmmodels:transformer", "--from", "x"], "takes no filters and no model"),
        (["--model", "warmmodels:transformer", "--check", "--dry-run"], "--dry-run"),
    ],
)
def test_a_model_that_cannot_be_had(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    (tmp_path / "lacking_module.py").write_text("import something_else")
    (tmp_path / "ending_module.py").write_text("import sys\nsys.exit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(*arguments, "--input-shape", "2x16x64", "--device", "cpu") == 2
    # The message stands in a box, whose lines end where the terminal would.
    assert message.replace(" ", "") in re.sub(r"[\s│]+", "", capsys.readouterr().err)


def test_a_range_of_sizes_is_all_of_them(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By powers of two, which is what choices are made for."""
    model = ["--model", "warmmodels:transformer", "--arch", "9.0a", "--dtype", "bf16", "--check"]

    def names(shape: str) -> set[str]:
        torch.manual_seed(0)  # the same patterns, which choices depend on, too
        listed = as_json(capsys, *model, "--input-shape", shape, code=3)
        return {each["variant"] for each in listed["outcomes"]}

    each = [names(f"{batch}x16x64") for batch in (1, 2, 4)]
    assert len(set(map(frozenset, each))) > 1
    assert names("1-3x16x64") == set.union(*each)
    # Of 5 x 24 rows the next power of two is 128, of 8 x 24 it is 256.
    assert names("5-8x24x64") == names("5x24x64") | names("8x24x64")


@pytest.mark.parametrize(("named", "dtype"), [("bf16", "bf16"), ("f16", "f16")])
def test_a_model_that_runs_under_autocast(
    named: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = as_json(capsys, *MODEL, "--autocast", named, "--dry-run")
    assert {Variant.parse(each["variant"]).dtype for each in listed["outcomes"]} == {dtype}
    assert run(*MODEL, "--autocast", "f64", "--dry-run") == 2
    assert "--autocast" in capsys.readouterr().err


def test_ranges_of_several_inputs_grow_together(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", "warmmodels:Tokens", "--device", "cpu", "--dry-run", "--input-shape"]
    one = as_json(capsys, *model, "2x24:int64,24x1")
    assert as_json(capsys, *model, "1-4x24:int64,24x1") == one
    assert run(*model, "1-4x24:int64,24x1-2") == 2
    assert "3 and 2 sizes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "shape",
    [
        *("", "8x", "x", "0x8", "8x-1", "8x64:int", "8x64:nn", "9" * 15),
        *("8-4x8", "1-x8", "0-4x8", "1-2-4x8", "1-4x1-4"),
    ],
)
def test_a_shape_that_is_none(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "warmmodels:transformer", "--input-shape", shape) == 2
    assert "--" in capsys.readouterr().err


def test_what_belongs_to_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--input-shape", "8x8"], ["--forward-only"], ["--autocast", "bf16"]):
        assert run(*FILTERS, *arguments) == 2
        assert arguments[0] in capsys.readouterr().err


def test_a_variant_by_its_name(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = registry.select_variants(["generic"], ops=["sdd"], dtypes=["f32"], block_sizes=[(8, 8)])[
        0
    ].name
    assert run("--variant", name, "--json") == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert (outcome["variant"], outcome["status"]) == (name, "compiled")
    assert run("--variant", f"{name},{name}", "--check") == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dsd", "is not the name of a variant"),
        ("dsd.vec.avx7.f32.b8x8.lnn.r8x3", "'avx7' is not a target"),
        ("dad.vec.avx2.f32.b8x8.lnn.r8x3", "op 'dad' is not one of dsd, dds, sdd"),
        ("dsd.vec.avx2.f31.b8x8.lnn.r8x3", "dtype 'f31' is not one of f64"),
        ("dsd.vec.avx2.f32.b8x9.lnn.r8x3", "8, 16, 32, 64, 128"),
        ("dsd.vec.avx2.f32.lnn.r8x3", "has no knob 'b'"),
        ("dsd.vec.avx2.f32.b8x8.lnn.r8x9", "the nearest are dsd.vec.avx2.f32.b8x8.lnn.r8x"),
        ("dsd.mma.sm70.bf16.b32x32.lnn.t128x16x64.w4x1.s3.c2", "70"),
        ("dds.thin.sm90a.bf16.b32x32.ltn.t32x16", "must be contiguous along k"),
    ],
)
def test_no_call_has_it(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--variant", name) == 2
    error = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().err).split())
    assert message in error


@pytest.mark.parametrize("option", ["--variant", "--op", "--dtype", "--block-size", "--arch"])
def test_an_empty_option_is_none(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As from a script whose variable is empty: neither nothing nor everything was asked for."""
    for value in ("", ",", " "):
        assert run(option, value, "--check") == 2
        assert "it holds nothing" in capsys.readouterr().err


def test_a_record_names_what_cannot_be_compiled_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels of a program's own templates; a record of nothing is none."""
    record = tmp_path / "record"
    own, ours = "scale.plain.amx.f32.f3", "dsd.vec.avx2.f32.b8x8.lnn.r8x3"
    lines = {name: json.dumps({"variant": name}) + "\n" for name in (own, ours)}
    record.write_text(lines[own] + lines[ours])
    with pytest.warns(RuntimeWarning, match=re.escape(own)):
        assert run("--from", str(record), "--dry-run", "--json") == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert outcome["variant"] == ours
    for content, said in (("", "names no kernel"), (lines[own], "names no kernel")):
        record.write_text(content)
        assert run("--from", str(record), "--check") == 2
        assert said in " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    record.write_bytes(lines[ours].encode() + b"\xff" * 100_000)
    assert run("--from", str(record)) == 2
    error = capsys.readouterr().err
    assert "line 2 is not" in " ".join(error.replace("\u2502", " ").split())
    assert len(error) < 2000


def test_a_variant_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--variant", "x", "--op", "dsd") == 2
    assert "takes no filters" in " ".join(capsys.readouterr().err.split())


def test_what_patterns_want_can_be_named(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = registry.INDEX.name
    (done,) = as_json(capsys, "--variant", name)["outcomes"]
    assert (done["variant"], done["status"]) == (name, "compiled")
    record = tmp_path / "record"
    record.write_text(json.dumps({"variant": name}) + "\n")
    assert recorded(record) == [registry.INDEX]


@pytest.mark.parametrize(
    ("number", "group", "code"), [(signal.SIGTERM, False, 143), (signal.SIGINT, True, 130)]
)
def test_it_ends_its_compilers_and_says_what_is_kept(
    number: signal.Signals, group: bool, code: int, tmp_path: Path
) -> None:
    """A scheduler signals the process alone, a terminal its whole group. Neither is a failure."""
    held, cache = toykernel.Held(tmp_path), tmp_path / "cache"
    program = "import sys; from jitsparse.cli import main; sys.exit(main(sys.argv[1:]))"
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{toykernel.HEARS_CTRL_C}; {program}",
            "warmup",
            *FILTERS,
            "--jobs",
            "2",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CXX": str(held.cxx), "JITSPARSE_CACHE_DIR": str(cache)},
        start_new_session=True,
    )
    compilers = held.started()
    if group:
        os.killpg(child.pid, number)
    else:
        child.send_signal(number)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == code, said
    assert "interrupted: 0 of 4 are in the cache" in said
    assert all(map(toykernel.gone, compilers))
    assert toykernel.staged(cache) == []
    assert not list((cache / "v1" / "failed").glob("*"))
