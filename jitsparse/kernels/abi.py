"""The 64-bit arguments that every launcher reads, in the order of ``csrc/abi.h``.

``SpmmArgs`` and ``SddArgs`` are structs of pointers and 64-bit integers; a call packs one argument
per member. The names are listed once, so that a launch written by hand (a test, the benchmark) and
the warm path agree, and so that a test can compare this list with the header.
"""

from __future__ import annotations

from jitsparse.errors import UnsupportedProblem

__all__ = ["SDD_WORDS", "SPMM_WORDS", "words_of"]

SPMM_WORDS = (
    "values",
    "index",
    "dense",
    "out",
    "bias",
    "workspace",
    "rows",
    "cols",
    "nnz",
    "n",
    "dense_ld",
    "dense_batch_stride",
    "out_ld",
    "out_batch_stride",
    "batch",
    "activation",
    "parts",
    "context",
)
"""Members of ``SpmmArgs``: the arguments of a ``dsd`` or ``dds`` kernel."""

SDD_WORDS = (
    "left",
    "right",
    "index",
    "out",
    "workspace",
    "rows",
    "cols",
    "nnz",
    "k",
    "left_ld",
    "left_batch_stride",
    "right_ld",
    "right_batch_stride",
    "batch",
    "parts",
    "context",
)
"""Members of ``SddArgs``: the arguments of an ``sdd`` kernel."""


def words_of(op: str) -> tuple[str, ...]:
    """Names of the arguments that a kernel of an operation reads, in order.

    Raises:
        UnsupportedProblem: there is no such operation.
    """
    if op in ("dsd", "dds"):
        return SPMM_WORDS
    if op == "sdd":
        return SDD_WORDS
    raise UnsupportedProblem(f"no operation is called {op!r}; there are dsd, dds and sdd.")
