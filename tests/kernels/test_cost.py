"""The cost model: which problems it knows, what its parts count, and how it is fitted."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import cases
import pytest
import torch

import jitsparse as js
from jitsparse.bench import fitting
from jitsparse.bench.choice import FITTED, HELD_OUT
from jitsparse.bench.patterns import make_pattern
from jitsparse.jit import Variant
from jitsparse.kernels import cost, cost_of_spmm, price_table, registry, split
from jitsparse.kernels.cuda import CONDENSED
from jitsparse.kernels.problem import Problem, product_problem, typical_problem
from jitsparse.kernels.roles import LAYOUTS, is_flipped
from jitsparse.kernels.transpose import transposes
from jitsparse.layout import PANEL_WORDS, IndexLayout
from jitsparse.traits import profile_of


def tensor_core_variants(problem: Problem) -> list[Variant]:
    legal = [each for each in registry.candidates(problem, "sm90a") if each.refused is None]
    return [each.variant for each in legal if each.variant.family in cost_of_spmm.FAMILIES]


@pytest.mark.parametrize("block", list(itertools.product((16, 32, 64, 128), repeat=2)))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["dsd", "dds"])
def test_every_variant_of_tensor_cores_has_a_price(
    op: str, layout: str, block: tuple[int, int]
) -> None:
    size = (1024, 256, 1024) if op == "dsd" else (256, 1024, 1024)
    problem = product_problem(op, "cuda", "bf16", block, layout, size, 0.25)
    variants = tensor_core_variants(problem)
    assert variants
    for variant, gpu in itertools.product(variants, price_table.GPUS):
        expected = cost.microseconds(problem, variant, gpu)
        assert expected is not None, variant.name
        assert expected > 0


@pytest.mark.parametrize("block", list(itertools.product((16, 32, 64, 128), repeat=2)))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "tf32"])
def test_every_variant_of_an_sdd_in_32_bits_has_a_price(
    dtype: str, layout: str, block: tuple[int, int]
) -> None:
    """One that has none would come last, whatever it is."""
    for size in ((1024, 1024, 64), (768, 3000, 16384), (8192, 8192, 4096)):
        problem = product_problem("sdd", "cuda", dtype, block, layout, size, 0.25).rounded()
        for gpu in price_table.GPUS:
            legal = [c for c in registry.candidates(problem, "sm90a", gpu) if c.refused is None]
            assert {c.variant.family for c in legal} > {"simt"}
            for each in legal:
                expected = cost.microseconds(problem, each.variant, gpu)
                assert expected is not None, each.variant.name
                assert expected > 0


def test_an_sdd_in_16_bits_goes_by_rules() -> None:
    problem = typical_problem("sdd", "cuda", "bf16", 64, "tn")
    assert not cost.covers(problem, "sm90a")
    assert registry.candidates(problem, "sm90a")[0].variant.family == "wgmma"


@pytest.mark.parametrize(
    ("name", "amounts"),
    [
        # 32 tiles of 512 columns, which are 128 if all 132 CTAs are to have some.
        ("wgmma.sm90a.tf32.b64x64.lnt.gcols", {"step": 32, "dense": 192 * 1024, "tile": 1}),
        # Sums of 1024 in two parts.
        ("wgmma.sm90a.tf32.b64x64.lnt.gcols.ksplit", {"step": 16, "tile": 1}),
        # 128 on 264 CTAs at a time.
        ("mma.sm90a.tf32.b64x64.lnt.t64x128x32.w1x4.s3.c2", {"step": 32, "dense": 192 * 1024}),
        # In two parts each.
        ("mma.sm90a.tf32.b64x64.lnt.t64x128x32.w1x4.s3.c2.ksplit", {"step": 16 + 2}),
        # 256 on 528.
        ("simt.sm90a.f32.b64x64.lnt.t64x64", {"tile": 1, "dense": 2 * 128 * 1024}),
    ],
)
def test_a_full_result_takes_every_tile(name: str, amounts: dict[str, float]) -> None:
    """Where nothing is random the parts of an sdd can be counted by hand."""
    problem = product_problem("sdd", "cuda", "tf32", (64, 64), "nt", (1024, 1024, 1024), 1.0)
    parts = cost.parts(problem, Variant.parse(f"sdd.{name}"))
    found = dict(zip(cost.PARTS, parts, strict=True))
    assert {part: found[part] for part in amounts} == pytest.approx(amounts)
    assert found["memory"] == 3 * 1024 * 1024


@pytest.mark.parametrize(
    ("dtype", "block", "size", "density", "family"),
    [
        ("f32", 64, (4096, 4096, 16), 0.05, "simt"),
        ("tf32", 128, (4096, 4096, 16), 0.05, "simt"),
        ("f32", 64, (4096, 4096, 4096), 0.25, "fma"),
        ("tf32", 16, (4096, 4096, 4096), 0.25, "mma"),
        ("tf32", 64, (4096, 4096, 4096), 0.25, "wgmma"),
    ],
)
def test_an_sdd_in_32_bits_has_the_family_that_was_fastest(
    dtype: str, block: int, size: tuple[int, int, int], density: float, family: str
) -> None:
    """Of layout tn, H100: with a short k 2.15 and 1.57 times as fast as what rules chose."""
    problem = product_problem("sdd", "cuda", dtype, (block, block), "tn", size, density)
    assert registry.candidates(problem, "sm90a")[0].variant.family == family


@pytest.mark.parametrize(("dtype", "target"), [("f64", "sm90a"), ("bf16", "sm80")])
def test_other_problems_are_not_judged(dtype: str, target: str) -> None:
    problem = typical_problem("dsd", "cuda", dtype, 64, "nn")
    assert not cost.covers(problem, target)
    for each in registry.candidates(problem, target):
        assert cost.microseconds(problem, each.variant) is None


def test_more_work_is_expected_to_take_longer() -> None:
    problem = typical_problem("dsd", "cuda", "bf16", 64, "nn")
    larger = [
        dataclasses.replace(problem, nnz=2 * problem.nnz),
        dataclasses.replace(problem, extent=4 * problem.extent),
        dataclasses.replace(problem, batch=4),
    ]
    for variant in tensor_core_variants(problem):
        few = cost.microseconds(problem, variant)
        for more in larger:
            many = cost.microseconds(more, variant)
            assert few is not None
            assert many is not None
            assert many > few


def test_a_full_matrix_takes_every_step() -> None:
    """Where nothing is random the parts can be counted by hand: 32 panels, 8 of 256 columns."""
    problem = product_problem("dsd", "cuda", "bf16", (64, 64), "nn", (4096, 2048, 1024), 1.0)
    variant = Variant.parse("dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x256x64")
    amounts = dict(zip(cost.PARTS, cost.parts(problem, variant), strict=True))
    rounds = 2  # of 256 tiles on 132 multiprocessors
    assert amounts["tile"] == rounds
    assert amounts["step"] == rounds * 1024 / 64
    assert amounts["dense"] == rounds * 1024 * 256
    assert amounts["block"] == rounds * 1024 * 128
    assert amounts["shared"] == pytest.approx(256 / 132 * 1024 * 256)
    assert amounts["product"] == rounds * 1024 * 128 * 256
    assert amounts["memory"] == 1024 * 2048 + 4096 * 2048 + 4096 * 1024


@pytest.mark.parametrize("block", [(64, 64), (64, 128), (128, 64), (32, 64)])
@pytest.mark.parametrize("density", [0.05, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("size", [512, 2048, 4096])
def test_the_steps_of_a_random_pattern_are_what_the_index_has(
    size: int, density: float, block: tuple[int, int]
) -> None:
    """Of panels of 128 rows, where blocks of 64 rows are paired for them and where they are not."""
    grid = size // block[0], size // block[1]
    mask = torch.rand(grid, generator=torch.Generator().manual_seed(size)) < density
    pattern = js.Pattern.from_mask(mask, block)
    layout = IndexLayout(*grid, pattern.nnz_blocks, block, panels=True)
    index = cases.gpu_index(pattern)
    panels = size // 128
    steps = int(layout.view(index, "row_panel_ptr")[-1]) / panels
    problem = product_problem("dsd", "cuda", "bf16", block, "nn", (size, 1024, size), density)
    problem = dataclasses.replace(problem, nnz=pattern.nnz_blocks)
    expected = cost_of_spmm._steps(problem, block, (size, size), 128, 1).mean
    # A standard deviation of the mean over the panels, and 3 %.
    chance = (steps * max(1 - steps / grid[1], 0) / panels) ** 0.5
    assert abs(steps - expected) <= 0.03 * expected + chance


@pytest.mark.parametrize("density", [0.05, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("size", [768, 2048, 4096])
def test_the_steps_of_three_rows_are_what_the_index_has(size: int, density: float) -> None:
    """Of panels of 192 rows, which are chosen for what they share."""
    block, grid = (64, 64), (size // 64, size // 64)
    mask = torch.rand(grid, generator=torch.Generator().manual_seed(size)) < density
    pattern = js.Pattern.from_mask(mask, block)
    layout = IndexLayout(*grid, pattern.nnz_blocks, block, panels=True)
    index = cases.gpu_index(pattern)
    panels = layout.view(index, "row_tall_panels").view(-1, PANEL_WORDS)
    # The last panel may have fewer than three rows.
    steps = (panels[:, 1] - panels[:, 0]).sum().item() / (size / 192)
    problem = product_problem("dsd", "cuda", "bf16", block, "nn", (size, 1024, size), density)
    problem = dataclasses.replace(problem, nnz=pattern.nnz_blocks)
    expected = cost_of_spmm._steps(problem, block, (size, size), 192, 1).mean
    # A standard deviation of the mean over the panels, and 4 %.
    chance = (steps * max(1 - steps / grid[1], 0) / len(panels)) ** 0.5
    assert abs(steps - expected) <= 0.04 * expected + chance


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("slabs", [True, False])
@pytest.mark.parametrize(
    ("name", "density"),
    [("diagonal", 0.125), ("diagonal", 0.5), ("causal", 0.5), ("banded", 0.1), ("banded", 0.25)],
)
def test_the_steps_of_blocks_that_lie_together_are_what_they_are(
    name: str, density: float, slabs: bool, block: int
) -> None:
    """Of slabs and of single block columns, in panels of 128 rows. A step of the profile is a
    quarter of an octave, whose middle is up to a twelfth off."""
    size, across = 4096, 64 // block if slabs else 1
    shape = (size, size)
    pattern = make_pattern(name, shape, (block, block), density, torch.Generator())
    mask = torch.zeros(size // block, size // block, dtype=torch.bool)
    rows = torch.repeat_interleave(torch.arange(len(mask)), pattern.crow_indices.diff())
    mask[rows, pattern.col_indices.long()] = True
    panels = mask.view(size // 128, 128 // block, len(mask) // across, across)
    problem = product_problem("dsd", "cuda", "bf16", (block, block), "nn", (size,) * 3, density)
    problem = dataclasses.replace(
        problem, nnz=pattern.nnz_blocks, profile=profile_of(pattern.traits)
    )
    expected = cost_of_spmm._steps(problem, (block, block), shape, 128, across).mean
    assert expected == pytest.approx(panels.any(dim=(1, 3)).sum().item() / len(panels), rel=0.12)


@pytest.mark.parametrize("height", [16, 64, 128])
@pytest.mark.parametrize("density", [0.02, 0.1, 0.5, 1.0])
def test_the_steps_that_are_condensed_are_what_the_index_has(density: float, height: int) -> None:
    rows, depth, block = 2048, 4096, (height, 16)
    grid = rows // height, depth // 16
    mask = torch.rand(grid, generator=torch.Generator().manual_seed(0)) < density
    pattern = js.Pattern.from_mask(mask, block)
    layout = IndexLayout(*grid, pattern.nnz_blocks, block, panels=True)
    index = cases.gpu_index(pattern)
    panels = layout.view(index, "row_condensed_panels").view(-1, PANEL_WORDS)
    steps = (panels[:, 1] - panels[:, 0]).float().mean().item()
    problem = product_problem("dsd", "cuda", "bf16", block, "nn", (rows, 1024, depth), density)
    problem = dataclasses.replace(problem, nnz=pattern.nnz_blocks)
    expected = cost_of_spmm._condensed_steps(problem, block, (rows, depth), 128, 4).mean
    # A standard deviation of the mean over the panels, and 3 %.
    chance = (steps / 4 * max(1 - 4 * steps / grid[1], 0) / len(panels)) ** 0.5
    assert abs(steps - expected) <= 0.03 * expected + chance


@pytest.mark.parametrize(("op", "layout"), [("dsd", "nn"), ("dsd", "tn"), ("dds", "tn")])
@pytest.mark.parametrize("block", [(16, 16), (64, 16)])
def test_few_blocks_are_condensed(op: str, layout: str, block: tuple[int, int]) -> None:
    """Where the dense operand lies across k; measured at densities of 0.1 and less: 1.2 to 2.2
    times as fast. Between, where less than a tenth of the steps is left out, both are within a few
    percent of each other; in a full matrix there is nothing to leave out."""
    expected = {0.02: True, 0.1: True, 1.0: False}
    if is_flipped(op, layout):
        block = block[::-1]
    for density, condensed in expected.items():
        problem = product_problem(op, "cuda", "bf16", block, layout, (4096, 4096, 4096), density)
        first = registry.candidates(problem, "sm90a")[0].variant
        assert (CONDENSED in first.knobs) == condensed, first.name


@pytest.mark.parametrize("op", ["dsd", "dds"])
def test_divided_steps_are_a_part_of_all_and_have_to_be_added(op: str) -> None:
    """64 columns of 4096 rows are 32 tiles, of four parts."""
    problem = typical_problem(op, "cuda", "bf16", 64, "nn", 64)
    whole = Variant.parse(f"{op}.wgmma.sm90a.bf16.b64x64.lnn.t128x64x64")
    divided = dataclasses.replace(whole, knobs=(*whole.knobs, split.KNOB))
    all_of_them, a_part = (
        dict(zip(cost.PARTS, cost.parts(problem, each), strict=True)) for each in (whole, divided)
    )
    for part in ("step", "dense", "product"):
        assert a_part[part] == pytest.approx(all_of_them[part] / 4)
    for part in ("start", "tile", "shared", "memory"):
        assert a_part[part] == all_of_them[part]
    assert cost.breakdown(problem, divided)["sums"] > 0
    assert "sums" not in cost.breakdown(problem, whole)


def test_a_kind_that_was_not_timed_has_the_prices_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = typical_problem("dds", "cuda", "bf16", 64, "nt", 16)
    variant = Variant.parse("dds.wgmma.sm90a.bf16.b64x64.lnt.t128x64x64")
    kind = cost.kind(problem, variant)
    assert kind == "wgmma.64.s64.along.n64.few"
    prices = [1.0, *[0.0] * (len(cost.PARTS) - 1)]
    known: dict[str, list[float]] = {}
    monkeypatch.setattr(price_table, "_table", lambda: {"H200": known, "H100": {}})
    for timed in (kind, kind.removesuffix(".few"), kind.removesuffix(".n64.few")):
        known.clear()
        known[timed] = prices
        assert cost.microseconds(problem, variant) == 1.0
        assert cost.microseconds(problem, variant, "H100") is None
    known.clear()
    assert cost.microseconds(problem, variant) is None


def test_tiles_twice_as_wide_as_needed_are_left_out() -> None:
    problem = typical_problem("dds", "cuda", "bf16", 64, "nt", 64)
    for width, known in ((64, True), (128, False), (256, False)):
        variant = Variant.parse(f"dds.wgmma.sm90a.bf16.b64x64.lnt.t128x{width}x64")
        assert (cost.microseconds(problem, variant) is not None) == known


def test_the_cheapest_comes_first_and_says_why() -> None:
    """Of 4096 columns, where no variant asks for a workspace, which would have to be worth it."""
    problem = typical_problem("dsd", "cuda", "bf16", 64, "nn")
    legal = [each for each in registry.candidates(problem, "sm90a") if each.refused is None]
    expected = [cost.microseconds(problem, each.variant) for each in legal]
    known = [us for us in expected if us is not None]
    assert known == sorted(known)
    assert expected[: len(known)] == known, "what has no price comes last"
    assert legal[0].why == f"the cost model expects {known[0]:.1f} us on an H200"


def test_gpus_have_prices_of_their_own() -> None:
    """What any of them chooses is in the default tables."""
    names = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB")
    assert [price_table.gpu_of(name) for name in names] == ["H200", "H100", "H100", "H200"]
    for gpu in price_table.GPUS:
        assert {price_table.gpu_of(name) for name in price_table.machines_of(gpu)} == {gpu}
    assert price_table.gpu_of("NVIDIA A100-SXM4-80GB") is None
    # Measured: panels of 192 rows 470 us on an H100, of 128 rows 514; 437 and 444 on an H200.
    problem = product_problem("dds", "cuda", "bf16", (64, 64), "nn", (8192, 8192, 8192), 0.25)
    chosen = [registry.candidates(problem, "sm90a", gpu)[0] for gpu in price_table.GPUS]
    assert [each.variant.ints("t")[0] for each in chosen] == [128, 192]
    assert [each.why.split()[-1] for each in chosen] == list(price_table.GPUS)
    by_family = cost.first_choices(registry.candidates, [problem], "sm90a")
    assert by_family == [each.variant for each in chosen]


def test_a_workspace_has_to_be_worth_it() -> None:
    """In blocks of 16 whose dense operand lies along k: it is transposed, and block columns are
    condensed, where that is clearly faster."""
    chosen = set()
    for density in (0.02, 0.05, 0.1, 0.2, 0.4, 0.75):
        for size in (2048, 4096, 8192, 16384):
            sizes = (size, size, size)
            problem = product_problem("dds", "cuda", "bf16", (16, 16), "nt", sizes, density)
            first = registry.candidates(problem, "sm90a")[0].variant
            others = [v for v in tensor_core_variants(problem) if not transposes(v)]
            least = min(cost.microseconds(problem, each) or math.inf for each in others)
            us = cost.microseconds(problem, first)
            assert us is not None
            assert us == least or (transposes(first) and us <= least / 1.05)
            chosen.add(transposes(first))
    assert chosen == {True, False}


def test_rows_within_cache_lines_cost_the_copy_engine_requests() -> None:
    """5000 columns, rounded to 5112, beside as many whole cache lines; measured: 1.15 to 1.17 times
    as long in the median."""
    whole, ragged = (
        product_problem("dsd", "cuda", "bf16", (16, 16), "nt", (3072, 800, k), 0.05).rounded()
        for k in (5120, 5000)
    )
    name = "dsd.wgmma.sm90a.bf16.b16x16.lnt.t128x256x64"
    along, condensed = Variant.parse(name), Variant.parse(f"{name}.kcondensed.otransposed")
    assert "lines" not in cost.breakdown(whole, along)
    # One request more for each row of a box: 256 in each step, of 64 elements each.
    amounts = dict(zip(cost.PARTS, cost.parts(ragged, along), strict=True))
    requests = 256 * amounts["step"]
    assert cost.breakdown(ragged, along)["lines"] == pytest.approx(cost_of_spmm._LINES * requests)
    # What is transposed before begins where lines do.
    assert "lines" not in cost.breakdown(ragged, condensed)
    assert registry.candidates(ragged, "sm90a")[0].variant == condensed


def test_values_that_are_read_again_and_two_ctas_an_sm_have_other_prices() -> None:
    variant = Variant.parse("dds.thin.sm90a.bf16.b64x64.lnt.t16x8")
    kinds = []
    for columns, rows_ in ((8, 16384), (16, 16384), (8, 4096), (16, 2048)):
        sizes = (columns, rows_, 4096)
        problem = product_problem("dds", "cuda", "bf16", (64, 64), "nt", sizes, 0.1)
        kinds.append(cost.kind(problem, variant).removeprefix("thin.64.t16x8"))
    # 256 CTAs are two on an SM.
    assert kinds == ["", ".again", ".two", ".again.two"]


@pytest.mark.parametrize("columns", [8, 16, 32])
def test_a_tile_wider_than_another_that_holds_all_columns_is_left_out(columns: int) -> None:
    problem = product_problem("dds", "cuda", "bf16", (64, 64), "nt", (columns, 4096, 4096), 0.1)
    name = "dds.thin.sm90a.bf16.b64x64.lnt.t"
    judged = {
        tile
        for tile in ("16x8", "16x32", "32x16", "32x32")
        if cost.microseconds(problem, Variant.parse(name + tile)) is not None
    }
    assert (
        judged
        == {
            8: {"16x8", "32x16"},
            16: {"16x8", "16x32", "32x16"},
            32: {"16x8", "16x32", "32x16", "32x32"},
        }[columns]
    )


def test_few_tiles_prefer_narrow_ones() -> None:
    many, few = (typical_problem("dsd", "cuda", "bf16", 64, "nn", n) for n in (8192, 256))
    width = {p.extent: tensor_core_variants(p)[0].ints("t")[1] for p in (many, few)}
    assert width[8192] == 256
    assert width[256] < 256


@pytest.mark.parametrize("op", ["dsd", "dds"])
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("size", [4096, 8192, 16384])
def test_large_products_run_on_wgmma(op: str, block: int, size: int) -> None:
    """Nothing else was ever faster there. Prices of unlike tiles, fitted together, once had mma
    chosen for blocks of 16 at 8192 and 0.5, which took 1.4 times as long; prices of tiles of 64 and
    128 columns together those of 128 for blocks of 64 at 4096 and 0.1: 1.1 times."""
    for layout, density in itertools.product(LAYOUTS, (0.1, 0.25, 0.5)):
        sizes = (size, size, size)
        problem = product_problem(op, "cuda", "bf16", (block, block), layout, sizes, density)
        first = registry.candidates(problem, "sm90a")[0].variant
        assert (first.family, first.ints("t")[1]) == ("wgmma", 256), first.name


def expected(problem: Problem, width: int, panel: int = 128) -> float:
    block = "x".join(map(str, problem.block))
    name = f"dsd.wgmma.sm90a.bf16.b{block}.l{problem.layout}.t{panel}x{width}x64"
    us = cost.microseconds(problem, Variant.parse(name))
    assert us is not None
    return us


def test_a_long_row_prefers_narrow_tiles_and_a_band_shares_more() -> None:
    problem = typical_problem("dsd", "cuda", "bf16", 64, "nn", 2048)
    skewed = dataclasses.replace(problem, profile=0x0800)
    assert expected(skewed, 256) > expected(problem, 256)
    assert expected(skewed, 256) / expected(skewed, 64) > expected(problem, 256) / expected(
        problem, 64
    )
    clustered = dataclasses.replace(problem, profile=0x3000)
    assert expected(clustered, 256) < expected(problem, 256)
    # The profile of the columns is for those who walk them.
    assert expected(dataclasses.replace(problem, profile=0x003A), 256) == expected(problem, 256)


def dealt_out(lengths: list[float], columns: int, ctas: int) -> float:
    """Steps of the busiest CTA, by the list of csrc/cuda/kernels/spmm_order.cuh."""
    panels, group = len(lengths), 16
    listed = [
        lengths[row]
        for first in range(0, panels, group)
        for _ in range(columns)
        for row in range(first, min(first + group, panels))
    ]
    steps = [0.0] * ctas
    for number, length in enumerate(listed):
        turn, place = divmod(number, ctas)
        steps[ctas - 1 - place if turn % 2 else place] += length
    return max(steps)


@pytest.mark.parametrize("power", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    ("panels", "columns"),
    [(8, 4), (16, 8), (16, 16), (32, 8), (32, 16), (64, 4), (64, 64), (99, 2), (112, 1), (112, 4)],
)
def test_the_busiest_cta_has_what_it_is_dealt_out(panels: int, columns: int, power: float) -> None:
    """A uniform pattern, about a random one and a triangular one, in one round to 32."""
    ctas = cost_of_spmm._grid(panels * columns)
    lengths = [100 * (1 - rank / panels) ** power for rank in range(panels)]
    mean = 100 / (power + 1)
    found = cost_of_spmm._busiest(mean, 100.0, panels, columns, ctas)
    assert found == pytest.approx(dealt_out(lengths, columns, ctas), rel=0.15)


def rows(half: str) -> list[dict[str, Any]]:
    """What a GPU would measure that did exactly what the model says, at prices of our own."""
    prices = dict(zip(cost.PARTS, (5.0, 1.0, 0.1, 1e-6, 2e-5, 1e-5, 3e-7, 2e-7), strict=True))
    generator, found = random.Random(0), []
    for _ in range(120):
        size = [2 ** generator.randint(8, 13) for _ in range(3)]
        density = generator.choice((0.05, 0.1, 0.25, 0.5))
        row = {
            "op": "dsd",
            "layout": "nn",
            "dtype": "bf16",
            "size": "x".join(map(str, size)),
            "block": "64x64",
            "pattern": "random",
            "density": density,
            "profile": "0000",
            "stored": max(1, round(density * (size[0] // 64) * (size[2] // 64))),
            "half": half,
            "variant": "dsd.wgmma.sm90a.bf16.b64x64.lnn.t128x128x64",
        }
        amounts = cost.parts(fitting.problem_of(row), Variant.parse(row["variant"]))
        row["us"] = sum(prices[p] * a for p, a in zip(cost.PARTS, amounts, strict=True))
        found.append(row)
    return found


def explained(row: dict[str, Any], prices: dict[str, list[float]]) -> float:
    """What prices say of a row. Several may say the same: in tiles of one shape steps and elements
    of the dense operand are in proportion."""
    problem, variant = fitting.problem_of(row), Variant.parse(row["variant"])
    amounts = cost.parts(problem, variant)
    of_kind = prices[cost.kind(problem, variant)]
    return sum(price * amount for price, amount in zip(of_kind, amounts, strict=True))


def test_fitting_finds_what_explains_the_times() -> None:
    pytest.importorskip("scipy")
    measured = rows(FITTED)
    found = fitting.fit(measured)
    assert set(found) == {"wgmma.64.s64.across.n128", "wgmma.64.s64.across.n128.many"}
    for row in measured:
        # Three digits are kept of a price.
        assert explained(row, found) == pytest.approx(row["us"], rel=0.02)


def test_fitting_leaves_aside_what_is_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    measured = rows(FITTED)
    monkeypatch.setattr(cost, "extras", lambda *_: {"lines": 30.0})
    found = fitting.fit([row | {"us": row["us"] + 30.0} for row in measured])
    for row in measured:
        assert explained(row, found) == pytest.approx(row["us"], rel=0.02)


def test_prices_are_of_the_parts_that_are_reckoned() -> None:
    table = json.loads(price_table.TABLE.read_text(encoding="utf-8"))
    assert tuple(table["parts"]) == cost.PARTS
    assert tuple(table["gpus"]) == price_table.GPUS
    for gpu in table["gpus"].values():
        assert all(len(prices) == len(cost.PARTS) for prices in gpu["prices"].values())


def test_fitting_replaces_the_prices_of_what_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    before = json.loads(price_table.TABLE.read_text(encoding="utf-8"))
    written = tmp_path / "costs.json"
    written.write_bytes(price_table.TABLE.read_bytes())
    monkeypatch.setattr(price_table, "TABLE", written)
    facts = {"device": "NVIDIA H100 NVL", "commit": "0", "command": "c"}
    times = tmp_path / "times.json"
    table = {"section": "choice", "rows": rows(FITTED)}
    times.write_text(json.dumps({"measured": facts | {"torch": "2"}, "tables": [table]}))
    fitting.main(str(times))
    after = json.loads(written.read_text(encoding="utf-8"))
    fitted, old = fitting.fit(rows(FITTED)), before["gpus"]["H100"]
    others = {
        kind: row for kind, row in old["prices"].items() if price_table.group_of(kind) != "bf16"
    }
    assert after["gpus"]["H100"]["prices"] == fitted | others
    assert after["gpus"]["H100"]["measured"] == old["measured"] | {"bf16": [facts]}
    assert after["gpus"]["H200"] == before["gpus"]["H200"]


def test_fitting_in_tf32_leaves_the_other_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    before = json.loads(price_table.TABLE.read_text(encoding="utf-8"))["gpus"]["H200"]
    written = tmp_path / "costs.json"
    written.write_bytes(price_table.TABLE.read_bytes())
    monkeypatch.setattr(price_table, "TABLE", written)
    timed = rows(FITTED)[0] | {
        "op": "dds",
        "size": "64x1024x8192",
        "stored": 512,
        "layout": "nt",
        "dtype": "tf32",
        "variant": "dds.wgmma.sm90a.tf32.b64x64.lnt.t128x128x32",
    }
    facts = {"device": "NVIDIA H200", "commit": "0", "command": "c"}
    table = {"section": "choice", "rows": [timed]}
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"measured": facts, "tables": [table]}))
    fitting.main(str(times))
    after = json.loads(written.read_text(encoding="utf-8"))["gpus"]["H200"]
    others = {
        kind: row for kind, row in before["prices"].items() if price_table.group_of(kind) != "tf32"
    }
    timed_kind = "tf32.wgmma.64.s64.along.n128.few"
    assert after["prices"] == others | {timed_kind: after["prices"][timed_kind]}
    assert after["measured"] == before["measured"] | {"tf32": [facts]}


def test_a_dtype_costs_as_much_on_a_gpu_where_it_was_not_timed() -> None:
    """As on the one where it was; those that were timed on both are not mixed."""
    gpus = json.loads(price_table.TABLE.read_text(encoding="utf-8"))["gpus"]
    kind = "f32.fma.64.along.w4.n128"
    assert [gpu for gpu, table in gpus.items() if kind in table["prices"]] == ["H200"]
    assert price_table.prices_of(kind, "H100") == gpus["H200"]["prices"][kind]
    for kind in ("wgmma.64.s64.along.n256", "tf32.wgmma.64.s64.along.n256"):
        for gpu in price_table.GPUS:
            assert price_table.prices_of(kind, gpu) == gpus[gpu]["prices"][kind]


def test_a_narrower_tile_is_chosen_for_few_columns_in_full_precision() -> None:
    """In blocks of 64: 1.4 to 1.6 times as fast at 32 to 128 columns (H200)."""
    problem = product_problem("dsd", "cuda", "f32", (64, 64), "nt", (4096, 32, 4096), 0.05)
    for gpu in price_table.GPUS:
        legal = [c for c in registry.candidates(problem, "sm90a", gpu) if c.refused is None]
        assert legal[0].variant.family == "fma"
        assert legal[0].variant.ints("t")[1] == 32


@pytest.mark.parametrize(
    ("device", "half", "reason"),
    [
        ("NVIDIA A100-SXM4-80GB", FITTED, "prices of H200, H100 alone"),
        ("NVIDIA H200", HELD_OUT, "H200"),
    ],
)
def test_fitting_replaces_nothing_by_nothing(
    device: str, half: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    before = tmp_path / "costs.json"
    before.write_bytes(price_table.TABLE.read_bytes())
    monkeypatch.setattr(price_table, "TABLE", before)
    times = tmp_path / "times.json"
    table = {"section": "choice", "rows": rows(half)}
    times.write_text(json.dumps({"measured": {"device": device}, "tables": [table]}))
    text = before.read_bytes()
    with pytest.raises(SystemExit, match=reason):
        fitting.main(str(times))
    assert before.read_bytes() == text


def test_a_kind_that_was_timed_once_costs_about_what_similar_ones_do() -> None:
    """The dense operand along the summed axis, timed in one product that took twice as long."""
    pytest.importorskip("scipy")
    measured = rows(FITTED)
    slow = next(row for row in measured if "many" not in kind_of_row(row)) | {"layout": "nt"}
    slow |= {"variant": slow["variant"].replace(".lnn.", ".lnt."), "us": 2 * slow["us"]}
    found = fitting.fit([*measured, slow])
    assert slow["us"] / 2 < explained(slow, found) < 0.96 * slow["us"]
    alone = fitting.fit([slow])
    assert explained(slow, alone) == pytest.approx(slow["us"], rel=0.02)


def kind_of_row(row: dict[str, Any]) -> str:
    return cost.kind(fitting.problem_of(row), Variant.parse(row["variant"]))


def test_fitting_never_looks_at_what_is_held_out() -> None:
    pytest.importorskip("scipy")
    assert fitting.fit(rows(HELD_OUT)) == {}
    wrong = [row | {"us": 1000.0} for row in rows(HELD_OUT)]
    assert fitting.fit(rows(FITTED) + wrong) == fitting.fit(rows(FITTED))


def test_fitting_leaves_out_what_is_not_judged() -> None:
    """A tile that is twice as wide as all columns."""
    pytest.importorskip("scipy")
    of_64 = {
        "op": "dds",
        "size": "64x1024x8192",
        "stored": 512,
        "layout": "nt",
        "variant": "dds.wgmma.sm90a.bf16.b64x64.lnt.t128x128x64",
    }
    row = rows(FITTED)[0] | of_64
    assert fitting.fit([row]) == {}
    narrow = row | {"variant": row["variant"].replace("x128x", "x64x")}
    assert [*fitting.fit([narrow])] == ["wgmma.64.s64.along.n64"]


def test_what_is_divided_has_prices_of_its_own() -> None:
    """Of ``mma``: 1.3 to 1.5 times as fast as the best of ``wgmma`` at 16 columns (H100)."""
    problem = product_problem("dsd", "cuda", "bf16", (16, 16), "nn", (4096, 16, 4096), 0.1)
    for gpu in price_table.GPUS:
        legal = [c for c in registry.candidates(problem, "sm90a", gpu) if c.refused is None]
        first = legal[0].variant
        assert first.name == "dsd.mma.sm90a.bf16.b16x16.lnn.t128x16x64.w4x1.s3.c2.ksplit"
        assert cost.kind(problem, first) == "mma.16.across.w4.n16.split"


def test_explain_shows_what_the_model_reckons() -> None:
    problem = typical_problem("dds", "cuda", "bf16", 64, "nt", 256)
    explanation = js.explain(problem, target="sm90a")
    expected = explanation.expected_seconds
    assert min(expected, key=lambda name: expected[name]) == explanation.variant
    assert sum(explanation.expected_parts.values()) == pytest.approx(expected[explanation.variant])
    assert set(explanation.expected_parts) <= set(cost.PARTS)
    text = str(explanation)
    assert "expects   start " in text
    assert text.count("us expected") == len(expected)
    assert "expect" not in str(js.explain(typical_problem("sdd", "cpu", "f32", 64, "nn")))
