"""Into how many parts sums over k may be divided."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jitsparse.jit import Variant
from jitsparse.kernels import registry
from jitsparse.kernels.cuda import SMS
from jitsparse.kernels.problem import product_problem, typical_problem
from jitsparse.kernels.roles import LAYOUTS
from jitsparse.kernels.split import (
    BYTES_OF_TAIL,
    DIVIDE_THE_TAIL,
    MAX_ELEMENTS,
    most_parts,
    most_parts_of_steps,
    parts_of_product,
    parts_of_sdd,
    splits,
)

TILE = 128 * 256


@given(
    elements=st.integers(1, 2**34),
    k=st.integers(1, 2**31),
    batch=st.integers(1, 2**10),
)
def test_parts_leave_no_tile_waiting_and_are_long_enough(elements: int, k: int, batch: int) -> None:
    parts = most_parts(elements, k, batch)
    assert parts >= 1
    if parts > 1:
        assert parts * -(-elements // TILE) <= SMS, "every part has a CTA of its own"
        assert parts * 8 <= batch * -(-k // 64), "a part has eight slabs and more"
        assert parts * elements <= SMS * TILE, "the workspace does not grow with the matrix"
        assert elements <= MAX_ELEMENTS


def test_a_small_weight_gradient_is_divided_and_a_large_one_is_not() -> None:
    tokens = 16384
    assert most_parts(1024 * 1024 // 4, tokens, 1) == 16
    assert most_parts(4096 * 4096 // 4, tokens, 1) == 1
    assert most_parts(1024 * 1024 // 4, 256, 1) == 1


@pytest.mark.parametrize("block", [16, 128])
def test_dividing_is_offered_beside_not_dividing(block: int) -> None:
    problem = typical_problem("sdd", "cuda", "bf16", block, "tn")
    legal = [each.variant for each in registry.candidates(problem, "sm90a") if not each.refused]
    wgmma = [variant for variant in legal if variant.family == "wgmma"]
    assert {splits(variant) for variant in wgmma} == {False, True}
    assert splits(wgmma[0]) < splits(wgmma[-1])
    assert legal.index(wgmma[-1]) < min(
        legal.index(variant) for variant in legal if variant.family != "wgmma"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize(
    ("family", "dtype", "target"),
    [("fma", "f32", "sm90a"), ("mma", "bf16", "sm80"), ("mma", "tf32", "sm120a")],
)
def test_the_last_tiles_are_divided_where_few_are(
    family: str, dtype: str, target: str, block: int, layout: str
) -> None:
    small, large = (
        product_problem("sdd", "cuda", dtype, (block, block), layout, size, 0.25)
        for size in ((1024, 1024, 4096), (8192, 8192, 128))
    )
    first, other = (
        next(each.variant for each in registry.candidates(problem, target) if not each.refused)
        for problem in (small, large)
    )
    assert first.family == other.family == family
    assert splits(first)
    if target != "sm90a":  # where the cost model decides, by which it is as quick
        assert not splits(other), "which is over before the parts would be added"


def test_a_wave_of_tf32_takes_longer_so_less_of_it_pays() -> None:
    """H100: 1.58 to 1.66 times as fast with the last tiles divided, in TF32."""
    for dtype, divided in (("bf16", False), ("tf32", True)):
        problem = product_problem("sdd", "cuda", dtype, (16, 16), "nn", (4096, 256, 1024), 0.25)
        variants = (each.variant for each in registry.candidates(problem, "sm90a"))
        assert splits(next(each for each in variants if each.family == "mma")) == divided


# Of 372 255.67 are stored, less than two parts of 128 in the mean.
@example(("dsd.fma.sm90a.f32.b64x64.lnn.t64x32x16.w2x1.s4.c6.ksplit", 128), 3, 1, 372, 1, 0.6875)
@given(
    name_and_fewest=st.sampled_from(
        [
            ("dsd.fma.sm90a.f32.b64x64.lnn.t64x32x16.w2x1.s4.c6.ksplit", 128),
            ("dds.mma.sm80.bf16.b64x64.lnt.t64x32x64.w4x1.s4.c3.ksplit", 256),
        ]
    ),
    m=st.integers(1, 2**16),
    n=st.integers(1, 2**12),
    k=st.integers(1, 2**20),
    batch=st.integers(1, 2**4),
    density=st.floats(0, 1),
)
def test_parts_of_tiles_leave_none_waiting(
    name_and_fewest: tuple[str, int], m: int, n: int, k: int, batch: int, density: float
) -> None:
    name, fewest = name_and_fewest
    variant = Variant.parse(name)
    stored = int(m * k * density)
    parts, size = parts_of_product(variant, m, n, k, batch, stored)
    assert 1 <= parts <= 16
    assert size == (4 * parts * batch * m * n if parts > 1 else 0)
    if parts > 1:
        assert parts * -(-m // 64) * -(-n // 32) * batch <= variant.ints("c")[0] * SMS
        # Of one block row a tile walks what is stored.
        assert parts * fewest * m <= stored * (1 + 1e-9), "a part has as much of k, in the mean"


def test_parts_of_tiles_are_as_many_as_there_may_be() -> None:
    """Of 768 a third is stored, two parts of 128, whatever the floats say of a third."""
    name = "dsd.{0}.sm90a.{1}.b64x64.lnn.t64x32x64.w4x1.s4.c3.ksplit"
    fma, mma = (Variant.parse(name.format(*each)) for each in (("fma", "f32"), ("mma", "bf16")))
    assert parts_of_product(fma, 64, 16, 768, 1, 64 * 256)[0] == 2
    assert parts_of_product(mma, 64, 16, 1536, 1, 64 * 512)[0] == 2


def test_what_an_sm_has_no_room_for_decides_nothing() -> None:
    """Where an SM has room for one CTA of a tile, not two, there are twice as many rounds."""
    size = (1536, 1536, 2048)
    problem = product_problem("sdd", "cuda", "bf16", (16, 16), "nn", size, 0.25)
    ampere, hopper = (
        next(
            each.variant
            for each in registry.candidates(problem, target)
            if each.variant.family == "mma"
        )
        for target in ("sm80", "sm90a")
    )
    assert splits(ampere)
    assert not splits(hopper)


def test_a_tile_of_several_block_rows_walks_what_any_of_them_stores() -> None:
    name = "dsd.mma.sm80.bf16.b{0}x{0}.lnn.t{1}x16x64.w4x1.s4.c2.ksplit"
    high, low = (Variant.parse(name.format(*sizes)) for sizes in ((64, 64), (16, 128)))
    few = (128, 16, 4096, 1, 128 * 4096 // 16)
    assert parts_of_product(high, *few)[0] == 1
    assert parts_of_product(low, *few)[0] == 6, "of 4096 eight rows store 0.4"


@given(
    name=st.sampled_from(
        [
            "sdd.fma.sm90a.f32.b64x64.lnn.t64x128x32.w2x2.s3.c3.ksplit",
            "sdd.mma.sm80.bf16.b32x64.lnn.t128x128x64.w2x4.s3.c1.ksplit",
        ]
    ),
    blocks=st.integers(1, 2**12),
    k=st.integers(1, 2**20),
    batch=st.integers(1, 2**4),
)
def test_last_tiles_have_room_for_three_rounds(name: str, blocks: int, k: int, batch: int) -> None:
    variant = Variant.parse(name)
    (rows, cols), (tile_m, tile_n, tile_k) = variant.ints("b"), variant.ints("t")
    at_once, size = parts_of_sdd(variant, blocks * rows * cols, k, batch)
    slots, rest = divmod(size, 4 * tile_m * tile_n)
    assert (at_once, rest) == (variant.ints("c")[0] * SMS, 0)
    assert slots == min(3 * at_once, blocks * batch * -(-k // tile_k))


def test_ctas_that_divide_tiles_fit_an_sm() -> None:
    """Or there would be more rounds than parts are counted for."""
    for target, size in (("sm90a", 227 * 1024), ("sm80", 163 * 1024), ("sm86", 99 * 1024)):
        for block in itertools.product((8, 16, 32, 64, 128), repeat=2):
            for layout, (dtype, itemsize) in itertools.product(
                LAYOUTS, {"f32": 4, "tf32": 4, "bf16": 2}.items()
            ):
                problem = product_problem("sdd", "cuda", dtype, block, layout, (1024,) * 3, 0.25)
                for each in registry.candidates(problem, target):
                    if each.variant.family not in DIVIDE_THE_TAIL or not splits(each.variant):
                        continue
                    (m, n, k), stages = each.variant.ints("t"), each.variant.ints("s")[0]
                    asked = itemsize * stages * (m + n) * k + 16 * (n // block[1]) + BYTES_OF_TAIL
                    ctas = each.variant.ints("c")[0]
                    assert each.refused or ctas * (asked + 1024) <= size + 1024


@pytest.mark.parametrize(("dtype", "target"), [("f32", "sm90a"), ("bf16", "sm86")])
@pytest.mark.parametrize(("op", "layout"), [("dsd", "tn"), ("dds", "nn")])
def test_a_long_k_of_many_block_rows_is_divided(
    op: str, layout: str, dtype: str, target: str
) -> None:
    """A layer of 16384 outputs and its input's gradient: block rows are k there."""
    size = (1024, 16, 16384) if op == "dsd" else (16, 1024, 16384)
    problem = product_problem(op, "cuda", dtype, (16, 16), layout, size, 0.25)
    legal = [each.variant for each in registry.candidates(problem, target) if not each.refused]
    assert splits(legal[0])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_tiles_that_fill_a_gpu_are_not_divided(dtype: str) -> None:
    for op in ("dsd", "dds"):
        problem = product_problem(op, "cuda", dtype, (32, 32), "nn", (4096, 4096, 4096), 0.25)
        assert not any(splits(each.variant) for each in registry.candidates(problem, "sm80"))


@pytest.mark.parametrize(
    ("family", "dtype", "height"), [("fma", "f32", 8), ("fma", "f32", 16), ("mma", "bf16", 128)]
)
def test_the_last_tiles_of_many_panels_are_not_divided(
    family: str, dtype: str, height: int
) -> None:
    """A CTA counts them all."""
    few, many = (
        [
            each.refused
            for each in registry.candidates(
                product_problem(
                    "sdd",
                    "cuda",
                    dtype,
                    (min(height, 16), 16),
                    "nn",
                    (panels * height, 1024, 4096),
                    0.25,
                ),
                "sm90a",
            )
            if each.variant.family == family and splits(each.variant)
        ]
        for panels in (512, 513)
    )
    assert few == [None] * len(few)
    assert len(few) == len(many) > 0
    assert all(f"513 panels of {height} rows" in str(reason) for reason in many)


@given(
    m=st.integers(1, 2**20),
    n=st.integers(1, 2**12),
    k=st.integers(1, 2**31),
    batch=st.integers(1, 2**6),
    width=st.sampled_from([64, 128, 256]),
)
def test_parts_of_steps_leave_no_tile_waiting(
    m: int, n: int, k: int, batch: int, width: int
) -> None:
    parts = most_parts_of_steps(m, n, k, batch, width)
    assert parts >= 1
    if parts > 1:
        assert parts * -(-m // 128) * -(-n // width) * batch <= SMS
        assert parts * 8 <= -(-k // 64), "a part has eight slabs and more"


def test_few_tokens_through_few_outputs_are_divided() -> None:
    assert most_parts_of_steps(4096, 64, 4096, 1, 64) == 4
    assert most_parts_of_steps(4096, 64, 11008, 1, 64) == 4
    assert most_parts_of_steps(1024, 64, 8192, 1, 64) == 16
    assert most_parts_of_steps(4096, 4096, 4096, 1, 64) == 1
    assert most_parts_of_steps(14336, 64, 4096, 1, 64) == 1


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("op", ["dsd", "dds"])
def test_steps_are_divided_where_few_tiles_are(op: str, block: int) -> None:
    few, many = (
        [
            each.variant
            for each in registry.candidates(
                typical_problem(op, "cuda", "bf16", block, "nn", columns), "sm90a"
            )
            if not each.refused
        ]
        for columns in (64, 4096)
    )
    assert any(splits(variant) for variant in few)
    assert any(not splits(variant) for variant in few if variant.family == "wgmma")
    assert not any(splits(variant) for variant in many)
