"""Pins: their grammar, what they may name, and which are in force.

A pin is ``op[:filter]*=[family.]knob[.knob]*``, several of them separated by ``;``. Left of the
``=`` is what it applies to: an operation, then filters (a dtype ``bf16``, a knob ``b32`` or
``b32x64``, a target ``sm90a``). Right of it is what the variant must be: a family, knobs, or both,
or a whole variant name, which may also be given alone. Example::

    JITSPARSE_PIN="dsd=t64x256x64.s2; sdd:bf16:b16=mma"
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jitsparse.errors import PinError
from jitsparse.jit import config, progress
from jitsparse.jit.environment import CPU_TARGETS
from jitsparse.jit.variant import Variant

__all__ = [
    "DTYPES",
    "ENVIRONMENT",
    "Pin",
    "check_pin",
    "declare_ops",
    "declare_values",
    "has_knob",
    "in_force",
    "is_name",
    "is_of_others",
    "parse_pins",
    "pin",
]

ENVIRONMENT = "JITSPARSE_PIN"
DTYPES = ("f64", "f32", "tf32", "bf32", "f16", "bf16")
_TARGET = re.compile(r"sm\d+[af]?")
_BLOCK = re.compile(r"[a-z]\d+(x\d+)*")

_ops: set[str] = set()
_dtypes: set[str] = set()
_knobs: dict[str, str] = {}
"""Knob letters by operation, for the operations that have declared theirs."""
_values: dict[tuple[str, str], tuple[str, ...]] = {}
"""Declared values by operation and knob."""
_pinned: list[Sequence[Pin]] = []
"""Pins of the ``with`` blocks in force, the innermost last."""


@dataclass(frozen=True)
class Pin:
    """One parsed pin.

    Attributes:
        text: as written.
        op: the operation it applies to.
        filters: further conditions on the variants that it applies to.
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
        """How the variant differs from what the pin wants, or None if it does not."""
        if ".".join(self.wanted) == variant.name:
            return None
        knobs = list(self.wanted)
        if knobs and knobs[0] == variant.family:
            knobs.pop(0)
        for knob in knobs:
            if not has_knob(variant, knob):
                return f"not {knob}"
        return None


def declare_ops(*ops: str, dtypes: Sequence[str] = (), knobs: str = "") -> None:
    """Declare the operations that pins may name, when a package that has them is imported.

    Any other operation in a pin of the program is then an error. In ``JITSPARSE_PIN``, which all
    programs read, it is an error only if it looks like a misspelt one of these.

    Args:
        ops: names of operations.
        dtypes: their dtypes that pins may name as filters, besides those already known.
        knobs: letters of all their knobs; a filter by another one is then an error.
    """
    _ops.update(ops)
    _dtypes.update(dtypes)
    if knobs:
        _knobs.update(dict.fromkeys(ops, knobs))


def declare_values(knob: str, values: Sequence[str], ops: Sequence[str]) -> None:
    """Declare the values of a knob of some operations; any other in a filter is then an error."""
    _values.update({(op, knob): tuple(values) for op in ops})


def pin(text: str) -> contextlib.AbstractContextManager[None]:
    """Pin variants, for the whole process, inside a ``with`` block.

    Args:
        text: as in ``JITSPARSE_PIN``. Where blocks are nested, the inner one decides for the
            operations that it names. Entering or leaving a block makes all calls look up their
            kernels again, so do not use one in a loop.

    Example:
        >>> import jitsparse as js
        >>> with js.pin("dsd=t64x256x64"):
        ...     pass

    Raises:
        PinError: the text is not a pin.

    Warns:
        RuntimeWarning: the result was never entered as a ``with`` block, so nothing was pinned.
    """
    if not isinstance(text, str):
        raise PinError(f"a pin is a text as in JITSPARSE_PIN, got {type(text).__name__}")
    return _Block(text, parse_pins(text))


class _Block(contextlib.ContextDecorator, contextlib.AbstractContextManager[None]):
    """What :func:`pin` returns."""

    def __init__(self, text: str, pins: Sequence[Pin]) -> None:
        self._text, self._pins = text, pins
        self._entered = False
        self._mine: list[list[Pin]] = []

    def __enter__(self) -> None:
        self._entered = True
        # A separate list: blocks of several threads may end in a different order than they began.
        mine = [*self._pins]
        self._mine.append(mine)
        with config.lock:
            _pinned.append(mine)
            config.bump()

    def __exit__(self, *_: object) -> None:
        mine = self._mine.pop()
        with config.lock:
            del _pinned[next(n for n, each in enumerate(_pinned) if each is mine)]
            config.bump()

    def __del__(self) -> None:
        if not self._entered:
            progress.warn(
                f"jitsparse: pin({self._text!r}) pins nothing without a block: write "
                f"with pin({self._text!r}):, or set JITSPARSE_PIN",
                always=True,
            )


def in_force() -> list[tuple[str, str, Sequence[Pin]]]:
    """Pins that calls have to obey, highest precedence first.

    Each item is the source of a choice, what a message calls it, and its pins.

    Raises:
        PinError: ``JITSPARSE_PIN`` is not a pin.
    """
    asked = parse_pins(config.get().pin, f"{ENVIRONMENT}: ")
    return [
        *(("context", "with pin(...)", pins) for pins in reversed(_pinned)),
        ("environment", ENVIRONMENT, asked),
    ]


def parse_pins(text: str, origin: str = "") -> tuple[Pin, ...]:
    """Parse the pins in a text.

    Args:
        text: as in ``JITSPARSE_PIN``.
        origin: what an error message begins with.

    Raises:
        PinError: a part is not of the form ``op[:filter]*=[family.]knob[.knob]*``, or has invalid
            filters, or filters that contradict each other.
    """
    pins = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if "=" not in part and is_name(part):
            pins.append(Pin(part, part.partition(".")[0], (), tuple(part.split("."))))
            continue
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
            if kind is None and is_of_others(op):
                continue  # it may be a filter of theirs; the operation shows the pin is not ours
            if kind is None:
                raise PinError(
                    f"{origin}{each!r} in pin {part!r} is not a filter: use a dtype "
                    f"({', '.join([*DTYPES, *sorted(_dtypes)])}), a target (sm90a, avx512) or a "
                    "knob whose value is numbers (b32, b32x64)."
                )
            if _spelt_out(kinds.setdefault(kind, each)) != _spelt_out(each):
                raise PinError(
                    f"{origin}pin {part!r} would never apply, since no kernel has both "
                    f"{kinds[kind]} and {each} as its {kind}. Write a pin for each of them."
                )
        pins.append(Pin(part, op, tuple(filters), tuple(wanted)))
    return tuple(pins)


def is_name(text: str) -> bool:
    """Whether a text is the name of a variant, such as explain prints."""
    try:
        Variant.parse(text)
    except ValueError:
        return False
    return True


def _kind(text: str) -> str | None:
    """What a filter refers to, or None if it is not a filter."""
    if text in DTYPES or text in _dtypes:
        return "dtype"
    if text in CPU_TARGETS or _TARGET.fullmatch(text):
        return "target"
    if not _BLOCK.fullmatch(text):
        return None
    return "block" if text[0] == "b" else f"knob {text[0]}"


def _spelt_out(word: str) -> str:
    """A knob as spelled in a variant's name: ``b32`` is short for ``b32x32``."""
    return f"{word}x{word[1:]}" if word[1:].isdigit() else word


def is_of_others(op: str) -> bool:
    """Whether an operation is neither declared here nor a misspelling of one that is.

    In the environment it may belong to another program, or to a package that is imported later.
    """
    return op not in _ops and _near(op) is None


def _near(op: str) -> str | None:
    """The declared operation that a name misspells: one letter differs, or nearly all agree.

    difflib's own limit takes ``sddmm``, which other programs have, for ``sdd``.
    """
    word = op.lower()
    for near in difflib.get_close_matches(word, _ops, 1):
        changed = sum(a != b for a, b in zip(word, near, strict=False))
        alike = difflib.SequenceMatcher(None, word, near).ratio()
        if (len(word) == len(near) and changed == 1) or alike > 0.75:
            return near
    return None


def check_pin(pinned: Pin, origin: str) -> None:
    """Refuse a pin that cannot apply to any call.

    Raises:
        PinError: there is no operation of that name, or a filter names a value that no kernel has.
    """
    if pinned.op not in _ops:
        near = _near(pinned.op)
        raise PinError(
            f"{origin}: {pinned.text!r} pins the operation {pinned.op!r}, which does not exist. "
            f"Operations: {', '.join(sorted(_ops))}." + (f" Did you mean {near}?" if near else "")
        )
    for filtered in pinned.filters:
        kind = _kind(filtered)
        if kind in ("dtype", "target", None):
            continue
        letters = _knobs.get(pinned.op)
        if letters is not None and filtered[0] not in letters:
            raise PinError(
                f"{origin}: {pinned.text!r} would never apply: {filtered!r} is no dtype and no "
                f"target, and {pinned.op} has no knob {filtered[0]!r}. Knobs: {', '.join(letters)}."
            )
        legal = _values.get((pinned.op, filtered[0]))
        if legal is not None and filtered[1:] not in legal:
            raise PinError(
                f"{origin}: {pinned.text!r} would never apply, since no {filtered[0]} is "
                f"{filtered[1:]}. Legal: {', '.join(legal)}."
            )


def _passes(variant: Variant, word: str) -> bool:
    kind = _kind(word)
    if kind == "dtype":  # and not a knob of the same spelling
        return variant.dtype == word
    if kind == "target":
        return variant.target == word
    return has_knob(variant, word)


def has_knob(variant: Variant, word: str) -> bool:
    """Whether the variant has a knob as a pin writes it."""
    return any(letter + value in (word, _spelt_out(word)) for letter, value in variant.knobs)
