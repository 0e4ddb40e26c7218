from __future__ import annotations

import json

import pytest
import torch

import jitsparse as js
from jitsparse.cli import main


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
