"""What a check found, as a table a student reads and as data a gradebook takes."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

CSS = """
.labkit-report.labkit-report {border-collapse: collapse; table-layout: auto; width: 100%; max-width: 60em;
  font-size: 90%; margin: .4em 0}
.labkit-report.labkit-report td {text-align: left; vertical-align: top; padding: .35em .6em;
  border-top: 1px solid rgba(128,128,128,.35); white-space: normal}
.labkit-report caption {text-align: left; font-weight: 600; padding: .3em .6em}
.labkit-report .mark {width: 1.5em; font-weight: 700}
.labkit-report .passed .mark {color: #1a8fd1} .labkit-report .failed .mark {color: #d55e00}
.labkit-report .open .mark {opacity: .5}
.labkit-report.labkit-report .points {white-space: nowrap; text-align: right}
.labkit-report .why {display: block; opacity: .85}
"""


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

    def details(self) -> list[str]:
        """The sentences that explain a failure."""
        if self.passed:
            return []
        where = f" on rank {self.rank}" if self.rank is not None else ""
        parts = [("Expected: ", self.expected), (f"Seen{where}: ", self.seen)]
        parts += [("In: ", self.case), ("Usual cause: ", self.usual_cause)]
        return [label + text.rstrip(".") + "." for label, text in parts if text]


@dataclass
class Report:
    """An exercise's properties and its verdict ("passed", "failed", "deadlock", "timeout", "not_attempted",
    ...).
    """

    exercise: str
    title: str
    rows: list[PropertyResult]
    verdict: str
    notes: list[str] = field(default_factory=list)

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
        """{"points", "max_points", "verdict", "properties": [{"name", "passed", "points", "max_points",
        "message"}]}
        """
        rows = [asdict(row) | {"message": row.message} for row in self.rows]
        return {
            "points": self.points,
            "max_points": self.max_points,
            "verdict": self.verdict,
            "properties": rows,
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        lines = [f"{self.exercise}: {self.points:g} of {self.max_points:g} points ({self.verdict})"]
        for row in self.rows:
            lines.append(
                f"  {'+' if row.passed else '-'} {row.name:<24} {row.points:g}/{row.max_points:g}  {row.says}"
            )
            lines += [f"      {sentence}" for sentence in row.details()]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def _repr_html_(self) -> str:
        return f"<style>{CSS}</style>{self.table()}"

    def table(self) -> str:
        """The table alone, for a page that has the style already."""
        points = f"{self.points:g} of {self.max_points:g} points"
        caption = f"{self.exercise} · {points} · {self.verdict.replace('_', ' ')}"
        attempted = self.verdict != "not_attempted"
        rows = "".join(_html_row(row) if attempted else _open_row(row) for row in self.rows)
        said = self.notes if attempted or not self.rows else [f"Seen: {self.rows[0].seen}.", *self.notes]
        notes = "".join(f"<p>{_html(note)}</p>" for note in said)
        return f'<table class="labkit-report"><caption>{escape(caption)}</caption>{rows}</table>{notes}'


def _html(text: str) -> str:
    """A sentence of ours, with `names` set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _html_row(row: PropertyResult) -> str:
    why = "".join(f'<span class="why">{_html(sentence)}</span>' for sentence in row.details())
    return (
        f'<tr class="{"passed" if row.passed else "failed"}">'
        f'<td class="mark" title="{"passed" if row.passed else "failed"}">{"✓" if row.passed else "✗"}</td>'
        f"<td><b>{escape(row.name)}</b><br><small>{escape(row.kind)}</small></td>"
        f"<td>{_html(row.says)}{why}</td>"
        f'<td class="points">{row.points:g} / {row.max_points:g}</td></tr>'
    )


def _open_row(row: PropertyResult) -> str:
    """A property of an exercise that was not begun: what will be asked, and neither a cross nor a cause."""
    return (
        '<tr class="open"><td class="mark" title="not attempted">–</td>'
        f"<td><b>{escape(row.name)}</b><br><small>{escape(row.kind)}</small></td>"
        f'<td>{_html(row.says)}</td><td class="points">{row.points:g} / {row.max_points:g}</td></tr>'
    )
