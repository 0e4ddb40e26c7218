"""Which CUDA family is preferred for what. Needs no GPU: choosing reads facts only."""

from __future__ import annotations

import dataclasses

import pytest

from jitsparse.jit import Variant
from jitsparse.kernels import cost, registry
from jitsparse.kernels.cuda import shared_memory_limit
from jitsparse.kernels.problem import LESS_PRECISE, Problem, typical_problem
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.kernels.split import splits
from jitsparse.kernels.transpose import transposes


def legal(problem: Problem, target: str = "sm90a") -> list[Variant]:
    """The legal candidates, best first."""
    found = registry.candidates(problem, target)
    return [each.variant for each in found if each.refused is None]


def chosen(problem: Problem, target: str = "sm90a") -> str:
    """Family and tile of the first legal candidate."""
    variant = legal(problem, target)[0]
    knobs = dict(variant.knobs)
    return ".".join([variant.family, knobs["t"]] if "t" in knobs else [variant.family])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(1, "thin.16x8"), (8, "thin.16x8"), (16, "thin.32x16"), (32, "thin.16x32")],
)
def test_few_tokens_through_a_layer(tokens: int, expected: str) -> None:
    """Of 4096 x 4096; at 32 tokens thin and wgmma are within a tenth of each other."""
    assert chosen(typical_problem("dds", "cuda", "bf16", 64, "nt", tokens)) == expected


@pytest.mark.parametrize(
    ("dtype", "block", "columns", "expected"),
    [
        *(("f32", 8, 1, "thin.8x1"), ("f32", 8, 32, "thin.8x16"), ("tf32", 32, 8, "thin.16x8")),
        *(("f32", 64, 16, "thin.16x16"), ("f32", 64, 32, "fma.64x32x16")),
        *(("f64", 8, 16, "thin.8x8"), ("f64", 64, 8, "thin.16x8"), ("f64", 64, 16, "mma.64x16x32")),
    ],
)
@pytest.mark.parametrize("target", ["sm80", "sm90a"])
def test_few_columns_in_full_precision(
    dtype: str, block: int, columns: int, expected: str, target: str
) -> None:
    """Through a layer: up to ten times as fast where thin is chosen (H200)."""
    assert chosen(typical_problem("dds", "cuda", dtype, block, "nt", columns), target) == expected


def test_few_rows_in_full_precision() -> None:
    """Too few CTAs to read values at the rate of memory: lower tiles, then other families."""
    layer = typical_problem("dds", "cuda", "f32", 64, "nt", 8)

    def of_rows(rows: int) -> str:
        return chosen(dataclasses.replace(layer, rows=rows, nnz=layer.nnz * rows // layer.rows))

    assert [of_rows(rows) for rows in (4096, 1024)] == ["thin.16x8", "thin.8x8"]
    assert of_rows(256).startswith("fma.")


@pytest.mark.parametrize("dtype", ["f32", "tf32"])
@pytest.mark.parametrize("target", ["sm80", "sm90a"])
def test_the_table_covers_few_tokens_in_full_precision(dtype: str, target: str) -> None:
    """In whichever precision float32 is asked for."""
    table = registry.select_variants([target], ops=["dds"], dtypes=[dtype])
    for tokens in (1, 8, 16):
        assert legal(typical_problem("dds", "cuda", dtype, 32, "nt", tokens), target)[0] in table


@pytest.mark.parametrize(
    ("dtype", "block", "columns", "family"),
    [("f32", 32, 8, "thin"), ("f32", 32, 16, "fma"), ("f64", 8, 8, "thin"), ("f64", 32, 8, "mma")],
)
def test_few_columns_side_by_side_in_full_precision(
    dtype: str, block: int, columns: int, family: str
) -> None:
    """Where the dense operand is not contiguous along k, fewer columns are few."""
    problem = typical_problem("dsd", "cuda", dtype, block, "nn", columns)
    assert chosen(problem).startswith(f"{family}.")


@pytest.mark.parametrize(("op", "layout"), [("dds", "nn"), ("dsd", "nn"), ("dsd", "tt")])
def test_few_columns_where_an_operand_lies_across(op: str, layout: str) -> None:
    assert not chosen(typical_problem(op, "cuda", "bf16", 64, layout, 8)).startswith("thin.")


def test_blocks_too_low_for_a_tile_take_a_lower_one() -> None:
    assert chosen(typical_problem("dds", "cuda", "f16", 16, "nt", 32)) == "thin.16x32"


@pytest.mark.parametrize("block", [64, 128])
def test_tokens_through_a_large_layer(block: int) -> None:
    """16384 x 16384, half of it stored; measured at 8, 16, 32 and 64 tokens."""
    blocks = (16384 // block) ** 2 // 2
    layer = typical_problem("dds", "cuda", "bf16", block, "nt", 8)
    large = dataclasses.replace(layer, rows=16384, cols=16384, nnz=blocks)
    assert chosen(large).startswith("thin.")
    # For 32 tokens mma takes as long as wgmma, thin 1.2 times.
    assert not chosen(dataclasses.replace(large, extent=32)).startswith("thin.")
    assert chosen(dataclasses.replace(large, extent=64)) == "wgmma.128x64x64"


def test_steps_are_divided_for_tokens_through_few_outputs() -> None:
    """64 tokens through 11008 x 4096, the last layer of a block; 1.2 to 1.6 times as fast."""
    layer = typical_problem("dds", "cuda", "bf16", 64, "nt", 64)
    layer = dataclasses.replace(layer, rows=4096, cols=11008, nnz=64 * 172 // 2)
    first = registry.candidates(layer, "sm90a")[0].variant
    assert splits(first), first.name


def test_before_hopper_few_columns_are_for_thin() -> None:
    """Where no cost model decides."""
    assert chosen(typical_problem("dds", "cuda", "bf16", 64, "nt", 32), "sm80") == "thin.32x32"


@pytest.mark.parametrize(
    ("block", "columns", "expected"),
    [
        *((32, 4096, "wgmma.128x256x32"), (64, 4096, "wgmma.128x256x32")),
        (32, 128, "wgmma.128x128x32"),
        *(
            # Divided along k.
            (32, 16, "mma.128x32x32"),
            (64, 16, "mma.64x32x32"),
            (128, 16, "mma.128x32x32"),
            (16, 4096, "mma.128x128x32"),
        ),
    ],
)
def test_tf32_takes_the_tile_that_suits_the_columns(
    block: int, columns: int, expected: str
) -> None:
    assert chosen(typical_problem("dsd", "cuda", "tf32", block, "nn", columns)) == expected


@pytest.mark.parametrize(
    ("target", "op", "expected"),
    [("sm90a", "dsd", "wgmma.128x256x64"), ("sm90a", "sdd", "wgmma"), ("sm80", "dsd", "mma.")],
)
def test_many_columns(target: str, op: str, expected: str) -> None:
    assert chosen(typical_problem(op, "cuda", "bf16", 64, "nn"), target).startswith(expected)


@pytest.mark.parametrize("op", registry.OPS)
def test_before_ampere_there_is_no_bfloat16(op: str) -> None:
    """ptxas knows none of its conversions there, so the reason comes before a failed build does."""
    everything = registry.candidates(typical_problem(op, "cuda", "bf16", 32, "nn"), "sm75")
    assert {each.variant.family for each in everything} >= {"simt", "mma"}
    assert all(each.refused for each in everything)
    assert "target sm75: needs sm80 or later" in {each.refused for each in everything}
    for dtype in ("f16", "f32", "f64"):
        assert chosen(typical_problem(op, "cuda", dtype, 32, "nn"), "sm75").startswith("simt.")
    assert {each.dtype for each in registry.default_variants("sm75")} == {"f32", "f64"}


@pytest.mark.parametrize("op", registry.OPS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64"])
def test_what_is_not_aligned_runs_on_copies_where_they_pay(op: str, dtype: str) -> None:
    """Either way all else is legal, so a pin may ask for it."""
    small = typical_problem(op, "cuda", dtype, 64, "nt", 64, aligned=False)
    large = dataclasses.replace(typical_problem(op, "cuda", dtype, 64, "nt", 1024), aligned=False)
    for problem in (small, large):
        assert families(problem) == families(dataclasses.replace(problem, aligned=True)) > {"simt"}
    first = next(e for e in registry.candidates(small, "sm90a") if e.refused is None)
    assert first.variant.family == "simt"
    assert "16-byte aligned" in first.why
    first = next(e for e in registry.candidates(large, "sm90a") if e.refused is None)
    assert first.variant.family != "simt"
    assert "16-byte aligned" in first.why


@pytest.mark.parametrize(("dtype", "family"), [("bf16", "mma"), ("f32", "fma")])
@pytest.mark.parametrize("op", ["dsd", "dds"])
def test_copies_pay_sooner_in_blocks_of_8(op: str, dtype: str, family: str) -> None:
    """``simt`` takes three times as long for them as for as many elements in blocks of 64."""
    problem = typical_problem(op, "cuda", dtype, 8, "nt", 2048)
    low = dataclasses.replace(problem, rows=1024, cols=1024, nnz=1024, aligned=False)
    assert chosen(low).startswith(f"{family}.")
    assert chosen(dataclasses.replace(low, block=(64, 64), nnz=16)).startswith("simt.")


@pytest.mark.parametrize(
    ("block", "layout", "expected"),
    [
        ((8, 8), "nt", True),
        ((64, 8), "nt", True),
        ((8, 8), "nn", False),  # not contiguous along k
        ((8, 16), "nt", False),  # pieces of sixteen elements
    ],
)
@pytest.mark.parametrize(("dtype", "family"), [("bf16", "mma"), ("f32", "fma")])
def test_operands_that_would_be_read_in_short_pieces_are_transposed(
    block: tuple[int, int], layout: str, dtype: str, family: str, expected: bool
) -> None:
    offered = registry.candidates(typical_problem("dsd", "cuda", dtype, block, layout), "sm80")
    variant, why = next((each.variant, each.why) for each in offered if each.refused is None)
    assert variant.family == family
    assert transposes(variant) == ("transposed first" in why) == expected


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("layout", "expected"), [("nn", True), ("tn", True), ("nt", False)])
def test_blocks_of_8_columns_are_gathered_along_k(dtype: str, layout: str, expected: bool) -> None:
    problem = typical_problem("sdd", "cuda", dtype, (16, 8), layout)
    assert transposes(legal(problem)[0]) == expected


def test_a_small_operand_is_not_worth_transposing() -> None:
    """One panel reads it once."""
    problem = typical_problem("dsd", "cuda", "bf16", 8, "nt")
    low = dataclasses.replace(problem, rows=128, nnz=problem.nnz // 32)
    first, *others = legal(low)
    assert not transposes(first)
    assert any(map(transposes, others))


@pytest.mark.parametrize("op", registry.OPS)
def test_what_the_cost_model_expects_of_copies(op: str) -> None:
    problem = typical_problem(op, "cuda", "f32", 64, "nt", 1024)
    variant = registry.candidates(problem, "sm90a")[0].variant
    expected = cost.breakdown(problem, variant)
    copies = cost.breakdown(dataclasses.replace(problem, aligned=False), variant)
    assert copies == expected | {"padding": copies["padding"]}
    assert copies["padding"] > 0


HUGE = 1 << 31


@pytest.mark.parametrize(
    "sizes",
    [{"rows": HUGE}, {"cols": HUGE}, {"extent": HUGE}, {"extent": HUGE // 4, "batch": 4}],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bf16", "f32", "tf32", "f64"])
@pytest.mark.parametrize("op", registry.OPS)
def test_what_32_bits_do_not_count_goes_to_simt(op: str, dtype: str, sizes: dict[str, int]) -> None:
    """A batch is summed over in an sdd only."""
    problem = dataclasses.replace(typical_problem(op, "cuda", dtype, 64, "nt", 8), **sizes)
    summed = "batch" not in sizes or op == "sdd"
    assert (families(problem) == {"simt"}) == summed
    fewer = {name: size // 2 for name, size in sizes.items()}
    assert families(dataclasses.replace(problem, **fewer)) > {"simt"}


def families(problem: Problem) -> set[str]:
    """Those that have a legal variant."""
    offered = registry.candidates(problem, "sm90a")
    return {each.variant.family for each in offered if each.refused is None}


def test_more_rows_of_blocks_than_the_copy_engine_counts() -> None:
    problem = typical_problem("dsd", "cuda", "bf16", 64, "nn")
    assert not chosen(dataclasses.replace(problem, nnz=HUGE // 64)).startswith("wgmma")
    assert chosen(dataclasses.replace(problem, nnz=HUGE // 128)).startswith("wgmma")
    wide = dataclasses.replace(problem, block=(16, 128), nnz=HUGE // 32)
    families = {each.variant.family: each.refused for each in registry.candidates(wide, "sm90a")}
    assert families["wgmma"] is None, "columns are no rows"


@pytest.mark.parametrize(
    ("dtype", "block", "side"), [("f32", 16, 3 << 20), ("tf32", 32, 1 << 23), ("bf16", 16, 1 << 23)]
)
def test_an_sdd_with_more_tiles_than_a_launch_can_have(dtype: str, block: int, side: int) -> None:
    """It stores few of them, but its CTAs are those of all."""
    problem = typical_problem("sdd", "cuda", dtype, block, "nt")
    many = dataclasses.replace(problem, rows=side, cols=side, nnz=1 << 22)
    assert chosen(many, "sm80").startswith("simt")
    assert not chosen(dataclasses.replace(many, rows=side // 4), "sm80").startswith("simt")


@pytest.mark.parametrize(
    ("dtype", "block", "family"),
    [("bf16", 8, "mma"), ("f32", 8, "fma"), ("f64", 8, "mma"), ("f64", 16, "mma")],
)
def test_an_sdd_of_mostly_empty_tiles(dtype: str, block: int, family: str) -> None:
    """Its CTAs would take longer to find nothing than ``simt`` to compute the rest."""
    problem = typical_problem("sdd", "cuda", dtype, block, "nt", 64)
    few = dataclasses.replace(problem, rows=1 << 20, cols=1 << 20, nnz=1 << 20)
    assert chosen(few).startswith("simt.")
    assert family in families(few)
    assert chosen(dataclasses.replace(few, rows=1 << 12, cols=1 << 12)).startswith(f"{family}.")


@pytest.mark.parametrize(
    ("target", "block"), [("sm90a", 8), ("sm90a", 32), ("avx2", 32), ("amx", 8)]
)
@pytest.mark.parametrize("dtype", LESS_PRECISE)
def test_what_calls_choose_is_selected_in_whichever_precision(
    target: str, block: int, dtype: str
) -> None:
    """Unaligned calls, blocks of 8 on a CPU and CPUs without AMX multiply in full precision."""
    selected = registry.select_variants(
        [target], ops=["dsd"], dtypes=[dtype], block_sizes=[(block, block)]
    )
    assert any(variant.dtype == "f32" for variant in selected)
    table = registry.select_variants([target], ops=["dsd"], dtypes=[dtype])
    full = [variant for variant in table if variant.dtype == "f32"]
    assert bool(full) == (target != "amx"), "its table has no blocks of 8"
    assert {variant.family for variant in full} <= {"thin", "simt", "vec"}


@pytest.mark.parametrize("dtype", ["bf16", "f32", "tf32", "f64"])
@pytest.mark.parametrize("op", ["dsd", "dds"])
def test_a_request_covers_few_columns_many_and_what_is_not_aligned(op: str, dtype: str) -> None:
    """Which a program that asks for its block size ahead of time may come to have."""
    selected = registry.select_variants(["sm90a"], ops=[op], dtypes=[dtype], block_sizes=[(32, 32)])
    assert {"thin", "simt"} <= {variant.family for variant in selected}
    for extent in (1, 8, 16, 32, 256, 4096):
        for layout in LAYOUTS:
            for aligned in (True, False):
                problem = typical_problem(op, "cuda", dtype, 32, layout, extent, aligned=aligned)
                first = next(c for c in registry.candidates(problem, "sm90a") if not c.refused)
                assert extent == 32 or first.variant in selected


@pytest.mark.parametrize("op", registry.OPS)
@pytest.mark.parametrize("target", ["sm80", "sm89", "sm90a", "sm120a"])
def test_float32_has_deep_stages_where_an_sm_has_room_for_them(op: str, target: str) -> None:
    deep = set()
    for block in (32, 64, 128):
        problem = typical_problem(op, "cuda", "f32", block, "nn")
        for each in registry.candidates(problem, target):
            if each.variant.family == "fma" and each.refused is None:
                m, n, k = each.variant.ints("t")
                (stages,), (ctas,) = each.variant.ints("s"), each.variant.ints("c")
                room = shared_memory_limit(target) + 1024  # of an SM; a CTA takes 1024 for itself
                assert k == 16 or ctas * (stages * (m + n) * k * 4 + 1024) < room
                deep.add(k)
    assert deep == ({16, 32} if target == "sm90a" else {16})


@pytest.mark.parametrize(
    ("op", "layout", "height"),
    [("dsd", "nn", 16), ("dsd", "tn", 64), ("dds", "nn", 64), ("dds", "nt", 16), ("sdd", "nn", 16)],
)
def test_tiles_of_amx_lie_inside_a_block_as_the_kernel_reads_it(
    op: str, layout: str, height: int
) -> None:
    problem = typical_problem(op, "cpu", "bf16", (16, 64), layout)
    amx = [each for each in registry.candidates(problem, "amx") if each.variant.family == "amx"]
    tall = {each.refused is None for each in amx if ("r", "2x2") in each.variant.knobs}
    assert tall == {height == 64}
    rows = {each.refused is None for each in amx if ("v", "2x2") in each.variant.knobs}
    assert rows == ({layout == "nn"} if op == "dds" else set())


def test_pins_know_the_knobs_of_all_variants() -> None:
    targets = ("amx", "avx512bf16", "avx2", "generic", "sm80", "sm90a")
    letters = {
        letter
        for target in targets
        for variant in registry.default_variants(target)
        if variant.op in registry.OPS
        for letter, _ in variant.knobs
    }
    assert letters <= set(registry.KNOBS)
