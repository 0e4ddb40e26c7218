"""The packed index lies where the kernels look for it: csrc/abi.h against jitsparse/layout.py."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from jitsparse.kernels.cuda import CSRC
from jitsparse.layout import IndexLayout, div_up

ACCESSORS = {
    "crow_indices": "crow",
    "col_indices": "col",
    "row_indices": "row",
    "ccol_indices": "ccol",
    "row_indices_t": "row_t",
    "perm": "perm",
}
"""Parts that have another name in C++."""

BLOCKS = tuple(itertools.product((8, 16, 32, 64, 128), repeat=2))
SHAPES = ((1, 1, 1), (700, 300, 11), (300, 700, 23), (5000, 4104, 1001))
"""Rows and columns in elements, and stored blocks."""


def layout_of(rows: int, cols: int, nnz: int, block: tuple[int, int]) -> IndexLayout:
    return IndexLayout(div_up(rows, block[0]), div_up(cols, block[1]), nnz, block, panels=True)


def program() -> str:
    """Prints the offset of every part, for every block and shape, in the order of the layouts."""
    lines = ['#include "abi.h"', "#include <cstdio>", "int main() {"]
    for block, shape in itertools.product(BLOCKS, SHAPES):
        lines.append("  {")
        size, view = ", ".join(map(str, shape)), ", ".join(map(str, block))
        lines.append(f"    const jitsparse::IndexView<{view}> index(nullptr, {size});")
        for part in layout_of(*shape, block).parts():
            if "padding" not in part:
                name = ACCESSORS.get(part, part)
                lines.append(
                    f'    std::printf("%lld\\n", (long long)(index.{name}() - index.base));'
                )
        lines.append("  }")
    return "\n".join([*lines, "}"])


def test_those_of_a_stack_are_as_aligned_as_the_first() -> None:
    for block, shape, panels in itertools.product(BLOCKS, SHAPES, (False, True)):
        rows, cols = div_up(shape[0], block[0]), div_up(shape[1], block[1])
        assert IndexLayout(rows, cols, shape[2], block, panels=panels).size % 4 == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_every_part_is_where_the_header_says(tmp_path: Path) -> None:
    source, binary = tmp_path / "offsets.cpp", tmp_path / "offsets"
    source.write_text(program())
    command = ["g++", "-std=c++17", "-I", str(CSRC), str(source), "-o", str(binary)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    result = subprocess.run([str(binary)], check=True, capture_output=True, text=True)
    said = map(int, result.stdout.split())
    for block, shape in itertools.product(BLOCKS, SHAPES):
        for part, (offset, _) in layout_of(*shape, block).parts().items():
            if "padding" not in part:
                assert next(said) == offset, f"{part} of {shape} in blocks of {block}"
    assert next(said, None) is None
