"""What becomes a table: its cases, how one of them is measured, and how the figures are shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from jitsparse.bench.disturbance import DISTURBED, disturbed
from jitsparse.bench.report import Table
from jitsparse.errors import ArgumentError

if TYPE_CHECKING:
    from jitsparse.bench.timing import Timing

__all__ = ["Outcome", "Section", "Unfinished"]


class Described(Protocol):
    """What a section needs to know of a case."""

    @property
    def facts(self) -> Mapping[str, object]:
        """What distinguishes the case from others: column to value."""


@dataclass(frozen=True)
class Outcome:
    """The result of measuring a case.

    Attributes:
        rows: of the table; the facts are left of ``us``, our time, the figures right of it.
        about: what the absences refer to.
        absent: contestant to the reason why it has no figures.
        timings: contestant to the timing that its figures are made of.
    """

    rows: Sequence[dict[str, Any]]
    about: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)


class Unfinished(Exception):
    """A section that this exception's cause stopped after some of its cases.

    Attributes:
        table: of what was measured.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table.notes[-1])
        self.table = table


@dataclass(frozen=True)
class Section:
    """Cases that make one table.

    Attributes:
        name: what selects it.
        title: of the table.
        cases: what is measured, in the order of the rows.
        measure: a case and the rough seconds to spend on it, to its outcome.
        notes: what the figures mean.
        views: ``(column, across)`` of each pivot that shows the section, all rows if there is none.
        prepare: called with all cases before the first is measured.
        summary: of the table, shown instead of it.
    """

    name: str
    title: str
    cases: Sequence[Described]
    measure: Callable[[Any, float], Outcome]
    notes: Sequence[str] = ()
    views: Sequence[tuple[str, str]] = ()
    prepare: Callable[[Sequence[Any]], None] = lambda cases: None
    summary: Callable[[Table], Table] | None = None

    def narrowed(self, wanted: Mapping[str, Collection[object]]) -> Section:
        """Keep the cases all of whose facts are among the wanted ones; a missing fact is not."""
        kept = [
            case
            for case in self.cases
            if all(case.facts.get(name) in values for name, values in wanted.items())
        ]
        return replace(self, cases=kept)

    def table(
        self, *, seconds: float, on_case: Callable[[int, str], None] = lambda done, label: None
    ) -> Table:
        """Measure the cases and tabulate them, including the ones that we lose.

        Args:
            seconds: rough time for each, compiling not counted.
            on_case: called before each with how many are done and what it is.

        Raises:
            ArgumentError: none of the cases can be measured; if only some cannot, notes say why.
            Unfinished: anything else went wrong, or the user interrupted; that is its cause.
        """
        rows: list[dict[str, Any]] = []
        missing: dict[tuple[str, str], set[str]] = {}
        refused: dict[str, ArgumentError] = {}
        busy: dict[str, dict[str, float]] = {}
        self.prepare(self.cases)
        for done, case in enumerate(self.cases):
            label = " ".join(map(str, case.facts.values()))
            on_case(done, label)
            try:
                outcome = self.measure(case, seconds)
            except ArgumentError as error:
                refused[label] = error
                continue
            except BaseException as error:
                if not rows:
                    raise
                stopped = f"{done} of {len(self.cases)} cases: {label} ended it, {error!r}."
                table = self._written(rows, missing, refused, busy, [stopped])
                raise Unfinished(table) from error
            rows += outcome.rows
            for name, reason in outcome.absent.items():
                missing.setdefault((name, reason), set()).add(outcome.about)
            if times := disturbed(outcome.timings):
                busy[label] = times
        if not rows and refused:
            raise next(iter(refused.values()))
        return self._written(rows, missing, refused, busy, [])

    def _written(
        self,
        rows: Sequence[dict[str, Any]],
        missing: Mapping[tuple[str, str], Collection[str]],
        refused: Mapping[str, ArgumentError],
        busy: Mapping[str, Mapping[str, float]],
        more: Sequence[str],
    ) -> Table:
        # A column that no row fills says less than the note below the table.
        columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        notes = [
            f"{name} is absent from {', '.join(sorted(about))}: {reason}."
            for (name, reason), about in missing.items()
        ]
        notes += [f"{label} was not measured: {error}" for label, error in refused.items()]
        if busy:
            cases = "; ".join(f"{label} ({_worst(times)})" for label, times in busy.items())
            notes.append(
                f"Disturbed timings (the median of a contestant's samples is more than "
                f"{DISTURBED:.0f} times the least): {cases}. Measure again on a quiet machine."
            )
        return Table(self.title, columns, list(rows), [*self.notes, *notes, *more])

    def shown(self, table: Table) -> list[Table]:
        """The summary of the section's table, or its views of the columns that have figures."""
        if self.summary is not None:
            return [self.summary(table)]
        views = [
            table.pivot(value, across) for value, across in self.views if value in table.columns
        ]
        return views


def _worst(times: Mapping[str, float]) -> str:
    """The contestant that was disturbed most, and how many others were."""
    (name, ratio), *others = times.items()
    return f"{name}, {ratio:.1f} times" + (f", and {len(others)} more" if others else "")
