"""What an instructor reads after grading: where points are lost, and one student's story."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import category, normalize

from autograder.grade.records import Record
from autograder.gradebook.named import write_named
from labkit.checks.report import Report, Stop
from labkit.show.style import GREY, PALE, VERMILION

_ENDS_A_CELL = re.compile(r"(?<=[;|\t\r\n])")
BELOW = "\n        | "  # in front of each line of a text after its first


@dataclass(frozen=True)
class PropertyCount:
    """How many of the graded submissions tried and lost one property's points, and how many did not try.

    graded: submissions with a grade for it, whatever it is.
    """

    exercise: str
    name: str
    points: float
    lost: int
    open: int
    graded: int

    @property
    def share(self) -> float:
        """The share of the graded that tried and lost it, 0 to 1."""
        return self.lost / self.graded if self.graded else 0.0

    @property
    def open_share(self) -> float:
        """The share of the graded that did not attempt the exercise, 0 to 1."""
        return self.open / self.graded if self.graded else 0.0


@dataclass(frozen=True)
class Score:
    """A student's points for a lesson as the gradebook has them: a person's changes and late penalties
    included.

    score: with the penalty taken off, as in nbgrader's export. complete: nothing is waiting to be graded.
    """

    student: str
    score: float
    max_score: float
    complete: bool
    late_penalty: float = 0.0

    @property
    def before_penalty(self) -> float:
        """The points that lateness had no part in."""
        return self.score + self.late_penalty

    @property
    def text(self) -> str:
        """The points; nothing while some wait to be graded."""
        return f"{self.score:g}" if self.complete else ""


def lost_points(records: Iterable[Record]) -> list[PropertyCount]:
    """For every property, in the lesson's order, how often its points were lost."""
    lost: Counter[tuple[str, str]] = Counter()
    open_: Counter[tuple[str, str]] = Counter()
    graded: Counter[tuple[str, str]] = Counter()
    points: dict[tuple[str, str], float] = {}
    for record in records:
        for name, found in record.graded.items():
            for row in found.report.rows if name not in record.ungraded else []:
                key = (name, row.name)
                points[key] = row.max_points
                graded[key] += 1
                tried = found.report.verdict != "not_attempted"
                lost[key] += tried and not row.passed
                open_[key] += not tried
    return [PropertyCount(*key, points[key], lost[key], open_[key], graded[key]) for key in points]


def plain(text: str) -> str:
    """A text of which no spreadsheet takes anything for a formula. Some take ＝ for =, and pass over what
    cannot be seen. Where another character than the comma separates cells, one begins in the middle of a
    text, also of one in quotes, unless that is the first of its line; where it does not, a tab or a line end
    at the beginning hides none.
    """
    parts = [f"'{part}" if _is_formula(part) else part for part in _ENDS_A_CELL.split(text)]
    hidden = text[:1] in ("\t", "\r", "\n") and "".join(parts) != text
    return "".join(["'" * hidden, *parts])


def _is_formula(text: str) -> bool:
    begins = next((c for c in text if c != '"' and not c.isspace() and category(c) not in ("Cc", "Cf")), "")
    return normalize("NFKC", begins)[:1] in ("=", "+", "-", "@")


def in_one(text: str) -> str:
    """A text that students may have had a hand in as one entry of a report: what follows its first line is
    set off, so that it passes for none of the report's own lines.
    """
    return BELOW.join(text.splitlines())


def told(report: Report) -> str:
    """An exercise's table, each text of it as one entry."""
    rows = [
        replace(row, expected=in_one(row.expected), seen=in_one(row.seen), case=in_one(row.case))
        for row in report.rows
    ]
    stops = [Stop(in_one(stop.text), in_one(stop.case)) for stop in report.stops]
    return repr(replace(report, rows=rows, stops=stops, notes=list(map(in_one, report.notes))))


def explain(record: Record, doubts: Sequence[str] = ()) -> str:
    """Everything known about one submission: tables, flags, seed. doubts: see `doubts.doubts_about`."""
    notebook = in_one(record.notebook)
    lines = [f"{record.student}: {record.points:g} of {record.max_points:g} points for {notebook}"]
    lines.append(f"seed {record.seed}, sandbox {record.sandbox}, graded {record.graded_at}")
    lines += [in_one(record.problem)] if record.problem else []
    lines += [f"in doubt: {in_one(doubt)}" for doubt in doubts]
    lines += [f"note: {in_one(note)}" for note in record.notes]
    for name, graded in record.graded.items():
        lines += ["", told(graded.report)]
        lines += [f"  to be looked at: {in_one(str(flag))}" for flag in graded.flags]
        lines.append(f"  {name} took {graded.seconds:.1f} s")
    return "\n".join(lines)


def draw_lost_points(records: Sequence[Record], path: Path) -> None:
    """Draw where students lose points: one bar a property, how many lost it, and how many did not try."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = lost_points(records)
    figure = Figure(figsize=(8, 1.1 + 0.26 * len(counts)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels = [f"{c.exercise.split('.')[1]} · {c.name} ({c.points:g})" for c in counts]
    places, wrong = range(len(counts)), [100 * c.share for c in counts]
    axes.barh(places, wrong, color=VERMILION, label="tried, and lost the points")
    left_open = [100 * c.open_share for c in counts]
    axes.barh(places, left_open, left=wrong, color=PALE, hatch="//", edgecolor=GREY, label="not attempted")
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"students, % of {len(records)}")
    axes.set_title("Where points are lost", loc="left")
    axes.legend(loc="upper right", bbox_to_anchor=(1, 1.0), fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower().removeprefix("."), dpi=120)
    write_named(path, drawn.getvalue())
