"""What a check found, as a table a student reads and as data a gradebook takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.show.html import render

STOPPED = "not reached: see what stopped it"  # seen of a property whose case ended before it


@dataclass(frozen=True)
class PropertyResult:
    """One property's outcome. `points` is `max_points` or 0; the texts are empty where there is nothing to
    say.
    """

    name: str
    kind: str
    points: float
    max_points: float
    passed: bool
    says: str
    expected: str = ""
    seen: str = ""
    rank: int | None = None
    case: str = ""
    usual_cause: str = ""

    @property
    def message(self) -> str:
        """One paragraph: what must be true, what was expected and seen and where, and the usual cause."""
        if self.passed:
            return self.says
        return " ".join(sentence for sentence in [self.says, *self.details()] if sentence)

    @property
    def reached(self) -> bool:
        """Whether its case came so far that there was something to see."""
        return self.seen != STOPPED

    def details(self) -> list[str]:
        """The sentences that explain a failure."""
        if self.passed:
            return []
        where = f" on rank {self.rank}" if self.rank is not None else ""
        parts = [("Expected: ", self.expected), (f"Seen{where}: ", self.seen)]
        parts += [("In: ", self.case), ("Usual cause: ", self.usual_cause)]
        return [label + text.rstrip(".") + "." for label, text in parts if text]


@dataclass(frozen=True)
class Stop:
    """What ended a case before there was anything to compare: an error of the first rank that met one, with
    the student's line; a deadlock; a job that ran out of time or memory.
    """

    text: str
    case: str


@dataclass
class Report:
    """An exercise's properties and its verdict ("passed", "failed", "deadlock", "timeout", "not_attempted",
    ...). Each error is told once, in `stops`; the rows it stopped say that they were not reached.
    """

    exercise: str
    title: str
    rows: list[PropertyResult]
    verdict: str
    notes: list[str] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)  # the exercise's `measures`, of all who passed

    @property
    def points(self) -> float:
        """Points earned."""
        return sum(row.points for row in self.rows)

    @property
    def max_points(self) -> float:
        """Points that could be earned."""
        return sum(row.max_points for row in self.rows)

    @property
    def passed(self) -> bool:
        """Whether every property held."""
        return self.verdict == "passed"

    def row(self, name: str) -> PropertyResult:
        """The row of the property called `name`; KeyError names the ones there are."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{self.exercise} has no property {name!r}; it has {[r.name for r in self.rows]}")

    def to_json(self) -> dict[str, Any]:
        """{"points", "max_points", "verdict", "stops": [{"text", "case"}], "properties": [{"name", "passed",
        "points", "max_points", "message"}]}
        """
        rows = [asdict(row) | {"message": row.message} for row in self.rows]
        return {
            "points": self.points,
            "max_points": self.max_points,
            "verdict": self.verdict,
            "stops": [asdict(stop) for stop in self.stops],
            "properties": rows,
            "notes": self.notes,
            "measured": self.measured,
        }

    def __repr__(self) -> str:
        lines = [f"{self.exercise}: {self.points:g} of {self.max_points:g} points ({self.verdict})"]
        lines += [f"  stopped in {stop.case}: {stop.text}" for stop in self.stops]
        for row in self.rows:
            lines.append(
                f"  {'+' if row.passed else '-'} {row.name:<24} {row.points:g}/{row.max_points:g}  {row.says}"
            )
            lines += [f"      {sentence}" for sentence in row.details()]
        lines += [f"  {name}: {value:g}" for name, value in self.measured.items()]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, warning: str = "") -> str:
        """The properties as a table, under a warning where there is one."""
        return render("report", report=self, warning=warning)
