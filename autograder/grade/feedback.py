"""What of a report may reach a student: their own lines and numbers, not the reference's source nor
unseen inputs.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from autograder.grade.reference import LABEL, distinctive_lines
from labkit.checks.exercise import Exercise
from labkit.checks.report import Report, Stop
from labkit.checks.source.submission import Submission

LONGEST = 1500  # of a text from a job in which there was nothing of the grader's
LONGEST_BESIDE_OURS = 300  # of one that student code may have filled with the reference, or an unseen case
LONGEST_TOGETHER = 900  # of all such texts of one exercise that differ
SHORTEST = 40  # what is left of any text
LONGEST_WORD = 64  # a longer one is no word: what is packed or encoded has such
MOST_SCRAPS = 24  # words of one or two characters in a row: what is encoded and spaced out has more
UNSEEN = "an unseen case"
_CELL = r"cell (?:In \[\d+\]|\d+)"  # as a cell is called that was run, or by its place
# Numbers that tell nothing of a case.
_PLACES = rf"\b(?:{_CELL}|(?:ranks?|line|on) \d+(?:(?:, | and |–|:)\d+)*)"
_NUMBER = re.compile(rf"(?P<place>{_PLACES})|\b\d[\w.]*")
_OWN_LINE = re.compile(rf"(?P<text>.*)(?P<where> \({_CELL}, line \d+: (?P<source>.*)\))", re.DOTALL)


def for_the_student(report: Report, exercise: Exercise, submission: Submission) -> Report:
    """The report with its texts cut to what may be shown, and what was measured as far as it is a number."""
    texts = [submission.sources[cell] for cell in {s.cell for s in submission.statements}]
    own = {line.strip() for text in texts for line in text.splitlines()}
    secret = distinctive_lines(exercise) - own
    cut = _Cut(secret, bool(exercise.builds_on))
    return replace(
        report,
        rows=[replace(row, seen=cut(row.seen, row.case)) for row in report.rows],
        stops=[replace(stop, text=cut(_stop(stop, own), stop.case)) for stop in report.stops],
        measured={name: value for name, value in report.measured.items() if math.isfinite(value)},
    )


def _stop(stop: Stop, own: set[str]) -> str:
    """What stopped a case; of an unseen one without its sizes."""
    return without_sizes(stop.text, own) if stop.case.startswith(UNSEEN) else stop.text


def without_sizes(text: str, own: set[str]) -> str:
    """An error's text without the numbers in it, such as the shapes that torch tells; `own` lines stay."""
    found = _OWN_LINE.fullmatch(text)
    where = found["where"] if found is not None and found["source"].strip() in own else ""
    return _NUMBER.sub(lambda number: number["place"] or "…", text.removesuffix(where)) + where


class _Cut:
    """Cuts the texts of one exercise to what may be shown, and to so much together."""

    def __init__(self, secret: set[str], beside_reference: bool) -> None:
        self._secret, self._beside_reference = secret, beside_reference
        self._left, self._shown = LONGEST_TOGETHER, set[str]()

    def __call__(self, text: str, case: str) -> str:
        """A text about a case, without what must not be shown. One that was shown already counts no more."""
        text = in_words(without_reference(without_harness(text), self._secret))
        if not self._beside_reference and not case.startswith(UNSEEN):
            return shorten(text, LONGEST)
        text = shorten(text, LONGEST_BESIDE_OURS)
        if text not in self._shown:
            text = shorten(text, max(self._left, SHORTEST))
            self._left -= len(text)
            self._shown.add(text)
        return text


def in_words(text: str) -> str:
    """The text without what could encode data rather than be read: long runs without a space, many scraps
    of one or two characters in a row, and unprintable characters.
    """
    printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    shorter = re.sub(rf"\S{{{LONGEST_WORD},}}", "(...)", printable)
    return re.sub(rf"(?:\S{{1,2}}\s+){{{MOST_SCRAPS},}}", "(...) ", shorter)


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
