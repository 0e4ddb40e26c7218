"""Reasons why several CUDA families refuse a problem: each check gives one, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from jitsparse.jit import Candidate, Variant
from jitsparse.kernels.cuda import shared_memory_limit
from jitsparse.kernels.problem import Problem

__all__ = [
    "before_ampere",
    "capability",
    "first_legal",
    "low_blocks",
    "too_large",
    "too_many_tiles",
    "too_much_shared_memory",
    "too_much_stored",
]

_LIMIT = 1 << 31


def low_blocks(problem: Problem) -> str | None:
    """``wgmma``, and ``thin`` in 16 bits, need blocks of at least 16."""
    if min(problem.block) < 16:
        return f"block {problem.block[0]}x{problem.block[1]}: both sides must be at least 16"
    return None


def too_large(problem: Problem) -> str | None:
    """Rows, columns and the summed extent are counted in 32 bits.

    The sizes are rounded up, so some that are up to four times smaller are refused, too.
    """
    summed = problem.extent * (problem.batch if problem.op == "sdd" else 1)
    if max(problem.rows, problem.cols, summed) >= _LIMIT:
        return "a side of an operand may have 2^31 elements or more, which only simt counts"
    return None


def too_much_stored(problem: Problem) -> str | None:
    """TMA also counts the rows of all blocks, one below the other, in 32 bits."""
    if problem.nnz * problem.block[0] >= _LIMIT:
        return "the stored blocks may have 2^31 rows or more, and TMA counts fewer"
    return None


def too_many_tiles(problem: Problem, tile: tuple[int, int]) -> str | None:
    """An sdd whose CTAs do not correspond to its blocks needs one for each possible tile."""
    if problem.op == "sdd" and (problem.rows // tile[0]) * (problem.cols // tile[1]) >= _LIMIT:
        return f"tiles of {tile[0]} x {tile[1]} may be more than the CTAs that a launch can have"
    return None


def before_ampere(target: str) -> str | None:
    """cp.async, bfloat16 and the tensor cores' shapes came with sm80."""
    return f"target {target}: needs sm80 or later" if capability(target) < 80 else None


def too_much_shared_memory(needed: int, target: str) -> str | None:
    """A CTA with ``needed`` bytes of shared memory has to fit a multiprocessor."""
    limit = shared_memory_limit(target)
    if needed > limit:
        return f"needs {needed} bytes of shared memory a CTA, {target} has {limit}"
    return None


def capability(target: str) -> int:
    """``"sm90a"`` as 90."""
    return int(target.removeprefix("sm").rstrip("af"))


def first_legal(
    candidates: Callable[[Problem, str], list[Candidate]], problems: Iterable[Problem], target: str
) -> Iterator[Variant]:
    """What a family chooses for each of these problems, every variant once."""
    legal = (
        [each.variant for each in candidates(problem, target) if each.refused is None]
        for problem in problems
    )
    yield from dict.fromkeys(variants[0] for variants in legal if variants)
