"""Judges work in the grader's own process: what a student answers does not decide how long, and with how much
memory.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from time import process_time

import pytest

from labkit.checks import registry
from labkit.checks.case import JSON, RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.lesson_02 import fetching
from labkit.checks.lesson_03 import buckets, indices
from labkit.checks.lesson_04.rules import AS_DECLARED, Size, sizes_of

SECONDS = 5.0  # of one judge, on a busy machine; what grows with the square takes minutes
MANY = 100_000  # entries: about as many as the bytes of an answer allow
ADDED = [("forward", 30_000_000, 0), ("forward", 10**13, 0), ("backward", 0, 10**13), ("forward", 0, 2**70)]
SCHEDULES = ["04.gpipe-schedule", "04.one-f-one-b-schedule", "04.interleaved-schedule"]


def judged(exercise_id: str, facts: dict[str, JSON]) -> Iterator[tuple[str, list[Finding]]]:
    """What each judge of an exercise's first case finds in these facts, within SECONDS."""
    exercise = registry.exercise(exercise_id)
    case = exercise.cases(1)[0]
    evidence = exercise.run_of(case).evidence(case, {}, [RankAnswer(0, {}, facts, {}, {})])
    for name, judge in exercise.judges_of(case):
        began = process_time()
        yield name, list(judge(evidence))
        assert process_time() - began < SECONDS


def found_in_lists(exercise_id: str, sizes: Sequence[Size], actions: JSON) -> Iterator[list[Finding]]:
    """What each judge finds where every rank has this list of Actions, beside that it is one."""
    lists = {str(size): [actions] * size.ranks for size in sizes}
    kinds = {f"kinds, {size}": [AS_DECLARED] * size.ranks for size in sizes}
    for _, found in judged(exercise_id, {**lists, **kinds}):
        yield [finding for finding in found if AS_DECLARED not in finding.expected]


@pytest.mark.parametrize("exercise_id", SCHEDULES)
@pytest.mark.parametrize("added", ADDED)
def test_a_schedule_makes_no_room_for_numbers_that_cannot_be(exercise_id: str, added: Sequence[JSON]) -> None:
    sizes = sizes_of(registry.exercise(exercise_id).cases(1)[0])
    tracemalloc.start()
    for found in found_in_lists(exercise_id, sizes, [list(added)]):
        assert not any(finding.passed for finding in found)
        assert "of stages 0 to " in found[0].expected
        assert "on rank 0" in found[0].seen
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.days
@pytest.mark.parametrize("exercise_id", SCHEDULES)
def test_a_schedule_that_is_too_long_is_not_played(exercise_id: str) -> None:
    sizes = sizes_of(registry.exercise(exercise_id).cases(1)[0])
    for found in found_in_lists(exercise_id, sizes, [["forward", 0, 0]] * (MANY // 20)):
        assert f"{MANY // 20} actions on rank 0" in found[0].seen


def test_buckets_are_filled_in_one_pass() -> None:
    case = next(c for c in registry.exercise(buckets.BUCKETS_ID).cases(1) if "without elements" in c.name)
    parameters = buckets._parameters(case)
    began = process_time()
    assert len(buckets._greedy(parameters, [1] * MANY, 16)) == 1
    assert process_time() - began < SECONDS
    for most in (1, 16, 40, 1000):  # as adding up each bucket anew has it
        order = Random(most).choices(range(len(parameters)), k=40)
        filled = buckets._greedy(parameters, order, most)
        assert [i for bucket in filled for i in bucket] == order
        for bucket, following in pairwise(filled):
            assert buckets._bytes(parameters, [*bucket, following[0]]) > most
            assert len(bucket) == 1 or buckets._bytes(parameters, bucket) <= most


def test_places_are_found_in_one_pass() -> None:
    began = process_time()
    assert indices._same_before([list(range(MANY)), [7]]) == [*range(MANY), 7]
    assert process_time() - began < SECONDS
    assert indices._same_before([[3, 1, 3], [1, 0]]) == [0, 1, 0, 1, 4]


def test_copies_are_added_up_in_one_pass() -> None:
    copies = [
        ["cpu", "gpu", 4, 0, True, True],
        ["gpu", "cpu", 8, 0, True, True],
        ["cpu", "gpu", 1, 0, True, True],
    ]
    answer = RankAnswer(0, {}, {"forward": copies}, {}, {})
    assert fetching._to_device_so_far(answer, "forward") == [0, 4, 4, 5]
    assert fetching._to_device(answer, "forward") == 5
