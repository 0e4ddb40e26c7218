"""Roles of operands in a kernel: dsd and dds are one product, whose sparse operand comes first."""

from __future__ import annotations

from collections.abc import Mapping

from jitsparse.jit import Variant

__all__ = ["LAYOUTS", "cpp_bool", "is_flipped", "is_k_contiguous", "op_block", "operand_names"]

LAYOUTS = ("nn", "nt", "tn", "tt")
"""One letter per operand, left then right: ``t`` for a transposed view."""


def is_flipped(op: str, layout: str) -> bool:
    """Whether a product walks the sparse operand by block columns, its blocks transposed.

    Kernels compute sparse x dense. dds is that product transposed, so it flips its sparse operand
    where dsd does not.
    """
    return layout[0] == "t" if op == "dsd" else layout[1] == "n"


def is_k_contiguous(op: str, layout: str) -> bool:
    """Whether the dense operand of a dsd or dds is contiguous along k, the summed axis."""
    return layout[1] == "t" if op == "dsd" else layout[0] == "n"


def op_block(op: str, block: tuple[int, int], layout: str) -> tuple[int, int]:
    """Height and depth of a block in the role in which a dsd or dds kernel sees it."""
    return (block[1], block[0]) if is_flipped(op, layout) else block


def operand_names(variant: Variant, elements: Mapping[str, str]) -> dict[str, str | int | bool]:
    """The template names that follow from op, dtype, block and layout.

    Args:
        elements: the C++ element type of each dtype.
    """
    layout = variant.knob("l")
    block_rows, block_cols = variant.ints("b")
    context: dict[str, str | int | bool] = {
        "name": variant.name,
        "element": elements[variant.dtype],
        "block_rows": block_rows,
        "block_cols": block_cols,
    }
    if variant.op == "sdd":
        return context | {
            "left_k_contiguous": cpp_bool(layout[0] == "n"),
            "right_k_contiguous": cpp_bool(layout[1] == "t"),
        }
    return context | {
        "flipped": cpp_bool(is_flipped(variant.op, layout)),
        "dense_k_contiguous": cpp_bool(is_k_contiguous(variant.op, layout)),
        "out_transposed": cpp_bool(variant.op == "dds"),
    }


def cpp_bool(value: bool) -> str:
    """A bool as a C++ template argument."""
    return "true" if value else "false"
