"""What of a report may reach a student: their own lines and numbers, not the reference's source nor
unseen inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autograder.grade.reference import LABEL, distinctive_lines
from labkit.checks.exercise import Exercise
from labkit.checks.report import Report
from labkit.checks.source.submission import Submission

LONGEST = 1500  # of a text from a job in which there was nothing of the grader's
LONGEST_BESIDE_OURS = 300  # of one that student code may have filled with the reference, or an unseen case
LONGEST_TOGETHER = 900  # of all such texts of one exercise that differ
LONGEST_WORD = 64  # a longer one is no word: what is packed or encoded has such
UNSEEN = "an unseen case"


def for_the_student(report: Report, exercise: Exercise, submission: Submission) -> Report:
    """The report with its texts cut to what may be shown."""
    texts = [submission.sources[cell] for cell in {s.cell for s in submission.statements}]
    own = {line.strip() for text in texts for line in text.splitlines()}
    secret = distinctive_lines(exercise) - own
<<<<<<< HEAD
    return replace(
        report,
        rows=[replace(row, seen=_clean(row.seen, row.case, secret)) for row in report.rows],
        stops=[replace(stop, text=_clean(stop.text, stop.case, secret)) for stop in report.stops],
    )


def _clean(text: str, case: str, secret: set[str]) -> str:
    """A text about a case, without what must not be shown."""
    longest = LONGEST_UNSEEN if case.startswith(UNSEEN) else LONGEST
    return shorten(without_reference(without_harness(text), secret), longest)
=======
    rows = [_clean(row, secret, bool(exercise.builds_on)) for row in report.rows]
    return replace(
        report, rows=list(_limited(rows)), notes=[in_words(shorten(n, LONGEST)) for n in report.notes]
    )


def _clean(row: PropertyResult, secret: set[str], beside_reference: bool) -> PropertyResult:
    ours = beside_reference or row.case.startswith(UNSEEN)
    text = in_words(without_reference(without_harness(row.seen), secret))
    return replace(row, seen=shorten(text, LONGEST_BESIDE_OURS if ours else LONGEST))


def _limited(rows: Sequence[PropertyResult]) -> Iterator[PropertyResult]:
    """Rows whose texts are no more than so much together; a text that was shown already counts no more."""
    left, shown = LONGEST_TOGETHER, set[str]()
    for row in rows:
        if len(row.seen) <= LONGEST_BESIDE_OURS and row.seen not in shown:
            row = replace(row, seen=shorten(row.seen, max(left, 40)))
            left -= len(row.seen)
            shown.add(row.seen)
        yield row


def in_words(text: str) -> str:
    """The text without long runs that have no space, and without what is not to be printed."""
    printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return re.sub(rf"\S{{{LONGEST_WORD},}}", "(...)", printable)
>>>>>>> 9057209 (Texts, answers and flags fail closed; attacks past the network)


def without_reference(text: str, secret: set[str]) -> str:
    """The text without lines, or parts of lines, that quote the reference, forwards or backwards."""
    parts = {LABEL, LABEL[::-1], *secret, *(part[::-1] for part in secret)}
    return "\n".join(line for line in text.splitlines() if not any(part in line for part in parts))


def without_harness(text: str) -> str:
    """A traceback without the harness's own frames."""
    return re.sub(r"^ *\S*/grader/\S+\.py.*\n?(?:    .*\n?)?", "", text, flags=re.MULTILINE)


def shorten(text: str, most: int) -> str:
    """Both ends of a text that is too long: a message begins with what, and ends with where."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"
