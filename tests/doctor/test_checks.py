"""What is said of torch, compilers, driver, GPUs and settings, on machines that are made up."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import toykernel

from jitsparse import doctor
from jitsparse.doctor import compilers, gpu, settings, smoke, software
from jitsparse.doctor.finding import Finding, guarded
from jitsparse.doctor.software import Torch
from jitsparse.errors import ToolchainError
from jitsparse.jit import Cache, compile_only, config, targets, toolchain
from jitsparse.jit.environment import Config, legal_part
from jitsparse.kernels import registry

H200 = ("NVIDIA H200", 9, 0)
CPU_TORCH = Torch("2.13.0+cpu", "/torch")
CUDA_TORCH = Torch("2.13.0", "/torch", cuda="13.0")
HERE = Config(Path("/cache"))


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    assert (finding.status in ("ok", "skip")) == (not finding.remedy), finding
    return finding


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """The root of a CUDA toolkit of version 12.8."""
    program(tmp_path / "cuda" / "bin" / "nvcc", 'echo "Cuda compilation tools, release 12.8, V1"')
    (tmp_path / "cuda" / "include").mkdir()
    (tmp_path / "cuda" / "include" / "cuda_runtime.h").touch()
    return tmp_path / "cuda"


@pytest.fixture
def no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(language: str) -> None:
        raise ToolchainError("no toolkit was found. Searched: here. Install the CUDA toolkit.")

    monkeypatch.setattr(toolchain, "find", missing)


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> list[Finding]:
        raise KeyError("x")

    finding = only(guarded("name", broken))
    assert (finding.name, finding.status) == ("name", "fail")
    assert "KeyError" in finding.found


def test_least_versions_are_those_of_the_project() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    python = re.search(r'requires-python = ">=(\d+)\.(\d+)"', project)
    torch = re.search(r'"torch>=(\d+)\.(\d+)"', project)
    assert python is not None
    assert torch is not None
    found = {"python": tuple(map(int, python.groups())), "torch": tuple(map(int, torch.groups()))}
    assert found == software.MINIMUM


def test_torch() -> None:
    assert only(software.check_torch(CUDA_TORCH)).status == "ok"
    assert only(software.check_torch(Torch("2.13.0", "/torch", hip="6.4"))).status == "warn"
    missing = only(software.check_torch(Torch(error="No module named 'torch'")))
    assert missing.remedy == "pip install torch"


def test_an_import_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "IMPORT_TIMEOUT", 0.01)
    assert "0 s" in software.probe_torch().error


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "PACKAGES", ("rich", "no-such-package"))
    finding = only(software.check_packages())
    assert finding.status == "fail"
    assert finding.remedy == "pip install no-such-package"


def test_the_compiler_here() -> None:
    assert only(compilers.check_cxx(HERE)).status == "ok"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('[ "$1" = --version ] && echo "c++ (A) 1" || { echo "omp.h: no" >&2; exit 1; }', "omp.h"),
        ("exit 3", "does not run"),
        ('[ "$1" = --version ] || exit 1', "does not say its version"),
    ],
)
def test_a_compiler_that_does_not_compile(tmp_path: Path, script: str, said: str) -> None:
    with config.override(cxx=str(program(tmp_path / "c++", script))):
        finding = only(compilers.check_cxx(HERE))
    assert finding.status == "fail"
    assert said in finding.found


def test_without_jit_no_compiler_is_needed(no_toolkit: None) -> None:
    off = Config(Path("/cache"), jit=False)
    assert only(compilers.check_cxx(HERE)).status == "fail"
    assert only(compilers.check_cxx(off)).status == "ok"
    assert only(compilers.check_nvcc(off, CUDA_TORCH)).status == "ok"


@pytest.mark.parametrize(
    ("torch", "status"),
    [
        (CPU_TORCH, "ok"),
        (CUDA_TORCH, "warn"),
        (Torch("2.13.0", "/torch", cuda="13.0", gpus=(H200,)), "fail"),
    ],
)
def test_without_nvcc(no_toolkit: None, torch: Torch, status: str) -> None:
    finding = only(compilers.check_nvcc(HERE, torch))
    assert finding.status == status
    assert status == "ok" or finding.remedy == "Install the CUDA toolkit."


def test_a_toolkit_of_another_cuda_than_torch_s(toolkit: Path) -> None:
    with config.override(cuda_home=[toolkit]) as here:
        assert only(compilers.check_nvcc(here, CPU_TORCH)).status == "ok"
        finding = only(compilers.check_nvcc(here, CUDA_TORCH))
    assert finding.status == "warn"
    assert "12.8" in finding.found
    assert "13.0" in finding.found


def test_a_cuda_home_that_is_no_toolkit(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "c++", ":")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain, "USUAL_CUDA_HOME", toolkit)
    with config.override(cuda_home=[tmp_path / "typo"], cxx=None, cc=None) as here:
        finding = only(compilers.check_nvcc(here, CPU_TORCH))
    assert finding.status == "warn"
    assert str(tmp_path / "typo") in finding.found


def test_a_driver_that_is_too_old(toolkit: Path) -> None:
    with config.override(cuda_home=[toolkit]):
        assert only(gpu.check_driver(CUDA_TORCH, (13, 1))).status == "ok"
        finding = only(gpu.check_driver(CUDA_TORCH, (11, 4)))
    assert finding.status == "fail"
    assert "13.0" in finding.found
    assert "12.8" in finding.found


def test_a_container_without_the_driver_s_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "DEVICE_NODE", tmp_path)
    assert "--gpus all" in only(gpu.check_driver(CUDA_TORCH, None)).remedy


@pytest.mark.parametrize(
    ("torch", "driver", "status"),
    [
        (CPU_TORCH, None, "ok"),
        (CPU_TORCH, (13, 0), "warn"),
        (CUDA_TORCH, (13, 0), "warn"),
        (Torch("2.13.0", cuda="13.0", gpus=(H200,)), (13, 0), "ok"),
        (Torch("2.13.0", cuda="13.0", gpus=(("Tesla V100", 7, 0),)), (13, 0), "warn"),
        (Torch("2.13.0", cuda="13.0", gpus=(("Tesla V100", 7, 0), H200)), (13, 0), "ok"),
        (Torch(error="broken"), None, "skip"),
    ],
)
def test_gpus(torch: Torch, driver: tuple[int, int] | None, status: str) -> None:
    assert only(gpu.check_gpu(torch, driver, {})).status == status


def test_targets() -> None:
    with config.override(arch="9.0a;generic") as here:
        cpu, cuda = gpu.check_targets(here, CPU_TORCH)
    assert cpu.found.startswith("generic, of JITSPARSE_ARCH")
    assert cuda.found.startswith("sm90a")


def test_a_target_that_does_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitsparse.jit import targets

    monkeypatch.setattr(targets, "processor", dict)
    with config.override(arch="amx") as here:
        cpu, _ = gpu.check_targets(here, CPU_TORCH)
    assert cpu.status == "fail"
    assert "JITSPARSE_ARCH" in cpu.remedy


def test_jit_off_with_and_without_kernels(tmp_path: Path) -> None:
    assert only(settings.check_jit(HERE)).status == "ok"
    finding = only(settings.check_jit(Config(tmp_path, jit=False)))
    assert finding.status == "fail"
    assert "warmup" in finding.remedy
    toykernel.publish(Cache(tmp_path / "layer"), 1, age=0.0)
    filled = Config(tmp_path / "own", cache_path=(tmp_path / "layer",), jit=False)
    finding = only(settings.check_jit(filled))
    assert finding.status == "ok"
    assert "kernels in the cache: 1" in finding.found


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    for record, wrong in ((tmp_path, True), (tmp_path / "new", False), (tmp_path / "a/b", True)):
        found = settings.check_variables({}, Config(tmp_path, record=record), {}, CPU_TORCH)
        assert any(each.status == "warn" for each in found) == wrong


def test_the_smoke_compile_finds_no_kernel_that_is_there(tmp_path: Path) -> None:
    """It is there to show that one can be made."""
    variant = smoke._plain(targets.cpu_target())
    cxx, notes = toykernel.compiler(tmp_path / "cxx")
    with config.override(cxx=str(cxx), cache_dir=tmp_path / "layer"):
        compile_only(registry.template_of(variant), variant)
        with config.override(cache_path=[tmp_path / "layer"]):
            assert only(smoke.check_smoke_cpu(CPU_TORCH, allowed=True)).status == "ok"
    assert toykernel.compilations(notes) == 2


def test_the_smoke_compile_reports_what_the_compiler_says(tmp_path: Path) -> None:
    compiler = program(tmp_path / "c++", 'echo "k.cpp:1:1: error: of its own" >&2; exit 1')
    with config.override(cxx=str(compiler)):
        finding = only(smoke.check_smoke_cpu(CPU_TORCH, allowed=True))
    assert finding.status == "fail"


@pytest.mark.nvcc
def test_nvcc_compiles_a_kernel() -> None:
    assert only(smoke.check_smoke_cuda(CPU_TORCH, allowed=True)).status == "ok"
    with config.override(arch="99.0"):
        finding = only(smoke.check_smoke_cuda(CPU_TORCH, allowed=True))
    assert finding.status == "fail"
    assert "knows the target" in finding.remedy


@pytest.mark.nvcc
def test_nvcc_with_a_host_compiler_that_it_refuses(tmp_path: Path) -> None:
    refused = program(tmp_path / "gcc", 'echo "#error -- unsupported GNU version!" >&2; exit 1')
    with config.override(cc=str(refused)):
        finding = only(smoke.check_smoke_cuda(CPU_TORCH, allowed=True))
    assert finding.status == "fail"
    assert "host compiler" in finding.remedy


def test_a_torch_that_ends_the_process_is_said_with_the_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -signal.SIGILL, "", "last words")

    monkeypatch.setattr(software.subprocess, "run", crash)
    found = software.probe_torch()
    assert "SIGILL" in found.error
    assert not found.usable


def test_a_layer_is_trusted_as_calls_trust_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    layer.chmod(0o777)
    monkeypatch.setattr(software, "probe_torch", lambda: CPU_TORCH)
    monkeypatch.setenv("JITSPARSE_CACHE_PATH", str(layer))
    for trusted, status in (("", "fail"), (str(layer), "ok")):
        monkeypatch.setenv("JITSPARSE_TRUST_CACHE", trusted)
        found = {each.name: each for each in doctor.examine(smoke_compile=False)}
        assert found["layer1.directory"].status == status


def test_names_are_unique_but_for_gpus() -> None:
    names = [finding.name for finding in doctor.examine(smoke_compile=False)]
    assert len(set(names)) == len([name for name in names if name != "target.cuda"]) + 1


def of_pin(pin: str) -> dict[str, Finding]:
    """What is said of variables where this is the only one."""
    environment = {"JITSPARSE_PIN": pin}
    legal, errors = legal_part(environment)
    found = settings.check_variables(environment, legal, errors, CPU_TORCH)
    return {each.name: each for each in found}


@pytest.mark.parametrize("pin", ["dsd=vec", "dsd:f32:b32=vec.b32x32", "sdd:sm90a=wgmma.ksplit"])
def test_pins_that_calls_can_obey(pin: str) -> None:
    (finding,) = of_pin(pin).values()
    assert finding == Finding("variables", "ok", f"JITSPARSE_PIN={pin!r}")


@pytest.mark.parametrize(
    ("pin", "status", "said"),
    [
        ("dsx=vec", "fail", "'dsx', which does not exist"),
        ("rowsoftmax=v8", "warn", "'rowsoftmax=v8' pins an operation"),
        ("dsd=vex", "fail", "'vex' is neither a family"),
        ("dsd:f32:b32=vec.q9", "fail", "'q9' is neither a family"),
        ("dsd:b32=vec.b31", "fail", "a value that knob 'b' has here"),
        ("dsd:b31=vec", "fail", "no b is 31"),
    ],
)
def test_pins_that_no_call_can_obey(pin: str, status: str, said: str) -> None:
    finding = of_pin(pin)["variable.JITSPARSE_PIN"]
    assert finding.status == status
    assert said in finding.found
    assert finding.remedy
