"""In which order kernels are compiled: the longest first, and none after an interrupt."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jitsparse import compilation
from jitsparse.compilation import Outcome, compile_variants
from jitsparse.jit import Cache, Variant

VARIANTS = [Variant("dsd", "vec", "generic", "f32", (("b", f"{n}x{n}"),)) for n in (8, 16, 32, 64)]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Variant]:
    """Takes the place of compilers: what would be compiled, as it begins."""
    found: list[Variant] = []

    def compile_(variant: Variant, **_: Any) -> Outcome:
        found.append(variant)
        return Outcome(variant, "compiled", 1.0, None)

    monkeypatch.setattr(compilation, "_compile", compile_)
    return found


def test_what_is_unknown_begins_first_and_then_what_took_longest(
    begun: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes in the order of the question."""
    took = dict(zip((each.name for each in VARIANTS), (1.0, 3.0, None, 2.0), strict=True))
    monkeypatch.setattr(Cache, "last_seconds", lambda self, name: took[name])
    outcomes = compile_variants(VARIANTS, jobs=1)
    assert begun == [VARIANTS[n] for n in (2, 1, 3, 0)]
    assert [each.variant for each in outcomes] == VARIANTS


def test_what_has_not_begun_when_it_is_interrupted_never_does(
    begun: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, stopped = compilation._compile, threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            stopped.set()
            super().shutdown(wait=wait)

    def then_wait(variant: Variant, **options: Any) -> Outcome:
        if begun:
            assert stopped.wait(60)
        return first(variant, **options)

    def interrupt(outcome: Outcome) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compilation, "_compile", then_wait)
    monkeypatch.setattr(compilation, "ThreadPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt):
        compile_variants(VARIANTS, jobs=1, on_outcome=interrupt)
    assert len(begun) <= 2
