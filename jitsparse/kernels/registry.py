"""All kernel families behind one door: candidates for a problem, variants for a request."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from jitsparse.checks import BLOCK_SIZES, as_block_size
from jitsparse.errors import ArgumentError, PatternError, UnsupportedProblem
from jitsparse.jit import Variant, config
from jitsparse.jit.environment import CPU_TARGETS, parse_arch
from jitsparse.jit.pins import DTYPES, declare_ops, declare_values
from jitsparse.kernels import cost, cpu, fma, mma, price_table, simt, thin, wgmma
from jitsparse.kernels.problem import LESS_PRECISE, dtype_on, typical_problem
from jitsparse.kernels.transpose import transposes

if TYPE_CHECKING:
    from jitsparse.jit import Candidate, Template
    from jitsparse.kernels.problem import Priority, Problem

__all__ = [
    "DTYPES",
    "INDEX",
    "KNOBS",
    "OPS",
    "candidates",
    "check_target",
    "default_variants",
    "device_of",
    "machine_of",
    "parse_block_size",
    "priced_as",
    "prices_for",
    "select_variants",
    "target_of",
    "template_of",
    "typical_candidates",
    "variant_named",
    "warmup_command",
]

OPS = ("dsd", "dds", "sdd")
KNOBS = "bcgklorstvw"
"""Letters of all families."""

declare_ops(*OPS, knobs=KNOBS)
declare_values(
    "b",
    [
        *map(str, BLOCK_SIZES),
        *(f"{rows}x{cols}" for rows, cols in itertools.product(BLOCK_SIZES, repeat=2)),
    ],
    OPS,
)

INDEX = Variant("index", "host", "generic", "i32")
"""Not a user-facing operation: computes the indices of GPU patterns (:mod:`jitsparse.indexing`).
Targets any CPU, since it is no faster with AVX2 or AVX-512."""

_CUDA_TARGET = re.compile(r"sm\d{2,3}[af]?")


class Module(Protocol):
    """Interface of a module of kernels."""

    def priority(self, problem: Problem) -> Priority:
        """Rank of its variants among those of other modules."""

    def candidates(self, problem: Problem, target: str) -> list[Candidate]:
        """Its variants for a problem, best first; refused ones with their reason."""

    def default_variants(self, target: str) -> Iterator[Variant]:
        """The default table: what calls choose when nothing is pinned."""

    def template(self, variant: Variant) -> Template:
        """The template that a variant is rendered from."""


_FAMILIES: dict[str, dict[str, Module]] = {
    "cpu": {"amx": cpu, "split": cpu, "vec": cpu},
    "cuda": {"wgmma": wgmma, "thin": thin, "mma": mma, "fma": fma, "simt": simt},
}
"""Family to module, for each device."""


def _modules(device: str) -> list[Module]:
    return list(dict.fromkeys(_FAMILIES[device].values()))


def candidates(
    problem: Problem, target: str | None = None, gpu: str = price_table.GPUS[0]
) -> list[Candidate]:
    """Every variant for a problem, in order of preference; refused ones carry the reason.

    Args:
        problem: the facts of a call.
        target: the compilation target; by default this machine's.
        gpu: the GPU whose prices decide, see :func:`priced_as`.
    """
    ranked = _by_priority(problem, target_of(problem.device) if target is None else target)
    return ranked if problem.device == "cpu" else cost.quickest_first(problem, ranked, gpu)


def _by_priority(problem: Problem, target: str) -> list[Candidate]:
    """Candidates in the families' order, before the cost model is asked."""
    modules = [(module.priority(problem), module) for module in _modules(problem.device)]
    return [
        dataclasses.replace(candidate, why=priority.why + _and_copy(candidate.variant))
        for priority, module in sorted(modules, key=lambda each: each[0].rank)
        for candidate in module.candidates(problem, target)
    ]


def _and_copy(variant: Variant) -> str:
    return ", for which a copy of one operand is transposed first" if transposes(variant) else ""


def warmup_command(variant: Variant) -> str:
    """The command that compiles a variant where this process runs, for messages."""
    allowed = "" if config.get().jit else "JITSPARSE_JIT=on "
    return f"{allowed}jitsparse warmup --variant {variant.name}"


def template_of(variant: Variant) -> Template:
    """The template of a variant.

    Raises:
        UnsupportedProblem: no module has its family.
    """
    if variant == INDEX:
        from jitsparse.kernels import host_index

        return host_index.template()
    device = device_of(variant.target)
    module = _FAMILIES[device].get(variant.family)
    if module is None:
        raise UnsupportedProblem(
            f"{variant.name}: no family {variant.family!r} for a {device} target; there are "
            f"{', '.join(_FAMILIES[device])}"
        )
    return module.template(variant)


def device_of(target: str) -> str:
    """``"cuda"`` or ``"cpu"``: the device that a target's code runs on."""
    return "cuda" if target.startswith("sm") else "cpu"


def target_of(device: str, index: int = -1) -> str:
    """The compilation target for a device of this machine.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        index: index of the GPU; by default the current one.
    """
    from jitsparse.jit import targets

    if device == "cpu":
        return targets.cpu_target()
    return targets.cuda_target(None if index < 0 else index)


def check_target(device: str, target: str) -> None:
    """Reject a target that does not belong to a device.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        target: as in a variant's name.

    Raises:
        ArgumentError: it does not.
    """
    if device == "cpu" and target not in CPU_TARGETS:
        raise ArgumentError(f"target {target!r} is not one of a CPU's: {', '.join(CPU_TARGETS)}")
    if device == "cuda" and not _CUDA_TARGET.fullmatch(target):
        raise ArgumentError(f"target {target!r} is not a GPU's, such as 'sm80' or 'sm90a'")


def machine_of(device: str, index: int = -1) -> str:
    """Name of the CPU or GPU that problems of a device run on; the device must exist.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        index: index of the GPU; by default the current one.
    """
    from jitsparse.jit import targets

    if device == "cpu":
        return targets.cpu_name()
    return targets.cuda_name(None if index < 0 else index)


def priced_as(device: str, index: int = -1) -> str:
    """The cost model's GPU that a device of this machine is taken for; the first if none matches.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        index: index of the GPU; by default the current one.
    """
    return prices_for(device, index)[0]


def prices_for(device: str, index: int = -1) -> tuple[str, ...]:
    """The cost model's GPUs that kernels compiled here may run on.

    Just this machine's, or all of them if it is none of these, as where an image is built.
    """
    import torch

    if device == "cpu":
        return price_table.GPUS[:1]
    known = price_table.gpu_of(machine_of(device, index)) if torch.cuda.is_available() else None
    return price_table.GPUS if known is None else (known,)


# -- requests -----------------------------------------------------------------------------------


def default_variants(target: str) -> Iterator[Variant]:
    """The default table of a target, over all families."""
    for module in _modules(device_of(target)):
        yield from module.default_variants(target)


def select_variants(
    targets: Sequence[str],
    *,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    block_sizes: Sequence[tuple[int, int]] = (),
) -> list[Variant]:
    """Variants that the calls described by a request choose.

    Without block sizes, selects from the families' default tables; an empty filter admits
    everything. With block sizes, returns what calls with exactly these blocks choose, whether or
    not a table holds it.

    Raises:
        ArgumentError: a filter names something that does not exist, or nothing is left.
    """
    _check_names(ops, dtypes)
    if block_sizes:
        found = (
            variant
            for target in targets
            for variant in cost.first_choices(
                _by_priority,
                _typical_problems(device_of(target), ops or OPS, dtypes, block_sizes),
                target,
            )
        )
    else:
        found = (
            variant
            for target in targets
            for variant in default_variants(target)
            if (not ops or variant.op in ops) and (not dtypes or _serves(variant, dtypes, target))
        )
    chosen = list(dict.fromkeys(found))
    if not chosen:
        raise ArgumentError(
            f"for {', '.join(targets)} there is no variant with op {list(ops) or 'any'}, "
            f"dtype {list(dtypes) or 'any'} and block size {list(block_sizes) or 'any'}"
        )
    return chosen


def _serves(variant: Variant, dtypes: Sequence[str], target: str) -> bool:
    """Whether calls of these dtypes may choose a variant of a target's table: where less precision
    is allowed, some multiply in full precision, but not in blocks of the table with AMX."""
    asked = {dtype_on(device_of(target), dtype) for dtype in dtypes}
    full = variant.dtype == "f32" and variant.family in ("thin", "simt", "vec") and target != "amx"
    return variant.dtype in asked or (full and not asked.isdisjoint(LESS_PRECISE))


def _check_names(ops: Sequence[str], dtypes: Sequence[str]) -> None:
    for what, asked, legal in (("op", ops, OPS), ("dtype", dtypes, DTYPES)):
        for name in asked:
            if name not in legal:
                raise ArgumentError(f"{what} {name!r} is not one of {', '.join(legal)}")


def _typical_problems(
    device: str,
    ops: Sequence[str],
    dtypes: Sequence[str],
    block_sizes: Sequence[tuple[int, int]],
) -> Iterator[Problem]:
    """Representative problems of a program: all layouts, few columns and many."""
    for op, dtype, block in itertools.product(ops, dtypes or DTYPES, block_sizes):
        for layout, aligned, extent in itertools.product(
            ("nn", "nt", "tn", "tt"), (True, False), (1, 8, 16, 32, 64, 256, 4096)
        ):
            yield typical_problem(op, device, dtype, block, layout, extent, aligned=aligned)


def typical_candidates(
    target: str,
    op: str,
    *,
    dtypes: Sequence[str] = (),
    block_sizes: Sequence[tuple[int, int]] = (),
) -> Iterator[Candidate]:
    """Candidates of an operation on a target, refused ones included, problem by problem.

    Covers all dtypes and square blocks, or those that are named.
    """
    blocks = block_sizes or [(size, size) for size in BLOCK_SIZES]
    for problem in _typical_problems(device_of(target), [op], dtypes, blocks):
        yield from candidates(problem, target)


def variant_named(name: str) -> Variant:
    """The variant with a given name, if calls on its target, or patterns, can use it.

    Raises:
        ArgumentError: it is not the name of a variant, or no call can use that variant.
    """
    variant = Variant.parse(name)
    if variant == INDEX:
        return variant
    parse_arch(variant.target, "target")
    _check_names([variant.op], [variant.dtype])
    block = parse_block_size(variant.knob("b"))
    offered: dict[str, str | None] = {}
    for each in typical_candidates(
        variant.target, variant.op, dtypes=[variant.dtype], block_sizes=[block]
    ):
        if each.refused is None or each.variant.name not in offered:
            offered[each.variant.name] = each.refused
    if name not in offered:
        near = difflib.get_close_matches(name, offered, 3, 0)
        raise ArgumentError(f"no call can run variant {name}; the nearest are {', '.join(near)}")
    if offered[name] is not None:
        raise ArgumentError(f"no call can run variant {name}: {offered[name]}")
    return variant


def parse_block_size(text: str | int | Sequence[int]) -> tuple[int, int]:
    """``"32"``, ``32``, ``"32x64"`` or ``(32, 64)`` as a legal pair.

    Raises:
        PatternError: the block size is not supported.
    """
    if isinstance(text, str):
        sides = text.lower().split("x")
        if not all(side.isdecimal() and len(side) < 9 for side in sides):
            raise PatternError(
                f"block size {text!r} is neither a side nor two, as in '32' or '32x64'"
            )
        return as_block_size(int(sides[0]) if len(sides) == 1 else [*map(int, sides)])
    return as_block_size(text)
