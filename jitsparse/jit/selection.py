"""Choosing the variant that runs: the families' order of preference, and the user's say in it.

Precedence: explicit argument > ``with pin(...)`` > ``JITSPARSE_PIN`` > tuned table > first legal
candidate. A pin (:mod:`jitsparse.jit.pins`) is binding: if no legal candidate satisfies it, that is
an error and nothing falls back.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jitsparse.errors import PinError, UnsupportedProblem
from jitsparse.jit import progress, tuned
from jitsparse.jit.pins import (
    ENVIRONMENT,
    Pin,
    check_pin,
    declare_ops,
    has_knob,
    in_force,
    is_name,
    is_of_others,
)
from jitsparse.jit.targets import cpu_name
from jitsparse.jit.template import Template
from jitsparse.jit.variant import Variant

__all__ = ["Candidate", "Choice", "check_obeyable", "choose"]

_KNOB = re.compile(r"[a-z][a-z0-9]+")


@dataclass(frozen=True)
class Candidate:
    """A variant that a family offers for a problem.

    Attributes:
        variant: the variant.
        template: what it is rendered from.
        refused: why it is not legal for the problem, or None if it is.
        why: why its family is ranked where it is among the candidates.
    """

    variant: Variant
    template: Template
    refused: str | None = None
    why: str = "first legal candidate"


@dataclass(frozen=True)
class Choice:
    """The candidate that runs, and why.

    Attributes:
        candidate: the chosen one.
        source: ``"argument"``, ``"context"``, ``"environment"``, ``"tuned"`` or ``"heuristic"``.
        reason: what the source said, in words.
        candidates: all that were considered, in order of preference.
        tuned: the tuned table's entry for the problem, if it was looked up and found.
        not_tuned: why that entry was not followed, or None if it was.
    """

    candidate: Candidate
    source: str
    reason: str
    candidates: tuple[Candidate, ...]
    tuned: tuned.Record | None = None
    not_tuned: str | None = None


def choose(
    candidates: Sequence[Candidate],
    *,
    explicit: str | None = None,
    problem: str | None = None,
    machine: str | None = None,
) -> Choice:
    """The candidate that runs.

    Args:
        candidates: what the families offer for one problem, best first, refused ones included.
        explicit: the caller's own choice: the right side of a pin, or a variant name.
        problem: name of the problem in the tuned table, if results for it may be used.
        machine: name of the CPU or GPU whose table to use; by default this machine's CPU.

    Raises:
        PinError: a pin that applies is not satisfied by any legal candidate, or is misspelt. The
            message lists every candidate with the reason why it was accepted or refused.
        UnsupportedProblem: no candidate is legal.
    """
    everything = tuple(candidates)
    legal = [each for each in everything if each.refused is None]
    if not everything:
        raise UnsupportedProblem("no kernel family offers a kernel for this problem.")
    op = everything[0].variant.op
    declare_ops(op)
    if explicit is not None:
        if not isinstance(explicit, str):
            raise PinError(
                f"explicit is the right side of a pin or a variant's name, got {explicit!r}"
            )
        wanted = Pin(explicit, op, (), tuple(explicit.strip().split(".")))
        candidate = _obey(wanted, everything, "the argument")
        return Choice(candidate, "argument", f"asked for as {explicit!r}", everything)
    for source, origin, pins in in_force():
        applying = _applying(pins, everything, origin)
        if applying is not None:
            candidate = _obey(applying, everything, origin)
            return Choice(candidate, source, f"{origin}: {applying.text}", everything)
    if not legal:
        raise UnsupportedProblem(
            f"no kernel for this {op} problem. Candidates:\n{_listing(everything, None)}"
        )
    why = legal[0].why
    entry = None if problem is None else tuned.lookup(problem, machine or cpu_name())
    if entry is None:
        return Choice(legal[0], "heuristic", why, everything)
    for candidate in everything:
        if candidate.variant.name == entry.variant:
            if candidate.refused is None:
                found = f"fastest when tuned for {problem}"
                return Choice(candidate, "tuned", found, everything, entry)
            return Choice(legal[0], "heuristic", why, everything, entry, candidate.refused)
    gone = "no variant of that name is a candidate for this problem and target"
    return Choice(legal[0], "heuristic", why, everything, entry, gone)


def _applying(pins: Sequence[Pin], candidates: tuple[Candidate, ...], origin: str) -> Pin | None:
    """The pin that applies to these candidates: the last of those with the most filters."""
    best: Pin | None = None
    for each in pins:
        if origin == ENVIRONMENT and is_of_others(each.op):
            _warn_once(each.text, each.op)
            continue
        check_pin(each, origin)
        if any(each.applies_to(candidate.variant) for candidate in candidates):
            if best is None or len(each.filters) >= len(best.filters):
                best = each
    return best


@functools.cache
def _warn_once(text: str, op: str) -> None:
    progress.warn(
        f"jitsparse: {ENVIRONMENT}: {text!r} pins the operation {op!r}, which this program does "
        "not have so far"
    )


def check_obeyable(pinned: Pin, candidates: Iterable[Candidate], origin: str) -> None:
    """Refuse a pin that applies to some of these candidates but matches none of them.

    Args:
        pinned: a pin that :func:`~jitsparse.jit.pins.check_pin` accepts.
        candidates: those of many problems. One refused for one problem may be legal for another.
        origin: what the message begins with.

    Raises:
        PinError: calls that the pin applies to would raise one.
    """
    applying = tuple(each for each in candidates if pinned.applies_to(each.variant))
    if applying and all(pinned.mismatch(each.variant) is not None for each in applying):
        raise PinError(
            f"{origin}: {pinned.text!r} asks for what no kernel is that a call here can have. "
            f"{_suspicion(pinned, applying)}".rstrip()
        )


def _obey(wanted: Pin, candidates: tuple[Candidate, ...], origin: str) -> Candidate:
    """The first legal candidate that satisfies a pin.

    One whose knob is exactly as the pin spells it (``v8``) comes before those that the pin
    abbreviates (``v8x8``).
    """
    found = [
        each
        for each in candidates
        if each.refused is None
        and wanted.applies_to(each.variant)
        and wanted.mismatch(each.variant) is None
    ]
    if found:
        return max(
            found, key=lambda each: sum(word in each.variant.words for word in wanted.wanted)
        )
    raise PinError(
        f"{origin} asks for {wanted.text!r}, and no variant that is legal here is that. "
        f"{_suspicion(wanted, candidates)}Variants for this problem:\n"
        f"{_listing(candidates, wanted)}"
    )


def _suspicion(wanted: Pin, candidates: tuple[Candidate, ...]) -> str:
    """A remark on a word of the pin that no variant of the problem has."""
    families = {each.variant.family for each in candidates}
    knobs = {letter + value for each in candidates for letter, value in each.variant.knobs}
    known = families | knobs
    name = ".".join(wanted.wanted)
    if name in {each.variant.name for each in candidates}:
        return ""
    if is_name(name):
        return (
            "It names one variant, which is none of this problem's: have the pin apply to problems "
            f"like its own alone, as in {_restricted(name)!r}. "
        )
    for word in wanted.wanted:
        if word in families or any(has_knob(each.variant, word) for each in candidates):
            continue
        near = difflib.get_close_matches(word, known, 1)
        letters = sorted({knob[0] for knob in knobs})
        remark = f"{word!r} is neither a family ({', '.join(sorted(families))}) nor "
        if _KNOB.fullmatch(word) and word[0] in letters:
            remark += f"a value that knob {word[0]!r} has here. "
        else:
            remark += f"one of the knobs {', '.join(letters)} with a value. "
        return remark + (f"Did you mean {near[0]}? " if near else "")
    return ""


def _restricted(name: str) -> str:
    """A pin of a variant that applies only to problems like its own."""
    variant = Variant.parse(name)
    blocks = [f"b{variant.knob('b')}"] if "b" in dict(variant.knobs) else []
    return f"{':'.join([variant.op, variant.target, variant.dtype, *blocks])}={name}"


def _listing(candidates: tuple[Candidate, ...], wanted: Pin | None) -> str:
    lines = []
    for each in candidates:
        if each.refused is not None:
            verdict = f"refused: {each.refused}"
        else:
            mismatch = wanted.mismatch(each.variant) if wanted else None
            verdict = f"legal, but {mismatch}" if mismatch else "legal"
        lines.append(f"  {each.variant.name}  {verdict}")
    return "\n".join(lines)
