"""Stage 2: what `ShardedGradients` must show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.lesson_08.buckets import (
    answer_gradients,
    bucket_bytes_of,
    hold_buckets,
    layer_bytes,
    make_buckets,
    most_at_rest,
    most_in_backward,
    most_in_process,
    num_buckets,
)
from labkit.checks.lesson_08.held import bytes_beforehand, bytes_held, holds_no_more
from labkit.checks.lesson_08.in_turn import Ready, leave_in_turn
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
    sent,
    shard_case,
    snapshot,
    stack,
    step_plainly,
    uses_both,
    weights_follow,
)
from labkit.checks.lesson_08.stacks import StackEvidence, stack_inputs
from labkit.checks.lesson_08.whole import nothing_else
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, same, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split import dtype_of, loaded
from labkit.record.live import LiveBytes, bytes_of_process

MEASURED = (0, 1)  # the second of a rank's rows alone


def _train(rank: Rank) -> None:
    """Answers "grad STEP.SHARD" and "weights STEP.NAME"; facts: left_over, those of `Ready`; recordings "step
    N", "gather N". Where the case says so, another module was sharded before and is in each backward too.
    """
    group, net, beside = enter_group(rank), handed_net(rank), list[nn.Module]()
    ready = Ready(net)
    if rank.params.get("another"):
        beside.append(handed_net(rank))
        rank.student.ShardedGradients(beside[0], group, rank.params["bucket_bytes"])
    sharded = rank.student.ShardedGradients(net, group, rank.params["bucket_bytes"])
    left_over = []
    for step in range(STEPS):
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
    rank.fact("left_over", left_over)


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


def shards_follow(evidence: TrainedEvidence) -> Iterator[Finding]:
    """Each shard's gradient is the rank's part of the mean over ranks, padded with zeros."""
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        for step in range(STEPS):
            net = net_of(evidence.case)
            loaded(net, evidence.trained(place.members)[step])
            evidence.mean_loss(net, step, place.members).backward()
            parameters = dict(net.named_parameters())
            for number, names in enumerate(make_buckets(net, evidence.case.params["bucket_bytes"])):
                part = _part([parameters[n] for n in names], place.position, place.size)
                told = f"shard {number} of the gradient in step {step + 1}, of {', '.join(names)}"
                yield same(told, part, answer, f"grad {step}.{number}")


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


def leaves_as_it_comes(evidence: Evidence) -> Iterator[Finding]:
    """A reduce-scatter for each bucket, the first before the last gradient is there, and nothing else; then a
    gather for each.
    """
    case = evidence.case
    for answer in evidence.answers:
        scattered = sent(answer, "step 0", "reduce_scatter")
        expected = [bucket_bytes_of(case)] * num_buckets(case)
        others = sorted({op for op, _ in calls_of(answer, "step 0")} - {"reduce_scatter", "barrier"})
        right = scattered == expected and not others
        told = f"{len(expected)} reduce_scatters of {expected[0]:,} bytes"
        yield Finding(right, told, f"{scattered}; others: {', '.join(others) or 'none'}", answer.rank)
        yield _early(answer)
        seen = [call for call in calls_of(answer, "gather") if call[0] != "barrier"]
        share = expected[0] // case.ranks
        told = f"gather_weights: {len(expected)} all_gathers of {share:,} bytes"
        yield Finding(seen == [("all_gather", share)] * len(expected), told, str(seen), answer.rank)


def _early(answer: RankAnswer) -> Finding:
    starts = [c["start"] for c in answer.collectives["step 0"] if c["op"] == "reduce_scatter"]
    ready = answer.facts["ready"]
    right = bool(starts and ready) and starts[0] < ready[-1]
    return Finding(right, "a reduce_scatter before the last gradient is there", "none", answer.rank)


def leaves_bucket_by_bucket(evidence: Evidence) -> Iterator[Finding]:
    """Also of a small module, whatever of it is used: in each backward one reduce-scatter a bucket, then one
    gather a bucket in each `gather_weights`, and nothing else that is large.
    """
    case = evidence.case
    passes = case.params["micro_batches"]
    between = passes - 1 if case.params.get("gathers_between") else 0
    for answer in evidence.answers:
        size = place_of(case, answer.rank).size
        shares = _shares(case, size)
        for step in range(STEPS if size > 1 else 0):
            phase, gather = f"step {step}", f"gather {step}"
            buckets = passes * [size * share for share in shares]
            besides = buckets if case.params.get("another") else []  # of the other module, if they leave here
            yield _sends(answer, phase, "reduce_scatter", buckets, besides)
            yield _sends(answer, phase, "all_gather", between * shares)
            yield nothing_else(answer, phase)
            yield _sends(answer, gather, "all_gather", shares)
            yield nothing_else(answer, gather)


def _shares(case: Case, size: int) -> list[int]:
    """Bytes of a rank's shard of each bucket."""
    net = net_of(case)
    parameters = dict(net.named_parameters())
    buckets = make_buckets(net, case.params["bucket_bytes"])
    numbers = (sum(parameters[name].numel() for name in names) for names in buckets)
    return [-(-number // size) * dtype_of(case).itemsize for number in numbers]


def _sends(
    answer: RankAnswer, phase: str, op: str, expected: Sequence[int], besides: Sequence[int] = ()
) -> Finding:
    seen = sorted(sent(answer, phase, op))
    right = seen in (sorted(expected), sorted([*expected, *besides]))
    return Finding(right, f"{phase}: {op}s of {sorted(expected)} bytes", str(seen), answer.rank)


def stays_small(evidence: Evidence) -> Iterator[Finding]:
    """At the peak: the shards, two buckets, and room for what a backend copies; at the end: the shards."""
    case = evidence.case
    whole = case.params["layers"] * layer_bytes(case)
    share = whole // case.ranks
    bucket, most = bucket_bytes_of(case), most_in_backward(case)
    for answer in evidence.answers:
        made, peak, held = (answer.facts[name] for name in ("made", "peak", "held_bytes"))
        told = "the weights once, each shard a view of them: no other tensors before backward"
        yield Finding(made <= bucket // 4, told, f"{made:,} bytes more", answer.rank)
        told = f"at most {most:,} bytes of new tensors in backward (all gradients: {whole:,})"
        yield Finding(share <= peak <= most, told, f"{peak:,}", answer.rank)
        told = f"{share:,} bytes of gradients after backward"
        yield Finding(share <= held <= most_at_rest(case), told, f"{held:,}", answer.rank)
        yield from _leave_in_turn(case, answer)


def _leave_in_turn(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    """When a bucket is complete, at most the one before it has not begun to leave: bytes alone do not tell,
    as a backend's copies are among them.
    """
    starts = [c["start"] for c in answer.collectives["step 0"] if c["op"] == "reduce_scatter"]
    complete = answer.facts["ready"][case.params["layers_a_bucket"] - 1 :: case.params["layers_a_bucket"]]
    for number, moment in enumerate(complete, 1):
        begun = sum(start < moment for start in starts)
        told = f"{max(0, number - 2)} reduce_scatters begun, or more, when bucket {number} is complete"
        yield Finding(begun >= number - 2, told, str(begun), answer.rank)


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
        watched_case("all that the process holds", 2, seed, 192, 8, 1, kind="process"),
        bucket_case(
            "weights one rank does not use", "aside", 3, seed, parts=["side", "ahead"], both=[[1], [0, 2]]
        ),
        bucket_case("a weight nobody uses", "aside", 2, seed, parts=["side"], both=[[]]),
        bucket_case(
            "frozen, half frozen, tied, unused, called twice",
            "unusual",
            2,
            seed,
            parts=["frozen", "half", "tied", "unused", "twice"],
        ),
        bucket_case("fewer numbers than ranks", "unusual", 4, seed, width=1, inner=1),
        bucket_case("two groups of two ranks", "subgroup", 4, seed, groups=PAIRS),
        bucket_case("one rank", "values", 1, seed, micro_batches=2),
    ]


def bucket_case(name: str, kind: str, ranks: int, seed: int, **params: object) -> Case:
    """The small net, in buckets of a layer or so."""
    return shard_case(name, kind, ranks, seed, **{"bucket_bytes": 200, **params})


def watched_case(
    name: str, ranks: int, seed: int, width: int, layers: int, layers_a_bucket: int, kind: str = "watched"
) -> Case:
    """Equal layers in float32; `width` squared is divided by the ranks."""
    sizes = {"width": width, "layers": layers, "layers_a_bucket": layers_a_bucket, "dtype": "float32"}
    bucket_bytes = 4 * width**2 * layers_a_bucket
    return Case(name, ranks, {**sizes, "bucket_bytes": bucket_bytes}, seed, kind=kind, timeout=40.0)


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
            {"values": every(weights_follow, same_bits), "watched": stack_weights_follow},
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
            {"aside": every(shards_follow, weights_follow)},
        ),
        Property(
            "unusual-parameters",
            "robustness",
            1,
            "Frozen, tied and unused layers, one that is called twice, and tiny ones are no trouble.",
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
