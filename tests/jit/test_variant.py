"""Names of variants: readable, and the way back is exact."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitsparse.errors import ArgumentError
from jitsparse.jit import Variant

words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
values = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
knobs = st.lists(
    st.tuples(st.sampled_from(string.ascii_lowercase), values), unique_by=lambda k: k[0], max_size=5
).map(tuple)
variants = st.builds(Variant, words, words, words, words, knobs)


@given(variants)
def test_the_name_is_the_variant(variant: Variant) -> None:
    assert Variant.parse(variant.name) == variant
    assert hash(Variant.parse(variant.name)) == hash(variant)
    assert variant.name == str(variant)


@given(variants, variants)
def test_different_variants_have_different_names(one: Variant, other: Variant) -> None:
    assert (one == other) == (one.name == other.name)


def test_knobs() -> None:
    variant = Variant.parse("dsd.mma.sm90a.bf16.b64x64.lnt.t128x256x64.s4")
    assert variant.knob("l") == "nt"
    assert variant.ints("t") == (128, 256, 64)
    assert variant.ints("s") == (4,)
    with pytest.raises(ArgumentError, match="has no knob 'z'"):
        variant.knob("z")
    with pytest.raises(ArgumentError, match=r"lnt of .* is not whole numbers"):
        variant.ints("l")


@pytest.mark.parametrize(
    "name",
    ["", "dsd", "dsd.mma.sm90a", "dsd.mma.sm90a.bf16.", "dsd.mma.sm90a.bf16.b", "a.b.c.d.b1.b2"],
)
def test_what_is_not_a_name(name: str) -> None:
    with pytest.raises(ArgumentError):
        Variant.parse(name)


@pytest.mark.parametrize(
    "parts",
    [
        ("a.b", "f", "t", "d", ()),
        ("A", "f", "t", "d", ()),
        ("a", "f", "t", "d", (("bb", "1"),)),
        ("a", "f", "t", "d", (("b", "1.5"),)),
        ("a", "f", "t", "d", (("b", ""),)),
    ],
)
def test_parts_that_could_not_be_read_back(parts: tuple[object, ...]) -> None:
    with pytest.raises(ArgumentError):
        Variant(*parts)  # type: ignore[arg-type]


def test_a_name_fits_into_file_names() -> None:
    longest = "o" * (128 - len(".b.c.d"))
    assert len(Variant(longest, "b", "c", "d").name) == 128
    with pytest.raises(ArgumentError, match="at most 128 characters"):
        Variant(longest + "o", "b", "c", "d")


@pytest.mark.parametrize("knobs", [[("b", "8")], {"b": "8"}, ("b8",), (("b",),), (["b", "8"],)])
def test_knobs_are_pairs_of_texts(knobs: object) -> None:
    with pytest.raises(ArgumentError, match="knobs are a tuple of pairs of texts"):
        Variant("a", "b", "c", "d", knobs)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="knob b=8 cannot be part"):
        Variant("a", "b", "c", "d", (("b", 8),))  # type: ignore[arg-type]
