"""The compiled function computes the very index that torch operations do, which
tests/test_schedule.py holds against plain loops."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import cases
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import jitsparse as js
from jitsparse import indexing, jit, traits
from jitsparse.checks import BLOCK_SIZES
from jitsparse.jit import Kernel, background, config
from jitsparse.kernels.host_index import WORDS, template
from jitsparse.kernels.registry import INDEX
from jitsparse.layout import IndexLayout
from jitsparse.pairs import MAX_COMPARISONS
from jitsparse.panels import PAIRED_AMONG
from jitsparse.schedule import build_index

ARGS = Path(js.__file__).parent / "csrc" / "index" / "args.h"

BLOCKS = [(rows, cols) for rows in BLOCK_SIZES for cols in BLOCK_SIZES]


@pytest.fixture(scope="module")
def function() -> Kernel:
    return jit.load(template(), INDEX)


def check(function: Kernel, pattern: js.Pattern) -> None:
    grid, block = pattern.grid, pattern.block_size
    host = pattern.crow_indices, pattern.col_indices
    layout = IndexLayout(*grid, pattern.nnz_blocks, block, panels=True)
    index = torch.full((layout.size,), -7, dtype=torch.int32)
    facts = indexing.fill(function, layout, host, index)
    expected = build_index(*host, grid[1], block, panels=True)
    for part in layout.parts():
        assert torch.equal(layout.view(index, part), layout.view(expected, part)), part
    assert torch.equal(index, expected)
    if pattern.nnz_blocks:
        profile = traits.profile_by(facts, pattern.nnz_blocks, pattern.shape, block)
        assert profile == traits.profile_of(pattern.traits)


def pattern_of(mask: Tensor, block: tuple[int, int]) -> js.Pattern:
    return js.Pattern.from_mask(mask, block)


def masks(rows: int, cols: int) -> dict[str, Tensor]:
    """Of kinds that differ in what panels share, and in how long they are."""
    generator = torch.Generator().manual_seed(rows * 1000 + cols)
    random = torch.rand(rows, cols, generator=generator)
    row, col = torch.arange(rows)[:, None], torch.arange(cols)
    return {
        "sparse": random < 0.03,
        "random": random < 0.3,
        "alike": (random[:1] < 0.4).expand(rows, -1).clone(),
        "band": (row * cols - col * rows).abs() <= 3 * max(rows, cols),
        "skewed": random * (1 + row) < 1,
        "corner": (row < 3) & (col < 3),
    }


@pytest.mark.parametrize("kind", masks(1, 1))
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block[0]}x{block[1]}")
def test_of_every_block_size(function: Kernel, block: tuple[int, int], kind: str) -> None:
    check(function, pattern_of(masks(67, 130)[kind], block))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 126, 127, 128, 129, 130])
@pytest.mark.parametrize(("cols", "density"), [(0, 1.0), (1, 1.0), (2, 0.0), (5, 0.4)])
def test_of_any_number_of_rows(function: Kernel, rows: int, cols: int, density: float) -> None:
    """Those that a window of pairs or triples has, and one more or less."""
    drawn = torch.rand(rows, cols, generator=torch.Generator().manual_seed(rows)) < density
    for block in ((64, 64), (16, 64), (128, 128)):
        check(function, pattern_of(drawn, block))
        check(function, pattern_of(drawn.T, block))


@settings(max_examples=25, deadline=None)
@given(
    block=st.sampled_from(BLOCKS),
    size=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_of_random_patterns(
    function: Kernel, block: tuple[int, int], size: tuple[int, int], density: float, seed: int
) -> None:
    shape = size[0] * block[0], size[1] * block[1]
    generator = torch.Generator().manual_seed(seed)
    check(function, js.Pattern.random(shape, block, density, generator=generator))


def test_of_many_tiles(function: Kernel) -> None:
    """Rounds of CTAs, groups of panels, and widths that differ."""
    for block, grid in ((16, 256), (32, 256), (64, 128), (128, 64)):
        for density in (0.1, 0.3):
            shape = grid * block, grid * block
            generator = torch.Generator().manual_seed(0)
            check(function, js.Pattern.random(shape, block, density, generator=generator))


def test_beyond_the_bounds_of_what_is_compared(function: Kernel) -> None:
    """Rows keep their order, panels share nothing, and steps are in the order of k."""
    cols = MAX_COMPARISONS // PAIRED_AMONG**2 + 1
    drawn = torch.rand(5, cols, generator=torch.Generator().manual_seed(0)) < 0.001
    for block in ((64, 64), (16, 16)):
        check(function, pattern_of(drawn, block))
        check(function, pattern_of(drawn.T.contiguous(), block))


def test_its_constants_are_those_of_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """With others it is another function: here one by which panels share wherever they can."""
    cases.share_columns(monkeypatch)
    function = jit.load(template(), INDEX)
    for kind, mask in masks(67, 130).items():
        if kind != "corner":
            for block in ((64, 64), (32, 32), (16, 64)):
                check(function, pattern_of(mask, block))


def test_words_are_the_members_of_the_structs() -> None:
    text = re.sub(r"//.*", "", ARGS.read_text())
    bodies = dict(re.findall(r"struct (\w+) {(.*?)};", text, re.DOTALL))

    def members(struct: str) -> list[str]:
        found: list[str] = []
        for line in bodies[struct].split(";"):
            kind, _, names = line.strip().removeprefix("const ").partition(" ")
            for name in filter(None, (name.strip(" *\n") for name in names.split(","))):
                inner = members(kind) if kind in bodies else []
                found += [f"{name}.{each}" for each in inner] or [name]
        return found

    assert tuple(members("IndexArgs")) == WORDS


def test_indices_of_the_transposed_pattern() -> None:
    for rows, cols in ((0, 3), (3, 0), (7, 5), (40, 60)):
        pattern = js.Pattern.random((rows * 32, cols * 32), 32, 0.3)
        host = indexing.transposed((pattern.crow_indices, pattern.col_indices), cols)
        expected = pattern.T
        assert torch.equal(host[0], expected.crow_indices)
        assert torch.equal(host[1], expected.col_indices)
        assert all(each.dtype is torch.int32 and each.is_contiguous() for each in host)


# -- when it is there -----------------------------------------------------------------------------


@pytest.fixture
def unknown(cache_dir: Path, forget: None) -> Iterator[None]:
    """In a process that knows no compiled function, with an empty cache."""
    indexing._forget()
    yield
    indexing._forget()


@pytest.mark.usefixtures("unknown")
def test_nobody_waits_for_the_compiler() -> None:
    assert indexing._function() is None
    for thread in list(background._builds.threads):
        thread.join()
    function = indexing._function()
    assert function is not None
    assert indexing._function() is function
    check(function, js.Pattern.random((640, 640), 32, 0.3))
    indexing._forget()
    assert indexing._function() is not None, "the cache has it"


@pytest.mark.usefixtures("unknown")
def test_where_it_cannot_be_compiled_that_is_said_once() -> None:
    with config.override(jit=False):
        with pytest.warns(RuntimeWarning, match="(?s)tens of milliseconds.*warmup --variant"):
            assert indexing._function() is None
        assert indexing._function() is None
    assert indexing._function() is None, "it may be compiled now, and is"
    for thread in list(background._builds.threads):
        thread.join()
    assert indexing._function() is not None


@pytest.mark.usefixtures("unknown")
def test_whatever_fails_patterns_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load", lambda *_, **__: 1 // 0)
    with pytest.warns(RuntimeWarning, match="by zero"):
        assert indexing._function() is None
    assert indexing._function() is None


def test_threads_and_changes_of_the_configuration(function: Kernel) -> None:
    """Each gets the function, or None, and no other's half."""
    found: list[object] = []

    def work() -> None:
        for _ in range(100):
            try:
                found.append(indexing._function())
            except BaseException as error:
                found.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        config.bump()
    assert len(found) == 400
    assert all(each is None or isinstance(each, Kernel) for each in found)
    assert indexing._function() is not None


@pytest.mark.parametrize(
    ("crow", "col"),
    [
        ([0, 1, 3], [0, 0, 2]),
        ([0, 1, 3], [0, 1, -1]),
        ([0, 1, 3], [0, 1, 1]),
        ([0, 2, 1], [0, 1, 1]),
        ([0, 4, 3], [0, 1, 0]),
        ([1, 1, 3], [0, 0, 1]),
    ],
)
def test_what_is_no_pattern_is_refused(function: Kernel, crow: list[int], col: list[int]) -> None:
    """By the function itself, since memory may have been written to after it was checked."""
    host = torch.tensor(crow, dtype=torch.int32), torch.tensor(col, dtype=torch.int32)
    layout = IndexLayout(2, 2, 3, (32, 32), panels=True)
    index = torch.zeros(layout.size, dtype=torch.int32)
    with pytest.raises(js.LaunchError, match="not those of a pattern"):
        indexing.fill(function, layout, host, index)
    assert not index.any()


def test_a_forked_child_has_no_threads_to_wait_for(function: Kernel) -> None:
    pattern = js.Pattern.random((2048, 2048), 32, 0.5)
    host = pattern.crow_indices, pattern.col_indices
    layout = IndexLayout(64, 64, pattern.nnz_blocks, (32, 32), panels=True)
    index = torch.zeros(layout.size, dtype=torch.int32)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        indexing.fill(function, layout, host, index)
        expected = index.numpy().tobytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
            child = os.fork()
        if not child:
            indexing.fill(function, layout, host, index)
            os._exit(index.numpy().tobytes() != expected)
        deadline = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended == (child, 0)
    finally:
        torch.set_num_threads(before)


def test_a_pattern_of_the_cpu_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_function", None)
    pattern = js.Pattern.random((64, 64), 32, 0.5)
    assert pattern.T._host is None
    assert pattern.to("meta").T._host is None


def test_rows_that_end_before_they_begin_are_refused(function: Kernel) -> None:
    """Between rows whose ends look right: their blocks would count twice."""
    host = torch.tensor([0, 3, 1, 3], dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    layout = IndexLayout(3, 3, 3, (32, 32), panels=True)
    index = torch.zeros(layout.size, dtype=torch.int32)
    with pytest.raises(js.LaunchError, match="not those of a pattern"):
        indexing.fill(function, layout, host, index)


@pytest.mark.parametrize(("rows", "cols"), [(2, 40), (3, 40), (64, 4), (64, 5), (64, 3)])
def test_the_fewest_panels_and_columns_that_share(
    rows: int, cols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases.share_columns(monkeypatch)
    function = jit.load(template(), INDEX)
    for block in ((64, 64), (32, 32), (16, 64)):
        check(function, pattern_of(torch.ones(rows, cols, dtype=torch.bool), block))
