"""Which variant runs: candidates in a family's order of preference, and the user's say in it.

Precedence: explicit argument > ``with pin(...)`` > ``JITSPARSE_PIN`` > tuned table > first legal
candidate. A pin is ``op[:filter]*=[family.]knob[.knob]*``, several of them separated by ``;``.
Before the ``=`` stands what it applies to: an operation, then filters (a dtype ``bf16``, a knob
``b32`` or ``b32x64``, a target ``sm90a``). After it stands what the variant must be: a family,
knobs, or both, or a whole variant name. Example::

    JITSPARSE_PIN="dsd=t64x256x64.s2; sdd:bf16:b16=mma"

A pin is an order: what no legal candidate satisfies raises, and nothing falls back.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jitsparse.errors import PinError, UnsupportedProblem
from jitsparse.jit import config, progress, tuned
from jitsparse.jit.environment import CPU_TARGETS
from jitsparse.jit.targets import cpu_name
from jitsparse.jit.template import Template
from jitsparse.jit.variant import Variant

__all__ = [
    "Candidate",
    "Choice",
    "Pin",
    "check_obeyable",
    "check_pin",
    "choose",
    "declare_ops",
    "declare_values",
    "is_of_others",
    "parse_pins",
    "pin",
]

ENVIRONMENT = "JITSPARSE_PIN"
DTYPES = ("f64", "f32", "tf32", "f16", "bf16")
_TARGET = re.compile(r"sm\d+[af]?")
_KNOB = re.compile(r"[a-z][a-z0-9]+")
_BLOCK = re.compile(r"[a-z]\d+(x\d+)*")

_ops: set[str] = set()
_dtypes: set[str] = set()
_values: dict[tuple[str, str], tuple[str, ...]] = {}
"""By operation and knob."""
_pinned: list[Sequence[Pin]] = []
"""Pins of the ``with`` blocks in force, the innermost last."""


@dataclass(frozen=True)
class Candidate:
    """A variant that a family offers for a problem.

    Attributes:
        variant: the variant.
        template: what it is rendered from.
        refused: why it is not legal for the problem, or None if it is.
        why: why its family stands where it does among the candidates.
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
        reason: the same in words.
        candidates: all that were considered, in order of preference.
        tuned: entry of the tuned table for the problem, if it was asked for and has one.
        not_tuned: why that entry was not followed, or None if it was.
    """

    candidate: Candidate
    source: str
    reason: str
    candidates: tuple[Candidate, ...]
    tuned: tuned.Record | None = None
    not_tuned: str | None = None


@dataclass(frozen=True)
class Pin:
    """One parsed pin.

    Attributes:
        text: as written.
        op: the operation it applies to.
        filters: further conditions on the variant, for it to apply.
        wanted: the right side, split at its dots: a family and knobs that the variant must have,
            or its whole name.
    """

    text: str
    op: str
    filters: tuple[str, ...]
    wanted: tuple[str, ...]

    def applies_to(self, variant: Variant) -> bool:
        """Whether the variant passes the filters."""
        return variant.op == self.op and all(_passes(variant, each) for each in self.filters)

    def mismatch(self, variant: Variant) -> str | None:
        """In what the variant is not what the pin wants, or None if it is."""
        if ".".join(self.wanted) == variant.name:
            return None
        knobs = list(self.wanted)
        if knobs and knobs[0] == variant.family:
            knobs.pop(0)
        for knob in knobs:
            if not _has_knob(variant, knob):
                return f"not {knob}"
        return None


def declare_ops(*ops: str, dtypes: Sequence[str] = ()) -> None:
    """Name the operations that pins may name, when a package that has them is imported.

    Any other in a pin of the program is then an error; one in ``JITSPARSE_PIN``, which all programs
    read, if it looks like a misspelt one of these.

    Args:
        ops: names of operations.
        dtypes: of theirs, that pins may name as filters beside those that there are already.
    """
    _ops.update(ops)
    _dtypes.update(dtypes)


def declare_values(knob: str, values: Sequence[str], ops: Sequence[str]) -> None:
    """Name the values that a knob of some operations may have in a pin's filter; any other is then
    an error."""
    _values.update({(op, knob): tuple(values) for op in ops})


@contextlib.contextmanager
def pin(text: str) -> Iterator[None]:
    """Pin variants, for the whole process, inside a ``with`` block.

    Args:
        text: as in ``JITSPARSE_PIN``. Where blocks are nested, the inner one decides for the
            operations that it names.

    Example:
        >>> import jitsparse as js
        >>> with js.pin("dsd=t64x256x64"):
        ...     pass

    Raises:
        PinError: the text is not a pin.
    """
    if not isinstance(text, str):
        raise PinError(f"a pin is a text as in JITSPARSE_PIN, got {type(text).__name__}")
    # A list of its own: blocks of several threads may end in another order than they began.
    mine = [*parse_pins(text)]
    _pinned.append(mine)
    config.bump()
    try:
        yield
    finally:
        _pinned[:] = [each for each in _pinned if each is not mine]
        config.bump()


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
        machine: name of the processor or GPU whose table that is; by default the processor's.

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
        wanted = Pin(explicit, op, (), tuple(explicit.strip().split(".")))
        candidate = _obey(wanted, everything, "the argument")
        return Choice(candidate, "argument", f"asked for as {explicit!r}", everything)
    asked = parse_pins(config.get().pin, f"{ENVIRONMENT}: ")
    sources = [
        *(("context", "with pin(...)", pins) for pins in reversed(_pinned)),
        ("environment", ENVIRONMENT, asked),
    ]
    for source, origin, pins in sources:
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


def parse_pins(text: str, origin: str = "") -> tuple[Pin, ...]:
    """Pins of a text.

    Args:
        text: as in ``JITSPARSE_PIN``.
        origin: what an error message begins with.

    Raises:
        PinError: a part is not of the form ``op[:filter]*=[family.]knob[.knob]*``, or has words
            that are no filters, or filters that contradict each other.
    """
    pins = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        left, separator, right = (piece.strip() for piece in part.partition("="))
        op, *filters = left.split(":")
        wanted = right.split(".")
        if not separator or not op or not all(wanted) or not all(filters):
            raise PinError(
                f"{origin}{part!r} is not a pin. Write op[:filter]*=[family.]knob[.knob]*, as in "
                "dsd:bf16:b64=mma.t64x128x64.s4."
            )
        kinds: dict[str, str] = {}
        for each in filters:
            kind = _kind(each)
            if kind is None and _is_of_others(op):
                continue  # it may be one of theirs; what the pin is not for says its operation
            if kind is None:
                raise PinError(
                    f"{origin}{each!r} in pin {part!r} is not a filter: use a dtype "
                    f"({', '.join(DTYPES)}), a target (sm90a, avx512) or a block (b32, b32x64)."
                )
            if _spelt_out(kinds.setdefault(kind, each)) != _spelt_out(each):
                raise PinError(
                    f"{origin}pin {part!r} would never apply, since no kernel has both "
                    f"{kinds[kind]} and {each} as its {kind}. Write a pin for each of them."
                )
        pins.append(Pin(part, op, tuple(filters), tuple(wanted)))
    return tuple(pins)


def _kind(text: str) -> str | None:
    """What a filter speaks of, or None if it is no filter."""
    if text in DTYPES or text in _dtypes:
        return "dtype"
    if text in CPU_TARGETS or _TARGET.fullmatch(text):
        return "target"
    if not _BLOCK.fullmatch(text):
        return None
    return "block" if text[0] == "b" else f"knob {text[0]}"


def _spelt_out(word: str) -> str:
    """A knob as a variant's name has it: ``b32`` is short for ``b32x32``."""
    return f"{word}x{word[1:]}" if word[1:].isdigit() else word


def _applying(pins: Sequence[Pin], candidates: tuple[Candidate, ...], origin: str) -> Pin | None:
    """The pin that applies to these candidates: the one with most filters, of equals the last."""
    best: Pin | None = None
    for each in pins:
        if origin == ENVIRONMENT and is_of_others(each):
            _warn_once(each.text, each.op)
            continue
        check_pin(each, origin)
        if any(each.applies_to(candidate.variant) for candidate in candidates):
            if best is None or len(each.filters) >= len(best.filters):
                best = each
    return best


def is_of_others(pinned: Pin) -> bool:
    """Whether a pin names an operation that nothing here has, and that is no misspelt one of ours:
    in the environment it may be for another program, or for a package that is imported later."""
    return _is_of_others(pinned.op)


def _is_of_others(op: str) -> bool:
    return op not in _ops and not difflib.get_close_matches(op.lower(), _ops, 1)


@functools.cache
def _warn_once(text: str, op: str) -> None:
    progress.warn(
        f"jitsparse: {ENVIRONMENT}: {text!r} pins the operation {op!r}, which this program does "
        "not have so far"
    )


def check_pin(pinned: Pin, origin: str) -> None:
    """Refuse a pin that can apply to no call at all.

    Raises:
        PinError: there is no operation of that name, or a filter names a value that no kernel has.
    """
    if pinned.op not in _ops:
        near = difflib.get_close_matches(pinned.op, _ops, 1)
        raise PinError(
            f"{origin}: {pinned.text!r} pins the operation {pinned.op!r}, which does not exist. "
            f"Operations: {', '.join(sorted(_ops))}."
            + (f" Did you mean {near[0]}?" if near else "")
        )
    for filtered in pinned.filters:
        legal = _values.get((pinned.op, filtered[0])) if _BLOCK.fullmatch(filtered) else None
        if legal is not None and filtered[1:] not in legal:
            raise PinError(
                f"{origin}: {pinned.text!r} would never apply, since no {filtered[0]} is "
                f"{filtered[1:]}. Legal: {', '.join(legal)}."
            )


def check_obeyable(pinned: Pin, candidates: Iterable[Candidate], origin: str) -> None:
    """Refuse a pin that applies to some of these candidates and asks for what none of them is.

    Args:
        pinned: which :func:`check_pin` has nothing against.
        candidates: of many problems. What is refused for one may be legal for another.
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
    """The first legal candidate that satisfies a pin; before those of a knob that it spells short
    (``v8`` for ``v8x8``) one that has just that."""
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
    if ".".join(wanted.wanted) in {each.variant.name for each in candidates}:
        return ""
    for word in wanted.wanted:
        if word in families or any(_has_knob(each.variant, word) for each in candidates):
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


def _passes(variant: Variant, word: str) -> bool:
    return word in (variant.dtype, variant.target) or _has_knob(variant, word)


def _has_knob(variant: Variant, word: str) -> bool:
    """Whether the variant has a knob as a pin writes it."""
    return any(letter + value in (word, _spelt_out(word)) for letter, value in variant.knobs)
