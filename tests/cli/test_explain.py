from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitsparse as js
from jitsparse.cli import main
from jitsparse.jit import config


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    with pytest.raises(SystemExit) as stop:
        main(["explain", *arguments, "--json"])
    assert stop.value.code == 0
    explanation: dict[str, object] = json.loads(capsys.readouterr().out)
    return explanation


SIZES = ["--m", "256", "--n", "64", "--k", "128", "--density", "0.5", "--device", "cpu"]


@pytest.mark.parametrize("op", ["dsd", "dds", "sdd"])
def test_agrees_with_the_call_that_it_describes(
    op: str, capsys: pytest.CaptureFixture[str]
) -> None:
    m, n, k = 256, 64, 128
    left, right = torch.randn(m, k), torch.randn(k, n)
    if op == "dsd":
        expected = js.explain(op, js.random((m, k), (32, 16), 0.5), right)
    elif op == "dds":
        expected = js.explain(op, left, js.random((k, n), (32, 16), 0.5))
    else:
        expected = js.explain(op, left, right, js.Pattern.random((m, n), (32, 16), 0.5))
    got = explain(capsys, op, "--block-size", "32x16", *SIZES)
    assert got["variant"] == expected.variant
    assert got["problem"]["rows"] == expected.problem.rows  # type: ignore[index]
    assert got["problem"]["nnz"] == expected.problem.nnz  # type: ignore[index]
    assert got["problem"]["extent"] == expected.problem.extent  # type: ignore[index]


def test_transposed_operands(capsys: pytest.CaptureFixture[str]) -> None:
    a = js.random((128, 256), 32, 0.5)
    expected = js.explain("dsd", a.T, torch.randn(64, 128).T)
    got = explain(capsys, "dsd", "--layout", "tt", *SIZES)
    assert got["variant"] == expected.variant
    assert got["problem"]["rows"] == 128  # type: ignore[index]


def test_another_machines_choice(capsys: pytest.CaptureFixture[str]) -> None:
    got = explain(capsys, "dsd", "--dtype", "bf16", "--block-size", "64", "--arch", "9.0a")
    assert got["target"] == "sm90a"
    assert ".sm90a.bf16." in str(got["variant"])


def test_another_gpus_choice(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["dsd", "--dtype", "bf16", "--block-size", "64", "--arch", "9.0a"]
    asked += ["--density", "0.75", "--gpu"]  # which the table that ships has not tuned
    found = [explain(capsys, *asked, gpu) for gpu in ("H200", "H100")]
    for gpu, got in zip(("H200", "H100"), found, strict=True):
        assert f"on an {gpu}" in str(got["reason"])
    assert found[0]["expected_seconds"] != found[1]["expected_seconds"]
    with pytest.raises(js.ArgumentError, match="no prices of a GPU 'A100'; there are H200, H100"):
        js.explain("dsd", js.random((64, 64), 32, 0.5), torch.randn(64, 4), gpu="A100")


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "dsd", *SIZES])
    out = capsys.readouterr().out
    assert out.startswith("problem")
    assert "\nvariant   dsd." in out


@pytest.mark.parametrize("target", ["avx9", "sm90a", ""])
def test_a_target_of_no_cpu(target: str) -> None:
    a = js.random((64, 64), 32, 0.5)
    with pytest.raises(js.ArgumentError, match="generic, avx2, avx512, avx512bf16, amx"):
        js.explain("dsd", a, torch.ones(64, 3), target=target)


def test_an_explanation_is_shown_as_it_is_printed() -> None:
    found = js.explain("dsd", js.random((64, 64), 32, 0.5), torch.ones(64, 3))
    assert repr(found) == str(found)
    assert repr(found).startswith("problem   dsd on cpu")


@pytest.mark.parametrize(
    ("op", "operands", "says"),
    [
        (
            "dsd",
            lambda: (js.random((64, 64), 64, 0.25), torch.ones(64, 8)),
            "this dsd runs no kernel: a has shape (64, 64) and stores 0 of 1 blocks of (64, 64), b "
            "has shape (64, 8); store a block: one is a density of 1, and less than half of that "
            "rounds to none",
        ),
        (
            "sdd",
            lambda: (torch.ones(60, 3), torch.ones(3, 64), js.Pattern.random((60, 64), 8, 0.005)),
            "pattern has shape (60, 64) and stores 0 of 64 blocks of (8, 8); store a block: one is "
            "a density of 0.016",
        ),
        (
            "linear",
            lambda: (torch.ones(0, 32), js.random((64, 32), (16, 8), 0.5), torch.ones(64)),
            "this linear runs no kernel: x has shape (0, 32), weight has shape (64, 32) and stores "
            "8 of 16 blocks of (16, 8), bias has shape (64,); give it operands that are not empty",
        ),
        (
            "dds",
            lambda: (torch.ones(3, 0), js.random((0, 64), 8, 0.5)),
            "b has shape (0, 64) and stores 0 of 0 blocks of (8, 8); give it operands that are not",
        ),
    ],
)
def test_a_call_of_no_kernel_says_which_operand_is_empty(
    op: str, operands: Callable[[], tuple[Any, ...]], says: str
) -> None:
    with pytest.raises(js.ArgumentError, match=re.escape(says)):
        js.explain(op, *operands())


def test_a_layer_is_explained_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explain", "linear"])
    assert stop.value.code == 2
    error = " ".join(capsys.readouterr().err.replace("\u2502", " ").split())
    assert "that of a layer is dds with --layout nt" in error
    assert 'js.explain("linear", x, weight)' in error


def test_the_product_of_a_layer_is_the_one_that_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    m, n, k = 256, 64, 128
    expected = js.explain("linear", torch.randn(m, k), js.random((n, k), 32, 0.5))
    got = explain(capsys, "dds", "--layout", "nt", *SIZES)
    assert got["variant"] == expected.variant


def test_a_gpu_that_is_not_there_needs_a_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        main(["explain", "dsd", "--device", "cuda"])
    assert stop.value.code == 2
    assert "--arch 9.0a" in capsys.readouterr().err
    got = explain(capsys, "dsd", "--device", "cuda", "--arch", "9.0a")
    assert got["target"] == "sm90a"
    with config.override(arch="8.0"):
        assert explain(capsys, "dsd", "--device", "cuda")["target"] == "sm80"
