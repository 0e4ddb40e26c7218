"""How CUDA kernels are launched, without a GPU: the product's launcher over a runtime and a driver
that note what they are asked for. Needs nvcc.

Kernels look for the driver by its name, so a process that has the real one cannot have this.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch

import jitsparse as js
from jitsparse.jit import Variant
from jitsparse.jit.template import render
from jitsparse.kernels import registry
from jitsparse.kernels.cuda import CSRC
from jitsparse.schedule import build_index

DRIVER = Path(__file__).parent / "emulation" / "driver" / "cuda.c"
pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(torch.version.cuda is not None, reason="the real CUDA runtime is loaded"),
]

SDD, DSD, SPLIT = (
    "sdd.wgmma.sm90a.bf16.b64x64.lnt.gcols.ksplit",
    "dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x256x64",
    "dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x256x64.ksplit",
)
SIZE, BLOCK = 256, 64
STREAM = 77


class Machine:
    """The stub, and libraries of kernels that are linked to it."""

    def __init__(self, folder: Path, nvcc: Path) -> None:
        stub = folder / "libcuda.so.1"
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{stub.name}"]
        subprocess.run(["gcc", *flags, str(DRIVER), "-o", str(stub)], check=True)
        self.stub = ctypes.CDLL(str(stub))
        self.libraries = {name: self._build(name, folder, nvcc) for name in (SDD, DSD, SPLIT)}
        self.kernels = {name: ctypes.CDLL(str(path)) for name, path in self.libraries.items()}
        grid = torch.ones(SIZE // BLOCK, SIZE // BLOCK, dtype=torch.bool)
        pattern = js.Pattern.from_mask(grid, (BLOCK, BLOCK))
        self.blocks = pattern.nnz_blocks
        self.index = build_index(
            pattern.crow_indices, pattern.col_indices, len(grid), (BLOCK, BLOCK), panels=True
        )

    def _build(self, name: str, folder: Path, nvcc: Path) -> Path:
        variant = Variant.parse(name)
        template = registry.template_of(variant)
        source, library = folder / f"{name}.cu", folder / f"{name}.so"
        source.write_text(render(template, template.context(variant)))
        command = [str(nvcc), "-shared", "-cudart", "none", "-O1", "-std=c++17", "-I", str(CSRC)]
        command += [
            "-gencode=arch=compute_90a,code=sm_90a",
            "-Xcompiler",
            "-fPIC,-fvisibility=hidden",
        ]
        command += [str(source), "-o", str(library), f"-L{folder}", "-l:libcuda.so.1"]
        subprocess.run([*command, "-Xlinker", f"-rpath={folder}"], check=True)
        return library

    def __getitem__(self, name: str) -> int:
        return int(ctypes.c_int.in_dll(self.stub, name).value)

    def __setitem__(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.stub, name).value = value

    def sdd(self, k: int = 512, parts: int = 1) -> int:
        pointers = 0x1000, 0x2000, self.index.data_ptr(), 0x3000, 0x10000
        strides = k, 0, k, 0
        words = *pointers, SIZE, SIZE, self.blocks, k, *strides, 1, parts, STREAM
        return int(self.kernels[SDD].jitsparse_launch(struct.pack(f"{len(words)}q", *words)))

    def dsd(self, n: int = 128, batch: int = 1, *, name: str = DSD, parts: int = 1) -> int:
        pointers = 0x1000, self.index.data_ptr(), 0x2000, 0x3000, 0, 0x10000
        sizes = SIZE, SIZE, self.blocks, n, max(n, 8), 0, max(n, 8), 0, batch, 0, parts, STREAM
        words = *pointers, *sizes
        return int(self.kernels[name].jitsparse_launch(struct.pack(f"{len(words)}q", *words)))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, nvcc: Path) -> Machine:
    return Machine(tmp_path_factory.mktemp("driver"), nvcc)


def test_a_launch_goes_to_the_stream_with_the_memory_that_was_asked_for(machine: Machine) -> None:
    before = machine["launches"]
    assert machine.sdd() == 0
    assert machine["launches"] == before + 1
    assert ctypes.c_void_p.in_dll(machine.stub, "last_stream").value == STREAM
    assert ctypes.c_size_t.in_dll(machine.stub, "last_shared").value > 48 << 10
    assert 0 < machine["last_grid"] <= 132
    assert machine["last_attributes"] == 1, "it may start early"


@pytest.mark.parametrize(("version", "early"), [(12020, 0), (12030, 1)])
def test_kernels_start_early_where_the_driver_can_capture_that(
    machine: Machine, tmp_path: Path, version: int, early: int
) -> None:
    before, newest = machine.kernels[SDD], machine["driver_version"]
    # A library asks once, so another one has to.
    machine.kernels[SDD] = ctypes.CDLL(str(shutil.copy(machine.libraries[SDD], tmp_path)))
    machine["driver_version"] = version
    try:
        assert machine.sdd() == 0
        assert machine["last_attributes"] == early
    finally:
        machine.kernels[SDD], machine["driver_version"] = before, newest


def test_the_driver_is_asked_once_for_each_device(machine: Machine) -> None:
    asked = []
    for device in (2, 2, 3, 3, 2):
        machine["device"] = device
        before = machine["attributes_set"], machine["attributes_read"]
        assert machine.sdd() == 0
        asked.append(
            (machine["attributes_set"] - before[0], machine["attributes_read"] - before[1])
        )
    machine["device"] = 0
    assert asked == [(1, 1), (0, 0), (1, 1), (0, 0), (0, 0)]


def test_sums_in_parts_are_added_by_a_second_kernel(machine: Machine) -> None:
    before = machine["launches"]
    assert machine.sdd(parts=4) == 0
    assert machine["launches"] == before + 2
    assert machine.dsd(name=SPLIT) == 0
    assert machine["launches"] == before + 3
    assert machine.dsd(name=SPLIT, parts=4) == 0
    assert machine["launches"] == before + 5


def test_a_sum_that_has_no_multiprocessors_to_be_divided_among_is_one_launch(
    machine: Machine,
) -> None:
    before = machine["launches"]
    assert machine.dsd(n=256 * 70, name=SPLIT, parts=4) == 0
    assert machine["launches"] == before + 1


def test_an_error_of_the_launch_is_returned_and_not_left_pending(machine: Machine) -> None:
    assert machine.sdd() == 0
    machine["launch_error"] = 719
    assert machine.sdd() == 719
    assert machine["pending"] == 0
    machine["launch_error"] = 0
    assert machine.sdd() == 0


def test_a_map_that_the_driver_refuses_is_an_error_ahead_of_the_launch(machine: Machine) -> None:
    before = machine["launches"]
    assert machine.sdd(k=513) != 0
    assert machine["launches"] == before


@pytest.mark.parametrize("empty", [{"n": 0}, {"batch": 0}])
def test_nothing_to_do_is_no_launch(machine: Machine, empty: dict[str, int]) -> None:
    before = machine["launches"]
    assert machine.dsd(**empty) == 0
    assert machine["launches"] == before
    assert machine.dsd() == 0
    assert machine["launches"] == before + 1
