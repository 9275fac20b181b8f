"""An error is told once, by the rank it began on; rows it stopped say so, and only wrong numbers have a
usual cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.checks.case import Case, RankAnswer, StudentError
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.files import RunRequest, mark_begun, write_answer
from labkit.checks.jobs import JobFailure
from labkit.checks.judge import NOT_REACHED, judge_exercise
from labkit.checks.report import STOPPED, Report
from labkit.checks.shared.beside import same
from labkit.checks.source.submission import Submission

CAUSE = "a sum was forgotten"
WRONG = StudentError("ValueError", "no such block", "cell 3, line 7: block = blocks[rank]")
GONE = StudentError("RuntimeError", "[pair.cc:534] Connection closed by peer [127.0.0.1]:40314", "")


def ones(name: str) -> Property:
    def judge(evidence: Evidence) -> Iterator[Finding]:
        return (same(f"{name}: ones", torch.ones(2), answer, name) for answer in evidence.answers)

    return Property(name, "numbers", 1, f"{name} is right.", CAUSE, {"values": judge})


EXERCISE = Exercise(
    "90.made",
    "Made",
    ("made",),
    {"values": Run(lambda rank: None)},
    lambda seed: [Case("two ranks", 2, kind="values"), Case("three ranks", 3, kind="values")],
    (ones("output"), ones("gradient")),
)


def judged(
    errors: dict[int, StudentError],
    failure: JobFailure | None = None,
    attempts: tuple[int, ...] = (),
    exercise: Exercise = EXERCISE,
) -> Report:
    """The report when ranks end every case with these errors; or those in `attempts` with WRONG in the
    gradient, after an output that is right.
    """

    def run_job(directory: Path, asked: RunRequest) -> JobFailure | None:
        for index in range(len(asked.cases)):
            for rank in range(asked.ranks):
                mark_begun(directory, index, rank)
                tensors = {"output": torch.ones(2)} if not errors else {}
                answer = RankAnswer(rank, tensors, {}, {}, {"gradient": WRONG} if rank in attempts else {})
                if failure is None:
                    write_answer(directory, index, rank, answer, errors.get(rank))
        return failure

    submission = Submission([])
    return judge_exercise(exercise, exercise.cases(1), submission, submission, run_job)


def test_an_error_is_told_once_and_rows_say_they_were_not_reached() -> None:
    report = judged({0: WRONG, 1: WRONG, 2: WRONG})
    assert [(stop.text, stop.case) for stop in report.stops] == [
        (f"rank 0 (and on 1 more): {WRONG}", "two ranks")
    ]
    assert [(row.seen, row.usual_cause) for row in report.rows] == [(STOPPED, "")] * 2
    assert repr(report).count("no such block") == report.html().count("no such block") == 1


def test_the_error_of_the_rank_that_began_it_stands_for_all() -> None:
    """Ranks 0 and 1 raise; what rank 0 has to tell is that rank 1 is gone."""
    assert judged({0: GONE, 1: WRONG}).stops[0].text == f"rank 1: {WRONG}"
    assert judged({0: GONE}).stops[0].text == f"rank 0: {GONE}"


def test_an_error_of_a_stubs_kind_that_torch_raises_is_told() -> None:
    """A class without `forward` is an attempt, and torch says what is missing; no line of it is a stub."""
    stub = StudentError(
        "NotImplementedError", "06.made: not written yet", "cell 3, line 7: raise NotImplementedError("
    )
    report = judged({0: stub, 1: stub})
    assert (report.verdict, report.stops) == ("not_attempted", [])
    assert report.rows[0].seen == "raise NotImplementedError is still in place (cell 3, line 7)"
    for where in ("", "cell 4, line 2: return layer(x)"):
        missing = StudentError(
            "NotImplementedError", 'Module [Made] is missing the required "forward"', where
        )
        report = judged({0: missing, 1: missing})
        assert (report.verdict, report.stops[0].text) == ("error", f"rank 0 (and on 1 more): {missing}")


def test_an_error_in_one_part_stops_what_needs_it() -> None:
    report = judged({}, attempts=(0, 1))
    assert [stop.text for stop in report.stops] == [f"rank 0 (and on 1 more): {WRONG}"]
    assert report.row("output").passed
    assert (report.row("gradient").seen, report.row("gradient").usual_cause) == (STOPPED, "")


def _with_traffic(*others: Property) -> Exercise:
    """With a property that cases of "values", which are about these others, are looked at for."""
    sends = ones("traffic")
    quiet = replace(sends, on={"quiet": sends.on["values"]}, also=sends.on)
    return replace(
        EXERCISE,
        runs=EXERCISE.runs | {"quiet": Run(lambda rank: None)},
        properties=(*others, quiet),
    )


def test_what_is_looked_at_in_cases_about_others_is_lost_where_these_hold() -> None:
    output, gradient = EXERCISE.properties
    report = judged({}, exercise=_with_traffic(output))
    assert (report.row("output").passed, report.row("traffic").seen) == (True, "nothing (None)")
    report = judged({}, exercise=_with_traffic(output, gradient))
    assert (report.row("gradient").seen, report.row("traffic").seen) == ("nothing (None)", NOT_REACHED)


def test_an_error_costs_nothing_that_is_only_looked_at_there() -> None:
    exercise = _with_traffic(*EXERCISE.properties)
    for errors, attempts in (({0: WRONG, 1: WRONG}, ()), ({}, (0, 1))):
        report = judged(errors, attempts=attempts, exercise=exercise)
        assert report.row("traffic").seen == NOT_REACHED
        assert not report.row("gradient").passed
    assert exercise.looked_at_in(exercise.cases(1)[0]) == ("output", "gradient", "traffic")
    assert exercise.shown_by(exercise.cases(1)[0]) == ("output", "gradient")


def test_what_is_looked_at_elsewhere_is_a_kind_that_another_property_is_about() -> None:
    for also in ({"nothing": EXERCISE.properties[0].on["values"]}, EXERCISE.properties[0].on):
        with pytest.raises(ValueError, match="kinds that other properties are about"):
            replace(EXERCISE, properties=(replace(EXERCISE.properties[0], also=also), EXERCISE.properties[1]))


def test_wrong_numbers_have_a_usual_cause() -> None:
    report = judged({})
    assert report.stops == []
    assert (report.row("gradient").seen, report.row("gradient").usual_cause) == ("nothing (None)", CAUSE)


@pytest.mark.parametrize("verdict", ["deadlock", "timeout", "killed"])
def test_lines_of_a_report_survive(verdict: str) -> None:
    waiting = "ranks wait:\n  rank 0 in all_reduce\n  rank 1 in broadcast"
    report = judged({}, JobFailure(verdict, waiting))
    assert [stop.text for stop in report.stops] == [waiting]
    assert f"<pre>{waiting}</pre>" in report.html()
    assert {row.usual_cause for row in report.rows} == {""}


def divides_by_what_came(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        yield Finding(1 / (answer.tensors["output"] - 1).sum().item() > 0, "a share", "another")


def test_numbers_that_a_judge_cannot_compute_with_cost_the_property_alone() -> None:
    """Weights that are all alike have no variance to divide by."""
    share = Property("share", "numbers", 1, "The share is right.", CAUSE, {"values": divides_by_what_came})
    exercise = replace(EXERCISE, properties=(ones("output"), share))
    report = judged({}, exercise=exercise)
    assert report.row("output").passed
    assert not report.row("share").passed
    assert "division" in report.row("share").seen
