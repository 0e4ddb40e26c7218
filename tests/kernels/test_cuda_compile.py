"""Every CUDA kernel of the default table compiles for Ampere and Hopper, without spill or warning.

So do the kernels of ``wgmma`` that calls do not choose by themselves.

Needs nvcc and no GPU. A batch of kernels is one translation unit: front end and
headers cost more than a kernel does.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jitsparse.jit import Variant
from jitsparse.jit.template import render
from jitsparse.kernels import registry
from jitsparse.kernels.cuda import CONDENSED, CSRC
from jitsparse.kernels.problem import typical_problem
from jitsparse.kernels.split import DIVIDE_THE_TAIL, splits
from jitsparse.panels import TALL_PANEL

TARGETS = ("sm80", "sm90a")
BATCH = 24
HELPER = re.compile(r"kernel_entryINS_\d+(Transpose|SpmmSum|SddSum|SddTailSum)I")
"""Kernels that run before or after a variant's own."""
CLEAN = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"

pytestmark = [pytest.mark.nvcc, pytest.mark.table]


def not_chosen(target: str) -> Iterator[Variant]:
    """Panels of 192 rows and divided sums, which are for larger products and for smaller ones than
    the default table's, in tiles of all widths; condensed block columns, which are for fewer
    blocks: a block of each kind; blocks with a side of 8; some of float64; and an sdd of ``fma`` in
    blocks that are higher than wide, or of ``mma`` as named here, which ask for the most registers.
    """
    blocks, layouts = ((32, 32), (64, 64), (128, 128)), ("nn", "tn")
    for op, block, layout in itertools.product(registry.OPS, blocks, layouts):
        problem = typical_problem(op, "cuda", "bf16", block, layout)
        found = [
            each.variant
            for each in registry.candidates(problem, target)
            if each.variant.family == "wgmma" and each.refused is None
        ]
        if op == "sdd":
            yield from filter(splits, found)
        else:
            yield from (each for each in found if each.ints("t")[0] == TALL_PANEL)
            few = dataclasses.replace(problem, extent=64)
            yield from (
                each.variant
                for each in registry.candidates(few, target)
                if splits(each.variant) and each.refused is None
            )
    for height, (op, layout) in itertools.product((16, 64, 128), (("dsd", "nn"), ("dds", "nt"))):
        problem = typical_problem(op, "cuda", "bf16", (height, 16), layout)
        for each in registry.candidates(problem, target):
            if CONDENSED in each.variant.knobs and each.refused is None:
                yield each.variant
    some = (
        *(("bf16", (8, 32), "dsd", "nn"), ("bf16", (8, 64), "dds", "tt")),
        *(("bf16", (64, 8), "sdd", "nt"), ("bf16", (32, 8), "dsd", "nt")),
        *(("f64", (8, 8), "dds", "nt"), ("f64", (64, 8), "sdd", "nt")),
        *(("f64", (16, 64), "dsd", "nt"), ("f64", (64, 128), "dds", "tt")),
        *(("tf32", (8, 8), "dds", "nt"), ("tf32", (8, 8), "sdd", "tn")),
        *(("f32", (8, 64), "dsd", "nt"), ("f32", (32, 8), "dds", "nn")),
        *(("f32", (128, 8), "dsd", "nt"), ("f32", (8, 32), "sdd", "tn")),
    )
    for (dtype, block, op, layout), extent in itertools.product(some, (64, 4096)):
        problem = typical_problem(op, "cuda", dtype, block, layout, extent)
        found = registry.candidates(problem, target)
        yield from [each.variant for each in found if each.refused is None][:1]
    greedy = (
        *(("f32", block, "nt") for block in ((32, 16), (64, 16), (64, 32), (128, 16), (128, 64))),
        *(("f32", (height, 8), "nt") for height in (16, 32, 64, 128)),
        *(("bf16", (16, 64), "nt"), ("bf16", (16, 128), "tt"), ("tf32", (128, 128), "nn")),
    )
    for dtype, block, layout in greedy:
        problem = typical_problem("sdd", "cuda", dtype, block, layout)
        for each in registry.candidates(problem, target):
            if each.variant.family in DIVIDE_THE_TAIL and each.refused is None:
                yield each.variant


def batches(target: str) -> list[list[Variant]]:
    every = dict.fromkeys((*registry.default_variants(target), *not_chosen(target)))
    variants = sorted(every, key=lambda each: (each.family, each.op, each.dtype))
    return [variants[first : first + BATCH] for first in range(0, len(variants), BATCH)]


def source_of(variant: Variant) -> str:
    template = registry.template_of(variant)
    return render(template, template.context(variant))


def kernels_of(variants: list[Variant]) -> int:
    """How many differ: a variant that copies an operand first has the kernel of another layout."""
    kernels = (re.search(r"using Kernel = [^;]*", source_of(variant)) for variant in variants)
    return len({kernel and kernel[0] for kernel in kernels})


def translation_unit(variants: list[Variant]) -> str:
    """The rendered sources one after another, each in a namespace, with a launcher of its own."""
    includes: dict[str, None] = {}
    bodies = []
    for number, variant in enumerate(variants):
        source = source_of(variant).split("#line", 1)[1].split("\n", 1)[1]
        lines = source.splitlines()
        includes |= dict.fromkeys(line for line in lines if line.startswith("#include"))
        body = "\n".join(line for line in lines if not line.startswith("#include"))
        body = body.replace("jitsparse_launch", f"launch_{number}")
        bodies.append(f"namespace variant_{number} {{\n{body}\n}}")
    return "\n".join([*includes, *bodies])


@pytest.mark.timeout(1500)  # two minutes on two free cores, and many more on shared ones
@pytest.mark.parametrize("target", TARGETS)
def test_default_table_compiles_without_spills_or_warnings(
    target: str, nvcc: Path, tmp_path: Path
) -> None:
    def compile_batch(numbered: tuple[int, list[Variant]]) -> tuple[list[Variant], int, str]:
        number, variants = numbered
        source = tmp_path / f"{number}.cu"
        source.write_text(translation_unit(variants))
        capability = target.removeprefix("sm")
        architecture = f"-gencode=arch=compute_{capability},code=sm_{capability}"
        command = [nvcc, "-cubin", "-O3", "-std=c++17", architecture, "-Xptxas=-v", "-I", CSRC]
        result = subprocess.run(
            [*map(str, command), str(source), "-o", str(source.with_suffix(".cubin"))],
            capture_output=True,
            text=True,
            check=False,
        )
        return variants, result.returncode, result.stdout + result.stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compile_batch, enumerate(batches(target))))
    assert results
    in_local_memory = []
    for variants, code, log in results:
        names = ", ".join(variant.name for variant in variants)
        assert code == 0, f"{names}\n{log}"
        assert "warning" not in log.lower(), f"{names}\n{log}"
        # To ptxas 13 only an "info".
        assert "instructions are serialized" not in log, f"{names}\n{log}"
        functions = re.findall(r"Function properties for (\S+)\n\s*(.*)", log)
        own = [name for name, _ in functions if "kernel_entry" in name and not HELPER.search(name)]
        assert len(own) == kernels_of(variants), log
        # Spills; and arrays that are indexed by a variable, which are no spill to ptxas.
        in_local_memory += [each for each in functions if each[1] != CLEAN]
    assert not in_local_memory
