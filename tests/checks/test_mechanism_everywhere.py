"""A mechanism that is looked at in one kind of case is done in that kind: who adds a kind of case says here
why a mechanism that could be looked at in it is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from labkit.checks import registry
from labkit.checks.exercise import Exercise, Property

BY_THE_KINDS_OWN = "the property that this kind is about asks the same"
ALONE = "one rank alone sends nothing and keeps everything"
OWN_PARTS = "the parts are judged in the exercises they are from"
ANOTHER_CALL = "the kind asks another question"
# (exercise, property) -> kinds that run the same, in which it is not looked at, and why.
NOT_THERE: dict[tuple[str, str], tuple[set[str], str]] = {
    ("00.ring-all-reduce", "one-neighbour"): ({"any-layout", "large-tensors", "subgroup"}, BY_THE_KINDS_OWN),
    ("00.ring-all-reduce", "messages"): (
        {"uneven-sizes", "any-dtype", "any-layout", "large-tensors", "subgroup"},
        BY_THE_KINDS_OWN,
    ),
    ("00.find-the-deadlock", "pass-right-messages"): ({"pass-any-group"}, BY_THE_KINDS_OWN),
    ("02.partition-layers", "every-layer-once"): ({"many-layers", "few-layers"}, BY_THE_KINDS_OWN),
    ("02.partition-layers", "many-layers"): ({"even", "few-layers"}, "of few layers every search is short"),
    ("02.step-seconds", "first-step"): ({"device-time", "earlier-work"}, BY_THE_KINDS_OWN),
    ("02.step-seconds", "earlier-work"): ({"device-time", "first-step"}, BY_THE_KINDS_OWN),
    ("02.layerwise-model", "placement"): ({"tied"}, "a weight of two places may be held in either"),
    ("02.layerwise-model", "boundary-crossings"): ({"tied"}, "a weight of two places may cross as well"),
    ("02.offloaded-model", "weights-fetched"): ({"watched-buffers"}, BY_THE_KINDS_OWN),
    ("07.vocab-parallel-cross-entropy", "scalars-only"): ({"uneven", "both", "smoothed"}, BY_THE_KINDS_OWN),
    ("07.random-streams", "own-streams"): ({"subgroup"}, BY_THE_KINDS_OWN),
    ("07.initial-weights", "own-blocks"): ({"own-parts"}, OWN_PARTS),
    ("07.initial-weights", "whole-alike"): ({"own-parts"}, OWN_PARTS),
    ("07.sequence-parallel-linear", "communication"): (
        {"first-layer", "frozen"},
        "backward may leave out what nobody asks for",
    ),
    ("07.tensor-parallel-gpt", "stored-shards"): ({"own-parts"}, OWN_PARTS),
    ("08.fully-sharded-module", "shards-at-rest"): ({"watched-calls", "watched-frozen"}, BY_THE_KINDS_OWN),
    ("08.fully-sharded-module", "passes"): ({"watched-calls"}, "a unit is called more than once a pass"),
    ("08.fully-sharded-module", "prefetch"): ({"watched-calls"}, "a unit is called more than once a pass"),
    ("09.rank-grid", "groups"): ({"groups-of-one"}, BY_THE_KINDS_OWN),
    ("09.rank-grid", "positions"): ({"groups-of-one"}, BY_THE_KINDS_OWN),
    ("09.rank-grid", "sums"): ({"groups-of-one"}, BY_THE_KINDS_OWN),
    ("09.train-3d", "stored-parts"): ({"own-parts"}, OWN_PARTS),
    ("09.train-3d", "traffic"): ({"own-parts"}, OWN_PARTS),
    ("10.measured-mfu", "warm-up"): ({"device"}, "its steps are even: what is left out does not show"),
    ("10.measured-mfu", "steps"): ({"queued"}, "what was queued before runs as well"),
    ("11.blockwise-attention", "memory"): ({"own-parts"}, OWN_PARTS),
    ("11.blockwise-attention", "work"): ({"own-parts"}, OWN_PARTS),
    ("11.own-tokens", "fair"): ({"cut"}, ANOTHER_CALL),
    ("11.ring-forward", "messages"): ({"alone"}, ALONE),
    ("11.ring-forward", "overlap"): ({"alone"}, ALONE),
    ("11.ring-attention", "messages"): ({"alone"}, ALONE),
    ("11.ring-attention", "kept"): ({"alone"}, ALONE),
    ("11.ulysses", "messages"): ({"alone"}, ALONE),
    ("12.capacity", "work"): ({"roomy"}, "so few tokens that a loop over them is short"),
}


def _not_looked_at(exercise: Exercise, found: Property) -> set[str]:
    """Kinds whose cases run the same as those that a property is shown in, in which nobody looks at it."""
    same = {exercise.runs[kind].on_rank for kind in found.on}
    return {kind for kind, run in exercise.runs.items() if run.on_rank in same} - {*found.on, *found.also}


def _mechanisms() -> Iterator[tuple[Exercise, Property]]:
    exercises = (exercise for lesson in registry.lessons() for exercise in registry.exercises(lesson))
    return ((e, found) for e in exercises for found in e.properties if found.kind == "mechanism")


def test_a_mechanism_is_looked_at_in_every_kind_that_runs_it() -> None:
    left = {(e.id, found.name): _not_looked_at(e, found) for e, found in _mechanisms()}
    told = {key: kinds for key, (kinds, _) in NOT_THERE.items()}
    assert {key: kinds for key, kinds in left.items() if kinds} == told
