"""Stage 1: what `ShardedOptimizer` must show."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import torch
from torch import nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.lesson_08.formulas import HIDES
from labkit.checks.lesson_08.net import (
    FORBIDDEN,
    STEPS,
    TrainedEvidence,
    answer_weights,
    chosen_optimizer,
    hand_own_rows,
    handed_net,
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
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.split import drawn
from labkit.record.live import bytes_of_process, settled_bytes_of_process

BF16_STEPS = 60
PAIRS = [[0, 3], [1, 2]]


def _train(rank: Rank) -> None:
    """Answers "weights STEP.NAME"; recordings "built", "step N"."""
    group, net = enter_group(rank), handed_net(rank)
    optimizer_class, options = chosen_optimizer(rank.case)
    with rank.recording("built"):
        optimizer = rank.student.ShardedOptimizer(
            parameters_of(rank.case, net), optimizer_class, group, **options
        )
    for step in range(STEPS):
        for m in range(rank.params["micro_batches"]):
            out = net(rank.inputs["x"][step, m], uses_both(rank.case, rank.rank))
            loss_of(out, rank.inputs["target"][step, m]).backward()
        if rank.params.get("schedule"):
            set_rates(rank.case, optimizer.optimizer, step)
        with rank.recording(f"step {step}"):
            optimizer.step()
        answer_weights(rank, snapshot(net), step)
        optimizer.zero_grad()


def _hold(rank: Rank) -> None:
    """What two steps of Adam leave in memory. Fact: held_bytes."""
    before = bytes_of_process()
    net = _large(rank)
    optimizer = rank.student.ShardedOptimizer(net.parameters(), torch.optim.Adam, rank.group, lr=1e-3)
    for _ in range(2):
        net(torch.ones(1, rank.params["width"])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    net.zero_grad()  # gradients that were only set to zero are no optimizer's state
    rank.fact("held_bytes", settled_bytes_of_process() - before)


def _large(rank: Rank) -> nn.Module:
    torch.manual_seed(rank.case.seed)
    width = rank.params["width"]
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)).to(rank.device)


def _train_in_bf16(rank: Rank) -> None:
    """Many steps whose changes are too small for the weights. Answers: "weights 0.w"."""
    weight = nn.Parameter(rank.inputs["w"].clone())
    optimizer = rank.student.ShardedOptimizer([weight], torch.optim.SGD, rank.group, lr=rank.params["lr"])
    for _ in range(BF16_STEPS):
        (weight * rank.inputs["slope"]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rank.answer("weights 0.w", weight)


def _bf16_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """w, the same on every rank; slope, whose sum over the ranks bf16 could not hold."""
    w = drawn(case, generator, case.params["size"]).expand(case.ranks, -1)
    slope = drawn(case, generator, case.ranks, case.params["size"])
    slope[0], slope[-1] = 256 + slope[0], slope[-1] - 256
    return {"w": w.to(torch.bfloat16), "slope": slope.to(torch.bfloat16)}


# -- judges


def masters_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """The weights are what fp32 arithmetic gives, rounded to bf16 at the end: within one unit of its last
    place.
    """
    weight = evidence.inputs["w"][0].double()
    mean = evidence.inputs["slope"].double().mean(0)
    expected = weight - BF16_STEPS * evidence.case.params["lr"] * mean
    for answer in evidence.answers:
        seen = answer.tensors["weights 0.w"]
        if seen.dtype != torch.bfloat16 or seen.shape != expected.shape:
            told = f"bfloat16 weights of shape {list(expected.shape)}"
            yield Finding(False, told, f"{seen.dtype}, {list(seen.shape)}", answer.rank)
            continue
        error = (seen.double() - expected).abs() / expected.abs().clamp(min=0.05)
        worst = int(error.argmax())
        told = f"element {worst} after {BF16_STEPS} steps: {expected[worst]:.5f}, rounded to bf16"
        yield Finding(bool(error.max() < 2**-7), told, f"{seen[worst].item():.5f}", answer.rank)


def holds_its_share(evidence: Evidence) -> Iterator[Finding]:
    """The weights whole, and at most three numbers a parameter of the rank's share: master and moments."""
    width = evidence.case.params["width"]
    whole = 4 * 2 * (width * width + width)
    share = ceil(whole / evidence.case.ranks)
    for answer in evidence.answers:
        held = answer.facts["held_bytes"]
        most = whole + 3 * share + share // 4
        told = f"at most {most:,} bytes: the weights once, and a {evidence.case.ranks}th of the state"
        yield Finding(whole + 2 * share - 64 <= held <= most, told, f"{held:,} bytes", answer.rank)


def sends_each_once(evidence: Evidence) -> Iterator[Finding]:
    """Gradients are scattered once and weights gathered once in a step; nothing else goes."""
    net = net_of(evidence.case)
    trained = sum(nbytes(p) for p in net.parameters() if p.requires_grad)
    for answer in evidence.answers:
        size = place_of(evidence.case, answer.rank).size
        if size > 1:
            room = 8 * size * 2  # padding of a flat tensor for each of two groups
            for step in range(STEPS):
                yield _passes(answer, f"step {step}", trained, room, size)


def _passes(answer: RankAnswer, phase: str, trained: int, room: int, size: int) -> Finding:
    scattered = sum(sent(answer, phase, "reduce_scatter"))
    gathered = size * sum(sent(answer, phase, "all_gather"))
    calls = [c for c in answer.collectives[phase] if c["source"] == "python"]
    others = [c["op"] for c in calls if c["op"] not in ("reduce_scatter", "all_gather", "barrier")]
    right = trained <= scattered <= trained + room and trained <= gathered <= trained + room and not others
    told = f"{phase}: {trained:,} bytes (and padding) through reduce_scatter, as many through all_gather"
    seen = f"{scattered:,} and {gathered:,}; other calls: {', '.join(others) or 'none'}"
    return Finding(right, told, seen, answer.rank)


def optimizer_cases(seed: int) -> list[Case]:
    """The visible cases."""
    return [
        shard_case("plain SGD", "values", 2, seed, micro_batches=2),
        shard_case("plain SGD on more ranks", "values", 4, seed),
        shard_case("momentum and decay", "stateful", 3, seed, optimizer="momentum"),
        shard_case("AdamW", "stateful", 2, seed, optimizer="adamw", inner=4),
        shard_case("two groups of options", "groups", 3, seed, option_groups=True),
        shard_case("two groups of options, AdamW", "groups", 4, seed, option_groups=True, optimizer="adamw"),
        shard_case("a schedule", "schedule", 2, seed, schedule=True),
        bf16_case("bf16 weights", 3, seed, size=11, lr=1e-4),
        Case("Adam's state", 4, {"width": 40}, seed, kind="held", timeout=40.0),
        shard_case("frozen, tied and unused layers", "unusual", 2, seed, parts=["frozen", "tied", "unused"]),
        shard_case("a weight one rank does not use", "unusual", 3, seed, parts=["side"], both=[1]),
        shard_case("fewer numbers than ranks", "unusual", 4, seed, width=1, inner=1, option_groups=True),
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
        shard_case("two groups of two ranks", "subgroup", 4, seed, groups=PAIRS),
        shard_case("one rank", "values", 1, seed, micro_batches=2),
    ]


def bf16_case(name: str, ranks: int, seed: int, size: int, lr: float) -> Case:
    """Weights in bf16, and steps too small for them."""
    return Case(name, ranks, {"size": size, "lr": lr}, seed, kind="bf16", timeout=40.0)


_TRAINED = Run(_train, net_inputs, hand_own_rows, TrainedEvidence)

SHARDED_OPTIMIZER = Exercise(
    "08.sharded-optimizer",
    "Stage 1: each rank steps its share",
    ("ShardedOptimizer",),
    dict.fromkeys(("values", "stateful", "groups", "schedule", "unusual", "subgroup"), _TRAINED)
    | {"bf16": Run(_train_in_bf16, _bf16_inputs, own_entry), "held": Run(_hold)},
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
            "bf16 weights are the rounded values of an fp32 master, and gradients are averaged in fp32.",
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
            "`optimizer` is the torch optimizer at work: a learning rate set in its groups counts.",
            "the learning rate was copied when the optimizer was made",
            {"schedule": weights_follow},
        ),
        Property(
            "held-bytes",
            "mechanism",
            3,
            "Each rank keeps 1/d of the optimizer's state, and the weights once.",
            "the optimizer was built on all parameters, or a flat gradient was kept",
            {"held": holds_its_share},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "A step reduce-scatters the gradients once and all-gathers the weights once: 2 psi.",
            "an all_reduce of the gradients, and then an all_gather: 3 psi",
            {"values": sends_each_once},
        ),
        Property(
            "unusual-parameters",
            "robustness",
            2,
            "Unused, frozen and tied parameters, and fewer numbers than ranks, are no trouble.",
            "a .grad that is None, or a shard that has padding only",
            {"unusual": weights_follow},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "The optimizer works in a group that is not the whole job.",
            "dist.get_rank() without the group, or a collective without group=",
            {"subgroup": every(weights_follow, stays_in_group)},
        ),
    ),
    builds_on=("08.flat-layout",),
    forbids=FORBIDDEN,
    hides=HIDES,
)
