"""What comes out in a text: words of the student's own run, and little where there was anything of ours."""

from __future__ import annotations

import base64
import re
import zlib

import pytest

from autograder.grade.feedback import (
    LONGEST_BESIDE_OURS,
    LONGEST_TOGETHER,
    SHORTEST,
    for_the_student,
)
from autograder.grade.reference import distinctive_lines, graded_submission, solved_cells
from labkit.checks import registry
from labkit.checks.report import PropertyResult, Report, Stop

EXERCISE = registry.exercise("06.tensor-parallel-mlp")
SUBMISSION = graded_submission(solved_cells("06"), EXERCISE)[0]
OWN = {line.strip() for text in SUBMISSION.sources.values() for line in text.splitlines()}
SECRET = "\n".join(sorted(distinctive_lines(EXERCISE) - OWN))
PACKED = {
    "plain": SECRET,
    "backwards": SECRET[::-1],
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "hex": SECRET.encode().hex(),
    "zlib and base85": base64.b85encode(zlib.compress(SECRET.encode())).decode(),
}


def shown(*texts: str, case: str = "a case, 2 ranks") -> list[str]:
    """What a student reads of texts that their code made."""
    rows = [
        PropertyResult(f"row {n}", "numbers", 0, 1, False, "", seen=text, case=case)
        for n, text in enumerate(texts)
    ]
    return [
        row.seen for row in for_the_student(Report(EXERCISE.id, "", rows, "error"), EXERCISE, SUBMISSION).rows
    ]


@pytest.mark.parametrize("way", PACKED)
def test_the_reference_does_not_come_out(way: str) -> None:
    assert SECRET, "there is something to keep"
    told = shown(f"ValueError: {PACKED[way]} (cell 1, line 2)")[0]
    assert len(told) <= LONGEST_BESIDE_OURS + 10
    assert not [n for n in range(0, len(PACKED[way]) - 30, 10) if PACKED[way][n : n + 30] in told]


def test_many_texts_together_are_no_more_than_a_few() -> None:
    told = shown(*(f"{n} " + "word " * 100 for n in range(20)))
    assert sum(map(len, told)) <= LONGEST_TOGETHER + 20 * (SHORTEST + 10)


@pytest.mark.parametrize("cell", ["cell 3", "cell In [12]"])
def test_an_error_in_an_unseen_case_names_the_cell(cell: str) -> None:
    own = next(line for line in sorted(OWN) if re.search(r"\d", line))
    told = f"rank 1 (and on 1 more): NameError: x is set in {cell}, line 4"
    stop = Stop(f"{told} ({cell}, line 7: {own})", "an unseen case on 2 ranks")
    report = for_the_student(Report(EXERCISE.id, "", [], "error", stops=[stop]), EXERCISE, SUBMISSION)
    assert report.stops[0].text == stop.text


def test_an_error_in_an_unseen_case_tells_no_sizes() -> None:
    """Torch's messages have them; ranks, cells, lines and the student's own source are no secret."""
    own = next(line for line in sorted(OWN) if "return" in line)
    where = f"(cell 12, line 7: {own})"
    error = "rank 0 (and on 3 more): RuntimeError: mat1 (3x5) and [64, 7] of float32, 1.5e-3"
    stops = [Stop(f"{error} {where}", case) for case in ("an unseen case on 2 ranks", "a case, 2 ranks")]
    report = Report(EXERCISE.id, "", [], "error", stops=stops)
    hidden, visible = for_the_student(report, EXERCISE, SUBMISSION).stops
    told = "rank 0 (and on 3 more): RuntimeError: mat1 (…) and […, …] of float32, …-…"
    assert hidden.text == f"{told} {where}"
    assert visible.text == f"{error} {where}"
    forged = Stop("ValueError: no (cell 1, line 2: 3 by 5)", "an unseen case on 2 ranks")
    shown_of = for_the_student(Report(EXERCISE.id, "", [], "error", stops=[forged]), EXERCISE, SUBMISSION)
    assert shown_of.stops[0].text == "ValueError: no (cell 1, line 2: … by …)"


def test_an_honest_error_is_shown_whole_for_every_property() -> None:
    error = (
        "rank 0 (and on 3 more): RuntimeError: mat1 and mat2 shapes cannot be multiplied (cell 12, line 7)"
    )
    assert shown(error, error, error) == [error] * 3
