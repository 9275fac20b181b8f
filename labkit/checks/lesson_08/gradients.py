"""Stage 2: what `ShardedGradients` must show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.lesson_08.buckets import (
    answer_gradients,
    hold_buckets,
    make_buckets,
    most_at_rest,
    most_in_backward,
    most_in_process,
)
from labkit.checks.lesson_08.held import bytes_beforehand, bytes_held, holds_no_more
from labkit.checks.lesson_08.in_turn import Ready, leave_in_turn
from labkit.checks.lesson_08.leaving import leaves_as_it_comes, leaves_bucket_by_bucket, stays_small
from labkit.checks.lesson_08.net import (
    FORBIDDEN,
    LEARNING_RATE,
    PAIRS,
    STEPS,
    TrainedEvidence,
    answer_weights,
    hand_own_rows,
    handed_net,
    loss_with,
    net_inputs,
    net_of,
    same_bits,
    shard_case,
    snapshot,
    stack,
    step_plainly,
    uses_both,
    weights_follow,
)
from labkit.checks.lesson_08.stacks import StackEvidence, stack_inputs
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split import loaded
from labkit.record.live import LiveBytes, bytes_of_process

MEASURED = (0, 1)  # the second of a rank's rows alone
USED_BY_SOME = ("ahead.", "side.sometimes.", "unused.")  # names of parameters


def _train(rank: Rank) -> None:
    """Answers "grad STEP.SHARD" and "weights STEP.NAME", and "weights STEPS.NAME" of shards that were halved
    then; facts: left_over, those of `Ready`; recordings "step N", "gather N". Where the case says so, another
    module was sharded before and is in each backward too, and every other step is made in eval().
    """
    group, net, beside = enter_group(rank), handed_net(rank), list[nn.Module]()
    ready = Ready(net)
    if rank.params.get("another"):
        beside.append(handed_net(rank))
        rank.student.ShardedGradients(beside[0], group, rank.params["bucket_bytes"])
    sharded = rank.student.ShardedGradients(net, group, rank.params["bucket_bytes"])
    left_over = []
    for step in range(STEPS):
        net.train(step % 2 == 0 or not rank.params.get("in_eval"))
        ready.begins_step()
        with rank.recording(f"step {step}") as begin:
            for m in range(rank.params["micro_batches"]):
                ready.begins_backward()
                if m and rank.params.get("gathers_between"):
                    sharded.gather_weights()
                out = net(rank.inputs["x"][step, m], uses_both(rank.case, rank.rank, step))
                loss_with(out, rank.inputs["target"][step, m], beside, rank.inputs["x"][step, m]).backward()
        ready.tell(rank, step, begin)
        left_over += [name for name, p in net.named_parameters() if p.grad is not None]
        for number, shard in enumerate(sharded.shards):
            rank.answer(f"grad {step}.{number}", shard.grad)
        step_plainly(sharded.shards)
        with rank.recording(f"gather {step}"):
            sharded.gather_weights()
        answer_weights(rank, snapshot(net), step)
    _halve(sharded.shards)
    sharded.gather_weights()
    answer_weights(rank, snapshot(net), STEPS)
    rank.fact("left_over", left_over)


@torch.no_grad()
def _halve(shards: Sequence[nn.Parameter]) -> None:
    """Change them without a backward, as who loads a checkpoint does."""
    for shard in shards:
        shard.div_(2)


def _watch(rank: Rank) -> None:
    """A step of equal layers, watched. Facts: made, peak, held_bytes, ready. Recordings: "step 0" and
    "gather". Answers: "grad 0.SHARD", "weights 0.NAME".
    """
    net = stack(rank.case, [])
    ready: list[float] = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: ready.append(time.monotonic()))
    before = bytes_beforehand()
    sharded = rank.student.ShardedGradients(net, rank.group, rank.params["bucket_bytes"])
    made = bytes_of_process() - before
    first, x = rank.inputs["x"].cpu().split(1)
    net(first).sum().backward()  # what torch keeps from a first backward is no gradient
    for shard in sharded.shards:
        shard.grad = None
    ready.clear()
    loss = net(x).sum()
    with (
        LiveBytes([x, loss, *net.parameters()], most_in_backward(rank.case)) as live,
        rank.recording("step 0") as begin,
    ):
        loss.backward()
    rank.fact("made", made)
    rank.fact("peak", live.peak)
    rank.fact("held_bytes", bytes_held(before + made + most_at_rest(rank.case)) - before - made)
    rank.fact("ready", [moment - begin for moment in ready])
    answer_gradients(rank, sharded)
    step_plainly(sharded.shards)
    with rank.recording("gather"):
        sharded.gather_weights()
    answer_weights(rank, snapshot(net), 0)


# -- judges


def shards_follow(evidence: TrainedEvidence, used_by_all: bool = False) -> Iterator[Finding]:
    """Each shard's gradient is the rank's part of the mean over ranks, padded with zeros. used_by_all: in
    the first step alone, of buckets in front of the first that some do not use.
    """
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        for step in range(1 if used_by_all else STEPS):
            net = net_of(evidence.case)
            loaded(net, evidence.trained(place.members)[step])
            evidence.mean_loss(net, step, place.members).backward()
            parameters = dict(net.named_parameters())
            for number, names in enumerate(make_buckets(net, evidence.case.params["bucket_bytes"])):
                if used_by_all and any(name.startswith(USED_BY_SOME) for name in names):
                    break
                part = _part([parameters[n] for n in names], place.position, place.size)
                told = f"shard {number} of the gradient in step {step + 1}, of {', '.join(names)}"
                yield same(told, part, answer, f"grad {step}.{number}")


def follows_where_unused(evidence: TrainedEvidence) -> Iterator[Finding]:
    """Gradients and weights. Who does not add up micro-batches of what all ranks use is told so elsewhere."""
    several = evidence.case.params["micro_batches"] > 1
    if not several or all(finding.passed for finding in shards_follow(evidence, used_by_all=True)):
        yield from shards_follow(evidence)
        yield from weights_follow(evidence)


def gathers_at_any_time(evidence: TrainedEvidence) -> Iterator[Finding]:
    """Also where no backward went before."""
    frozen = {name for name, p in net_of(evidence.case).named_parameters() if not p.requires_grad}
    for answer in evidence.answers:
        state = evidence.trained(place_of(evidence.case, answer.rank).members)[STEPS]
        for name, weight in state.items():
            told = f"{name} after its shards were halved and gathered, without another backward"
            expected = weight if name in frozen else weight / 2
            yield same(told, expected, answer, f"weights {STEPS}.{name}")


def _part(parameters: Sequence[Tensor], position: int, size: int) -> Tensor:
    return _part_of([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters], position, size)


def _part_of(gradients: Sequence[Tensor], position: int, size: int) -> Tensor:
    flat = torch.cat([g.flatten() for g in gradients])
    padding = -flat.numel() % size
    return torch.cat([flat, flat.new_zeros(padding)]).chunk(size)[position]


def stack_shards_follow(evidence: StackEvidence) -> Iterator[Finding]:
    """Where bytes and calls are counted, the shards' gradients are those of the plain stack."""
    case, gradients = evidence.case, evidence.gradients(MEASURED)
    names = make_buckets(stack(case, []), case.params["bucket_bytes"])
    for answer in evidence.answers:
        expected = [_part_of([gradients[n] for n in bucket], answer.rank, case.ranks) for bucket in names]
        seen = [answer.tensors.get(f"grad 0.{number}") for number in range(len(names))]
        yield in_proportion("the shards' gradients", expected, seen, answer.rank)


def stack_weights_follow(evidence: StackEvidence) -> Iterator[Finding]:
    """Nor does a step of theirs leave other weights."""
    for name, gradient in evidence.gradients(MEASURED).items():
        expected = evidence.start[name] - LEARNING_RATE * gradient / evidence.case.ranks
        for answer in evidence.answers:
            yield same(f"{name}, as one process has it", expected, answer, f"weights 0.{name}")


def nothing_left_over(evidence: Evidence) -> Iterator[Finding]:
    """No parameter of the module keeps a gradient of its own."""
    for answer in evidence.answers:
        left = sorted(set(answer.facts["left_over"]))
        yield Finding(not left, "no .grad at the module's parameters after backward", str(left), answer.rank)


def gradient_cases(seed: int) -> list[Case]:
    """The visible cases."""
    return [
        bucket_case(
            "two ranks, and another module in each backward", "values", 2, seed, late=[1], another=True
        ),
        bucket_case(
            "several micro-batches", "values", 4, seed, micro_batches=3, late=[0], gathers_between=True
        ),
        bucket_case("three ranks, everything in one bucket", "values", 3, seed, bucket_bytes=10**6),
        watched_case("twelve equal layers", 4, seed, width=64, layers=12, layers_a_bucket=1),
        # The second bucket is complete before the first.
        watched_case("ten, of which two change places", 2, seed, 64, 10, 1, called=[*range(8), 9, 8]),
        watched_case("all that the process holds", 2, seed, 192, 8, 1, kind="process"),
        bucket_case(
            "weights one rank does not use, in two micro-batches",
            "aside",
            3,
            seed,
            parts=["side", "ahead"],
            both=[[1], [0, 2]],
            micro_batches=2,
        ),
        bucket_case("a weight nobody uses", "aside", 2, seed, parts=["side"], both=[[]]),
        bucket_case(
            "frozen, half frozen, tied, unused, called twice",
            "unusual",
            2,
            seed,
            parts=["frozen", "half", "tied", "unused", "twice"],
            in_eval=True,
        ),
        bucket_case("fewer numbers than ranks", "unusual", 4, seed, width=1, inner=1),
        bucket_case("two groups of two ranks", "subgroup", 4, seed, groups=PAIRS),
        bucket_case("one rank", "values", 1, seed, micro_batches=2),
    ]


def bucket_case(name: str, kind: str, ranks: int, seed: int, **params: object) -> Case:
    """The small net, in buckets of a layer or so."""
    return shard_case(name, kind, ranks, seed, **{"bucket_bytes": 200, **params})


def watched_case(
    name: str,
    ranks: int,
    seed: int,
    width: int,
    layers: int,
    layers_a_bucket: int,
    kind: str = "watched",
    **params: object,
) -> Case:
    """Equal layers in float32; `width` squared is divided by the ranks."""
    sizes = {"width": width, "layers": layers, "layers_a_bucket": layers_a_bucket, "dtype": "float32"}
    bucket_bytes = 4 * width**2 * layers_a_bucket
    about = {**sizes, "bucket_bytes": bucket_bytes, **params}
    return Case(name, ranks, about, seed, kind=kind, timeout=40.0)


_TRAINED = Run(_train, net_inputs, hand_own_rows, TrainedEvidence)

SHARDED_GRADIENTS = Exercise(
    "08.sharded-gradients",
    "Stage 2: gradients that do not stay",
    ("ShardedGradients",),
    dict.fromkeys(("values", "aside", "unusual", "subgroup"), _TRAINED)
    | {
        "watched": Run(_watch, stack_inputs, own_entry, StackEvidence),
        "process": Run(hold_buckets, stack_inputs, own_entry, StackEvidence),
    },
    gradient_cases,
    (
        Property(
            "gradients",
            "numbers",
            3,
            "Each shard's gradient is the rank's part of the mean over ranks, micro-batches added up, also"
            " where the weights are gathered in between.",
            "a micro-batch replaced what was there, or the sum was not divided",
            {"values": shards_follow},
        ),
        Property(
            "trained-weights",
            "numbers",
            3,
            "After each step of plain SGD over the shards, and `gather_weights`, the weights are those of one"
            " process.",
            "the shard is a copy: an optimizer changes it, and not the weights",
            {
                "values": every(weights_follow, gathers_at_any_time, same_bits),
                "watched": stack_weights_follow,
            },
        ),
        Property(
            "during-backward",
            "mechanism",
            3,
            "Each bucket is reduce-scattered once, the first before the last gradient is there, and gathered"
            " once by `gather_weights`.",
            "everything was scattered at the end of backward, or all-reduced, or gathered at once",
            {"watched": every(leaves_as_it_comes, stack_shards_follow)},
            dict.fromkeys(("values", "aside", "unusual", "subgroup"), leaves_bucket_by_bucket),
        ),
        Property(
            "held-bytes",
            "mechanism",
            3,
            "A rank holds the weights once, at the peak of backward its shards of the gradients and at most"
            " two buckets, and after it its shards.",
            "p.grad or the flat gradients of all buckets were kept",
            {
                "watched": every(stays_small, stack_shards_follow),
                "process": every(holds_no_more(most_in_process), stack_shards_follow),
            },
            dict.fromkeys(("values", "aside", "unusual", "subgroup"), leave_in_turn),
        ),
        Property(
            "nothing-left-over",
            "mechanism",
            1,
            "No parameter of the module has a .grad after backward.",
            "p.grad = None is missing where a gradient was taken",
            {"values": nothing_left_over, "aside": nothing_left_over},
            {"unusual": nothing_left_over, "subgroup": nothing_left_over},
        ),
        Property(
            "unused-weights",
            "robustness",
            3,
            "A weight that some ranks, or all, did not use counts as zeros, and nobody waits for it.",
            "a bucket that never fills, or buckets that are scattered in the order they fill",
            {"aside": follows_where_unused},
        ),
        Property(
            "unusual-parameters",
            "robustness",
            1,
            "Frozen, tied and unused layers, one that is called twice, tiny ones, and a module in eval() are"
            " no trouble.",
            "a bucket that waits for a frozen parameter, or counts a tied or twice-called one twice",
            {"unusual": every(shards_follow, weights_follow)},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job.",
            "dist.get_rank() without the group, or a collective without group=",
            {"subgroup": every(weights_follow, stays_in_group)},
        ),
    ),
    forbids=FORBIDDEN,
)
