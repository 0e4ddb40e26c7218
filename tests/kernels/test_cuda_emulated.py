"""The CUDA kernels without a GPU: the rendered templates, run by an emulator of what they need.

``emulation/cuda/cuda/`` stands in for ``csrc/cuda/ptx``, the launcher and the tensor maps; kernels
and tiles are the product's own. The emulator finishes everything asynchronous as late as a kernel
may count on, so what this proves is arithmetic, addresses and the protocol of the pipelines, in
the part of the grid of ``tests/gpu`` that fits a test run. ``JITSPARSE_TEST_EMULATION=all`` runs it
all.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import pytest
import torch
from filelock import FileLock
from torch import Tensor

import jitsparse as js
from jitsparse import gathers, schedule
from jitsparse.bench.cases import DTYPES
from jitsparse.jit import Variant
from jitsparse.jit.template import render
from jitsparse.kernels import cuda, registry
from jitsparse.kernels.cuda import CSRC
from jitsparse.kernels.legality import capability
from jitsparse.kernels.problem import Problem
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.kernels.split import DIVIDE_THE_TAIL, parts_of_sdd, splits
from jitsparse.kernels.transpose import bytes_for_sdd, bytes_for_spmm, transposes
from jitsparse.layout import Gather
from jitsparse.reference import ACTIVATIONS
from jitsparse.schedule import build_index

EMULATION = Path(__file__).parent / "emulation" / "cuda" / "cuda"
FAMILIES = ("wgmma", "thin", "mma", "fma", "simt")
# Of 16-bit elements. Aligned, so that no family stands back; no multiple of a block, so that every
# edge is met.
ROWS, COLS, EXTENT, BATCH = 200, 152, 72, 2
# SMs: few, so that a CTA takes tile after tile; more where sums are divided.
FEW, MANY, PARTS = 2, 24, 3
# Of dds, by layout: each of the three somewhere.
ACTIVATION = {"nn": "gelu", "nt": "silu", "tn": "relu", "tt": "gelu"}
ALL = os.environ.get("JITSPARSE_TEST_EMULATION") == "all"


NAMED = (
    # TF32: either operand in registers, its rows along k and across, the bias of either
    "dsd.wgmma.sm90a.tf32.b64x64.lnt.t128x256x32",
    "dsd.wgmma.sm90a.tf32.b64x128.ltt.t128x256x32",
    "dds.wgmma.sm90a.tf32.b128x128.lnn.t128x128x32",
    "dds.wgmma.sm90a.tf32.b64x64.ltt.t128x256x32",
    "sdd.wgmma.sm90a.tf32.b64x64.lnn.grows",
    "sdd.wgmma.sm90a.tf32.b128x64.lnt.gcols.ksplit",
    # and in blocks of 32
    "dsd.wgmma.sm90a.tf32.b32x64.lnn.t128x256x32",
    "dds.wgmma.sm90a.tf32.b32x128.lnt.t128x128x32",
    "dds.wgmma.sm90a.tf32.b32x64.lnn.t128x256x32",
    "dds.wgmma.sm90a.tf32.b32x32.lnn.t128x256x32.ovalues",
    "dsd.wgmma.sm90a.tf32.b64x32.ltn.t128x128x32.ovalues",
    "sdd.wgmma.sm90a.tf32.b32x32.lnt.gcols",
    "sdd.wgmma.sm90a.tf32.b32x32.ltt.gcols",
    "sdd.wgmma.sm90a.tf32.b32x32.ltn.grows.otransposed",
    # gathered in halves of a block
    "sdd.wgmma.sm90a.tf32.b128x32.lnn.grows",
    "sdd.wgmma.sm90a.tf32.b64x128.ltt.gcols",
    "sdd.wgmma.sm90a.bf16.b32x128.lnt.gcols",
    # three warpgroups
    "dsd.wgmma.sm90a.bf16.b64x64.ltn.t192x256x64",
    "dds.wgmma.sm90a.f16.b64x16.lnt.t192x256x64",
    # blocks of 16 rows
    "dsd.wgmma.sm90a.bf16.b16x16.lnn.t128x256x64",
    "dds.wgmma.sm90a.f16.b16x128.lnt.t128x128x64",
    "dds.wgmma.sm90a.bf16.b128x16.ltn.t128x64x64",
    # block columns condensed, also where a slab is multiplied as it stands
    "dsd.wgmma.sm90a.bf16.b16x16.lnn.t128x256x64.kcondensed",
    "dds.wgmma.sm90a.f16.b16x128.ltn.t128x128x64.kcondensed",
    "dsd.wgmma.sm90a.f16.b64x16.lnn.t128x64x64.kcondensed",
    "dsd.wgmma.sm90a.bf16.b16x32.ltn.t128x256x64.kcondensed",
    "dds.wgmma.sm90a.bf16.b16x16.lnt.t128x256x64.kcondensed.otransposed",
    "dsd.wgmma.sm90a.f16.b128x16.lnt.t128x64x64.kcondensed.otransposed",
    # large blocks of an sdd, which leave while the next tile is multiplied, and small ones
    "sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols",
    "sdd.wgmma.sm90a.f16.b128x128.ltn.gcols",
    "sdd.wgmma.sm90a.bf16.b64x128.lnn.gcols",
    "sdd.wgmma.sm90a.bf16.b32x32.lnt.gcols",
    # divided sums, of either accumulator, to an output either way
    "dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x64x64.ksplit",
    "dds.wgmma.sm90a.f16.b64x64.lnt.t128x128x64.ksplit",
    "dds.wgmma.sm90a.bf16.b128x128.ltt.t128x256x64.ksplit",
    "dsd.wgmma.sm90a.f16.b16x16.ltn.t128x64x64.ksplit",
    "dds.wgmma.sm90a.bf16.b32x32.lnt.t128x256x32.ksplit",
    "dsd.wgmma.sm90a.bf16.b32x64.lnt.t128x128x64.ksplit",
    "sdd.wgmma.sm90a.bf16.b128x128.ltn.gcols.ksplit",
    "sdd.wgmma.sm90a.bf16.b16x16.lnn.grows.ksplit",
    # an operand that is transposed before, either of them
    "sdd.wgmma.sm90a.bf16.b16x16.ltn.gcols.otransposed",
    "sdd.wgmma.sm90a.f16.b32x32.ltn.grows.otransposed.ksplit",
    "sdd.wgmma.sm90a.tf32.b64x64.ltn.grows.otransposed",
    "sdd.wgmma.sm90a.tf32.b128x64.ltn.gcols.otransposed.ksplit",
    "dsd.wgmma.sm90a.tf32.b64x64.ltn.t128x256x32.otransposed",
    "dds.wgmma.sm90a.tf32.b64x128.ltn.t128x128x32.otransposed",
    # float32: the product transposed, with blocks as they lie and transposed; the slab; low blocks
    "dds.fma.sm90a.f32.b64x64.lnn.t64x128x32.w2x2.s3.c3",
    "dds.fma.sm90a.f32.b64x64.lnt.t64x128x32.w2x2.s3.c3",
    "dds.fma.sm90a.f32.b128x128.lnt.t128x64x32.w2x2.s3.c3",
    "dsd.fma.sm90a.f32.b128x16.lnt.t128x64x16.w2x2.s3.c2",
    "dsd.fma.sm90a.f32.b32x32.lnn.t32x256x32.w1x4.s2.c3",
    # blocks of 8 rows, blocks 8 deep, and the operand of which they need 8 elements a row
    "dsd.fma.sm90a.f32.b8x8.lnn.t8x256x8.w1x2.s3.c8",
    "dds.fma.sm90a.f32.b8x32.lnt.t8x256x16.w1x2.s2.c6",
    "dds.fma.sm90a.f32.b32x8.lnn.t8x256x32.w1x2.s2.c3",
    "dsd.fma.sm90a.f32.b8x64.lnt.t8x128x8.w1x1.s6.c8",
    "dds.fma.sm90a.f32.b128x8.ltt.t128x64x8.w2x2.s4.c3",
    "dds.fma.sm90a.f32.b8x8.lnn.t8x256x8.w1x2.s3.c8.otransposed",
    "sdd.fma.sm90a.f32.b8x8.lnt.t8x256x32.w1x2.s2.c3",
    "sdd.fma.sm90a.f32.b64x8.ltt.t64x128x32.w2x2.s3.c3",
    "sdd.fma.sm90a.f32.b16x8.ltn.t16x256x16.w1x4.s3.c4.otransposed",
    # tensor cores: low blocks, multiplied transposed, and blocks half as deep as a multiplication
    "dsd.mma.sm90a.bf16.b8x8.lnn.t128x256x128.w8x2.s2.c1",
    "dds.mma.sm90a.f16.b8x8.lnn.t128x64x64.w8x1.s3.c2",
    "dds.mma.sm90a.bf16.b8x64.lnt.t128x128x64.w8x1.s3.c2",
    "dsd.mma.sm90a.f16.b64x8.lnt.t64x128x64.w1x4.s4.c2",
    "dsd.mma.sm90a.bf16.b16x8.ltt.t128x128x64.w4x2.s3.c2",
    "dds.mma.sm90a.f16.b32x8.ltt.t128x32x64.w4x1.s3.c2",
    "dsd.mma.sm90a.tf32.b8x8.ltt.t128x256x64.w8x2.s2.c1",
    "dds.mma.sm90a.tf32.b8x16.lnt.t128x32x32.w4x1.s3.c2",
    "dds.mma.sm90a.tf32.b64x8.ltn.t128x128x32.w4x2.s3.c1",
    "sdd.mma.sm90a.bf16.b8x8.lnn.t128x128x64.w4x2.s3.c2",
    "sdd.mma.sm90a.f16.b8x32.ltt.t128x128x64.w4x2.s3.c2",
    "sdd.mma.sm90a.bf16.b64x8.lnt.t64x128x64.w1x4.s4.c2",
    "sdd.mma.sm90a.tf32.b8x8.ltn.t128x128x32.w4x2.s3.c2",
    "dds.mma.sm90a.bf16.b8x8.lnn.t128x128x64.w8x1.s3.c2.otransposed",
    "dsd.mma.sm90a.f16.b32x8.lnt.t128x128x64.w2x4.s3.c2.otransposed",
    "sdd.mma.sm90a.f16.b16x8.ltn.t128x128x64.w2x4.s3.c2.otransposed",
    # of doubles: low blocks, multiplied transposed, and tiles of one block row; each operand both
    # ways
    "dsd.mma.sm90a.f64.b8x8.lnn.t128x64x16.w4x1.s3.c2",
    "dds.mma.sm80.f64.b8x64.lnt.t128x16x32.w8x1.s2.c2",
    "dds.mma.sm90a.f64.b8x16.ltn.t16x128x32.w1x4.s2.c3",
    "dsd.mma.sm90a.f64.b16x16.lnt.t16x16x16.w1x1.s6.c8",
    "dds.mma.sm80.f64.b32x128.lnn.t128x64x32.w2x2.s2.c2",
    "dsd.mma.sm90a.f64.b64x64.ltt.t64x128x32.w2x2.s2.c2",
    "sdd.mma.sm90a.f64.b8x8.ltn.t128x64x16.w2x2.s3.c2",
    "sdd.mma.sm80.f64.b8x128.lnn.t128x128x16.w2x4.s3.c1",
    "sdd.mma.sm90a.f64.b32x32.lnt.t32x128x16.w1x4.s3.c3",
    "sdd.mma.sm90a.f64.b128x64.ltt.t128x128x16.w2x4.s4.c1",
    # few columns in full precision: rows and columns of a tile, either output, the dense operand
    # along k and across
    "dsd.thin.sm90a.f32.b8x8.lnn.t8x8",
    "dds.thin.sm90a.f32.b32x64.lnt.t16x1",
    "dsd.thin.sm90a.f32.b64x16.lnt.t16x16",
    "dsd.thin.sm80.f64.b16x8.lnt.t16x8",
    "dds.thin.sm90a.f64.b8x128.ltt.t8x8",
    # and divided, either output
    "dsd.mma.sm90a.bf16.b8x8.ltn.t128x32x64.w8x1.s3.c2.ksplit",
    "dds.mma.sm90a.bf16.b8x8.lnt.t128x32x64.w8x1.s3.c2.otransposed.ksplit",
    "dds.mma.sm90a.f16.b8x16.ltt.t128x64x64.w8x1.s3.c2.ksplit",
    "dds.mma.sm90a.bf16.b64x64.lnt.t64x32x64.w4x1.s4.c3.ksplit",
    "dsd.mma.sm90a.f16.b16x16.lnn.t128x64x64.w4x1.s3.c2.ksplit",
    "dds.mma.sm90a.tf32.b32x32.lnn.t128x32x32.w4x1.s3.c2.ksplit",
    "dsd.fma.sm90a.f32.b64x64.lnn.t64x32x16.w2x1.s4.c6.ksplit",
    "dds.fma.sm90a.f32.b32x32.lnt.t32x64x16.w1x2.s4.c6.ksplit",
    "dsd.fma.sm90a.f32.b16x64.ltt.t64x32x16.w2x1.s4.c6.ksplit",
    "dsd.fma.sm90a.f32.b8x8.lnt.t8x128x8.w1x1.s6.c8.otransposed.ksplit",
)
"""Of those that no call chooses by itself, each way through the code once."""

TAIL = (
    "sdd.fma.sm90a.f32.b64x64.lnn.t64x128x32.w2x2.s3.c3.ksplit",
    "sdd.fma.sm90a.f32.b32x32.lnt.t32x128x16.w1x2.s3.c6.ksplit",
    "sdd.fma.sm90a.f32.b128x128.ltn.t128x128x16.w2x2.s4.c2.ksplit",
    "sdd.fma.sm90a.f32.b16x32.ltt.t16x256x16.w1x4.s3.c4.ksplit",
    "sdd.fma.sm90a.f32.b8x8.lnn.t8x256x32.w1x2.s2.c3.otransposed.ksplit",
    "sdd.mma.sm90a.bf16.b64x64.lnn.t64x128x64.w1x4.s4.c2.ksplit",
    "sdd.mma.sm90a.tf32.b64x32.ltt.t64x128x32.w1x4.s3.c2.ksplit",
    "sdd.mma.sm90a.bf16.b8x8.ltt.t128x128x64.w4x2.s3.c2.ksplit",
    "sdd.mma.sm90a.bf16.b8x8.ltn.t128x128x64.w4x2.s3.c2.otransposed.ksplit",
    "sdd.mma.sm90a.f16.b16x16.lnt.t128x128x64.w2x4.s3.c2.ksplit",  # of several block rows
)
"""An sdd whose last tiles are divided."""

SHARING = (
    "sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols",
    "sdd.wgmma.sm90a.f16.b64x64.ltn.gcols",
    "sdd.wgmma.sm90a.bf16.b64x128.lnt.gcols",
    "sdd.wgmma.sm90a.bf16.b64x32.lnt.grows",
    "sdd.wgmma.sm90a.f16.b32x32.lnn.grows",
    "sdd.wgmma.sm90a.bf16.b16x16.lnt.gcols",
    "sdd.wgmma.sm90a.bf16.b32x16.ltn.gcols.otransposed",
    "sdd.wgmma.sm90a.tf32.b32x64.lnt.gcols",
    "sdd.wgmma.sm90a.tf32.b64x64.ltt.gcols",
)
"""Panels of 64 rows, two of which may have a tile."""

NARROW = (
    "sdd.wgmma.sm90a.bf16.b64x64.lnn.gcols",
    "sdd.wgmma.sm90a.f16.b64x64.ltt.gcols",
    "sdd.wgmma.sm90a.bf16.b128x128.lnt.gcols",
    "sdd.wgmma.sm90a.bf16.b32x32.ltn.gcols",
    "sdd.wgmma.sm90a.f16.b16x16.lnt.grows",
    "sdd.wgmma.sm90a.tf32.b64x64.lnt.gcols",
)
"""Whose wgmma have columns in steps of 64."""

WIDE = (
    # its rows across k and along it, slabs of either depth, a block in two parts, and several
    # blocks side by side
    "dsd.wgmma.sm90a.bf16.b32x32.lnn.t128x256x32",
    "dds.wgmma.sm90a.f16.b32x32.lnn.t128x256x64",
    "dsd.wgmma.sm90a.f16.b32x32.lnt.t128x256x32",
    "dsd.wgmma.sm90a.bf16.b32x128.lnt.t128x256x64",
    "dds.wgmma.sm90a.bf16.b16x32.ltn.t128x256x64",
    "dsd.wgmma.sm90a.tf32.b32x64.lnn.t128x256x32",
)
"""With the dense operand in registers, so that each warpgroup has half of 256 columns."""


def problem(op: str, dtype: str, block: tuple[int, int], layout: str) -> Problem:
    return Problem(op, "cuda", dtype, block, layout, True, ROWS, COLS, 8, EXTENT, BATCH)


def legal(op: str, dtype: str, block: tuple[int, int], layout: str) -> Iterator[Variant]:
    for candidate in registry.candidates(problem(op, dtype, block, layout), "sm90a"):
        if candidate.refused is None:
            yield candidate.variant


def selected() -> list[Variant]:
    """Of every family some: each operation, layout and block size is met by several."""
    square = [(side, side) for side in (8, 16, 32, 64, 128)]
    blocks = [*square, (64, 16), (16, 128), (8, 64), (16, 8)]
    everything = dict.fromkeys(
        variant
        for dtype, op, block, layout in itertools.product(
            cuda.ELEMENTS, registry.OPS, blocks, LAYOUTS
        )
        for variant in legal(op, dtype, block, layout)
    )
    found = list(everything) if ALL else []
    for family in FAMILIES:
        of_family = [variant for variant in everything if variant.family == family]
        # Coprime to the number of layouts, so that a stride meets them all.
        found += of_family[:: max(1, len(of_family) // 5) | 1]
    return list(dict.fromkeys((*found, *map(Variant.parse, NAMED))))


def emulated_sources(root: Path) -> Path:
    """The product's headers, with the emulator's in their place where there is one."""
    shutil.copytree(CSRC, root / "csrc")
    shutil.copytree(EMULATION, root / "csrc" / "cuda", dirs_exist_ok=True)
    for header in (root / "csrc" / "cuda").rglob("*.cuh"):
        if header.parent.name not in ("kernels", "tile"):
            continue
        # Dynamic shared memory is the emulator's; a static part is one for all threads.
        dynamic = r"extern __shared__ (?:__align__\(\d+\) )?(unsigned char) (\w+)\[\];"
        text = re.sub(dynamic, r"\1* \2 = emulation::memory;", header.read_text())
        static = r"__shared__ ([^;\[]+ (\w+)(?:\[\w+\])*);"
        text = re.sub(static, r"static \1; emulation::poison(&\2, sizeof \2);", text)
        assert "__shared__" not in text
        header.write_text(text)
    return root


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all workers of pytest-xdist, each of which has a folder in the run's."""
    folder = tmp_path_factory.getbasetemp()
    root = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "emulated"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            emulated_sources(root)
            emulator = root / "csrc" / "cuda" / "emulator.cpp"
            # It multiplies for wgmma, which is where the time of most tests goes.
            fast = ["-O3", "-fno-semantic-interposition"]
            command = [*compiler(root), *fast, "-c", str(emulator), "-o", emulator_of(root)]
            subprocess.run(command, check=True)
            # Precompiled, it takes a third less to compile a kernel.
            header = str(emulator.with_suffix(".h"))
            subprocess.run([*compiler(root), "-x", "c++-header", header], check=True)
    return root


@pytest.fixture
def own_sources(sources: Path, tmp_path: Path) -> Path:
    """A copy, for a test that changes it."""
    shutil.copytree(sources / "csrc", tmp_path / "csrc")
    return tmp_path


def replace_once(root: Path, header: str, old: str, new: str) -> None:
    """In one of the sources."""
    path = root / "csrc" / "cuda" / f"{header}.cuh"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.fixture
def resize(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the constants above other values, for one test."""

    def change(**values: int) -> None:
        for name, value in values.items():
            monkeypatch.setattr(sys.modules[__name__], name, value)

    return change


def emulator_of(root: Path) -> str:
    return str(root / "csrc" / "cuda" / "emulator.o")


def compiler(root: Path) -> list[str]:
    # What is not aligned is an illegal instruction.
    aligned = ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    return ["g++", "-std=c++17", "-Og", "-w", "-fPIC", *aligned, "-I", str(root / "csrc")]


def link(source: Path, library: Path, root: Path) -> None:
    """Compile a source into a library that has the emulator."""
    header = str(root / "csrc" / "cuda" / "emulator.h")
    command = [*compiler(root), "-shared", "-include", header, source, emulator_of(root)]
    subprocess.run([*command, "-o", library], check=True)


class Kernel:
    """A variant, compiled for the emulator, once in a folder of sources."""

    def __init__(self, variant: Variant, root: Path) -> None:
        template = registry.template_of(variant)
        source = root / f"{variant.name}.cpp"
        library = source.with_suffix(".so")
        with FileLock(f"{library}.lock"):
            if not library.exists():
                architecture = f"#define __CUDA_ARCH__ {capability(variant.target)}0\n"
                source.write_text(architecture + render(template, template.context(variant)))
                link(source, library, root)
        self.library = ctypes.CDLL(str(library))
        self.library.jitsparse_error.restype = ctypes.c_char_p

    def __call__(self, words: tuple[int, ...], operands: list[Tensor], sm_count: int = FEW) -> None:
        self.library.set_sm_count(sm_count)
        ranges = []
        for each in operands:
            storage = each.untyped_storage()
            ranges += [storage.data_ptr(), storage.data_ptr() + storage.nbytes()]
        self.library.allow_reads(struct.pack(f"{len(ranges)}q", *ranges), len(operands))
        code = self.library.jitsparse_launch(struct.pack(f"{len(words)}q", *words))
        assert code == 0, f"{code}: {self.library.jitsparse_error(code).decode()}"


def letter(x: Tensor, name: str) -> tuple[int, int]:
    """Leading dimension and batch stride of a dense operand in a layout."""
    return (x.stride(-2) if name == "n" else x.stride(-1)), x.stride(0)


@pytest.mark.parametrize("variant", selected(), ids=lambda variant: variant.name)
def test_kernel(variant: Variant, sources: Path) -> None:
    check(variant, sources)


@pytest.mark.parametrize(
    ("name", "header", "line"),
    [
        ("dsd.mma.sm90a.bf16.b64x64.lnn.t64x32x64.w4x1.s4.c3", "tile/stage_loop", "cp_async_wait"),
        ("dsd.thin.sm90a.f32.b32x32.lnt.t16x8", "kernels/spmm_thin_fma", "cp_async_wait<kStages"),
        ("dsd.wgmma.sm90a.bf16.b32x32.lnn.t128x256x64", "kernels/spmm_stages", "wait_empty"),
        ("dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x256x64", "kernels/spmm_wgmma", "wait_full"),
        ("dsd.wgmma.sm90a.bf16.b32x32.lnn.t128x256x32", "kernels/spmm_wgmma_small", "wait_full"),
        ("dds.wgmma.sm90a.bf16.b16x16.lnt.t128x64x64", "kernels/spmm_wgmma_small", "wgmma_wait<0>"),
        (
            "dds.wgmma.sm90a.bf16.b128x128.lnn.t128x256x64",
            "tile/epilogue_staging",
            "bulk_wait_read",
        ),
        (
            "dsd.wgmma.sm90a.tf32.b128x128.lnn.t128x256x32",
            "kernels/spmm_wgmma_tf32",
            "wgmma_wait<0>",
        ),
        ("sdd.wgmma.sm90a.bf16.b128x128.lnn.gcols", "kernels/sdd_wgmma", "wgmma_wait<1>"),
        ("sdd.wgmma.sm90a.bf16.b16x16.lnn.grows", "kernels/sdd_wgmma", "wgmma_wait<0>"),
        ("sdd.wgmma.sm90a.bf16.b16x16.lnn.grows", "kernels/sdd_stages", "__syncthreads"),
        ("sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols", "kernels/sdd_store", "bulk_wait_read<0>"),
        ("sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols", "kernels/sdd_store", "bulk_wait_read<kSubtile"),
        ("sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols", "kernels/sdd_store", "fence_proxy_async"),
        ("sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols", "kernels/sdd_store", "__syncwarp"),
        (
            "dds.wgmma.sm90a.bf16.b128x128.lnn.t128x256x64",
            "tile/epilogue_staging",
            "fence_proxy_async",
        ),
        ("dds.wgmma.sm90a.bf16.b128x128.lnn.t128x256x64", "tile/epilogue_staging", "named_barrier"),
    ],
)
def test_the_emulator_finds_a_missing_wait(
    name: str, header: str, line: str, own_sources: Path
) -> None:
    path = own_sources / "csrc" / "cuda" / f"{header}.cuh"
    lines = path.read_text().splitlines()
    kept = [each for each in lines if line not in each]
    assert len(kept) < len(lines)
    path.write_text("\n".join(kept))
    with pytest.raises(AssertionError):
        check(Variant.parse(name), own_sources)


NOT_FILLED = ("ptx/cp_async", "std::memset(to, 0, bytes)", "0")
"""What cp.async copies from outside of an operand; in the emulator's own header."""


@pytest.mark.parametrize(
    ("name", "header", "line", "other"),
    [
        ("dsd.mma.sm90a.bf16.b64x64.lnn.t64x32x64.w4x1.s4.c3", *NOT_FILLED),
        ("dsd.mma.sm90a.tf32.b64x64.lnn.t64x32x32.w4x1.s4.c2", *NOT_FILLED),
        (
            "dds.mma.sm90a.bf16.b128x128.ltn.t128x32x64.w4x1.s4.c2",
            "tile/product_epilogue",
            "m < m_extent ? Element::load(bias[m])",
            "true ? Element::load(bias[m])",
        ),
        ("dsd.simt.sm90a.f32.b16x128.lnt.t16x64", "kernels/spmm_simt", "n < args.n ?", "true ?"),
        (
            "dsd.mma.sm90a.bf16.b64x64.lnn.t64x32x64.w4x1.s4.c3",
            "tile/store_tile",
            "reinterpret_cast<int4*>(to)",
            "reinterpret_cast<int4*>(to + 1)",
        ),
        (
            "dsd.thin.sm90a.f16.b16x16.lnt.t16x8",
            "kernels/spmm_thin",
            "for (int e = 0; e < 4; ++e) shared",
            "for (int e = 0; e < 4; ++e) if (c[i][j][e] != 0) shared",
        ),
        (
            "dds.thin.sm90a.f32.b32x32.lnt.t16x8",
            "kernels/spmm_thin_fma",
            "first_n + j < args.n && at_k < args.cols",
            "at_k < args.cols",
        ),
        (
            "dds.thin.sm90a.f32.b32x32.lnt.t16x8",
            "kernels/spmm_thin_fma",
            "first_n + j < args.n && at_k < args.cols",
            "first_n + j < args.n",
        ),
    ],
    ids=[
        *("not filled", "not filled, rounded", "bias", "operand", "not aligned", "not written"),
        *("column", "edge of k"),
    ],
)
def test_the_emulator_finds_a_wrong_access(
    name: str, header: str, line: str, other: str, own_sources: Path
) -> None:
    replace_once(own_sources, header, line, other)
    with pytest.raises(AssertionError):
        check(Variant.parse(name), own_sources)


@pytest.mark.parametrize(
    "name",
    [
        "dsd.thin.sm90a.f32.b32x32.lnt.t16x8",
        "dds.thin.sm90a.f32.b8x8.lnt.t8x16",
        "dsd.thin.sm90a.f64.b64x64.lnn.t8x8",
    ],
)
def test_a_ring_of_values_that_is_filled_again(
    name: str, sources: Path, resize: Callable[..., None]
) -> None:
    """In each of four warps; shorter rows do not fill it once."""
    resize(COLS=2200)
    check(Variant.parse(name), sources)


def extents(dtype: torch.dtype) -> tuple[tuple[int, int], int]:
    """Shape and extent of an element size: multiples of 16 bytes and of no more."""
    more = 8 - 16 // dtype.itemsize
    return (ROWS + more, COLS + more), EXTENT + more


@pytest.mark.parametrize(
    ("block", "panels", "two_columns", "rows", "batch", "ctas"),
    [
        (32, 16, False, 2104, 6, 48),
        (64, 8, False, 2104, 6, 48),
        (64, 16, True, 2104, 6, 48),
        (64, 32, False, 2104, 6, 48),
        (64, 32, True, 2104, 6, 48),
        (64, 64, False, 8264, 1, 32),
    ],
)
def test_rounds_of_whole_sets_of_neighbours(
    block: int,
    panels: int,
    two_columns: bool,
    rows: int,
    batch: int,
    ctas: int,
    own_sources: Path,
    monkeypatch: pytest.MonkeyPatch,
    resize: Callable[..., None],
) -> None:
    """Where panels of a group change places after two rounds of CTAs, of six."""
    order = f"{panels}, {str(two_columns).lower()}"
    replace_once(own_sources, "kernels/spmm_stages", "group(args), two_columns(args)", order)
    resize(ROWS=rows, COLS=72, EXTENT=152, BATCH=batch)
    monkeypatch.setattr(Kernel.__call__, "__defaults__", (ctas,))
    check(Variant.parse(f"dsd.wgmma.sm90a.bf16.b{block}x{block}.lnn.t128x64x64"), own_sources)


GROUPS = """
#include "cuda/enqueue.cuh"
#include "cuda/kernels/spmm_stages.cuh"
#include "cuda/tile/element.cuh"

using namespace jitsparse;

template <int BLOCK, bool ALONG_K, int PANEL, int TILE_N, int SLAB>
struct Kernel {
  static unsigned group(const SpmmArgs& args) {
    using Stages =
        SpmmStages<Bf16, BLOCK, BLOCK, false, ALONG_K, PANEL, TILE_N, SLAB, false, false, false>;
    return Stages::group(args);
  }
};

extern "C" unsigned group(int kernel, int64 rows, int64 cols, int64 nnz) {
  SpmmArgs args = {};
  args.rows = rows, args.cols = cols, args.nnz = nnz, args.n = 8192, args.batch = args.parts = 1;
  switch (kernel) {
    case 0: return Kernel<32, true, 128, 256, 32>::group(args);
    case 1: return Kernel<32, false, 128, 256, 32>::group(args);
    case 2: return Kernel<64, true, 128, 256, 64>::group(args);
    case 3: return Kernel<64, true, 192, 256, 64>::group(args);
    default: return Kernel<64, true, 128, 128, 64>::group(args);
  }
}
"""


def test_groups_of_panels(sources: Path, tmp_path: Path) -> None:
    """Four sets where there are 64 panels and, but for slabs of half a line along k, their blocks
    and two columns of the dense operand fit half of L2."""
    source = tmp_path / "groups.cpp"
    source.write_text(GROUPS)
    library = source.with_suffix(".so")
    link(source, library, sources)
    loaded = ctypes.CDLL(str(library))

    def group(kernel: str, rows: int, cols: int, density: float, sms: int = 132) -> int:
        loaded.set_sm_count(sms)
        number = ("along_k", "across", "high", "tall", "narrow").index(kernel)
        nnz = round(density * rows * cols / (32 if number < 2 else 64) ** 2)
        return int(loaded.group(number, *map(ctypes.c_int64, (rows, cols, nnz))))

    assert [group("along_k", rows, 8192, 0.5) for rows in (8192, 8064)] == [64, 32]
    assert group("across", 8192, 8192, 0.1) == 16
    assert [group("high", 8192, 8192, density) for density in (0.1, 0.25)] == [64, 32]
    assert [group("high", 14336, 4096, density) for density in (0.25, 0.5)] == [64, 32]
    assert [group("high", rows, 4096, 0.1) for rows in (8192, 8064)] == [64, 32]
    assert group("high", 8192, 8192, 0.1, sms=114) == 32
    assert [group("tall", 14336, 4096, density) for density in (0.1, 0.5)] == [64, 16]
    assert group("narrow", 8192, 8192, 0.1) == 8


@pytest.mark.parametrize(
    "name",
    [
        "dds.wgmma.sm90a.bf16.b32x32.lnt.t128x256x32",
        "dsd.wgmma.sm90a.bf16.b64x32.lnn.t192x256x64",
        "dsd.wgmma.sm90a.tf32.b64x64.lnn.t128x256x32",
        # a tile that is stored while the next one is multiplied
        "dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x256x64",
    ],
)
def test_panels_that_keep_pace(name: str, sources: Path, resize: Callable[..., None]) -> None:
    """More slabs than stay side by side: those of a panel do not come in the order of k."""
    resize(ROWS=1000, COLS=1304)
    check(Variant.parse(name), sources)


def test_tiles_too_short_to_store_the_one_before(
    sources: Path, resize: Callable[..., None]
) -> None:
    """Eight of k: a tile has one step, and the one before it several parts."""
    resize(ROWS=456, COLS=584, EXTENT=8, BATCH=1)
    check(Variant.parse("sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols"), sources)
    resize(ROWS=456, COLS=64, EXTENT=264)
    check(Variant.parse("dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x256x64"), sources)


@pytest.mark.parametrize(
    ("name", "size", "odd"),
    [
        ("dsd.wgmma.sm90a.tf32.b64x64.lnt.t128x256x32", "ROWS", 197),
        ("dds.wgmma.sm90a.tf32.b64x64.lnn.t128x256x32", "EXTENT", 69),
        ("dsd.fma.sm90a.f32.b64x64.lnt.t64x128x32.w2x2.s3.c3", "ROWS", 197),
    ],
)
def test_edges_that_need_not_be_aligned(
    name: str, size: str, odd: int, sources: Path, resize: Callable[..., None]
) -> None:
    """Of one matrix: another one behind it would mend what is written past the end of this."""
    resize(**{size: odd}, BATCH=1)
    check(Variant.parse(name), sources)


def test_a_sum_that_may_be_divided_and_is_not(sources: Path, resize: Callable[..., None]) -> None:
    """There are SMs for the tiles alone."""
    resize(MANY=2)
    check(Variant.parse("sdd.wgmma.sm90a.bf16.b16x16.lnn.grows.ksplit"), sources)
    check(Variant.parse("dds.wgmma.sm90a.bf16.b64x64.lnt.t128x64x64.ksplit"), sources)


WAYS_TO_DIVIDE = (
    (2, 520, 200, 24),
    (10, 520, 456, 24),
    (4, 520, 200, 24),
    (24, 1032, 72, 24),  # into many parts
    (24, 520, 296, 1),  # with room for more CTAs than there are
    (7, 8, 456, 24),  # hardly long enough for that
    (1, 520, 200, 24),  # none is left
)
"""Parts, extent, rows and SMs. What is decided is the same for all kernels, so those of
one block row and of several meet all of these, the others two."""


@pytest.mark.parametrize(
    ("name", "parts", "extent", "rows", "sm_count"),
    [
        (name, *way)
        for name in TAIL
        for way in WAYS_TO_DIVIDE[: None if name in (TAIL[0], TAIL[-1]) else 2]
    ],
)
def test_last_tiles_that_are_divided(
    name: str,
    parts: int,
    extent: int,
    rows: int,
    sm_count: int,
    sources: Path,
    resize: Callable[..., None],
) -> None:
    """:func:`check` says whether they have to be."""
    resize(PARTS=parts, EXTENT=extent, ROWS=rows, MANY=sm_count)
    check(Variant.parse(name), sources)


def divides_last_tiles(variant: Variant, mask: Tensor, extent: int, ctas: int) -> bool:
    """Whether an sdd has to leave sums in parts, on a GPU with so many CTAs at a time: where the
    tiles that make no whole round would take longer than what is made of them, which is up to three
    rounds of parts. Two stages are what beginning one costs."""
    (rows, cols), (tile_m, tile_n, tile_k) = variant.ints("b"), variant.ints("t")
    panels = mask.split(tile_m // rows)
    tiles = sum(-(-int(panel.any(0).sum()) // (tile_n // cols)) for panel in panels)
    stages, rest = -(-extent // tile_k) * BATCH, tiles % ctas
    parts = [min(rounds * ctas // rest, stages) for rounds in (1, 2, 3)] if rest else []
    times = [rounds * (-(-stages // n) + 2) for rounds, n in enumerate(parts, 1) if n]
    return min(times, default=stages + 2) < stages + 2


@pytest.mark.parametrize("name", WIDE)
def test_tiles_of_which_each_warpgroup_has_half(
    name: str, sources: Path, resize: Callable[..., None]
) -> None:
    """The last tile ends in the second half."""
    resize(EXTENT=456)
    check(Variant.parse(name), sources)


@pytest.mark.parametrize("name", NARROW)
def test_wgmma_as_narrow_as_a_tile(
    name: str, sources: Path, resize: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three quarters of what a warpgroup may multiply."""
    found = []

    def gather(column: Tensor, pointers: Tensor, shape: Gather, **how: Any) -> gathers.Gathered:
        gathered = gathers.gather_tiles(column, pointers, shape, **how)
        found.append((shape.block, gathered.tiles))
        return gathered

    monkeypatch.setattr(gathers, "SMS", 1)  # or tiles of few columns would be better
    monkeypatch.setattr(gathers, "BUSY", 0)
    monkeypatch.setattr(schedule, "gather_tiles", gather)
    resize(**{"ROWS" if "rows" in name else "COLS": 936})
    check(Variant.parse(name), sources)
    block, tiles = found["rows" in name]
    count, _, _, step = tiles[0, :4].tolist()
    columns = (tiles[1 : 1 + count, 2] - tiles[1 : 1 + count, 1]) * block
    assert step == 64
    assert ((columns > 128) & (columns <= 192)).any()


@pytest.mark.parametrize("name", SHARING)
def test_panels_that_share_columns(
    name: str, sources: Path, resize: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = []

    def gather(column: Tensor, pointers: Tensor, shape: Gather) -> gathers.Gathered:
        found = gathers.gather_tiles(column, pointers, replace(shape, may_share=True))
        tiles.append(found.tiles[1 : 1 + found.tiles[0, 0]])
        return found

    cases.share_columns(monkeypatch)
    monkeypatch.setattr(schedule, "gather_tiles", gather)
    along, across = ("COLS", "ROWS") if "rows" in name else ("ROWS", "COLS")
    resize(**{along: 456, across: 1176})
    check(Variant.parse(name), sources)
    tile = tiles["rows" in name]
    two = tile[:, 0] != tile[:, 4]
    assert two.any(), "some share columns"
    assert not two.all(), "and some do not"


@pytest.mark.parametrize("extent", [1, 7, 333])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMED
        if ".otransposed" in name and not re.match(r"dsd\.([fm]ma|.*condensed)", name)
    ],
)
def test_operands_of_any_extent_are_transposed(
    name: str, extent: int, sources: Path, resize: Callable[..., None]
) -> None:
    """Along the axis that is not contiguous, which need not be a multiple of anything."""
    size = "EXTENT" if re.search(r"^sdd|condensed|\.[fm]ma\.", name) else "ROWS"
    resize(**{size: extent})
    check(Variant.parse(name), sources)


@pytest.mark.parametrize("name", [name for name in NAMED if ".otransposed" in name])
def test_a_matrix_that_serves_a_batch_is_transposed_once(
    name: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense, infinite = cases.dense, cases.infinite

    def broadcast(shape: tuple[int, ...], *where: str, **how: Any) -> Tensor:
        return dense((1, *shape[1:]), *where, **how).expand(shape)

    monkeypatch.setattr(cases, "dense", broadcast)
    monkeypatch.setattr(cases, "infinite", lambda x, axis: infinite(x[:1], axis))
    check(Variant.parse(name), sources)


def guarded(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Room for a result that is not a number yet, and what lies behind it."""
    behind = 1 << 16
    room = torch.full((math.prod(shape) + behind,), float("nan"), dtype=dtype)
    return room[:-behind].view(shape), room[-behind:]


def fenced(x: Tensor) -> Tensor:
    """A copy that ends, but for less than 16 bytes, where no memory can be read or written."""
    storage = x.untyped_storage()
    page, size = mmap.PAGESIZE, -(-storage.nbytes() // 16) * 16
    end = -(-size // page) * page
    room = mmap.mmap(-1, end + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + end), page, 0) == 0
    count = storage.nbytes() // x.itemsize
    copy = torch.frombuffer(room, dtype=x.dtype, count=count, offset=end - size)
    copy.copy_(torch.empty(0, dtype=x.dtype).set_(storage))
    return copy.as_strided(x.shape, x.stride(), x.storage_offset())


def check(variant: Variant, sources: Path) -> None:
    """Run a variant on data that meets every edge, and judge the result."""
    op, dtype, layout = variant.op, DTYPES[variant.dtype], variant.knob("l")
    rows, cols = variant.ints("b")
    shape, extent = extents(dtype)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(-(-shape[0] // rows), -(-shape[1] // cols), generator=generator) < 0.5
    if mask.shape[0] > 2:
        mask[1] = False
    mask[0, 0] = mask[-1, -1] = True
    pattern = js.Pattern.from_mask(mask, (rows, cols), shape)
    index = fenced(
        build_index(
            pattern.crow_indices, pattern.col_indices, mask.shape[1], (rows, cols), panels=True
        )
    )
    kernel = Kernel(variant, sources)
    products = 2**-9 if variant.dtype == "tf32" else None
    make = dict(strided="packed", dtype=dtype, device="cpu", generator=generator)
    sizes = (*shape, pattern.nnz_blocks)
    if op == "sdd":
        left = fenced(cases.dense((BATCH, shape[0], extent), layout[0], **make))
        right = fenced(cases.dense((BATCH, extent, shape[1]), layout[1], **make))
        out, past = guarded((pattern.nnz_blocks, rows, cols), dtype)
        transposed, strides = 0, (left.stride(0), right.stride(0))
        if transposes(variant):
            transposed = bytes_for_sdd(variant, shape, extent, BATCH, strides, dtype.itemsize)
        parts, sm_count = (PARTS, MANY) if splits(variant) else (1, FEW)
        room = parts * out.numel()
        divides_the_tail = splits(variant) and variant.family in DIVIDE_THE_TAIL
        if divides_the_tail:
            # Three rounds of so many CTAs, no more than that says.
            tile = math.prod(variant.ints("t")[:2])
            room = min(parts_of_sdd(variant, out.numel(), extent, BATCH)[1] // 4, 3 * parts * tile)
        workspace, behind = guarded((transposed // 4 + room,))
        sums = workspace[transposed // 4 :]
        operands = left, right, index, out, workspace
        pointers = [each.data_ptr() for each in operands]
        lds = (*letter(left, layout[0]), *letter(right, layout[1]))
        words = (*pointers, *sizes, extent, *lds, BATCH, parts, 0)
        kernel(words, [left, right, index, workspace], sm_count)
        divided = bool(sums.isfinite().any())
        may = parts > 1 and MANY > FEW
        if divides_the_tail:
            ctas = min(parts, sm_count * variant.ints("c")[0])
            may = divides_last_tiles(variant, mask, extent, ctas)
        assert divided == may, "sums are divided where they may be"
        cases.check_sdd(js.BlockSparse(out, pattern), left, right, products=products)
        cases.infinite(left, -1)
        cases.infinite(right, -2)
        kernel(words, [left, right, index, workspace], sm_count)
        cases.check_past_edge(js.BlockSparse(out, pattern))
        assert past.isnan().all(), "nothing is written past the end"
        assert behind.isnan().all(), "nor past the sums"
        return
    values = torch.randn((pattern.nnz_blocks, rows, cols), generator=generator).to(dtype)
    stored = js.BlockSparse(values, pattern)
    values, whole = fenced(stored.values), stored.to_dense()
    # A bias may begin anywhere: this one does one element past what is aligned.
    features = shape[1] if layout[1] == "n" else shape[0]
    bias = fenced(torch.randn(1 + features, generator=generator).to(dtype)[1:])
    if op == "dsd":
        whole = whole.T if layout[0] == "t" else whole
        dense = fenced(cases.dense((BATCH, whole.shape[1], extent), layout[1], **make))
        out, past = guarded((BATCH, whole.shape[0], extent), dtype)
        ld, bias_at, activation = letter(dense, layout[1]), 0, None
    else:
        whole = whole.T if layout[1] == "t" else whole
        dense = fenced(cases.dense((BATCH, extent, whole.shape[0]), layout[0], **make))
        out, past = guarded((BATCH, extent, whole.shape[1]), dtype)
        ld, bias_at, activation = letter(dense, layout[0]), bias.data_ptr(), ACTIVATION[layout]
    depth, stored_bytes = whole.shape[op == "dsd"], values.nbytes
    transposed = bytes_for_spmm(
        variant, stored_bytes, extent, depth, BATCH, dense.stride(0), dtype.itemsize
    )
    workspace, behind = guarded((transposed // 4 + PARTS * out.numel(),))
    sums = workspace[transposed // 4 :]
    operands = values, index, dense, out
    pointers = (*(each.data_ptr() for each in operands), bias_at, workspace.data_ptr())
    parts, sm_count = (PARTS, MANY) if splits(variant) else (1, FEW)
    strides = (*ld, out.stride(-2), out.stride(0), BATCH, ACTIVATIONS.index(activation), parts, 0)
    words, reads = (*pointers, *sizes, extent, *strides), [values, dense, index, workspace]
    kernel(words, reads, sm_count)
    divided = parts > 1 and MANY > FEW
    assert bool(sums.isfinite().any()) == divided, "sums are divided where they may be"
    if op == "dsd":
        cases.check_product(out, whole, dense, products=products)
    else:
        cases.check_product(out, dense, whole, bias, activation, products=products)
    # What the pattern does not store is not multiplied, not even by infinity.
    cases.infinite(dense, -2 if op == "dsd" else -1)
    kernel(words, reads, sm_count)
    apart = cases.apart(stored, transposed=layout[op == "dds"] == "t", columns=op == "dds")
    finite = out[:, apart] if op == "dsd" else out[..., apart]
    assert finite.numel() or max(rows, cols) == 128  # of which there are four
    assert finite.isfinite().all(), "blocks that are not stored are not multiplied"
    assert past.isnan().all(), "nothing is written past the end"
    assert behind.isnan().all(), "nor past the sums"


def test_as_many_panels_as_are_divided(sources: Path, resize: Callable[..., None]) -> None:
    """One more, and the last tiles would not be (`extents` adds up to eight rows)."""
    resize(ROWS=16 * 512 - 8, COLS=40, EXTENT=72, BATCH=1, PARTS=24)
    check(Variant.parse("sdd.fma.sm90a.f32.b16x32.ltt.t16x256x16.w1x4.s3.c4.ksplit"), sources)
