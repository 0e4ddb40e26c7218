"""Targets of a machine and their flags."""

from __future__ import annotations

import pytest
import torch

from jitsparse.errors import ConfigError, ToolchainError, UnsupportedProblem
from jitsparse.jit import config, cpu_target, cuda_target, targets
from jitsparse.jit.environment import CPU_TARGETS
from jitsparse.jit.targets import compile_flags

FEATURES = {
    "amx": "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16",
    "avx512bf16": "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16",
    "avx512": "avx2 fma f16c avx512f avx512bw avx512dq avx512vl",
    "avx2": "avx2 fma f16c avx512f",
    "generic": "sse2",
}


def on_processor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    features = frozenset(FEATURES[name].split())
    monkeypatch.setattr(targets, "_cpu_features", lambda: features)


@pytest.mark.parametrize("name", FEATURES)
def test_the_best_cpu_target_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_processor(monkeypatch, name)
    assert cpu_target() == name


def test_this_processor_has_a_target() -> None:
    assert cpu_target() in CPU_TARGETS


def test_arch_limits_the_cpu_target(monkeypatch: pytest.MonkeyPatch) -> None:
    on_processor(monkeypatch, "avx512")
    with config.override(arch="9.0a;avx2;amx"):
        assert cpu_target() == "avx2"
    with config.override(arch="9.0a"):
        assert cpu_target() == "avx512"
    with config.override(arch="amx"), pytest.raises(ConfigError, match=r"asks for amx; .* avx512"):
        cpu_target()


def on_gpu(monkeypatch: pytest.MonkeyPatch, major: int, minor: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))


@pytest.mark.parametrize(
    ("capability", "target"), [((9, 0), "sm90a"), ((8, 0), "sm80"), ((8, 6), "sm86")]
)
def test_the_target_of_a_gpu(
    capability: tuple[int, int], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, *capability)
    assert cuda_target() == target


@pytest.mark.parametrize(
    ("capability", "arch", "target"),
    [
        ((9, 0), "8.0;9.0", "sm90"),
        ((9, 0), "9.0;9.0a", "sm90a"),
        ((8, 6), "8.0;9.0a", "sm80"),
        ((8, 9), "8.0;8.6", "sm86"),
        ((10, 3), "10.0;10.0a", "sm100"),
        ((10, 3), "10.0f", "sm100f"),
    ],
)
def test_arch_chooses_among_what_the_gpu_runs(
    capability: tuple[int, int], arch: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, *capability)
    with config.override(arch=arch):
        assert cuda_target() == target


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((9, 0), "8.0"),
        ((8, 0), "8.6"),
        ((10, 0), "9.0a"),
        ((10, 3), "10.0a"),
        ((10, 0), "10.3f"),
        ((12, 0), "10.0f"),
    ],
)
def test_arch_that_the_gpu_does_not_run_is_an_error(
    capability: tuple[int, int], arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, *capability)
    with config.override(arch=arch), pytest.raises(ConfigError, match="none of these runs"):
        cuda_target()


def test_without_a_gpu_arch_names_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with config.override(arch="avx2;9.0a;8.0"):
        assert cuda_target() == "sm90a"
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ToolchainError, match=r"no target to build for.*JITSPARSE_ARCH"):
        cuda_target()


def test_a_torch_without_cuda_is_not_told_to_build_for_a_named_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ToolchainError, match=r"built without CUDA.*What compiles nothing.*--arch"):
        cuda_target()


def test_cuda_flags_name_one_architecture() -> None:
    """Exactly one, and spelt so that torch adds none of its own."""
    flags = compile_flags("cuda", "sm90a")
    assert "-gencode=arch=compute_90a,code=sm_90a" in flags
    assert len([flag for flag in flags if "arch" in flag]) == 1
    assert "-O3" in flags


def test_cpu_flags_grow_with_the_target() -> None:
    generic, avx2, avx512, pairs, amx = (
        set(compile_flags("c++", target))
        for target in ("generic", "avx2", "avx512", "avx512bf16", "amx")
    )
    assert generic < avx2
    assert generic < avx512 < pairs < amx
    assert not [flag for flag in generic if flag.startswith("-m")]


@pytest.mark.parametrize(("language", "target"), [("c++", "sm90a"), ("cuda", "avx2")])
def test_a_target_of_the_other_language(language: str, target: str) -> None:
    with pytest.raises(UnsupportedProblem, match=target):
        compile_flags(language, target)  # type: ignore[arg-type]
