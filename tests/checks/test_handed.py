"""What a rank is handed of a case: its own tensors, and none of another rank's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from labkit.checks import registry
from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.judge import draw_inputs
from labkit.checks.lesson_04.model import build_stages
from labkit.checks.lesson_04.runs import Watch, watched
from labkit.checks.lesson_05 import layers, recomputing
from labkit.checks.lesson_08.net import stack
from labkit.checks.lesson_10.between_steps import BetweenSteps, LoadedBatches
from labkit.checks.shared.beside import refused
from labkit.checks.shared.places import place_of


def handed(exercise_id: str) -> Iterator[tuple[Case, Inputs, list[Inputs]]]:
    """Of each visible case: what was drawn, and what each rank gets of it."""
    exercise = registry.exercise(exercise_id)
    for case in exercise.cases(1):
        inputs, run = draw_inputs(exercise, case), exercise.run_of(case)
        yield case, inputs, [run.hand(case, inputs, rank) for rank in range(case.ranks)]


def numbers(tensors: Inputs) -> set[float]:
    return {number for tensor in tensors.values() for number in tensor.flatten().tolist()}


def test_a_stage_is_handed_to_its_own_rank_only() -> None:
    """Inputs come to the first stage's rank, targets to the last's, and a shared embedding to both."""
    for case, inputs, ranks in handed("04.run-schedule"):
        for rank, own in enumerate(ranks):
            place = place_of(case, rank)
            last = (len(case.params["widths"]) - 1) % place.size
            for name in inputs:
                stage = name.partition(".")[0]
                at = {"x0": {0}, "x1": {0}, "y0": {last}, "y1": {last}, "embedding": {0, last}}
                owners = at[stage] if stage in at else {int(stage) % place.size}
                assert (name in own) == (place.position in owners), (case.name, rank, name)


@pytest.mark.parametrize(
    "exercise_id", ["03.broadcast-module", "03.overlapped-data-parallel", "03.accumulate-gradients"]
)
def test_replicas_that_start_apart_share_no_number(exercise_id: str) -> None:
    for case, _, ranks in handed(exercise_id):
        whole = [numbers({n: t for n, t in own.items() if t.is_floating_point()}) for own in ranks]
        apart = [not one & other for i, one in enumerate(whole) for other in whole[:i]]
        assert all(apart), case.name


def test_replicas_that_start_alike_share_the_state_of_their_groups_first_rank() -> None:
    for case, inputs, ranks in handed("03.average-gradients"):
        for rank, own in enumerate(ranks):
            first = place_of(case, rank).members[0]
            assert torch.equal(own["state.first.weight"], inputs[f"state.{first}.first.weight"])
            assert torch.equal(own["x"], inputs["x"][:, rank])


def test_a_rank_is_handed_its_own_tokens() -> None:
    for case, inputs, ranks in handed("03.token-weighted-loss"):
        for rank, (own, tokens) in enumerate(zip(ranks, case.params["tokens"], strict=True)):
            assert own.keys() == {"x", "w"}
            assert torch.equal(own["x"], inputs["x"][rank, :tokens])


@pytest.mark.parametrize(("message", "names_it"), [("6 of 4", True), ("16 of 64", False), ("m=6.", True)])
def test_a_refusal_names_a_number_and_not_a_part_of_another(message: str, names_it: bool) -> None:
    fact = {"raised": "ValueError", "kinds": ["ValueError"], "message": message}
    answer = RankAnswer(0, {}, {"refusal": fact}, {}, {})
    assert refused("refusal", ["ValueError"], answer, [6]).passed == names_it


def first_case(exercise_id: str) -> tuple[Case, Inputs]:
    case, inputs, _ = next(handed(exercise_id))
    return case, inputs


def reached(start: object) -> Iterator[object]:
    """What attributes, entries and bound methods lead to. Closures are another matter: who looks into one is
    flagged.
    """
    todo, seen = [start], set[int]()
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, dict):
            todo += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set):
            todo += thing
        todo += [*getattr(thing, "__dict__", {}).values(), getattr(thing, "__self__", None)]


def test_what_counts_is_out_of_reach_of_who_is_handed_what_is_counted() -> None:
    log, notes, watch, of_steps = list[float](), list[int](), Watch(), BetweenSteps(1, lambda: 0)
    stacked = stack(Case("", 1, {"width": 2, "layers": 2, "dtype": "float64"}, 1), log)
    stage = watched(build_stages(*first_case("04.run-schedule"), [0])[0], 0, watch)
    function, types = recomputing._counted(torch.tanh)
    batches = LoadedBatches([torch.ones(1)], lambda number: of_steps.look(number))
    chained = layers.layers_of(*first_case("05.checkpoint-sequential"), notes)
    for handed_out, counts in (
        (stacked, log),
        (stage, watch),
        (stage, watch.log),
        (function, types),
        (batches, of_steps),
        (chained, notes),
    ):
        assert not any(thing is counts for thing in reached(handed_out))
    stacked(torch.ones(1, 2, dtype=torch.float64))
    function(torch.ones(2))
    assert (len(log), types) == (2, ["torch.float32"])
