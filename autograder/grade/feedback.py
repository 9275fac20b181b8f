"""What of a report may reach a student: their own lines and numbers, not the reference's source nor
unseen inputs.
"""

from __future__ import annotations

import re
from dataclasses import replace

from autograder.grade.reference import LABEL, distinctive_lines
from labkit.checks.exercise import Exercise
from labkit.checks.report import Report
from labkit.checks.source.submission import Submission

LONGEST = 1500
LONGEST_UNSEEN = 300  # of a text that student code may have filled with an unseen case's inputs
UNSEEN = "an unseen case"


def for_the_student(report: Report, exercise: Exercise, submission: Submission) -> Report:
    """The report with its texts cut to what may be shown."""
    texts = [submission.sources[cell] for cell in {s.cell for s in submission.statements}]
    own = {line.strip() for text in texts for line in text.splitlines()}
    secret = distinctive_lines(exercise) - own
    return replace(
        report,
        rows=[replace(row, seen=_clean(row.seen, row.case, secret)) for row in report.rows],
        stops=[replace(stop, text=_clean(stop.text, stop.case, secret)) for stop in report.stops],
    )


def _clean(text: str, case: str, secret: set[str]) -> str:
    """A text about a case, without what must not be shown."""
    longest = LONGEST_UNSEEN if case.startswith(UNSEEN) else LONGEST
    return shorten(without_reference(without_harness(text), secret), longest)


def without_reference(text: str, secret: set[str]) -> str:
    """The text without lines, or parts of lines, that quote the reference."""
    kept = [
        line for line in text.splitlines() if LABEL not in line and not any(part in line for part in secret)
    ]
    return "\n".join(kept)


def without_harness(text: str) -> str:
    """A traceback without the harness's own frames."""
    return re.sub(r"^ *\S*/grader/inside\.py.*\n?(?:    .*\n?)?", "", text, flags=re.MULTILINE)


def shorten(text: str, most: int) -> str:
    """Both ends of a text that is too long: a message begins with what, and ends with where."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"
