"""What of a request goes into the sandbox, and what a fault in judging an answer costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autograder.grade import harness
from autograder.grade.harness import Harness, _what_it_uses
from autograder.grade.reference import graded_submission, stub_cells
from autograder.sandbox.unconfined import Unconfined
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.files import RunRequest

MLP = registry.exercise("06.tensor-parallel-mlp")
VALUES, OWN = Case("values", 2), Case("own", 2, own_parts=True)


def request(*cases: Case) -> RunRequest:
    submission, own_parts = graded_submission(stub_cells("06"), MLP)
    assert submission.reference_sources
    return RunRequest(MLP.id, list(cases), submission, own_parts, 2, 10.0)


def test_a_job_with_the_students_own_parts_has_nothing_of_the_reference() -> None:
    goes_in = _what_it_uses(request(OWN, replace(OWN, name="another")))
    assert goes_in.submission == goes_in.own_parts == request(OWN).own_parts
    assert goes_in.own_parts.reference == []
    assert goes_in.own_parts.reference_sources == {}


def test_any_other_has_what_stands_in() -> None:
    goes_in = _what_it_uses(request(VALUES))
    assert goes_in.submission == goes_in.own_parts == request(VALUES).submission


def test_both_in_one_job_are_refused() -> None:
    with pytest.raises(ValueError, match="cases with the student's own parts and cases without"):
        _what_it_uses(request(VALUES, OWN))


@pytest.mark.parametrize("fault", [MemoryError(), OverflowError("too large"), RecursionError("deep")])
def test_a_fault_in_judging_is_told_and_no_zero(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def judging(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(harness, "judge_exercise", judging)
    with Harness(Unconfined()) as at_work:
        found = at_work.grade(MLP, stub_cells("06"), 1, [VALUES]).report
    assert found.verdict == "could_not_be_graded"
    assert f"a fault of the grader, please report it: {type(fault).__name__}" in found.notes[0]
    assert "test_what_goes_in.py, line" in found.notes[0]
