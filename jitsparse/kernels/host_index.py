"""The compiled function that computes the index of a pattern: its template and its arguments.

It runs on the host for patterns on a GPU, see :mod:`jitsparse.indexing`.
"""

from __future__ import annotations

from pathlib import Path

from jitsparse import gathers, layout, pace, pairs, panels, sharing
from jitsparse.jit import Template, Variant
from jitsparse.jit.template import Context
from jitsparse.layout import IndexLayout
from jitsparse.traits import FACTS, slab_columns

__all__ = ["WORDS", "template", "words_of"]

_ROOT = Path(__file__).resolve().parent.parent

_SLAB_WORDS = ("panels", "steps", "blocks", "across", "most")
_GATHER_WORDS = (
    *("steps", "tiles", "wide", "blocks"),
    *("down", "pieces", "minors", "fewest", "most", "block", "height"),
    *("steps_room", "tiles_room", "wide_room", "may_share"),
)
_SIDE_WORDS = (
    *("steps", "panel_ptr", "panel_blocks", "sorted", "panels_sorted"),
    *("extent", "group", "paired"),
    *(f"{kind}.{word}" for kind in ("slab", "tall", "condensed") for word in _SLAB_WORDS),
    "condensed_columns",
    *(f"gather.{word}" for word in _GATHER_WORDS),
    *("slab_columns", "facts"),
)
_OWN_PARTS = (
    *("crow_indices", "col_indices", "row_indices"),
    *("ccol_indices", "row_indices_t", "perm"),
)
WORDS = (
    *("crow", "col", "index", "size", "rows", "cols", "nnz", "threads"),
    *_OWN_PARTS,
    *(f"{side}.{word}" for side in ("by_row", "by_col") for word in _SIDE_WORDS),
)
"""Members of ``IndexArgs`` (``csrc/index/args.h``), in order."""


def words_of(
    layout: IndexLayout, crow: int, col: int, index: int, facts: int, threads: int
) -> list[int]:
    """The arguments of a call.

    Args:
        layout: which parts the index has, and where.
        crow, col: addresses of the pattern's indices, contiguous int32 in host memory.
        index: address of the memory to fill, ``layout.size`` int32 in host memory.
        facts: address of six int64 in host memory, for :func:`jitsparse.traits.profile_by`.
        threads: number of threads to use.
    """
    parts = {
        name: (index + 4 * offset, length) for name, (offset, length) in layout.parts().items()
    }
    words = {"crow": crow, "col": col, "index": index, "size": layout.size}
    words |= {"rows": layout.rows, "cols": layout.cols, "nnz": layout.nnz, "threads": threads}
    words |= {part: parts[part][0] for part in _OWN_PARTS}
    for number, side in enumerate(("row", "col")):
        for word, value in _side_words(layout, parts, side).items():
            words[f"by_{side}.{word}"] = value
        words[f"by_{side}.facts"] = facts + 8 * FACTS * number
    return [words[word] for word in WORDS]


def _side_words(
    layout: IndexLayout, parts: dict[str, tuple[int, int]], side: str
) -> dict[str, int]:
    """The arguments of ``SideArgs``: address and length of each part that is present."""

    def address(part: str) -> int:
        return parts.get(f"{side}_{part}", (0, 0))[0]

    own = ("steps", "panel_ptr", "panel_blocks", "panels_sorted", "condensed_columns")
    words = {part: address(part) for part in own}
    words["sorted"] = parts[f"{side}s_sorted"][0]
    words["extent"], words["group"] = layout.extent(side), layout.group(side)
    words["paired"] = layout.pairs(side)
    across = layout.extent("col" if side == "row" else "row")
    words["slab_columns"] = slab_columns((layout.extent(side), across))
    for kind in ("slab", "tall", "condensed"):
        for part in ("panels", "steps", "blocks"):
            words[f"{kind}.{part}"] = address(f"{kind}_{part}")
        slabs = layout.slabs(kind).get(side)
        words[f"{kind}.across"], words[f"{kind}.most"] = (
            (slabs.across, slabs.most) if slabs else (0, 0)
        )
    gather = dict(vars(layout.gathers()[side]))
    for word, part, each, head in (
        ("steps", "gather_steps", 4, 0),
        ("tiles", "gather_tiles", 8, 1),
        ("wide", "wide_tiles", 8, 1),
    ):
        gather[word] = address(part)
        gather[f"{word}_room"] = parts.get(f"{side}_{part}", (0, 0))[1] // each - head
    gather["blocks"] = address("gather_blocks")
    return words | {f"gather.{word}": gather[word] for word in _GATHER_WORDS}


def template() -> Template:
    """The template that the function is rendered from."""
    return Template(
        name="index",
        source=_ROOT / "templates" / "index.cpp.jinja",
        language="c++",
        include_dirs=(_ROOT / "csrc",),
        arguments=len(WORDS),
        context=_context,
    )


def _context(variant: Variant) -> Context:
    """The names that the template may use: constants of the modules that it follows."""
    return {
        "name": variant.name,
        "sms": panels.SMS,
        "first_steps": layout.FIRST_STEPS,
        "panel_words": layout.PANEL_WORDS,
        "paired_among": panels.PAIRED_AMONG,
        "tripled_among": panels.TRIPLED_AMONG,
        "max_row_comparisons": pairs.MAX_COMPARISONS,
        "pairing_rounds": pairs.ROUNDS,
        "neighbours": pace.NEIGHBOURS,
        "slabs_together": pace.TOGETHER,
        "tile_columns": pace.TILE_COLUMNS,
        "max_decisions": pace.MAX_DECISIONS,
        "max_slab_pairs": pace.MAX_PAIRS,
        "pairings": sharing.PAIRINGS,
        "sharing_window": sharing.WINDOW,
        "max_panel_comparisons": sharing.MAX_COMPARISONS,
        "sharing_rounds": sharing.ROUNDS,
        "min_loaded": gathers.MIN_LOADED,
        "fixed": gathers.FIXED,
        "fixed_of_two": gathers.FIXED_OF_TWO,
        "rounds_of_a_group": gathers.ROUNDS_OF_A_GROUP,
        "sorted_rounds": gathers.SORTED_ROUNDS,
        "wide": gathers.WIDE,
        "narrow": gathers.NARROW,
        "busy": str(gathers.BUSY),
        "spared": str(gathers.SPARED),
        "tiles_of_a_panel": gathers.TILES_OF_A_PANEL,
        "max_balanced": gathers.MAX_BALANCED,
    }
