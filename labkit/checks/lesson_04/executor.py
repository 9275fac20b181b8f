"""The exercise that runs schedules on real ranks: its cases, and the evidence each property needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, Run, every
from labkit.checks.lesson_04.judges import (
    does_the_real_work,
    equals,
    follows_the_list,
    keeps_few,
    keeps_few_graphs,
    keeps_no_copies,
    leaves_micro_batches,
    loss_is_a_scalar_tensor,
    refuses_bad_lists,
    returns_the_loss,
    sends_each_once,
    sums_when_all_are_ready,
    tells_when_ready,
    waits_for_messages,
)
from labkit.checks.lesson_04.lists import (
    backwards_first,
    forwards_first,
    lists_by_choice,
    one_at_a_time,
    random_lists,
    some_at_a_time,
)
from labkit.checks.lesson_04.model import PipelineEvidence, draw_model, hand_own_stages
from labkit.checks.lesson_04.runs import (
    meet_bad_lists,
    take_steps,
    use_executor,
    use_one_step,
    use_one_step_in_memory,
    use_ready_hook,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import stays_in_group

Lists = list[list[Any]]
MOST_TOLD = 12  # micro-batches whose sizes are told one by one: of more, all are alike
PATIENCE = 40.0  # seconds: a deadlock is told much sooner, and a busy host must not cost points


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


TWO = [[5, 7], [7, 4, 3]]
THREE = [[4, 6], [6, 5, 3], [3, 2]]
FOUR = [[5, 4], [4, 6, 3], [3, 7], [7, 2, 4]]
TOKENS = [[5, 6], [6, 4], [4, 3, 5]]  # the last width is the first's: the head is the embedding


def gpipe(num_stages: int, num_micro_batches: int) -> Lists:
    """One stage a rank; even sends that block come to an end."""
    return lists_by_choice(num_stages, num_stages, num_micro_batches, forwards_first)


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Lists:
    """One stage a rank; neighbours have messages for each other at the same time."""
    return lists_by_choice(num_stages, num_stages, num_micro_batches, backwards_first(num_stages))


def _run_cases(seed: int) -> list[Case]:
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


def _run(on_rank: Callable[[Rank], None]) -> Run:
    return Run(on_rank, draw_model, hand_own_stages, PipelineEvidence)


RUNS = {
    "gpipe": _run(partial(use_executor, before=0.5)),
    **dict.fromkeys(("naive", "tied"), _run(use_executor)),
    **dict.fromkeys(("any-schedule", "unequal", "few", "one-rank"), _run(use_one_step)),
    "in-flight": _run(use_one_step_in_memory),
    **dict.fromkeys(("train", "tied-train"), _run(take_steps)),
    **dict.fromkeys(("ready", "ready-tied"), _run(use_ready_hook)),
    "bad": _run(meet_bad_lists),
}
LOSS_AND_GRADIENTS = every(returns_the_loss, equals("grad"))
ONE_EACH = every(sends_each_once, waits_for_messages)
IN_ITS_ORDER = every(follows_the_list, does_the_real_work)
ABOUT_OTHERS = tuple(kind for kind in RUNS if kind not in ("gpipe", "naive", "in-flight", "bad"))
SHARED = ("embedding", "head")  # the two names of one weight

RUN = Exercise(
    "04.run-schedule",
    "Run a schedule on real ranks",
    ("run_schedule", "train_step"),
    RUNS,
    _run_cases,
    (
        Property(
            "loss",
            "numbers",
            1,
            "The last stage's rank returns the mean loss of the whole batch.",
            "the micro-batches' losses are added up without their share of the batch",
            {"gpipe": every(returns_the_loss, loss_is_a_scalar_tensor)},
        ),
        Property(
            "gradients",
            "numbers",
            4,
            "Every parameter's gradient equals that of one backward of the whole batch.",
            "the loss is not divided over micro-batches, or what was received does not require a gradient",
            dict.fromkeys(("gpipe", "naive"), equals("grad")),
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "Two steps of plain SGD end with the reference's weights, and return the loss.",
            "gradients of the last step are still there, or the optimizer steps before the last backward",
            {"train": every(equals("trained"), returns_the_loss)},
        ),
        Property(
            "messages",
            "mechanism",
            4,
            "Each activation and each gradient crosses each boundary between ranks once, and is waited for.",
            "shapes are sent too, the gradient of the first stage's input is sent back, or nobody waits for a"
            " send",
            {"gpipe": ONE_EACH},
            also=dict.fromkeys(("naive", "in-flight", *ABOUT_OTHERS), ONE_EACH),
        ),
        Property(
            "follows-the-list",
            "mechanism",
            6,
            "Each rank does the list's actions in the list's order.",
            "the executor has a schedule of its own",
            dict.fromkeys(("gpipe", "naive"), IN_ITS_ORDER),
            also=dict.fromkeys(("in-flight", *ABOUT_OTHERS), IN_ITS_ORDER),
        ),
        Property(
            "in-flight",
            "mechanism",
            6,
            "After a micro-batch's backward nothing of it is kept; 1F1B holds p-r at stage r.",
            "retain_graph=True, or all losses are kept and one backward is done at the end",
            {
                "in-flight": every(
                    keeps_few, keeps_no_copies, does_the_real_work, equals("grad"), leaves_micro_batches
                )
            },
            also=dict.fromkeys(("gpipe", "naive", *ABOUT_OTHERS), keeps_few_graphs),
        ),
        Property(
            "any-schedule",
            "robustness",
            3,
            "Any order that a dry run accepts runs to its end, in any group: 1F1B, chunks, a random one.",
            "a send that waits for its receiver, messages told apart by their order and not by a tag, a"
            " tag from hash(), which is another one in each process, or group= missing in a call",
            {"any-schedule": every(follows_the_list, LOSS_AND_GRADIENTS, waits_for_messages, stays_in_group)},
        ),
        Property(
            "unequal-micro-batches",
            "robustness",
            2,
            "Micro-batches of different sizes count by their samples, whatever shape these have.",
            "the mean of the micro-batches' means is not the mean over the samples, elements or tokens are"
            " counted, or all messages have the shape of the first",
            {"unequal": LOSS_AND_GRADIENTS},
        ),
        Property(
            "few-micro-batches",
            "robustness",
            1,
            "Fewer micro-batches than stages work, fewer stages than ranks, and a stage that is frozen or has"
            " no weights.",
            "a warm-up of p micro-batches is taken for granted, a stage on every rank, weights in each stage,"
            " that each stage's output has a graph, or that a frozen stage has no gradient to hand back",
            {"few": LOSS_AND_GRADIENTS},
        ),
        Property(
            "tied-embedding",
            "robustness",
            2,
            "A weight that the first and the last stage share has the sum of both gradients on both, frozen"
            " none.",
            "each copy is updated with its own half: the copies drift apart",
            {"tied": equals("grad", *SHARED), "tied-train": equals("trained", *SHARED)},
        ),
        Property(
            "gradients-ready",
            "robustness",
            1,
            "gradients_ready is called once a stage, right after its last backward, and before a tied weight"
            " is summed.",
            "called after the first backward (what comes later is not averaged), or only at the very end",
            {
                "ready": every(tells_when_ready, equals("grad")),
                "ready-tied": every(tells_when_ready, sums_when_all_are_ready),
            },
        ),
        Property(
            "one-rank",
            "robustness",
            1,
            "A rank that has all stages, or the only one, needs no messages and works.",
            "a rank cannot send to itself",
            {"one-rank": LOSS_AND_GRADIENTS},
        ),
        Property(
            "refuses-bad-lists",
            "robustness",
            1,
            "A list that cannot be run is a ValueError that names the action, before any of it is done.",
            "a KeyError of the executor's own bookkeeping tells the reader nothing",
            {"bad": refuses_bad_lists},
        ),
    ),
    hides=("parallel",),
    forbids=(
        "torch.distributed.pipelining.PipelineStage",
        "torch.distributed.pipelining.ScheduleGPipe",
        "torch.distributed.pipelining.Schedule1F1B",
    ),
)
