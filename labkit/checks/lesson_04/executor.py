"""The exercise that runs schedules on real ranks, and the evidence each property needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from labkit.checks.exercise import Exercise, Property, Run, every
from labkit.checks.lesson_04.executor_cases import visible_cases
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
    visible_cases,
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
