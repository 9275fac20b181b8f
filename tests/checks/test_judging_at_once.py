"""Submissions are graded in threads, and a judge may draw what it expects from torch's default generator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.files import RunRequest, mark_begun, write_answer
from labkit.checks.jobs import JobFailure
from labkit.checks.judge import judge_exercise
from labkit.checks.report import Report
from labkit.checks.source.submission import Submission

SEED, LONG_ENOUGH = 3, 0.1  # seconds between seed and draw, in which every other thread comes to its own seed
DRAWN = torch.rand(4, generator=torch.Generator().manual_seed(SEED))


def _as_drawn(evidence: Evidence) -> Iterator[Finding]:
    torch.manual_seed(SEED)
    time.sleep(LONG_ENOUGH)
    yield Finding(torch.equal(torch.rand(4), evidence.answers[0].tensors["drawn"]), "the same", "others")


EXERCISE = Exercise(
    "90.drawn",
    "Drawn",
    ("drawn",),
    {"values": Run(lambda rank: None)},
    lambda seed: [Case("one rank", 1, kind="values")],
    (Property("drawn", "numbers", 1, "The numbers of the seed.", "", {"values": _as_drawn}),),
)


def _answered(directory: Path, asked: RunRequest) -> JobFailure | None:
    mark_begun(directory, 0, 0)
    write_answer(directory, 0, 0, RankAnswer(0, {"drawn": DRAWN}, {}, {}, {}), None)
    return None


def _judged(_: int) -> Report:
    submission = Submission([])
    return judge_exercise(EXERCISE, EXERCISE.cases(1), submission, submission, _answered)


def test_threads_do_not_draw_each_others_numbers() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert [report.points for report in pool.map(_judged, range(4))] == [1] * 4
