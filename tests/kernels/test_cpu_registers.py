"""Sums stay in registers while a CPU kernel multiplies.

GCC keeps an array of sums in registers only if nothing takes an element's address, and says nothing
when it does not: results stay right, at three quarters of the rate. So this reads the machine code.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess

import pytest
from test_cpu_kernels import problem

from jitsparse.compilation import compile_variants, raise_failures
from jitsparse.kernels import cpu

TARGETS = {"avx512bf16": "bf16", "avx512": "f32", "avx2": "f32"}
"""With a dtype of each. Nothing runs: every x86-64 processor can compile for them."""

PRODUCT = re.compile(r"\bv(fmadd\w+|dpbf16ps)\b.*%[yz]mm")
ON_STACK = re.compile(r"%r[sb]p[,)].*%[yz]mm|%[yz]mm.*%r[sb]p[,)]")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="not an x86-64 processor")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("target", TARGETS)
def test_few_vectors_go_to_the_stack(target: str) -> None:
    dtype = TARGETS[target]
    variants = [
        next(
            each.variant
            for each in cpu.candidates(problem(op, dtype, (32, 32), "nn"), target)
            if not each.refused and each.variant.target == target
        )
        for op in ("dsd", "dds", "sdd")
    ]
    outcomes = compile_variants(variants)
    raise_failures(outcomes)
    for outcome in outcomes:
        assert outcome.path is not None
        code = subprocess.run(
            ["objdump", "--disassemble", "--no-show-raw-insn", outcome.path / "kernel.so"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        products = sum(PRODUCT.search(line) is not None for line in code)
        spilled = sum(ON_STACK.search(line) is not None for line in code)
        # Around calls and at the edges some do, 2 to 11 % of the number of products. With an array
        # of sums in memory it was 26 % and more.
        assert products > 40
        assert spilled < products / 5, outcome.variant.name
