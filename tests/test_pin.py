"""A pin is an order: it wins, or it raises and lists what there is. It never falls back."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from jitsparse.errors import ConfigError, PinError, UnsupportedProblem
from jitsparse.jit import (
    Candidate,
    Template,
    Variant,
    choose,
    config,
    declare_ops,
    declare_values,
    pin,
    pins,
    selection,
    tuned,
)
from jitsparse.jit.targets import cpu_name

TEMPLATE = Template("none", Path("none"), "cuda", (), 0, lambda variant: {})

FAST = "mul.mma.sm90a.bf16.b32x32.t128x128x64.s4"
SMALL = "mul.mma.sm90a.bf16.b32x32.t64x64x32.s2"
REFUSED = "mul.mma.sm90a.bf16.b32x32.t256x128x64.s4"
SIMPLE = "mul.simt.sm90a.bf16.b32x32.t64x64x32"


@pytest.fixture(autouse=True)
def declared() -> None:
    declare_ops("mul", "add")


def candidates(dtype: str = "bf16", block: str = "32x32") -> list[Candidate]:
    names = {REFUSED: "needs 260 KB of shared memory", FAST: None, SMALL: None, SIMPLE: None}
    return [
        Candidate(
            Variant.parse(name.replace("bf16", dtype).replace("32x32.", f"{block}.")), TEMPLATE, why
        )
        for name, why in names.items()
    ]


def chosen(pins: str, **problem: str) -> tuple[str, str]:
    with config.override(pin=pins):
        choice = choose(candidates(**problem))
    return choice.candidate.variant.name, choice.source


def refusal(pins: str) -> str:
    with pytest.raises(PinError) as caught:
        chosen(pins)
    return str(caught.value)


def test_without_a_pin_the_first_legal_candidate_runs() -> None:
    assert chosen("") == (FAST, "heuristic")


@pytest.mark.parametrize(
    ("pins", "name"),
    [
        ("mul=t64x64x32", SMALL),
        ("mul=simt.t64x64x32", SIMPLE),
        ("mul=simt", SIMPLE),
        ("mul=mma.s2", SMALL),
        ("mul=s2.t64x64x32", SMALL),
        (f"mul={SIMPLE}", SIMPLE),
        ("mul:bf16:b32=s2", SMALL),
        ("mul:b32x32:sm90a=s2", SMALL),
        ("add=s9; mul=s2", SMALL),
        ("mul=simt; mul:bf16=s2", SMALL),
        ("mul:bf16=s2; mul=simt", SMALL),
        (" mul = s2 ; ", SMALL),
    ],
)
def test_a_pin_wins(pins: str, name: str) -> None:
    assert chosen(pins) == (name, "environment")


@pytest.mark.parametrize("pins", ["mul:f16=s2", "mul:b64=s2", "mul:sm80=s2", "add=s2"])
def test_a_pin_for_something_else_does_not_apply(pins: str) -> None:
    assert chosen(pins) == (FAST, "heuristic")


def test_precedence(cache_dir: Path) -> None:
    """Argument > context > environment > tuned table > heuristic."""
    tuned.record("a problem", cpu_name(), SIMPLE, {SMALL: 2.0, SIMPLE: 1.0})
    everything = candidates()
    assert choose(everything).source == "heuristic"
    found = choose(everything, problem="a problem")
    assert (found.candidate.variant.name, found.source) == (SIMPLE, "tuned")
    with config.override(pin="mul=s2"):
        found = choose(everything, problem="a problem")
        assert (found.candidate.variant.name, found.source) == (SMALL, "environment")
        with pin("mul=simt"):
            found = choose(everything, problem="a problem")
            assert (found.candidate.variant.name, found.source) == (SIMPLE, "context")
            with pin("mul=t128x128x64"):
                assert choose(everything).candidate.variant.name == FAST
            with pin("add=s2"):
                assert choose(everything).candidate.variant.name == SIMPLE
            found = choose(everything, explicit=SMALL, problem="a problem")
            assert (found.candidate.variant.name, found.source) == (SMALL, "argument")


def test_the_most_particular_pin_counts_and_of_equals_the_last() -> None:
    for text, variant in (
        ("mul=s2; mul=simt", SIMPLE),
        ("mul=simt; mul=s2", SMALL),
        ("mul:bf16=s2; mul=simt", SMALL),
        ("mul=simt; mul:bf16=s2", SMALL),
    ):
        with config.override(pin=text):
            assert choose(candidates()).candidate.variant.name == variant


@pytest.mark.parametrize("text", [None, 3, ["mul=simt"]])
def test_a_pin_is_a_text(text: object) -> None:
    with pytest.raises(PinError, match="a pin is a text"), pin(text):  # type: ignore[arg-type]
        pass


def test_a_pin_that_is_not_satisfied_lists_every_candidate_and_why() -> None:
    message = refusal("mul=t256x128x64")
    assert "JITSPARSE_PIN asks for 'mul=t256x128x64'" in message
    assert f"{REFUSED}  refused: needs 260 KB of shared memory" in message
    assert f"{FAST}  legal, but not t256x128x64" in message
    assert f"{SIMPLE}  legal, but not t256x128x64" in message


def test_a_typo_in_a_value_lists_the_legal_variants() -> None:
    message = refusal("mul=t64x64x23")
    assert "Did you mean t64x64x32?" in message
    for name in (FAST, SMALL, SIMPLE):
        assert name in message


def test_a_typo_in_the_family() -> None:
    assert "neither a family (mma, simt)" in refusal("mul=mna.s4")


def test_an_unknown_knob_letter() -> None:
    assert "one of the knobs b, s, t with a value" in refusal("mul=z4")


def test_an_unknown_operation() -> None:
    message = refusal("mull=s2")
    assert "pins the operation 'mull', which does not exist" in message
    assert "Did you mean mul?" in message


@pytest.mark.parametrize("pins", ["mul", "mul=", "=s2", "mul:=s2", "mul=s2..t64", "mul:bf61=s2"])
def test_what_is_not_a_pin(pins: str) -> None:
    refusal(pins)


def test_a_pin_never_falls_back_even_from_an_argument() -> None:
    with pytest.raises(PinError, match=r"the argument asks for 'simt\.s9'"):
        choose(candidates(), explicit="simt.s9")


def test_the_context_manager_rejects_a_bad_text_at_once() -> None:
    with pytest.raises(PinError), pin("mul"):
        raise AssertionError("unreachable")


def test_each_change_of_pins_moves_the_generation_on() -> None:
    seen = [config.generation]
    with pin("mul=s2"):
        seen.append(config.generation)
    seen.append(config.generation)
    assert seen == sorted(set(seen))


def test_no_legal_candidate_is_unsupported() -> None:
    refused = [each for each in candidates() if each.refused]
    with pytest.raises(UnsupportedProblem, match="refused: needs 260 KB"):
        choose(refused)
    with pytest.raises(UnsupportedProblem):
        choose([])


def test_a_pin_on_a_problem_without_legal_candidates_is_a_pin_error() -> None:
    refused = [each for each in candidates() if each.refused]
    with config.override(pin="mul=s4"), pytest.raises(PinError, match="refused: needs 260 KB"):
        choose(refused)


@pytest.mark.parametrize(
    ("name", "why"),
    [("mul.old.sm90a.bf16.b32x32", "no variant of that name"), (REFUSED, "260 KB of shared")],
)
def test_a_tuned_variant_that_is_gone_or_illegal_is_passed_over(
    name: str, why: str, cache_dir: Path
) -> None:
    tuned.record("a problem", "a machine", name, {name: 1.0})
    choice = choose(candidates(), problem="a problem", machine="a machine")
    assert (choice.candidate.variant.name, choice.source) == (FAST, "heuristic")
    assert choice.tuned is not None
    assert choice.tuned.variant == name
    assert choice.not_tuned is not None
    assert why in choice.not_tuned


def test_the_tuned_table_is_that_of_the_machine(cache_dir: Path) -> None:
    tuned.record("a problem", "a machine", SIMPLE, {})
    assert choose(candidates(), problem="a problem", machine="a machine").source == "tuned"
    assert choose(candidates(), problem="a problem", machine="another").tuned is None
    assert choose(candidates(), machine="a machine").tuned is None


def test_an_override_of_an_unknown_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match="settings are cache_dir"):
        with config.override(pins="mul=s2"):
            raise AssertionError("unreachable")


def test_blocks_of_threads_end_in_any_order(cache_dir: Path) -> None:
    """The pin of a block holds until that block ends, whoever else's has ended meanwhile."""
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(pin("mul=t64x64x32.s2"))
    second.enter_context(pin("mul=simt"))
    first.close()
    assert choose(candidates()).candidate.variant.name == SIMPLE
    second.close()
    assert choose(candidates()).source == "heuristic"


@pytest.mark.parametrize("filters", ["f32:bf16", "sm90a:bf16:sm80", "b32:b64x32", "avx2:avx512"])
def test_filters_that_contradict_each_other_are_an_error(filters: str) -> None:
    with pytest.raises(PinError, match="would never apply, since no kernel has both"):
        pins.parse_pins(f"mul:{filters}=simt")


def test_a_block_may_be_named_twice_in_two_ways() -> None:
    assert len(pins.parse_pins("mul:b32:b32x32:s4:bf16=simt")) == 1


def test_the_name_of_a_variant_is_a_pin() -> None:
    """As explain prints it."""
    assert chosen(FAST) == chosen(f"mul={FAST}") == (FAST, "environment")
    other = FAST.replace("32x32", "64x64")
    assert f"as in 'mul:sm90a:bf16:b64x64={other}'" in refusal(other)
    assert chosen(f"mul:sm90a:bf16:b64x64={other}") == (FAST, "heuristic")


def test_a_pin_without_a_block_says_that_it_pins_nothing() -> None:
    with pytest.warns(RuntimeWarning, match=r"pin\('mul=simt'\) pins nothing without a block"):
        pin("mul=simt")
    with pytest.raises(PinError, match="is not a pin"):
        pin("nonsense")


def test_a_pin_for_a_function() -> None:
    @pin("mul=simt")
    def source() -> str:
        return choose(candidates()).source

    assert [source(), choose(candidates()).source, source()] == ["context", "heuristic", "context"]


def test_a_filter_that_nothing_could_pass_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt block would pin nothing, in silence."""
    monkeypatch.setattr(pins, "_values", {})
    declare_values("b", ("32", "32x32"), ["mul"])
    with pytest.raises(PinError, match=r"no b is 31\. Legal: 32, 32x32"):
        chosen("mul:b31=simt")
    assert chosen("mul:b32=simt") == (SIMPLE, "environment")
    declare_values("b", ("7",), ["add"])
    assert chosen("mul:b32=simt; add:b7=simt") == (SIMPLE, "environment")


def test_a_filter_by_a_knob_that_no_kernel_has_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt dtype may look like one."""
    monkeypatch.setattr(pins, "_knobs", {})
    assert chosen("mul:f23=simt")[1] == "heuristic"
    declare_ops("mul", knobs="ts")
    with pytest.raises(PinError, match=r"'f23' is no dtype .* mul has no knob 'f'\. Knobs: t, s\."):
        chosen("mul:f23=simt")


def test_a_filter_by_a_dtype_is_not_one_by_a_knob_of_its_spelling() -> None:
    double = Variant.parse("mul.simt.generic.f64.f32")
    for filtered, applies in (("f32", False), ("f64", True), ("generic", True), ("f16", False)):
        (parsed,) = pins.parse_pins(f"mul:{filtered}=simt")
        assert parsed.applies_to(double) is applies


@pytest.mark.parametrize("op", ["sddmm", "spmm", "DSD", "dsb", "ddsd", "sddd"])
def test_an_operation_of_others_is_no_misspelling(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "_ops", {"dsd", "dds", "sdd"})
    assert pins.is_of_others(op) is (op in ("sddmm", "spmm"))


def test_a_pin_in_the_environment_may_be_another_programs() -> None:
    """Or of a package that is imported later; it is said once, and one in the program is wrong."""
    selection._warn_once.cache_clear()
    pins = "mul=simt; softmax:b7:e5m2=v8"
    with pytest.warns(RuntimeWarning, match="'softmax', which this program does not have"):
        assert chosen(pins) == (SIMPLE, "environment")
    assert chosen(pins) == (SIMPLE, "environment")
    assert "'MUL', which does not exist" in refusal("MUL=simt")
    with pytest.raises(PinError, match="'softmax', which does not exist"), pin("softmax=v8"):
        choose(candidates())


def test_dtypes_of_own_operations_are_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "_dtypes", set())
    with pytest.raises(PinError, match=r"'e4m3' in pin .* is not a filter"):
        chosen("mul:e4m3=simt", dtype="e4m3")
    declare_ops("mul", dtypes=["e4m3"])
    assert chosen("mul:e4m3=simt", dtype="e4m3")[1] == "environment"
    assert chosen("mul:e4m3=simt")[1] == "heuristic"


def test_what_is_spelt_out_comes_before_what_is_short_for_more() -> None:
    names = ["mul.vec.generic.f32.v8x8", "mul.vec.generic.f32.v8", "mul.vec.generic.f32.v4x4"]
    offered = [Candidate(Variant.parse(name), TEMPLATE) for name in names]
    assert choose(offered, explicit="v8").candidate.variant.name == names[1]
    assert choose(offered, explicit="v4").candidate.variant.name == names[2]
