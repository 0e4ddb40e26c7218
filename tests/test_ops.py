"""The registered operations: schemas, fakes, strides, and the warm path around a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitsparse as js
from jitsparse import ops
from jitsparse.errors import LaunchError
from jitsparse.jit import config
from jitsparse.kernels import dispatch

A = js.random((36, 50), (16, 32), 0.6, generator=torch.Generator().manual_seed(0))
SIZES = (36, 50)
BLOCKS = (A.pattern.nnz_blocks, 16, 32)

CALLS: dict[str, tuple[Callable[..., Tensor], tuple[object, ...]]] = {
    "dsd": (ops.dsd_op, (A.values, A.pattern.index, torch.randn(50, 7), *SIZES, False)),
    "dsd transposed": (
        ops.dsd_op,
        (A.values, A.pattern.index, torch.randn(7, 36).T, *SIZES, True),
    ),
    "dsd permuted batch": (
        ops.dsd_op,
        (A.values, A.pattern.index, torch.randn(50, 3, 7).transpose(0, 1), *SIZES, False),
    ),
    "dsd gaps": (
        ops.dsd_op,
        (A.values, A.pattern.index, torch.randn(50, 14)[:, ::2], *SIZES, False),
    ),
    "dsd empty": (ops.dsd_op, (A.values, A.pattern.index, torch.randn(50, 0), *SIZES, False)),
    "dds": (ops.dds_op, (torch.randn(2, 7, 36), A.values, A.pattern.index, *SIZES, False, None, 0)),
    "dds epilogue": (
        ops.dds_op,
        (torch.randn(50, 7).T, A.values, A.pattern.index, *SIZES, True, torch.randn(36), 2),
    ),
    "sdd": (ops.sdd_op, (torch.randn(36, 7), torch.randn(7, 50), A.pattern.index, *SIZES, *BLOCKS)),
    "sdd batch": (
        ops.sdd_op,
        (torch.randn(2, 7, 36).mT, torch.randn(2, 7, 50), A.pattern.index, *SIZES, *BLOCKS),
    ),
}


@pytest.mark.parametrize(("op", "args"), CALLS.values(), ids=CALLS)
def test_opcheck(op: Callable[..., Tensor], args: tuple[object, ...]) -> None:
    torch.library.opcheck(op, args)


def test_values_may_lie_in_memory_as_they_like() -> None:
    """Whoever calls a registered operation himself may hand over a view."""
    pattern, x = js.Pattern.random((48, 48), 16, 0.5), torch.randn(48, 48)
    view = torch.randn(pattern.nnz_blocks, 16, 16).mT
    for transposed in (False, True):
        after = pattern.index, x, 48, 48, transposed
        assert torch.equal(ops.dsd_op(view, *after), ops.dsd_op(view.contiguous(), *after))
        after = pattern.index, 48, 48, transposed, None, 0
        assert torch.equal(ops.dds_op(x, view, *after), ops.dds_op(x, view.contiguous(), *after))


@pytest.mark.parametrize(("op", "args"), CALLS.values(), ids=CALLS)
def test_fakes_have_the_strides_of_results(
    op: Callable[..., Tensor], args: tuple[object, ...]
) -> None:
    real = op(*args)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fake = op(*args)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
    assert real.is_contiguous()


def test_one_selection_serves_a_size_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """New sizes look into the dictionary; they do not choose again, let alone compile."""
    chosen: list[object] = []
    select = dispatch.select
    monkeypatch.setattr(dispatch, "select", lambda key: chosen.append(key) or select(key))
    monkeypatch.setattr(dispatch, "_kernels", {})
    a = js.random((64, 64), 16, 0.5)
    for n in range(33, 65):
        js.dsd(a, torch.randn(64, n))
    # Aligned sizes (multiples of 4 floats) may have a kernel of their own.
    assert len(chosen) == 2
    with config.override(log="warning"):
        js.dsd(a, torch.randn(64, 64))
    assert len(chosen) == 3, "a change of configuration chooses again"


def test_pins_decide_inside_their_block() -> None:
    a, x = js.random((64, 64), 32, 0.5), torch.randn(64, 64)
    usual = js.explain("dsd", a, x)
    other = usual.alternatives[0]
    expected = a @ x
    with js.pin(f"dsd={other}"):
        pinned = js.explain("dsd", a, x)
        assert (pinned.variant, pinned.source) == (other, "context")
        torch.testing.assert_close(a @ x, expected)
    assert js.explain("dsd", a, x).variant == usual.variant


def test_a_pin_that_nothing_satisfies_is_an_error() -> None:
    a, x = js.random((64, 64), 32, 0.5), torch.randn(64, 64)
    with js.pin("dsd=r999x1"), pytest.raises(js.PinError, match=r"dsd\.vec\.") as caught:
        js.dsd(a, x)
    for variant in (js.explain("dsd", a, x).variant, *js.explain("dsd", a, x).alternatives):
        assert variant in str(caught.value)


def test_a_failing_launch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = js.random((64, 64), 32, 0.5), torch.randn(64, 64)
    js.dsd(a, x)
    real = dispatch._kernels

    class Failing:
        """A kernel whose launch reports code 7."""

        def __init__(self, kernel: object) -> None:
            self.pack, self.fail = kernel.pack, kernel.fail

        def launch(self, words: bytes) -> int:
            return 7

    monkeypatch.setattr(dispatch, "_kernels", {key: Failing(k) for key, k in real.items()})
    with pytest.raises(LaunchError, match=r"dsd\.\w+\..* failed with code 7"):
        js.dsd(a, x)


def test_explain_compiles_and_computes_nothing(cache_dir: object, forget: object) -> None:
    a = js.random((64, 64), 32, 0.5)
    found = js.explain("linear", torch.randn(10, 64), a, torch.zeros(64), "gelu")
    assert found.problem.op == "dds"
    assert (found.cached, found.compile_seconds) == (False, None)
    assert not js.cache_info()["entries"]
    assert found.variant in str(found)
    js.linear(torch.randn(10, 64), a)
    found = js.explain("linear", torch.randn(10, 64), a)
    assert found.cached
    assert found.compile_seconds > 0


def test_explain_refuses_what_runs_nothing() -> None:
    a = js.random((64, 64), 32, 0.5)
    with pytest.raises(js.ArgumentError, match="runs no kernel"):
        js.explain("dsd", a, torch.randn(64, 0))
    with pytest.raises(js.ArgumentError, match="no operation 'mm'"):
        js.explain("mm", a, torch.randn(64, 1))


def test_warmup_compiles_what_calls_choose(cache_dir: object) -> None:
    a, x = js.random((64, 96), (8, 32), 0.5), torch.randn(96, 40)
    outcomes = js.warmup(op="dsd", dtype="f32", block_size="8x32", device="cpu", jobs=2)
    assert {outcome.status for outcome in outcomes} == {"compiled"}
    with config.override(jit="off"):
        for operand in (x, x.T.contiguous().T, x[:, :3]):
            js.dsd(a, operand)
        js.dsd(a.T, torch.randn(64, 40))
        wanted = js.explain("dds", x.T, a.T).variant
        with pytest.raises(js.CacheMiss, match=re.escape(f"jitsparse warmup --variant {wanted}")):
            js.dds(x.T, a.T)
    again = js.warmup(op="dsd", dtype=torch.float32, block_size=(8, 32), device="cpu")
    assert {outcome.status for outcome in again} == {"cached"}


def test_warmup_refuses_what_does_not_exist() -> None:
    with pytest.raises(js.ArgumentError, match="op 'mm' is not one of dsd, dds, sdd"):
        js.warmup(op="mm")
    with pytest.raises(js.ArgumentError, match="dtype 'int8' is not one of"):
        js.warmup(dtype="int8")
    with pytest.raises(js.PatternError, match="8, 16, 32, 64, 128"):
        js.warmup(block_size=24)
    with pytest.raises(js.ArgumentError, match="device 'tpu' is not one of"):
        js.warmup(device="tpu")
    with pytest.raises(js.ArgumentError, match="none of the targets sm90a is for cpu"):
        js.warmup(device="cpu", arch="9.0a")
    with pytest.raises(js.ArgumentError, match=r"arch is \[\], which names no target"):
        js.warmup(arch=[])


def test_whoever_observes_a_call_sees_the_registered_operation() -> None:
    """A call may bypass torch's dispatcher; modes and meta tensors must not notice."""
    seen = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.randn(50, 7)
    with Record():
        observed = js.dsd(A, x)
    assert ops.dsd_op in seen
    assert torch.equal(observed, js.dsd(A, x))
    meta = js.dsd(js.BlockSparse(A.values.to("meta"), A.pattern.to("meta")), x.to("meta"))
    assert meta.is_meta
    assert meta.shape == observed.shape


def test_what_was_selected_before_a_change_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's pin comes while a kernel is selected, and asks for its own."""
    first, second = (("dsd", -1, "f32", 8, 8, "n", "n", True, 0x0300 + i, 3, 0) for i in (0, 1))

    def select(key: dispatch.Key) -> object:
        if key[8] == 0:
            monkeypatch.setattr(dispatch, "select", lambda key: "after")
            config.bump()
            dispatch.find(second)
        return "before"

    monkeypatch.setattr(dispatch, "select", select)
    config.bump()
    assert dispatch.find(first) == "before"
    assert "before" not in dispatch._kernels.values()
    assert dispatch.find(first) == "after"
    config.bump()
