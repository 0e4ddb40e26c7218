"""Compiles what the GPU tests run, in parallel, before the first of them."""

from __future__ import annotations

import cases
import pytest
import torch

from jitsparse.jit import Variant
from jitsparse.kernels import dispatch, registry
from jitsparse.warmup import compile_variants


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Every kernel of the numeric grid."""
    if not torch.cuda.is_available():
        return
    wanted: dict[Variant, None] = {}

    class Chosen(Exception):
        """Raised where a kernel would be loaded."""

    def note(key: dispatch.Key) -> None:
        choice = dispatch.choose(dispatch.problem_of(key), registry.target_of("cuda", key[1]))
        wanted[choice.candidate.variant] = None
        raise Chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_select", note)
        for variant in cases.VARIANTS:
            for situation in cases.SITUATIONS:
                try:
                    cases.run(variant, situation, "cuda")
                except Chosen:
                    pass
    failed = [outcome for outcome in compile_variants(wanted) if outcome.error is not None]
    if failed:
        raise failed[0].error or AssertionError
