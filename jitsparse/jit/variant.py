"""The name of one concrete kernel, which is also its identity.

The same text names cache directories, log lines, rows of the command line's tables, tuned results
and pins, so it must survive the round trip: ``Variant.parse(v.name) == v``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jitsparse.errors import ArgumentError

__all__ = ["Variant"]

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_LETTER = re.compile(r"[a-z]")
_VALUE = re.compile(r"[a-z0-9]+")
_MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class Variant:
    """One concrete kernel: what is rendered, compiled, cached, pinned and launched.

    Attributes:
        op: the operation it performs, ``"dsd"``.
        family: the group of kernels that it belongs to, ``"mma"``.
        target: what it is compiled for, ``"sm90a"`` or ``"avx512"``.
        dtype: short name of the element type, ``"bf16"``.
        knobs: everything else that distinguishes it, as ``(letter, value)`` pairs, in the order in
            which the family writes them.

    Example:
        >>> from jitsparse.jit import Variant
        >>> v = Variant("dsd", "mma", "sm90a", "bf16", (("b", "64x64"), ("s", "4")))
        >>> v.name
        'dsd.mma.sm90a.bf16.b64x64.s4'
        >>> Variant.parse(v.name) == v
        True
        >>> v.ints("b")
        (64, 64)

    Raises:
        ArgumentError: a part could not be read back from the name.
    """

    op: str
    family: str
    target: str
    dtype: str
    knobs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for label in ("op", "family", "target", "dtype"):
            word = getattr(self, label)
            if not isinstance(word, str) or not _WORD.fullmatch(word):
                raise ArgumentError(
                    f"{label}={word!r} cannot be part of a variant's name: use lower-case letters, "
                    "digits and underscores, a letter first."
                )
        letters = []
        for knob in self.knobs if type(self.knobs) is tuple else (None,):
            if type(knob) is not tuple or len(knob) != 2:
                raise ArgumentError(
                    "knobs are a tuple of pairs of texts, as (('b', '64x64'), ('s', '4')); got "
                    f"{self.knobs!r}."
                )
            letter, value = knob
            if not (isinstance(letter, str) and _LETTER.fullmatch(letter)) or not (
                isinstance(value, str) and _VALUE.fullmatch(value)
            ):
                raise ArgumentError(
                    f"knob {letter}={value!r} cannot be part of a variant's name: a knob is one "
                    "lower-case letter with a value of lower-case letters and digits."
                )
            letters.append(letter)
            if letters.count(letter) > 1:
                raise ArgumentError(f"knob {letter!r} occurs more than once in {self.knobs}.")
        if len(self.name) > _MAX_NAME:
            raise ArgumentError(
                f"the name of a variant has at most {_MAX_NAME} characters, as it is part of file "
                f"names: {self.name} has {len(self.name)}."
            )

    @property
    def name(self) -> str:
        """The readable name, ``op.family.target.dtype.knob.knob...``."""
        return ".".join(self.words)

    @property
    def words(self) -> tuple[str, ...]:
        """The parts of the name."""
        knobs = (letter + value for letter, value in self.knobs)
        return (self.op, self.family, self.target, self.dtype, *knobs)

    @classmethod
    def parse(cls, name: str) -> Variant:
        """Parse the name of a variant.

        Raises:
            ArgumentError: the text is not the name of a variant.
        """
        parts = name.split(".")
        if len(parts) < 4 or not all(len(knob) > 1 for knob in parts[4:]):
            raise ArgumentError(
                f"{name!r} is not the name of a variant: expected op.family.target.dtype followed "
                "by knobs, as in dsd.mma.sm90a.bf16.b64x64.s4."
            )
        op, family, target, dtype = parts[:4]
        return cls(op, family, target, dtype, tuple((knob[0], knob[1:]) for knob in parts[4:]))

    def knob(self, letter: str) -> str:
        """Value of a knob.

        Raises:
            ArgumentError: the variant has no such knob.
        """
        for name, value in self.knobs:
            if name == letter:
                return value
        raise ArgumentError(f"{self.name} has no knob {letter!r}.")

    def ints(self, letter: str) -> tuple[int, ...]:
        """Value of a knob whose value is whole numbers separated by ``x``.

        Raises:
            ArgumentError: the variant has no such knob, or its value is not of this form.
        """
        value = self.knob(letter)
        try:
            return tuple(int(part) for part in value.split("x"))
        except ValueError:
            raise ArgumentError(
                f"knob {letter}{value} of {self.name} is not whole numbers separated by 'x'."
            ) from None

    def __str__(self) -> str:
        return self.name
