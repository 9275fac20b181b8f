"""The cases in which schedules are run on real ranks: what lists, on which stages, with which batches."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_04.lists import (
    forwards_first,
    gpipe,
    lists_by_choice,
    one_at_a_time,
    one_f_one_b,
    random_lists,
    some_at_a_time,
)

Lists = list[list[Any]]
MOST_TOLD = 12  # micro-batches whose sizes are told one by one: of more, all are alike
PATIENCE = 40.0  # seconds: a deadlock is told much sooner, and a busy host must not cost points
TWO = [[5, 7], [7, 4, 3]]
THREE = [[4, 6], [6, 5, 3], [3, 2]]
FOUR = [[5, 4], [4, 6, 3], [3, 7], [7, 2, 4]]
TOKENS = [[5, 6], [6, 4], [4, 3, 5]]  # the last width is the first's: the head is the embedding


def run_case(
    kind: str, seed: int, lists: Lists, widths: list[list[int]], sizes: list[int], **params: Any
) -> Case:
    """lists: the schedule, one list a rank of a pipeline. widths: of each stage's layers. sizes: of the
    micro-batches. groups: several pipelines at once, each of so many ranks. lengths: of the sequences in each
    micro-batch, where samples are sequences.
    """
    many = f"{len(sizes)} micro-batches of {sizes[0]}"
    batches = f"micro-batches of {sizes}" if len(sizes) <= MOST_TOLD else many
    told = f"{params.pop('schedule', kind)}, {len(widths)} stages, {batches}"
    plain = [[list(action) for action in actions] for actions in lists]
    everything = {"lists": plain, "widths": widths, "sizes": sizes, **params}
    ranks = sum(map(len, params.get("groups", lists[:0]))) or len(lists)
    return Case(f"{kind}: {told}", ranks, everything, seed, kind=kind, timeout=PATIENCE)


def visible_cases(seed: int) -> list[Case]:
    """Those that students see."""
    return [
        *_cases_of_known_schedules(seed),
        *_cases_of_any_schedule(seed),
        *_cases_with_few(seed),
        *_cases_of_tied_weights(seed),
        *_cases_when_ready(seed),
        run_case("one-rank", seed, lists_by_choice(1, 2, 3, forwards_first), TWO, [2] * 3),
        bad_lists_case(seed),
        foreign_stage_case(seed, TWO),
    ]


def _cases_of_known_schedules(seed: int) -> list[Case]:
    return [
        run_case("gpipe", seed, gpipe(2, 5), TWO, [2] * 5, late=[1]),
        run_case("gpipe", seed, gpipe(4, 6), FOUR, [2] * 6, frozen=["1.layers.0.weight", "3.layers.1.bias"]),
        run_case("naive", seed, one_at_a_time(3, 3, 4), THREE, [2] * 4),
        run_case("train", seed, some_at_a_time(2, 2, [[0], [1, 2]]), TWO, [2] * 3),
        run_case("in-flight", seed, one_f_one_b(4, 7), FOUR, [1] * 7, schedule="1F1B"),
    ]


def _cases_of_any_schedule(seed: int) -> list[Case]:
    return [
        run_case("any-schedule", seed, one_f_one_b(3, 5), THREE, [2] * 5, schedule="1F1B"),
        run_case(
            "any-schedule",
            seed,
            random_lists(2, 4, 3, seed),
            FOUR,
            [2] * 3,
            schedule="a random order",
            transposed=True,
            apart=True,
        ),
        run_case(
            "any-schedule",
            seed,
            gpipe(2, 3),
            TWO,
            [2] * 3,
            schedule="two pipelines at once",
            groups=[[0, 2], [1, 3]],
        ),
        run_case(
            "any-schedule",
            seed,
            random_lists(2, 3, 3, seed),
            THREE,
            [2] * 3,
            schedule="the last stage on the first rank, in float32",
            dtype="float32",
        ),
    ]


def _cases_with_few(seed: int) -> list[Case]:
    """Fewer rows in some micro-batches, fewer micro-batches than stages, fewer weights that are trained."""
    return [
        run_case("unequal", seed, some_at_a_time(2, 2, [[0, 1], [2, 3]]), TWO, [3, 3, 2, 1]),
        run_case(
            "few",
            seed,
            one_at_a_time(4, 4, 2),
            FOUR,
            [3, 3],
            frozen=["2.layers.0.weight", "2.layers.0.bias"],
        ),
        run_case(
            "few",
            seed,
            gpipe(2, 2),
            TWO,
            [2] * 2,
            schedule="all of the first stage frozen",
            frozen=["0.layers.0.weight", "0.layers.0.bias"],
        ),
    ]


def _cases_of_tied_weights(seed: int) -> list[Case]:
    shared = [TOKENS[0], [6, 4, 5]]
    return [
        run_case("tied", seed, some_at_a_time(3, 3, [[0, 1], [2, 3]]), TOKENS, [3] * 4, vocabulary=9),
        run_case("tied-train", seed, some_at_a_time(2, 2, [[0, 1], [2]]), shared, [3] * 3, vocabulary=9),
        run_case(
            "tied",
            seed,
            gpipe(2, 2),
            shared,
            [3] * 2,
            vocabulary=9,
            schedule="the tied weight frozen",
            frozen=["0.embedding", "1.head"],
        ),
    ]


def _cases_when_ready(seed: int) -> list[Case]:
    return [
        run_case(
            "ready",
            seed,
            some_at_a_time(2, 2, [[0, 1], [2]]),
            TWO,
            [2] * 3,
            frozen=["0.layers.0.weight", "0.layers.0.bias"],
        ),
        run_case(
            "ready",
            seed,
            one_at_a_time(2, 4, 3),
            FOUR,
            [2] * 3,
            schedule="two stages a rank",
        ),
        run_case("ready-tied", seed, one_at_a_time(3, 3, 2), TOKENS, [2] * 2, vocabulary=9),
    ]


def bad_lists_case(seed: int) -> Case:
    """Lists that cannot be run, on one rank that has both stages of a model, with two micro-batches."""
    good: Lists = [
        [kind, stage, i]
        for i in range(2)
        for kind, stages in (("forward", (0, 1)), ("backward", (1, 0)))
        for stage in stages
    ]
    halves = [[kind, 0, 1] for kind in ("input_backward", "weight_backward")]
    bad: dict[str, tuple[Lists, int | None]] = {
        "a micro-batch that does not exist": ([*good, ["forward", 0, 7]], 7),
        "a micro-batch one too far": ([*good, ["forward", 0, 2]], 2),
        "a micro-batch before the first": ([["forward", 0, -1], *good], -1),
        "a stage that is not this rank's": ([["forward", 5, 0], *good], 5),
        "a backward before its forward": ([["backward", 1, 1], *good[:6], good[7]], 1),
        "a missing backward": (good[:7], 1),
        "a micro-batch that is left out": ([action for action in good if action[2] == 0], 1),
        "a forward that is there twice": ([*good[:5], *good[4:]], 1),
        "a backward that is there twice": ([*good, good[7]], 1),
        "a micro-batch that is there twice, each time with its backward": ([*good, *good[4:]], 1),
        "a zero-bubble schedule's two halves of a backward": ([*good[:7], *halves], 1),
        "another kind of action": ([*good[:7], ["update", 0, 1]], 1),
        "another kind of action at the end": ([*good, ["update", 0, 1]], 1),
        "a stage that is left out": ([action for action in good if action[1] == 0], 1),
        "no actions at all": ([], None),
    }
    return _bad_case("bad lists, one rank", seed, [good], TWO, {n: ([one], i) for n, (one, i) in bad.items()})


def foreign_stage_case(seed: int, widths: list[list[int]]) -> Case:
    """Lists that end with a stage of another rank: one stage a rank, three micro-batches."""
    num_ranks = len(widths)
    good = [[list(action) for action in actions] for actions in gpipe(num_ranks, 3)]
    foreign = [[*own, ["forward", (rank + 1) % num_ranks, 2]] for rank, own in enumerate(good)]
    bad: dict[str, tuple[Lists, int | None]] = {"a stage of another rank": (foreign, 2)}
    return _bad_case(f"bad lists, {num_ranks} ranks", seed, good, widths, bad)


def _bad_case(
    name: str, seed: int, good: Lists, widths: list[list[int]], bad: dict[str, tuple[Lists, int | None]]
) -> Case:
    """good: one list a rank. bad: the same by what is wrong with them, and the micro-batch or stage of it,
    None where it is any.
    """
    params = {
        "lists": good,
        "widths": widths,
        "sizes": [2] * (len(good[0]) * len(good) // (2 * len(widths))),
        "bad": {label: lists for label, (lists, _) in bad.items()},
        "names": {label: [] if number is None else [number] for label, (_, number) in bad.items()},
    }
    return Case(name, len(good), params, seed, kind="bad", timeout=PATIENCE)
