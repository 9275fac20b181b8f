"""What an instructor reads after grading: a table, a CSV, where points are lost, and one student's story."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.grade.records import Record
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id


@dataclass(frozen=True)
class PropertyCount:
    """How many of the graded submissions lost one property's points."""

    exercise: str
    name: str
    points: float
    lost: int
    graded: int

    @property
    def share(self) -> float:
        return self.lost / self.graded if self.graded else 0.0


@dataclass(frozen=True)
class Score:
    """A student's points for a lesson as the gradebook has them: a person's changes and late penalties
    included.
    """

    student: str
    score: float
    max_score: float
    complete: bool  # nothing is waiting to be graded

    @property
    def text(self) -> str:
        return f"{self.score:g}" if self.complete else ""


def lost_points(records: Iterable[Record]) -> list[PropertyCount]:
    """For every property, in the lesson's order, how often its points were lost."""
    lost: Counter[tuple[str, str]] = Counter()
    graded: Counter[tuple[str, str]] = Counter()
    points: dict[tuple[str, str], float] = {}
    for record in records:
        for name, found in record.graded.items():
            for row in found.report.rows if name not in record.ungraded else []:
                key = (name, row.name)
                points[key] = row.max_points
                graded[key] += 1
                lost[key] += not row.passed
    return [PropertyCount(e, p, points[e, p], lost[e, p], graded[e, p]) for e, p in points]


def table(records: Sequence[Record]) -> str:
    """One line a student, then one line a property."""
    lines = [f"{'student':<24} {'points':>10}  verdicts"]
    for record in records:
        verdicts = ", ".join(f"{name.split('.')[1]}: {g.report.verdict}" for name, g in record.graded.items())
        marks = " FLAGGED" if record.flags else ""
        marks += " HELD BACK" if record.held else ""
        marks += " UNSAFE" if record.sandbox == "none" else ""
        lines.append(f"{record.student:<24} {record.points:>4g}/{record.max_points:<5g}  {verdicts}{marks}")
    lines += ["", f"{'exercise':<34} {'property':<24} {'lost by':>14}"]
    for count in lost_points(records):
        bar = "#" * round(20 * count.share)
        who = f"{count.lost} of {count.graded}"
        lines.append(f"{count.exercise:<34} {count.name:<24} {who:>14}  {bar}")
    return "\n".join(lines)


def as_csv(records: Sequence[Record], lesson: str) -> str:
    """One line a student: points of every property, sums, and what a person should know.

    A property without a value has no grade yet: its exercise is named under "ungraded", or itself under
    "held_back", which waits for a person.
    """
    exercises = registry.exercises(lesson)
    columns = [(e.id, p.name) for e in exercises for p in e.properties]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    waiting = ["ungraded", "held_back", "flags"]
    made = ["sandbox", "seed", "notebook", "graded_at"]
    writer.writerow(["student", "points", "max_points", *waiting, *made, *(grade_id(*c) for c in columns)])
    for r in records:
        open_questions = [" ".join(r.ungraded), " ".join(r.held), len(r.flags)]
        about = [
            f"{r.points:g}",
            f"{r.max_points:g}",
            *open_questions,
            r.sandbox,
            r.seed,
            plain(r.notebook),
            r.graded_at,
        ]
        writer.writerow([plain(r.student), *about, *(_points(r, e, p) for e, p in columns)])
    return out.getvalue()


def plain(text: str) -> str:
    """A text no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") else text


def _points(record: Record, exercise: str, name: str) -> float | str:
    found = record.graded.get(exercise)
    if found is None or exercise in record.ungraded or name in found.held:
        return ""
    return next((row.points for row in found.report.rows if row.name == name), "")


def explain(record: Record) -> str:
    """Everything known about one submission: tables, flags, seed."""
    lines = [f"{record.student}: {record.points:g} of {record.max_points:g} points for {record.notebook}"]
    lines.append(f"seed {record.seed}, sandbox {record.sandbox}, graded {record.graded_at}")
    lines += [record.problem] if record.problem else []
    lines += [f"note: {note}" for note in record.notes]
    for name, graded in record.graded.items():
        lines += ["", repr(graded.report)]
        lines += [f"  to be looked at: {flag}" for flag in graded.flags]
        lines.append(f"  {name} took {graded.seconds:.1f} s")
    return "\n".join(lines)


def histogram(records: Sequence[Record], path: Path) -> None:
    """Draw where students lose points: one bar a property, how many lost it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = lost_points(records)
    figure = Figure(figsize=(8, 0.8 + 0.26 * len(counts)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels = [f"{c.exercise.split('.')[1]} · {c.name} ({c.points:g})" for c in counts]
    axes.barh(range(len(counts)), [100 * c.share for c in counts], color="#d55e00")
    axes.set_yticks(range(len(counts)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"students who lost the property's points, % of {len(records)}")
    axes.set_title("Where points are lost", loc="left")
    figure.savefig(path, dpi=120)


def moodle_csv(scores: Sequence[Score], lesson: str) -> str:
    """For Moodle's grade import: match on ID number, one column with the sum. Ungraded work has no value."""
    return _written(["ID number", lesson], [[plain(s.student), s.text] for s in scores])


def canvas_csv(scores: Sequence[Score], lesson: str, canvas_ids: bool = False) -> str:
    """For Canvas's gradebook import: Student, ID, SIS ids, Section, the assignment; points possible first.

    canvas_ids: the students' ids are Canvas's own numbers, as in its zips, rather than the school's.
    """
    most = max((s.max_score for s in scores), default=0)
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", lesson]
    rows = [["Points Possible", "", "", "", "", f"{most:g}"]]
    for score in scores:
        name = plain(score.student)
        ids = [name, "", ""] if canvas_ids else ["", name, name]
        rows.append([name, *ids, "", score.text])
    return _written(head, rows)


def _written(head: list[str], rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()
