"""How large the cases of the hopper suite are."""

from __future__ import annotations

from dataclasses import dataclass

from jitsparse.bench.decoder import LLAMA_8B, DecoderShape

__all__ = ["H200", "SMALL", "Extents"]


@dataclass(frozen=True)
class Extents:
    """How large the cases of the hopper suite are.

    Attributes:
        products: m = n = k of the headline products.
        dtypes: m = n = k where dtypes are compared.
        patterns: m = n = k where patterns are compared.
        layers: ``(out, in)`` of the linear layers.
        heaviest: ``(out, in)`` of one more layer, whose values exceed 100 MB on a GPU.
        tokens: rows of a layer's input.
        few_tokens: rows so few that reading the values takes the time.
        experts: ``(tokens, hidden, ffn, experts)`` of the block-diagonal products.
        choices: ``(rows, extent, cols)`` of products whose choice of kernel is measured: the shape
            of the sparse operand, with the third extent between.
        chosen: how many of those products, over all blocks, densities and patterns.
        few_choices: ``(rows, cols)`` of the sparse operand of products with few columns, whose
            choice is measured, too.
        few_columns: how many columns these have.
        few_chosen: how many of those products.
        chosen_in_32_bits, few_chosen_in_32_bits: how many of both, on random patterns, in TF32, and
            as many in IEEE float32.
        sdd_chosen_in_32_bits: likewise, how many sdd of the former.
        more_experts: as ``experts``; the choice is measured for the products of both.
        clustered: m = n = k of products whose choice is measured on patterns of clustered blocks.
        decoder: sizes of the model that is measured as a whole.
        phases: ``(phase, tokens)`` that are measured of it, see :mod:`jitsparse.bench.models`.
    """

    products: tuple[int, ...]
    dtypes: int
    patterns: int
    layers: tuple[tuple[int, int], ...]
    heaviest: tuple[int, int]
    tokens: tuple[int, ...]
    few_tokens: tuple[int, ...]
    experts: tuple[tuple[int, int, int, int], ...]
    choices: tuple[tuple[int, int, int], ...]
    chosen: int
    few_choices: tuple[tuple[int, int], ...]
    few_columns: tuple[int, ...]
    few_chosen: int
    chosen_in_32_bits: int
    few_chosen_in_32_bits: int
    sdd_chosen_in_32_bits: int
    more_experts: tuple[tuple[int, int, int, int], ...]
    clustered: tuple[int, ...]
    decoder: DecoderShape
    phases: tuple[tuple[str, int], ...]


H200 = Extents(
    products=(4096, 8192),
    dtypes=4096,
    patterns=8192,
    layers=((4096, 4096), (11008, 4096), (4096, 11008), (14336, 4096)),
    heaviest=(16384, 16384),
    tokens=(256, 4096, 16384),
    few_tokens=(1, 8, 16, 32),
    # From MegaBlocks' matmul_benchmark.py.
    experts=(
        (65536, 512, 2048, 64),
        (32768, 768, 3072, 64),
        (8192, 1024, 4096, 64),
        (8192, 4096, 16384, 4),
    ),
    choices=(
        (512, 512, 512),
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (4096, 16, 4096),
        (4096, 64, 4096),
        (4096, 128, 4096),
        (4096, 256, 4096),
        (4096, 1024, 4096),
        (11008, 512, 4096),
        (4096, 2048, 11008),
        (14336, 256, 4096),
        (1024, 8192, 1024),
        (3000, 800, 5000),
    ),
    chosen=900,
    few_choices=(
        (4096, 4096),
        (4096, 11008),
        (11008, 4096),
        (14336, 4096),
        (16384, 16384),
        (2048, 2048),
        (1024, 8192),
    ),
    few_columns=(8, 16, 32, 64, 128, 256),
    few_chosen=400,
    chosen_in_32_bits=900,
    few_chosen_in_32_bits=160,
    sdd_chosen_in_32_bits=360,
    more_experts=(
        (2048, 4096, 1024, 16),
        (4096, 1024, 2048, 16),
        (8192, 2048, 8192, 8),
        (16384, 2048, 1024, 32),
    ),
    clustered=(2048, 4096, 8192),
    decoder=LLAMA_8B,
    phases=(("decode", 1), ("decode", 8), ("decode", 32), ("prefill", 4096), ("train", 4096)),
)

SMALL = Extents(
    products=(512,),
    dtypes=512,
    patterns=512,
    layers=((512, 640),),
    heaviest=(1024, 1024),
    tokens=(64,),
    few_tokens=(1, 8),
    experts=((256, 64, 128, 2),),
    choices=((256, 64, 512), (512, 512, 256)),
    chosen=12,
    few_choices=((256, 512),),
    few_columns=(8, 64),
    few_chosen=4,
    chosen_in_32_bits=0,
    few_chosen_in_32_bits=0,
    sdd_chosen_in_32_bits=0,
    more_experts=(),
    clustered=(),
    decoder=DecoderShape(width=256, hidden=512, heads=4, kv_heads=2, layers=1, context=32),
    phases=(("decode", 2), ("prefill", 32), ("train", 32)),
)
"""Takes a CPU seconds: it shows that the suite works, and says nothing about Hopper."""
