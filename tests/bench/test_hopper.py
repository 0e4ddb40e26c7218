"""The hopper suite: every section has the cases it is for, and each of them can be measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitsparse.bench.decoder import DecoderShape
from jitsparse.bench.extents import H200, SMALL, Extents
from jitsparse.bench.hopper import hopper
from jitsparse.bench.section import Outcome, Section
from jitsparse.bench.timing import Timing
from jitsparse.errors import ArgumentError

CPU = torch.device("cpu")

TINY = Extents(
    products=(256,),
    dtypes=256,
    patterns=256,
    layers=((256, 128),),
    heaviest=(256, 256),
    tokens=(16,),
    few_tokens=(1, 8),
    experts=((256, 64, 128, 2),),
    choices=((256, 64, 128),),
    chosen=40,
    few_choices=((256, 128),),
    few_columns=(8, 64),
    few_chosen=10,
    chosen_in_32_bits=2,
    few_chosen_in_32_bits=1,
    sdd_chosen_in_32_bits=1,
    more_experts=((256, 64, 64, 2),),
    clustered=(256,),
    decoder=DecoderShape(width=128, hidden=192, heads=2, kv_heads=1, layers=1, context=16),
    phases=(("decode", 2),),
)


def sections(extents: Extents, device: torch.device = CPU) -> dict[str, Section]:
    return {section.name: section for section in hopper(device, extents)}


def facts(section: Section, name: str) -> set[object]:
    return {case.facts[name] for case in section.cases}


def test_sections_hold_what_is_asked_of_the_kernels() -> None:
    suite = sections(H200)
    count = {name: len(section.cases) for name, section in suite.items()}
    sizes, densities, blocks = 2, 3, 4
    assert count == {
        "products": (2 + 2 + 4) * sizes * densities * blocks,
        "float32": 3 * 2 * (8 + 3),
        "patterns": 3 * 3 * 5,
        "experts": 4 * 3,
        "f16": 3 * blocks * 2,
        "skew": (2 + 2 + 1) * 3 * 2,
        "linear": 4 * 3 * 2,
        "tokens": 2 * 5 * 3 * 3,
        "epilogue": 4 * 3 * 2,
        "model": 5 * 3 * 3,
        # Of the headline products and layers 44 are in the sample besides, of the clustered 12.
        "choice": 900
        + 400
        + (2 * 4 + 4 * 2 * 2) * blocks * densities
        - 44
        + (4 + 4) * 4 * 3
        + 3 * 4 * 3 * 6
        - 12,
    }
    layouts = {(case.facts["op"], case.facts["layout"]) for case in suite["products"].cases}
    assert layouts == {
        *(("dsd", layout) for layout in ("nn", "tn")),
        *(("dds", layout) for layout in ("nn", "nt")),
        *(("sdd", layout) for layout in ("nn", "nt", "tn", "tt")),
    }
    assert facts(suite["products"], "dtype") == {"bf16"}
    assert facts(suite["float32"], "dtype") == {"f32", "tf32"}
    assert facts(suite["linear"], "tokens") == {"256", "4096", "16384"}
    assert facts(suite["tokens"], "tokens") == {"1, 8, 16, 32"}
    assert "65536x131072x512" in facts(suite["experts"], "size")


def test_one_layer_has_more_than_100_mb_of_values() -> None:
    rows, cols = H200.heaviest
    assert rows * cols * 0.5 * torch.bfloat16.itemsize > 100e6


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", list(sections(TINY)))
def test_a_case_of_each_section_gives_its_figures(name: str, device: str) -> None:
    whole = sections(TINY, torch.device(device))[name]
    blocks = {"experts": "128x128"}
    section = whole.narrowed({"block": {blocks.get(name, "64x64")}, "density": {0.25, 0.5}})
    section.cases[1:] = []  # type: ignore[index]
    labels: list[tuple[int, str]] = []
    outcomes: list[Outcome] = []

    def measure(case: object, seconds: float) -> Outcome:
        outcomes.append(section.measure(case, seconds))
        return outcomes[-1]

    table = replace(section, measure=measure).table(
        seconds=0.0, on_case=lambda *label: labels.append(label)
    )
    assert len(labels) == 1
    # Or nobody would hear that they were disturbed.
    assert all(outcome.timings for outcome in outcomes)
    assert table.title == section.title
    assert table.rows
    for value, across in section.views:
        assert across in table.columns
        # Peers of a section may be missing on a CPU; its own figures may not.
        if "torch" not in value and "stk" not in value:
            assert value in table.columns
    for view in section.shown(table):
        assert view.rows
    for row in table.rows:
        assert row["us"] > 0


def test_narrowing_selects_by_facts() -> None:
    section = sections(SMALL)["products"].narrowed({"block": {"32x32"}, "op": {"dsd", "sdd"}})
    assert facts(section, "op") == {"dsd", "sdd"}
    assert facts(section, "block") == {"32x32"}
    assert not sections(SMALL)["linear"].narrowed({"op": {"dsd"}}).cases


def test_tuning_invites_one_more() -> None:
    (section,) = (s for s in hopper(CPU, TINY, torch_tuned=True) if s.name == "products")
    section = section.narrowed({"op": {"sdd"}, "layout": {"nn"}, "block": {"64x64"}})
    table = section.table(seconds=0.0)
    assert any(note.startswith("torch BSR tuned is absent") for note in table.notes)


def test_absences_are_said_once() -> None:
    row = {"what": "x", "us": 1.0, "never": None}
    outcomes = iter(
        [
            Outcome([row], "dsd f32", {"peer": "no"}),
            Outcome([row], "sdd f32", {"peer": "no"}),
            Outcome([row], "sdd f32", {"peer": "why"}),
        ]
    )
    small = sections(TINY)["linear"].cases[0]
    section = Section("s", "title", [small] * 3, lambda case, seconds: next(outcomes), ["a note"])
    table = section.table(seconds=0.0)
    assert table.columns == ["what", "us"]
    assert table.notes == [
        "a note",
        "peer is absent from dsd f32, sdd f32: no.",
        "peer is absent from sdd f32: why.",
    ]


def test_disturbed_timings_are_said() -> None:
    """Those whose median is more than twice their least; which rows, and what was disturbed."""
    quiet, busy, busier = (Timing((1.0, median, median)) for median in (2.0, 2.5, 6.0))
    outcomes = iter(
        Outcome([{"what": "x", "us": 1.0}], timings=timings)
        for timings in ({"a": quiet, "b": busy, "c": busier}, {"a": quiet}, {"a": busy}, {})
    )
    four = sections(SMALL)["products"].cases[:4]
    labels: list[str] = []
    table = Section("s", "title", four, lambda case, seconds: next(outcomes)).table(
        seconds=0.0, on_case=lambda done, label: labels.append(label)
    )
    assert table.notes == [
        "Disturbed timings (the median of a contestant's samples is more than 2 times the least): "
        f"{labels[0]} (c, 6.0 times, and 1 more); {labels[2]} (a, 2.5 times). Measure again on a "
        "quiet machine."
    ]


def test_a_case_that_cannot_be_measured_costs_no_others() -> None:
    small = sections(TINY)["linear"].cases[0]

    def section(*empty: bool) -> Section:
        turns = iter(empty)

        def measure(case: object, seconds: float) -> Outcome:
            if next(turns):
                raise ArgumentError("it is empty")
            return Outcome([{"what": "it", "us": 1.0}])

        return Section("s", "title", [small] * len(empty), measure)

    table = section(False, True, False).table(seconds=0.0)
    assert len(table.rows) == 2
    assert [note.endswith("was not measured: it is empty") for note in table.notes] == [True]
    with pytest.raises(ArgumentError, match="it is empty"):
        section(True, True).table(seconds=0.0)
