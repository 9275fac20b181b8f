"""What may not be used is one list: a check refuses what grading refuses, in the same words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import IMPORTS, SEED

from autograder.grade.harness import Harness, hidden_files
from autograder.grade.reference import all_cases, solved_cells
from autograder.sandbox.choice import find_sandbox
from labkit.checks import registry
from labkit.checks.hidden import rules
from labkit.checks.practice import check_cells
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(200)]

CLIP, BYTES = registry.exercise("07.clip-grad-norm"), registry.exercise("07.activation-bytes")

# The function an exercise forbids, by a path that is not on its list; and a module that is not hidden, but
# takes names from one that is.
REFUSED = {
    "another path": (
        CLIP.id,
        "from torch.nn.utils.clip_grad import clip_grad_norm_ as given\n"
        "def clip_grad_norm(sharded, replicated, max_norm, group):\n"
        "    return given([*sharded, *replicated], max_norm)",
        "it may not be called here",
    ),
    "a module that took from a hidden one": (
        BYTES.id,
        "from labkit.theory.memory import layer_activation_bytes as given\n"
        "def {name}(*a, **k): return given(*a, **k)",
        "holds an answer of this lesson",
    ),
}


@pytest.mark.days
@pytest.mark.parametrize("what", REFUSED)
def test_a_check_refuses_what_grading_refuses(what: str) -> None:
    exercise_id, source, told = REFUSED[what]
    exercise = registry.exercise(exercise_id)
    cells = [Cell("cell 1", IMPORTS + source.format(name=exercise.names[0]))]
    few = replace(exercise, cases=lambda seed: exercise.cases(seed)[:1])
    checked = check_cells(few, cells)
    with Harness(find_sandbox(), hidden_files(registry.exercises("07"))) as harness:
        graded = harness.grade(exercise, cells, SEED, exercise.cases(SEED)[:1]).report
    for report in (checked, graded):
        assert report.points == 0, report
        assert any(told in stop.text for stop in report.stops), report
    assert rules(exercise, registry.exercises("07")) in checked.notes


@pytest.mark.days
def test_the_reference_passes_both() -> None:
    """Nothing that a lesson's own solution does is refused in a check only, or in grading only."""
    cells = list(solved_cells("07"))
    few = replace(CLIP, cases=lambda seed: CLIP.cases(seed)[:1])
    case = next(case for case in all_cases(CLIP, SEED) if not case.hidden)
    with Harness(find_sandbox(), hidden_files(registry.exercises("07"))) as harness:
        graded = harness.grade(CLIP, cells, SEED, [case]).report
    checked = check_cells(few, cells)
    assert checked.stops == graded.stops == []
    assert [row.name for row in checked.rows if row.passed] == [r.name for r in graded.rows if r.passed]
    assert checked.points > 0
