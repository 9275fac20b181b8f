"""What travels to the ranks does not tell from what the inputs of others were drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autograder.grade.harness import Harness
from autograder.grade.reference import all_cases, shown_seed, solved_cells
from autograder.sandbox.unconfined import Unconfined
from labkit.checks import registry
from labkit.checks.files import REQUEST, RunRequest, read_request
from labkit.checks.jobs import CouldNotBeGraded, JobFailure
from labkit.checks.judge import draw_inputs

SEED = 2**52 + 12345
EXERCISE = registry.exercise("06.column-parallel-linear")


class Looking(Harness):
    """Keeps what would go to the ranks, and starts none."""

    def run_job(self, directory: Path, request: RunRequest) -> JobFailure | None:
        self.sent = (directory / REQUEST).read_text()
        self.request, self.handed = read_request(directory, 1)
        raise CouldNotBeGraded("only looking")


@pytest.mark.days
def test_no_rank_can_draw_what_others_are_handed() -> None:
    with Looking(Unconfined()) as harness:
        harness.grade(EXERCISE, solved_cells("06"), SEED)
    assert str(SEED) not in harness.sent
    for case in harness.request.cases:
        drawn, handed = draw_inputs(EXERCISE, case), harness.handed[case.name]
        assert not any(torch.equal(drawn["x"][0], tensor) for tensor in handed.values())


def test_the_same_seed_draws_the_same() -> None:
    for case in all_cases(EXERCISE, shown_seed(SEED)):
        if case.kind == "values":
            one, two = (draw_inputs(EXERCISE, case, str(SEED))["x"] for _ in range(2))
            assert torch.equal(one, two)
            assert not torch.equal(one, draw_inputs(EXERCISE, case, str(SEED + 1))["x"])
