"""What several CUDA families refuse a problem for: each check gives the reason, or None."""

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
    "misaligned",
    "too_much_shared_memory",
]


def low_blocks(problem: Problem) -> str | None:
    """Tensor cores and copies of 16 bytes want blocks of 16 and more."""
    if min(problem.block) < 16:
        return f"block {problem.block[0]}x{problem.block[1]}: both sides must be at least 16"
    return None


def misaligned(problem: Problem, itemsize: int) -> str | None:
    """Copies of 16 bytes want everything of dense operands in multiples of that."""
    if problem.aligned:
        return None
    return (
        "an operand is not 16-byte aligned: pointers, strides and contiguous extents of the "
        f"dense operands must be multiples of {16 // itemsize} elements"
    )


def before_ampere(target: str) -> str | None:
    """cp.async and the tensor cores' types came with sm80."""
    return f"target {target}: needs sm80 or later" if capability(target) < 80 else None


def too_much_shared_memory(needed: int, target: str) -> str | None:
    """A CTA of ``needed`` bytes has to fit a multiprocessor."""
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
