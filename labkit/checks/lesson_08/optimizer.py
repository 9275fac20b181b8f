"""Stage 1: what `ShardedOptimizer` must show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.lesson_08.adam import (
    held_case,
    hold_in_this_process,
    hold_steps,
    holds_its_share,
    most_in_process,
    positive_rows,
    steps_what_is_unused,
    steps_what_it_holds,
)
from labkit.checks.lesson_08.formulas import HIDES
from labkit.checks.lesson_08.held import holds_no_more
from labkit.checks.lesson_08.masters import bf16_case, bf16_inputs, masters_are_kept
from labkit.checks.lesson_08.net import (
    FORBIDDEN,
    PAIRS,
    STEPS,
    TrainedEvidence,
    answer_weights,
    chosen_optimizer,
    hand_own_rows,
    handed_net,
    has_rows,
    loss_of,
    net_inputs,
    net_of,
    parameters_of,
    same_bits,
    sent,
    set_rates,
    shard_case,
    snapshot,
    uses_both,
    weights_follow,
)
from labkit.checks.lesson_08.rounded import changed_since, gradients_of, train_in_bf16
from labkit.checks.lesson_08.stepped import Stepped, steps_its_share
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, calls_text, nbytes, stays_in_group
from labkit.checks.shared.company import in_company
from labkit.checks.shared.places import enter_group, place_of

FEW_BYTES = 64


def _train(rank: Rank) -> None:
    """Answers "weights STEP.NAME"; recordings "built", "step N", and "before step N" and "behind step N" of
    backward and of zero_grad; facts: changed, the parameters whose own gradients a step has changed, and
    that of `Stepped`.
    net_forgets: the net's zero_grad() is called, not the optimizer's.
    """
    group, net = enter_group(rank), handed_net(rank)
    optimizer_class, options = chosen_optimizer(rank.case)
    with rank.recording("built"):
        optimizer = rank.student.ShardedOptimizer(
            _handed_parameters(rank.case, net), optimizer_class, group, **options
        )
    if rank.case.kind == "subgroup":  # one of another group, made later, changes nothing
        another = handed_net(rank).parameters()
        rank.student.ShardedOptimizer(another, optimizer_class, rank.group, **options)
    changed, stepped = list[str](), Stepped()
    for step in range(STEPS):
        with rank.recording(f"before step {step}"):
            _backward(rank, net, step)
        if rank.params.get("transposed"):
            _transpose_gradients(net)
        if rank.params.get("schedule"):
            set_rates(rank.case, optimizer.optimizer, step)
        before = gradients_of(dict(net.named_parameters()))
        with rank.recording(f"step {step}"):
            optimizer.step()
        stepped.note(getattr(optimizer, "optimizer", None))
        changed += changed_since(before, dict(net.named_parameters()))
        answer_weights(rank, snapshot(net), step)
        with rank.recording(f"behind step {step}"):
            (net if rank.params.get("net_forgets") else optimizer).zero_grad()
    rank.fact("changed", changed)
    stepped.tell(rank)


def _backward(rank: Rank, net: nn.Module, step: int) -> None:
    """Of all micro-batches, where the rank has any."""
    for m in range(rank.params["micro_batches"] if has_rows(rank.case, rank.rank, step) else 0):
        out = net(rank.inputs["x"][step, m], uses_both(rank.case, rank.rank, step))
        loss_of(out, rank.inputs["target"][step, m]).backward()


def _handed_parameters(case: Case, net: nn.Module) -> Iterable[Any]:
    """All parameters or groups of them, where the case says so in iterators, which can be read once."""
    given = parameters_of(case, net)
    if not case.params.get("iterators"):
        return given
    return iter([{**g, "params": iter(g["params"])} if isinstance(g, dict) else g for g in given])


def _transpose_gradients(net: nn.Module) -> None:
    """Of the same numbers, but those of a column lie end to end."""
    for p in net.parameters():
        if p.grad is not None and p.dim() == 2:
            p.grad = p.grad.t().contiguous().t()


# -- judges


def gradients_stay(evidence: Evidence) -> Iterator[Finding]:
    """A step leaves the gradients of the model's parameters as they were."""
    for answer in evidence.answers:
        changed = sorted(set(answer.facts["changed"]))
        yield Finding(not changed, "the parameters' own .grad as before the step", str(changed), answer.rank)


def sends_each_once(evidence: Evidence) -> Iterator[Finding]:
    """Gradients are scattered once and weights gathered once in a step; nothing else goes, neither in it nor
    between two.
    """
    net = net_of(evidence.case)
    trained = sum(nbytes(p) for p in net.parameters() if p.requires_grad)
    for answer in in_company(evidence):
        size = place_of(evidence.case, answer.rank).size
        for step in range(STEPS):
            yield _passes(answer, f"step {step}", (trained, trained), size)
            yield _nothing_sent(answer, f"before step {step}")
            yield _nothing_sent(answer, f"behind step {step}")


def _nothing_sent(answer: RankAnswer, phase: str) -> Finding:
    """But for what could be no gradient and no weight: a flag or a count."""
    calls = [(op, num_bytes) for op, num_bytes in calls_of(answer, phase) if op != "barrier"]
    sent_bytes = sum(num_bytes for _, num_bytes in calls)
    told = f"{phase}: no gradients or weights sent"
    return Finding(sent_bytes <= FEW_BYTES, told, calls_text(calls), answer.rank)


def sends_rounded_weights(evidence: Evidence) -> Iterator[Finding]:
    """Gradients go in fp32, weights in bf16, in each step."""
    numel = evidence.case.params["size"]
    return (
        _passes(answer, phase, (4 * numel, 2 * numel), evidence.case.ranks)
        for answer in in_company(evidence)
        for phase in (*answer.earlier("step"), "step")
    )


def _passes(answer: RankAnswer, phase: str, trained: tuple[int, int], size: int) -> Finding:
    """trained: bytes of the gradients and of the weights."""
    scattered = sum(sent(answer, phase, "reduce_scatter"))
    gathered = size * sum(sent(answer, phase, "all_gather"))
    calls = calls_of(answer, phase)
    others = [op for op, _ in calls if op not in ("reduce_scatter", "all_gather", "barrier")]
    room = 8 * size * 2  # padding of a flat tensor for each of two groups
    both = zip(trained, (scattered, gathered), strict=True)
    right = all(least <= found <= least + room for least, found in both) and not others
    told = f"{phase}: {trained[0]:,} bytes (and padding) through reduce_scatter, {trained[1]:,} by all_gather"
    seen = f"{scattered:,} and {gathered:,}; other calls: {', '.join(others) or 'none'}"
    return Finding(right, told, seen, answer.rank)


def optimizer_cases(seed: int) -> list[Case]:
    """The visible cases."""
    return [
        *_cases_of_steps(seed),
        *_cases_of_dtypes(seed),
        *_unusual_cases(seed),
        shard_case("two groups of two ranks", "subgroup", 4, seed, groups=PAIRS),
        shard_case("one rank", "values", 1, seed, micro_batches=2),
        shard_case("with your own flat_layout", "own-parts", 3, seed, option_groups=True),
    ]


def _cases_of_steps(seed: int) -> list[Case]:
    return [
        shard_case("plain SGD", "values", 2, seed, micro_batches=2, late=[1]),
        shard_case("plain SGD on more ranks", "values", 4, seed, late=[0]),
        shard_case("momentum and decay", "stateful", 3, seed, optimizer="momentum"),
        shard_case("AdamW", "stateful", 2, seed, optimizer="adamw", inner=4),
        shard_case("three groups of options", "groups", 3, seed, option_groups=True),
        shard_case(
            "three groups of options, AdamW", "groups", 4, seed, option_groups=True, optimizer="adamw"
        ),
        shard_case("a schedule", "schedule", 2, seed, schedule=True),
        shard_case(
            "a schedule for each group",
            "schedule",
            3,
            seed,
            schedule=True,
            option_groups=True,
            optimizer="rate needed",
        ),
        shard_case(
            "a group of which nothing is trained",
            "schedule",
            2,
            seed,
            schedule=True,
            option_groups=True,
            parts=["head"],
        ),
    ]


def _cases_of_dtypes(seed: int) -> list[Case]:
    return [
        bf16_case("bf16 weights, behind a frozen one in fp32", 3, seed, size=211, frozen="first"),
        bf16_case("float16 weights, one rank", 1, seed, size=40, dtype="float16"),
        bf16_case("bf16 weights in two groups", 2, seed, size=97, groups_of_rates=True),
        held_case("Adam's state, with a layer nobody uses", 4, seed, 40, "float32", "held-unused"),
        held_case("Adam's state of bf16 weights", 2, seed, 36, "bfloat16"),
        held_case("all that the process holds", 2, seed, 320, "float32", kind="process"),
    ]


def _unusual_cases(seed: int) -> list[Case]:
    return [
        shard_case(
            "frozen, tied and unused layers, transposed gradients",
            "unusual",
            2,
            seed,
            parts=["frozen", "half", "tied", "unused"],
            optimizer="momentum",
            transposed=True,
        ),
        shard_case(
            "a weight one rank does not use", "unusual", 3, seed, parts=["side"], both=[[1], [0, 2], []]
        ),
        shard_case(
            "a rank without rows", "unusual", 3, seed, without_rows=[[1], [0, 2]], optimizer="momentum"
        ),
        shard_case(
            "fewer numbers than ranks, in iterators",
            "unusual",
            4,
            seed,
            width=1,
            inner=1,
            option_groups=True,
            iterators=True,
        ),
        shard_case(
            "a shard of weights nobody uses",
            "unusual",
            4,
            seed,
            width=1,
            inner=1,
            parts=["unused"],
            optimizer="momentum",
        ),
    ]


_TRAINED = Run(_train, net_inputs, hand_own_rows, TrainedEvidence)

SHARDED_OPTIMIZER = Exercise(
    "08.sharded-optimizer",
    "Stage 1: each rank steps its share",
    ("ShardedOptimizer",),
    dict.fromkeys(("values", "stateful", "groups", "schedule", "unusual", "subgroup", "own-parts"), _TRAINED)
    | {
        "bf16": Run(train_in_bf16, bf16_inputs, own_entry),
        **dict.fromkeys(("held", "held-unused"), Run(hold_steps, positive_rows, own_entry)),
        "process": Run(hold_in_this_process, positive_rows, own_entry),
    },
    optimizer_cases,
    (
        Property(
            "trained-weights",
            "numbers",
            3,
            "After each step of plain SGD every rank has the weights that one process has with all ranks'"
            " rows.",
            "the gradients were added and not averaged, or the other ranks' shards were not gathered",
            {"values": weights_follow},
        ),
        Property(
            "optimizer-state",
            "numbers",
            2,
            "The same with momentum and with AdamW, whose moments carry over from step to step.",
            "the inner optimizer was made anew, or its tensors replaced, between two steps",
            {"stateful": weights_follow},
        ),
        Property(
            "option-groups",
            "numbers",
            3,
            "Each group of parameters keeps its own options, wherever the cut falls.",
            "one tensor for the whole shard, with the options of the first group",
            {"groups": weights_follow},
        ),
        Property(
            "masters",
            "numbers",
            3,
            "16-bit weights are the rounded values of an fp32 master, and gradients are averaged in fp32.",
            "the bf16 weights were stepped themselves: small changes vanish",
            {"bf16": masters_are_kept},
        ),
        Property(
            "same-bits",
            "numbers",
            1,
            "After each step the weights of all ranks are the same to the last bit.",
            "a rank used its own master instead of the rounded weights that the others get",
            {"values": same_bits, "stateful": same_bits, "groups": same_bits, "bf16": same_bits},
        ),
        Property(
            "schedule",
            "robustness",
            1,
            "`optimizer` is the torch optimizer at work: a learning rate set in its groups counts, and as"
            " with torch's a step leaves the parameters' own gradients as they were.",
            "the learning rate was copied when the optimizer was made",
            {"schedule": every(weights_follow, gradients_stay)},
            dict.fromkeys(("values", "stateful", "groups", "bf16", "unusual", "subgroup"), gradients_stay),
        ),
        Property(
            "held-bytes",
            "mechanism",
            3,
            "Each rank keeps the weights once and 1/d of the state, in fp32 and without what is frozen.",
            "the optimizer was built on all parameters, or a flat gradient was kept",
            {
                "held": every(holds_its_share, steps_what_it_holds),
                "process": every(holds_no_more(most_in_process), steps_what_it_holds),
            },
            {
                "held-unused": every(holds_its_share, steps_what_it_holds),
                **dict.fromkeys(
                    ("values", "stateful", "groups", "schedule", "unusual", "subgroup"), steps_its_share
                ),
            },
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "A step reduce-scatters gradients once, in the master's dtype, and all-gathers weights once, in"
            " their own: 2 psi.",
            "an all_reduce of the gradients, and then an all_gather: 3 psi",
            {"values": sends_each_once, "bf16": sends_rounded_weights},
            dict.fromkeys(
                ("stateful", "groups", "schedule", "unusual", "subgroup", "own-parts"), sends_each_once
            ),
        ),
        Property(
            "unusual-parameters",
            "robustness",
            2,
            "Unused, frozen and tied parameters, a rank without any gradient, transposed gradients, fewer"
            " numbers than ranks, and groups whose parameters come from an iterator are no trouble.",
            "a .grad that is None or not contiguous, a shard that has padding only, or an iterator that was"
            " read twice",
            {"unusual": weights_follow, "held-unused": steps_what_is_unused},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "The optimizer works in a group that is not the whole job.",
            "dist.get_rank() without the group, or a collective without group=",
            {"subgroup": every(weights_follow, stays_in_group)},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own flat_layout.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": weights_follow},
        ),
    ),
    builds_on=("08.flat-layout",),
    forbids=FORBIDDEN,
    hides=HIDES,
)
