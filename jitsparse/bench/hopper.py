"""The hopper suite: the tables by which the Hopper kernels are measured, one section each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch

from jitsparse.bench.cases import Case, expert_case
from jitsparse.bench.choice import choice_section
from jitsparse.bench.extents import H200, SMALL, Extents
from jitsparse.bench.forward import measure_epilogue, measure_few_tokens
from jitsparse.bench.layers import LayerCase, measure_passes
from jitsparse.bench.models import ModelCase, measure_model
from jitsparse.bench.peers import BMM, DENSE, PEERS, STK, TORCH_TUNED
from jitsparse.bench.products import measure, measure_beside
from jitsparse.bench.section import Outcome, Section
from jitsparse.bench.suites import RATIO_NOTE, Axes, cases, cube, products, rates_note, square
from jitsparse.kernels.roles import LAYOUTS

__all__ = ["hopper"]


_SIDES = (128, 64, 32, 16)
_LAYOUTS = {"dsd": ("nn", "tn"), "dds": ("nn", "nt"), "sdd": LAYOUTS}
"""The sparse operand as stored and transposed; for sdd every layout of its dense operands."""


def hopper(
    device: torch.device, extents: Extents | None = None, *, torch_tuned: bool = False
) -> list[Section]:
    """The sections that measure the Hopper kernels.

    Args:
        device: where they run.
        extents: how large the cases are; by default :data:`H200` on CUDA, else :data:`SMALL`.
        torch_tuned: also measure torch's BSR product after its own tuning, minutes per case.
    """
    if extents is None:
        extents = H200 if device.type == "cuda" else SMALL
    return [
        *_product_sections(device, extents, torch_tuned),
        *_beside_sections(device, extents),
        *_layer_sections(device, extents),
        _model_section(device, extents),
        choice_section(device, extents),
    ]


def _product_sections(device: torch.device, extents: Extents, torch_tuned: bool) -> list[Section]:
    headline = [
        Axes(
            ops=(op,),
            dtypes=("bf16",),
            sizes=tuple(map(cube, extents.products)),
            blocks=square(*_SIDES),
            layouts=layouts,
        )
        for op, layouts in _LAYOUTS.items()
    ]
    single = Axes(sizes=(cube(extents.dtypes),), densities=(0.25, 0.5))
    users = Axes(
        dtypes=("bf16",),
        sizes=(cube(extents.patterns),),
        blocks=square(*_SIDES[:3]),
        densities=(0.25,),
        patterns=("random", "banded", "diagonal", "powerlaw"),
    )
    peers = (*PEERS, TORCH_TUNED) if torch_tuned else PEERS
    return [
        products(
            "products",
            headline,
            device,
            title="products on random patterns",
            peers=peers,
            notes=[_LAYOUT_NOTE],
            views=[
                (column, "density")
                for column in (
                    "ratio to dense",
                    "times torch BSR",
                    "times torch BSR tuned",
                    "times stk",
                    "useful rate",
                )
            ],
        ),
        products(
            "float32",
            [
                *(
                    replace(
                        single,
                        ops=(op,),
                        dtypes=("tf32",),
                        blocks=square(128, 64, 32),
                        layouts=layouts,
                    )
                    for op, layouts in _LAYOUTS.items()
                ),
                replace(single, dtypes=("f32",), blocks=square(128, 64, 32)),
            ],
            device,
            title="float32 products, with TF32 and in IEEE arithmetic",
            peers=(DENSE,),
            notes=["The dense product has the same float32 matmul precision.", _LAYOUT_NOTE],
            views=[("ratio to dense", "density"), ("useful rate", "density")],
        ),
        products(
            "patterns",
            [users, replace(users, patterns=("causal",), densities=(0.5,))],
            device,
            title="products on the patterns that programs have",
            notes=["causal is the lower triangle of blocks, a little over half of them."],
        ),
        Section(
            "experts",
            "block-diagonal products of mixtures of experts",
            list(_expert_cases(device, extents)),
            lambda case, seconds: measure(case, seconds=seconds, peers=(BMM, STK)).outcome(),
            [
                rates_note(device),
                "(tokens, hidden, ffn, experts) are "
                + ", ".join(map(str, extents.experts))
                + "; sdd nt is the first layer, dsd nn the second, dsd tn a weight's gradient.",
                "ratio to bmm = useful rate over that of torch.bmm on the experts' dense products "
                "alone, which are the same operations on the same layouts.",
            ],
        ),
    ]


def _expert_cases(device: torch.device, extents: Extents) -> Iterator[Case]:
    for shape in extents.experts:
        for op, layout in (("sdd", "nt"), ("dsd", "nn"), ("dsd", "tn")):
            yield expert_case(op, layout, shape, 128, "bf16", device)


def _beside_sections(device: torch.device, extents: Extents) -> list[Section]:
    def beside_bf16(case: Case, seconds: float) -> Outcome:
        return measure_beside(case, replace(case, dtype="bf16"), "bf16", seconds=seconds)

    def beside_uniform(case: Case, seconds: float) -> Outcome:
        return measure_beside(case, replace(case, pattern="random"), "uniform", seconds=seconds)

    halves = Axes(
        dtypes=("f16",),
        sizes=(cube(extents.dtypes),),
        blocks=square(*_SIDES),
        densities=(0.25, 0.5),
    )
    skewed = [
        Axes(
            ops=(op,),
            dtypes=("bf16",),
            sizes=(cube(extents.patterns),),
            blocks=square(*_SIDES[:3]),
            densities=(0.1, 0.25),
            patterns=("powerlaw",),
            layouts=layouts if op != "sdd" else ("nn",),
        )
        for op, layouts in _LAYOUTS.items()
    ]
    return [
        Section(
            "f16",
            "float16 beside bfloat16",
            list(cases(halves, device)),
            beside_bf16,
            [
                f"{rates_note(device)} {RATIO_NOTE}",
                "times bf16 = our float16 rate over our bfloat16 rate.",
            ],
        ),
        Section(
            "skew",
            "power-law rows beside uniform ones",
            [case for axes in skewed for case in cases(axes, device)],
            beside_uniform,
            [
                f"{rates_note(device)} {RATIO_NOTE}",
                "Block row r of the skewed pattern, in random order, holds blocks in proportion to "
                "1 / r, all of them at most; times uniform = our rate on it over our rate on a "
                "random pattern of as many blocks.",
            ],
        ),
    ]


def _layer_sections(device: torch.device, extents: Extents) -> list[Section]:
    def layers(
        shapes: Sequence[tuple[int, int]],
        tokens: Sequence[tuple[int, ...]],
        sides: Sequence[int],
        densities: Sequence[float],
        dtypes: Sequence[str] = ("bf16",),
    ) -> list[LayerCase]:
        return [
            LayerCase(shape, together, block, density, dtype, device)
            for dtype, shape, block, density, together in product(
                dtypes, shapes, square(*sides), densities, tokens
            )
        ]

    many = [(tokens,) for tokens in extents.tokens]
    return [
        Section(
            "linear",
            "linear layers",
            layers(extents.layers, many, (128, 64), (0.25,)),
            lambda case, seconds: measure_passes(case, seconds=seconds),
            [
                rates_note(device),
                "A layer is out x in. A step is the forward pass and both gradients through "
                "autograd; times dense = the time of F.linear's, or of the dense product's, over "
                "ours.",
            ],
            [("times dense", "tokens"), ("useful rate", "tokens")],
        ),
        Section(
            "tokens",
            "linear layers on few tokens",
            layers(
                (*extents.layers, extents.heaviest),
                [extents.few_tokens],
                _SIDES[:3],
                (0.1, 0.25, 0.5),
                ("bf16", "f32"),
            ),
            lambda case, seconds: measure_few_tokens(case, seconds=seconds),
            [
                "GB/s = bytes of the values over our time; copy GB/s = bytes read and written by a "
                "copy on the device, over its time; share of copy is their ratio; times dense = "
                "the time of F.linear over ours.",
            ],
            [("share of copy", "tokens"), ("times dense", "tokens"), ("GB/s", "tokens")],
        ),
        Section(
            "epilogue",
            "bias and activation in a linear layer",
            layers(extents.layers, many, (128, 64), (0.25,)),
            lambda case, seconds: measure_epilogue(case, seconds=seconds),
            ["cost % = how much longer than the layer without bias and activation."],
            [("cost %", "epilogue")],
        ),
    ]


def _model_section(device: torch.device, extents: Extents) -> Section:
    shape = extents.decoder
    return Section(
        "model",
        "a decoder whose linear layers are all block-sparse",
        [
            ModelCase(shape, phase, tokens, block, density, "bf16", device)
            for (phase, tokens), block, density in product(
                extents.phases, square(*_SIDES[:3]), (0.1, 0.25, 0.5)
            )
        ],
        lambda case, seconds: measure_model(case, seconds=seconds),
        [
            f"{shape.layers} layers of width {shape.width}, {shape.hidden} within the feed-forward "
            f"part, {shape.heads} heads, {shape.kv_heads} of keys and values; no embedding.",
            "decode: one more token of so many sequences, each with keys and values of "
            f"{shape.context} tokens; prefill: all tokens of one sequence; train: likewise, with "
            "the gradients of all parameters and of the input. On CUDA compiled by torch.compile, "
            "layer by layer, but for torch's BSR product, which cannot be, only what is around it, "
            "and decode is a graph. times dense = the time of the same decoder with nn.Linear over "
            "ours, times torch BSR with torch's BSR product.",
        ],
        [("times dense", "density"), ("times torch BSR", "density")],
    )


_LAYOUT_NOTE = (
    "layout: one letter an operand, left then right; n as stored or last axis contiguous, t a "
    "transposed view. The dense product has the same layouts; torch's BSR product is given what it "
    "can multiply, made before the clock starts."
)
