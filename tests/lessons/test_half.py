"""Who does not do what an exercise is about loses half of its points, however right the numbers are."""

from __future__ import annotations

import pytest
from lesson_grading import report_of

pytestmark = pytest.mark.days()


@pytest.mark.parametrize(
    ("lesson", "answer"),
    [
        ("00", "star"),
        ("02", "one-device"),
        ("03", "after-backward"),
        ("03", "one-large-batch"),
        ("04", "1f1b-is-gpipe"),
        ("04", "own-schedule"),
        ("05", "nothing-forgotten"),
    ],
)
def test_right_numbers_alone_are_half_an_answer(lesson: str, answer: str) -> None:
    report = report_of(lesson, answer)
    assert 0 < report.points <= report.max_points / 2, report
