"""What a rank is handed of a module that is cut: the true numbers in its own blocks, noise in the others'."""

from __future__ import annotations

import pytest
import torch

from labkit.checks import registry
from labkit.checks.judge import draw_inputs
from labkit.checks.shared.places import place_of

SPLIT_LINEAR = [("06.column-parallel-linear", 0), ("06.row-parallel-linear", 1)]


@pytest.mark.parametrize(("exercise_id", "dim"), SPLIT_LINEAR)
def test_blocks_of_other_ranks_are_noise_that_differs(exercise_id: str, dim: int) -> None:
    exercise = registry.exercise(exercise_id)
    cases = [case for case in exercise.cases(1) if case.kind != "uneven"]
    for case in cases:
        inputs, run = draw_inputs(exercise, case), exercise.run_of(case)
        handed = [run.hand(case, inputs, rank) for rank in range(case.ranks)]
        places = [place_of(case, rank) for rank in range(case.ranks)]
        true = inputs["full.weight"]
        for rank, (own, place) in enumerate(zip(handed, places, strict=True)):
            seen = own["full.weight"]
            assert torch.equal(place.block(seen, dim), place.block(true, dim))
            assert int((seen == true).sum()) == true.numel() // place.size
            for other, their_place in zip(handed[:rank], places, strict=False):
                shared = true.numel() // place.size if their_place.position == place.position else 0
                assert int((other["full.weight"] == seen).sum()) == shared
            assert not any(name.startswith("noise") for name in own)


def test_every_rank_has_a_whole_parameter_as_it_is() -> None:
    exercise = registry.exercise("06.row-parallel-linear")
    case = next(case for case in exercise.cases(1) if case.kind == "bias")
    inputs = draw_inputs(exercise, case)
    for rank in range(case.ranks):
        handed = exercise.run_of(case).hand(case, inputs, rank)
        assert torch.equal(handed["full.bias"], inputs["full.bias"])
