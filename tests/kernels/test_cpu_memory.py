"""CPU kernels stay inside of their operands, and do nothing that C++ leaves undefined: the tests of
``test_cpu_kernels.py`` for this machine's own target, with kernels that sanitizers watch; and so
does the function that computes the indices of patterns, in ``test_indexing.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cpu_kernels import native, runnable

KERNELS = Path(__file__).with_name("test_cpu_kernels.py")
PLANES = Path(__file__).with_name("test_planes.py")
INDEXING = Path(__file__).parents[1] / "test_indexing.py"

PAST_THE_END = """
import ctypes, sys, torch
library = ctypes.CDLL(sys.argv[1])
library.last.restype = ctypes.c_float
x = torch.arange(8.0)
assert library.last(ctypes.c_void_p(x.data_ptr()), 7) == 7
library.last(ctypes.c_void_p(x.data_ptr()), int(sys.argv[2]))
"""


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, str]:
    """An environment in which g++ compiles for sanitizers, and Python has theirs of memory."""
    # With the library that throws, or the first exception of torch ends the process.
    runtimes = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    if not all(Path(each).is_absolute() for each in runtimes):
        pytest.skip("g++ has no address sanitizer")
    compiler = tmp_path / "g++"
    # -O0 comes last and counts: two thirds of the time that -O1 takes, a third of -O2's.
    options = "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    # Which needs no watching itself: that would double its time.
    compiler.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec g++ "$@" {options}\n')
    compiler.chmod(0o755)
    # Python and torch leak by design, and what they allocate is not always there.
    asan = "detect_leaks=0:allocator_may_return_null=1"
    changed = {"CXX": str(compiler), "LD_PRELOAD": ":".join(runtimes), "ASAN_OPTIONS": asan}
    # The driver of a GPU does not start beside the sanitizer.
    changed["CUDA_VISIBLE_DEVICES"] = ""
    ours = {"JITSPARSE_TEST_CACHE": str(tmp_path / "cache"), "JITSPARSE_TEST_TIGHT": "1"}
    return {**os.environ, **changed, **ours}


@pytest.mark.parametrize(("index", "found"), [(7, ""), (8, "heap-buffer-overflow")])
def test_the_watch_sees_what_is_past_the_end(
    index: int, found: str, watched: dict[str, str], tmp_path: Path
) -> None:
    source = tmp_path / "last.cpp"
    source.write_text('extern "C" float last(const float* x, long i) { return x[i]; }')
    library = source.with_suffix(".so")
    plain = {**watched, "LD_PRELOAD": ""}
    command = [watched["CXX"], "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, env=plain)
    command = [sys.executable, "-c", PAST_THE_END, str(library), str(index)]
    ended = subprocess.run(command, env=watched, capture_output=True, text=True)
    assert found in ended.stderr
    assert (ended.returncode == 0) == (not found), ended.stderr


def test_kernels_stay_inside(watched: dict[str, str]) -> None:
    """Those for this processor's own instructions, of bfloat16, and of the other dtypes: of every
    operation and layout one or the other."""
    targets = runnable()
    targets = targets[: targets.index(native("f32")[0]) + 1]
    tests = [f"{KERNELS}::test_kernels_are_right[{target}]" for target in targets]
    options = "-q -x -p no:cacheprovider -p no:xdist".split()
    command = [sys.executable, "-m", "pytest", *options, *tests]
    shared = watched | {"JITSPARSE_TEST_TIGHT": str(len(targets))}
    ended = subprocess.run(command, env=shared, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    assert f"{len(tests)} passed" in ended.stdout


def test_kernels_of_planes_stay_inside(watched: dict[str, str]) -> None:
    """On emulated tiles: of every operation a layout, stored or transposed."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k"]
    tests = "test_right and (nn-block0-dds or tt-block3-dsd or tt-block3-sdd)"
    command = [sys.executable, "-m", "pytest", *options, tests, str(PLANES)]
    ended = subprocess.run(command, env=watched, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    assert "3 passed" in ended.stdout


def test_the_function_that_computes_indices_stays_inside(watched: dict[str, str]) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "skewed or many_tiles"]
    command = [sys.executable, "-m", "pytest", *options, str(INDEXING)]
    ended = subprocess.run(command, env=watched, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    assert "passed" in ended.stdout
