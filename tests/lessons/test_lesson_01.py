"""Lesson 01's checks: the reference passes whatever is drawn, wrong answers and borrowed ones do not.

The exercises do not communicate, so their cases run here in this process, on a group of one rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist

import labkit.checks
from autograder.grade.reference import all_cases, graded_submission, hidden_cases, solved_cells, stub_cells
from autograder.lessons.lesson_01.unseen import recorded
from autograder.selftest.wrong_answers import WrongAnswer, wrong_answers
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.files import RunRequest, read_request, write_answer
from labkit.checks.forbidden import forbidding
from labkit.checks.jobs import JobFailure
from labkit.checks.judge import judge_exercise
from labkit.checks.rank import Rank, load_student, student_error
from labkit.checks.report import Report
from labkit.checks.source.submission import Cell

EXERCISES = registry.exercises("01")
BY_ID = {exercise.id: exercise for exercise in EXERCISES}

VISIBLE = Path(labkit.checks.__path__[0]) / "lesson_01" / "visible.json"


@pytest.fixture(scope="module", autouse=True)
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run_here(directory: Path, request: RunRequest) -> JobFailure | None:
    """What a job's only rank does, here."""
    read, inputs = read_request(directory, 0)
    exercise = registry.exercise(read.exercise)
    for index, case in enumerate(read.cases):
        unused: Any = None  # nothing is recorded, so there is no recorder
        rank = Rank(case, inputs[case.name], ModuleType("nothing"), dist.group.WORLD, unused)
        error = None
        try:
            with forbidding(exercise.forbids):
                rank.student = load_student(read.own_parts if case.own_parts else read.submission)
                exercise.run_of(case).on_rank(rank)
        except Exception as failed:
            error = student_error(failed)
        write_answer(directory, index, 0, rank.result, error)
    return None


def graded(exercise: Exercise, cells: list[Cell], cases: list[Case]) -> Report:
    submission, own = graded_submission(cells, exercise)
    return judge_exercise(exercise, cases, submission, own, run_here)


def with_cell(exercise: Exercise, change: str | WrongAnswer) -> list[Cell]:
    """The solved notebook with one exercise's cell replaced, or changed by a wrong answer."""

    def changed(cell: Cell) -> Cell:
        if cell.exercise != exercise.id:
            return cell
        return replace(cell, source=change if isinstance(change, str) else change.apply(cell.source))

    return [changed(cell) for cell in solved_cells("01")]


@pytest.mark.days
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)
def test_the_reference_passes_whatever_is_drawn(exercise: Exercise) -> None:
    drawn = [case for seed in range(50) for case in hidden_cases(exercise, seed)]
    cases = [*exercise.cases(1), *drawn]
    named = [replace(case, name=f"{case.name} {i}") for i, case in enumerate(cases)]
    report = graded(exercise, list(solved_cells("01")), named)
    assert report.passed, report


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)
def test_the_stub_earns_nothing(exercise: Exercise) -> None:
    report = graded(exercise, list(stub_cells("01")), all_cases(exercise, 3))
    assert (report.points, report.verdict) == (0, "not_attempted")


@pytest.mark.parametrize("seen", ["visible", "unseen"])
@pytest.mark.parametrize("answer", wrong_answers("01"), ids=lambda m: m.id)
def test_a_wrong_answer_loses_its_points(answer: WrongAnswer, seen: str) -> None:
    """By the visible cases alone, so that practice tells; and by the unseen ones alone."""
    exercise = BY_ID[answer.exercise]
    cases = [case for case in all_cases(exercise, 5) if case.hidden == (seen == "unseen")]
    report = graded(exercise, with_cell(exercise, answer), cases)
    escaped = [name for name in answer.breaks if report.row(name).passed]
    assert not escaped, report


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)
def test_no_answer_reaches_the_ranks(exercise: Exercise) -> None:
    """What is sent to where student code runs has no expected value in it."""
    submission, own = graded_submission(list(solved_cells("01")), exercise)
    for case in all_cases(exercise, 2):
        request = RunRequest(exercise.id, [case], submission, own, 1, 10.0)
        sent = RunRequest.from_json(json.loads(json.dumps(request.to_json())))
        assert case.expected["values"]
        assert not sent.cases[0].expected


BORROWED = {
    "01.count-parameters": (
        "from labkit.theory import parameters\n"
        "def count_parameters(config):\n    return parameters.count_parameters(config).total\n"
    ),
    "01.activation-bytes": (
        "from labkit.theory.activations import layer_activation_bytes as borrowed\n"
        "def activation_bytes(config, sequence, micro_batch, recompute='none', tensor_parallel=1,\n"
        "                     sequence_parallel=False, fused_attention=False):\n"
        "    return config.num_layers * borrowed(config, sequence, micro_batch, recompute, tensor_parallel,\n"
        "                     sequence_parallel, 'fused' if fused_attention else 'explicit')\n"
    ),
    "01.train-step-flops": (
        "import labkit.theory\n"
        "def train_step_flops(*args, **kwargs):\n    return labkit.theory.train_step_flops(*args, **kwargs)\n"
    ),
}


def test_the_calculators_answer_is_refused_too() -> None:
    exercise = BY_ID["01.count-parameters"]
    source = (
        "from labkit.show import calculator\n"
        "def count_parameters(config):\n    return calculator.parameters.count_parameters(config).total\n"
    )
    assert "may not be called here" in str(graded(exercise, with_cell(exercise, source), exercise.cases(1)))


@pytest.mark.parametrize("exercise_id", BORROWED)
def test_the_librarys_own_answer_is_refused(exercise_id: str) -> None:
    exercise = BY_ID[exercise_id]
    report = graded(exercise, with_cell(exercise, BORROWED[exercise_id]), all_cases(exercise, 3))
    assert report.points == 0
    assert "may not be called here" in str(report)


def test_building_the_model_is_no_count() -> None:
    exercise = BY_ID["01.count-parameters"]
    source = (
        "import torch\nfrom labkit.model import Transformer\n"
        "def count_parameters(config):\n"
        "    with torch.device('meta'):\n        model = Transformer(config)\n"
        "    return sum(p.numel() for p in model.parameters())\n"
    )
    assert graded(exercise, with_cell(exercise, source), exercise.cases(1)).points == 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("None", "expected a number, found None"),
        ("'many'", "expected a number, found 'many'"),
        ("float('nan')", "nan"),
        ("float('inf')", "inf"),
        ("True", "expected a number, found True"),
        ("{'gpt': 5}", "a dict instead of a number"),
        ("10**5000", "found one of 16610 bits"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_strange_answers_are_told_and_earn_nothing(value: str, told: str) -> None:
    exercise = BY_ID["01.count-parameters"]
    report = graded(
        exercise,
        with_cell(exercise, f"def count_parameters(config):\n    return {value}\n"),
        exercise.cases(1),
    )
    assert report.points == 0
    assert told in str(report)


@pytest.mark.parametrize("value", ["float('inf')", "-1", "None", "{}"])
def test_an_answer_where_an_error_was_due_earns_nothing(value: str) -> None:
    exercise = BY_ID["01.global-batch-size"]
    source = f"def global_batch_size(**_):\n    return 1\ndef accumulation_steps(**_):\n    return {value}\n"
    assert graded(exercise, with_cell(exercise, source), exercise.cases(1)).points == 0


def test_a_failure_says_what_was_asked_and_how_far_off_it_was() -> None:
    exercise = BY_ID["01.count-parameters"]
    source = "def count_parameters(config):\n    return 12 * config.num_layers * config.hidden**2\n"
    row = graded(exercise, with_cell(exercise, source), exercise.cases(1)).row("llama")
    assert row.expected == "count_parameters(config=Llama 3 8B) = 8,030,261,248"
    assert row.seen == "6,442,450,944 instead of 8,030,261,248, 0.8023 times as much"
    assert "12h^2 a layer" in row.usual_cause


def test_tensors_and_numpy_numbers_are_numbers_too() -> None:
    exercise = BY_ID["01.global-batch-size"]
    source = (
        "import numpy, torch\n"
        "def global_batch_size(micro_batch, accumulation, data_parallel):\n"
        "    return torch.tensor(micro_batch * accumulation * data_parallel)\n"
        "def accumulation_steps(tokens_per_step, sequence, micro_batch, data_parallel):\n"
        "    if tokens_per_step % (sequence * micro_batch * data_parallel):\n        raise ValueError\n"
        "    return numpy.int64(tokens_per_step // (sequence * micro_batch * data_parallel))\n"
    )
    assert graded(exercise, with_cell(exercise, source), exercise.cases(1)).passed


def test_the_recorded_cases_are_up_to_date() -> None:
    """`python -m autograder.lessons.lesson_01.unseen` writes them."""
    kept = json.loads(VISIBLE.read_text(encoding="utf-8"))
    assert kept == json.loads(json.dumps(recorded()))


def test_a_peak_rounded_either_way_is_right() -> None:
    """989.4 TFLOP/s, as half of the sparse 1,979 gives 989.5: to three digits one is 989, the other 990."""
    exercise = registry.exercise("01.slide-mistakes")
    peaks = dict.fromkeys((989, 989.4, 989.5, 990), True) | dict.fromkeys((1979, 985, 995), False)
    for peak, right in peaks.items():
        source = next(c.source for c in solved_cells("01") if c.exercise == exercise.id)
        cells = with_cell(exercise, source.replace("989", str(peak)))
        report = graded(exercise, cells, exercise.cases(1))
        assert report.row("rates").passed == right, (peak, report)


def test_the_slides_answers_are_not_to_be_read() -> None:
    text = VISIBLE.read_text(encoding="utf-8")
    slides = json.dumps(json.loads(text)["01.slide-mistakes"])
    assert not any(answer in slides for answer in ("1120", "651.9", "3776", "989"))
