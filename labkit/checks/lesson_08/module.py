"""Stage 3: what `FullyShardedModule` must show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_08.net import (
    FORBIDDEN,
    LEARNING_RATE,
    STEPS,
    TrainedEvidence,
    answer_weights,
    hand_own_rows,
    handed_net,
    loss_of,
    net_inputs,
    net_of,
    same_bits,
    sent,
    shard_case,
    stack,
    uses_both,
    weights_follow,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused, same, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.split import loaded
from labkit.record.live import LiveBytes, bytes_of_process, settled_bytes_of_process, tensors_of_process

PAIRS = [[0, 3], [1, 2]]


def _train(rank: Rank, evaluate: bool) -> None:
    """Answers "output STEP.MICRO", "input_grad STEP.MICRO", "weights STEP.NAME".

    evaluate: whether a forward without gradients, and one that no backward follows, go before each step.
    """
    group, net = enter_group(rank), handed_net(rank)
    sharded = rank.student.FullyShardedModule(net, net.units(), group, rank.params["prefetch"])
    both = uses_both(rank.case, rank.rank)
    for step in range(STEPS):
        if evaluate:
            with torch.no_grad():
                sharded(rank.inputs["x"][step, 0], both)
            sharded(rank.inputs["x"][step, 0], both)
        for m in range(rank.params["micro_batches"]):
            x = rank.inputs["x"][step, m].clone().requires_grad_()
            with rank.recording(f"step {step}, {m}"):
                out = sharded(x, both)
                loss_of(out, rank.inputs["target"][step, m]).backward()
            rank.answer(f"output {step}.{m}", out)
            rank.answer(f"input_grad {step}.{m}", x.grad)
        _step_plainly(sharded.shards)
        answer_weights(rank, sharded.full_weights(), step)


@torch.no_grad()
def _step_plainly(shards: Sequence[nn.Parameter]) -> None:
    for shard in shards:
        if shard.grad is not None:
            shard.sub_(LEARNING_RATE * shard.grad)
            shard.grad = None


def _watch(rank: Rank) -> None:
    """A step of equal layers, watched. Facts: at_rest, forward_peak, after_forward, backward_peak,
    after_backward; forwards and backwards, when each unit was at work. Recordings: forward, backward.
    """
    group, log = rank.group, list[float]()
    others = tensors_of_process()
    before = bytes_of_process()
    net = stack(rank.case, log)
    sharded = rank.student.FullyShardedModule(net, list(net), group, rank.params["prefetch"])
    rank.fact("at_rest", bytes_of_process() - before)
    x = torch.ones(1, rank.params["width"])
    sharded(x).sum().backward()
    _step_plainly(sharded.shards)
    log.clear()
    leaving: list[float] = []
    live = LiveBytes(leave_out=[*others, x])
    live.count(tensors_of_process())
    with live:
        with rank.recording("forward") as begin:
            out = sharded(x)
        rank.fact("forwards", [moment - begin for moment in log])
        rank.fact("forward_peak", live.peak)
        rank.fact("after_forward", bytes_of_process() - before)
        live.restart_peak()
        with rank.recording("backward") as begin:
            _note_backward(out, leaving)
            out.sum().backward()
    rank.fact("backwards", [moment - begin for moment in leaving])
    rank.fact("backward_peak", live.peak)
    rank.fact("after_backward", settled_bytes_of_process() - before)


def _note_backward(out: Tensor, leaving: list[float]) -> None:
    """Note when the gradient of each tanh, from the last layer's to the first's, begins to be computed."""
    node, seen = out.grad_fn, set()
    while node is not None and node not in seen:
        seen.add(node)
        if "Tanh" in node.name():
            node.register_prehook(lambda gradients: leaving.append(time.monotonic()))
        following = [n for n, _ in node.next_functions if n is not None and "Accumulate" not in n.name()]
        node = following[0] if following else None


def _homeless(rank: Rank) -> None:
    """Leave one unit out of the list. Fact: refusal."""
    net = handed_net(rank)
    with rank.expect_error("refusal"):
        rank.student.FullyShardedModule(net, [u for u in net.units() if u is not net.third], rank.group, 1)


# -- judges


def outputs_follow(evidence: TrainedEvidence) -> Iterator[Finding]:
    """Outputs, with the weights of that step."""
    for answer, step, m, out, _ in _micro_batches(evidence):
        yield same(f"output, step {step + 1}, micro-batch {m}", out, answer, f"output {step}.{m}")


def input_gradients_follow(evidence: TrainedEvidence) -> Iterator[Finding]:
    """The gradient of x, of the rank's own loss."""
    for answer, step, m, _, gradient in _micro_batches(evidence):
        told = f"gradient of x, step {step + 1}, micro-batch {m}"
        yield same(told, gradient, answer, f"input_grad {step}.{m}")


def _micro_batches(evidence: TrainedEvidence) -> Iterator[tuple[RankAnswer, int, int, Tensor, Tensor]]:
    for answer in evidence.answers:
        states = evidence.trained(place_of(evidence.case, answer.rank).members)
        for step in range(STEPS):
            net = net_of(evidence.case)
            loaded(net, states[step])
            for m in range(evidence.case.params["micro_batches"]):
                x, target = (evidence.inputs[n][answer.rank, step, m].clone() for n in ("x", "target"))
                out = net(x.requires_grad_(), uses_both(evidence.case, answer.rank))
                (gradient,) = torch.autograd.grad(loss_of(out, target), x)
                yield answer, step, m, out.detach(), gradient


def _unit_bytes(case: Case) -> int:
    return 4 * int(case.params["width"]) ** 2


def _share(case: Case) -> int:
    return case.params["layers"] * _unit_bytes(case) // case.ranks


def rests_in_shards(evidence: Evidence) -> Iterator[Finding]:
    """Before a step, and between forward and backward, a rank holds its shards; after backward also their
    gradients.
    """
    case = evidence.case
    slack = _unit_bytes(case) // 2
    for answer in evidence.answers:
        for fact, share in (("at_rest", 1), ("after_forward", 1), ("after_backward", 2)):
            held, expected = answer.facts[fact], share * _share(case)
            told = f"{expected:,} bytes {fact.replace('_', ' ')} (all weights: {case.ranks * _share(case):,})"
            yield Finding(expected <= held <= expected + slack, told, f"{held:,}", answer.rank)


def stays_small(evidence: Evidence) -> Iterator[Finding]:
    """Two units whole in forward; in backward also gradients of two, and room for what a backend copies."""
    case, unit = evidence.case, _unit_bytes(evidence.case)
    for answer in evidence.answers:
        for fact, shards, units in (("forward_peak", 1, 2.5), ("backward_peak", 2, 6.5)):
            peak, most = answer.facts[fact], int(shards * _share(case) + units * unit)
            told = f"{fact.replace('_', ' ')}: at most {most:,} bytes (a unit: {unit:,})"
            yield Finding(_share(case) <= peak <= most, told, f"{peak:,}", answer.rank)


def three_passes(evidence: Evidence) -> Iterator[Finding]:
    """Forward gathers each unit once; backward gathers each once, perhaps not the last, and scatters each."""
    case = evidence.case
    unit, layers = _unit_bytes(case), case.params["layers"]
    shard = unit // case.ranks
    for answer in evidence.answers:
        forward, again = sent(answer, "forward", "all_gather"), sent(answer, "backward", "all_gather")
        scattered = sent(answer, "backward", "reduce_scatter")
        right = forward == [shard] * layers
        told = f"forward: {layers} all_gathers of {shard:,} bytes"
        yield Finding(right, told, str(forward), answer.rank)
        right = again in ([shard] * layers, [shard] * (layers - 1)) and scattered == [unit] * layers
        told = f"backward: {layers} all_gathers of {shard:,} bytes, {layers} reduce_scatters of {unit:,}"
        yield Finding(right, told, f"{again} and {scattered}", answer.rank)
        calls = [c for phase in ("forward", "backward") for c in answer.collectives[phase]]
        others = {c["op"] for c in calls if c["source"] == "python"} - {"all_gather", "reduce_scatter"}
        yield Finding(not others, "no other collective", ", ".join(sorted(others)), answer.rank)


def fetches_ahead(evidence: Evidence) -> Iterator[Finding]:
    """When a unit is at work, its own gather and those of as many more as were asked for have begun."""
    case = evidence.case
    for answer in evidence.answers:
        for phase, moments in (("forward", "forwards"), ("backward", "backwards")):
            gathers = [
                c["start"]
                for c in answer.collectives[phase]
                if c["op"] == "all_gather" and c["source"] == "python"
            ]
            began = answer.facts[moments]
            kept = case.params["layers"] - len(gathers)  # the last unit, which may have stayed
            for number, moment in enumerate(began):
                wanted = min(number + 1 + case.params["prefetch"], case.params["layers"]) - kept
                seen = sum(start < moment for start in gathers)
                told = f"{phase}: {wanted} all_gathers begun when unit {number + 1} of the pass is at work"
                yield Finding(seen == wanted, told, str(seen), answer.rank)
            if len(began) != case.params["layers"]:
                yield Finding(
                    False, f"{phase} of {case.params['layers']} units", str(len(began)), answer.rank
                )


def module_cases(seed: int) -> list[Case]:
    """The visible cases."""
    return [
        unit_case("two ranks", "values", 2, seed),
        unit_case("several micro-batches", "values", 4, seed, micro_batches=3),
        unit_case("three ranks, nothing fetched ahead", "values", 3, seed, prefetch=0),
        unit_case("several inputs and outputs", "values", 2, seed, parts=["two"]),
        watched_case("sixteen equal layers", 2, seed, 64, 16, 1),
        watched_case("on four ranks, nothing fetched ahead", 4, seed, 48, 16, 0),
        unit_case("two units that share a weight", "tied", 2, seed, parts=["tied"], micro_batches=2),
        unit_case("a unit that is called twice", "twice", 3, seed, parts=["twice"], micro_batches=2),
        unit_case("a frozen unit, and one nobody uses", "frozen", 2, seed, parts=["frozen", "unused"]),
        unit_case("a weight one rank does not use", "aside", 3, seed, parts=["side"], both=[1]),
        unit_case("evaluation between steps", "evaluated", 2, seed, parts=["twice"]),
        unit_case("fewer numbers than ranks", "tiny", 4, seed, width=1, inner=1),
        unit_case("a unit that was forgotten", "homeless", 2, seed),
        unit_case("two groups of two ranks", "subgroup", 4, seed, groups=PAIRS),
        unit_case("one rank", "values", 1, seed),
    ]


def unit_case(name: str, kind: str, ranks: int, seed: int, **params: object) -> Case:
    """The small net, of which each layer is a unit."""
    return shard_case(name, kind, ranks, seed, **{"prefetch": 1, **params})


def watched_case(name: str, ranks: int, seed: int, width: int, layers: int, prefetch: int) -> Case:
    """Equal layers in float32; `width` squared is divided by the ranks."""
    sizes = {"width": width, "layers": layers, "prefetch": prefetch, "dtype": "float32"}
    return Case(name, ranks, sizes, seed, kind="watched", timeout=40.0)


_TRAINED = Run(partial(_train, evaluate=False), net_inputs, hand_own_rows, TrainedEvidence)
_EVALUATED = Run(partial(_train, evaluate=True), net_inputs, hand_own_rows, TrainedEvidence)
_ALL = every(outputs_follow, weights_follow)

FULLY_SHARDED_MODULE = Exercise(
    "08.fully-sharded-module",
    "Stage 3: weights that come and go",
    ("FullyShardedModule",),
    dict.fromkeys(("values", "tied", "twice", "frozen", "aside", "tiny", "subgroup"), _TRAINED)
    | {
        "evaluated": _EVALUATED,
        "watched": Run(_watch),
        "homeless": Run(_homeless, net_inputs, hand_own_rows),
    },
    module_cases,
    (
        Property(
            "outputs",
            "numbers",
            2,
            "Every output is that of the plain module with the weights of that step.",
            "a unit ran before its weights had arrived, or shards came in another order than the ranks",
            {"values": outputs_follow},
        ),
        Property(
            "input-gradients",
            "numbers",
            1,
            "The gradient of the input is that of the plain module.",
            "backward ran with weights that had been freed, or with another unit's",
            {"values": input_gradients_follow},
        ),
        Property(
            "trained-weights",
            "numbers",
            4,
            "After each step of plain SGD over the shards, the weights are those one process has with all"
            " ranks' rows, and the same on all ranks.",
            "gradients were added and not averaged, or a micro-batch replaced what was there",
            {"values": every(weights_follow, same_bits)},
        ),
        Property(
            "shards-at-rest",
            "mechanism",
            3,
            "Before a step, and between forward and backward, a rank holds 1/d of the weights; after"
            " backward 1/d of the gradients too.",
            "the module's own weights, or the gathered ones, are still there",
            {"watched": rests_in_shards},
        ),
        Property(
            "peak-bytes",
            "mechanism",
            3,
            "At most two units are whole at a time, weights and gradients.",
            "weights stay until the end of the pass, or gradients are scattered there",
            {"watched": stays_small},
        ),
        Property(
            "passes",
            "mechanism",
            2,
            "Forward gathers each unit once, backward gathers and scatters each once.",
            "an all_reduce of the gradients, or a gather that fetches what is there",
            {"watched": three_passes},
        ),
        Property(
            "prefetch",
            "mechanism",
            2,
            "While a unit is at work, the gathers of `prefetch` more have begun, in forward and in backward.",
            "the next unit is gathered when it is needed, or all are gathered at once",
            {"watched": fetches_ahead},
        ),
        Property(
            "tied-weights",
            "robustness",
            2,
            "Two units that share a weight train it as one.",
            "the second unit has a copy, or its gradient was scattered before the first's was there",
            {"tied": _ALL},
        ),
        Property(
            "called-twice",
            "robustness",
            2,
            "A unit that is called twice, also with evaluations between steps, gets both gradients.",
            "its gradient was scattered when backward left it the first time",
            {"twice": _ALL, "evaluated": _ALL},
        ),
        Property(
            "frozen-and-unused",
            "robustness",
            1,
            "A frozen unit stays as it is, and one that nobody uses is no trouble.",
            "",
            {"frozen": _ALL},
        ),
        Property(
            "unused-weights",
            "robustness",
            2,
            "A weight inside a unit that only some ranks use counts as zeros elsewhere; nobody waits.",
            "the unit is scattered when all its gradients are there: on some ranks never",
            {"aside": _ALL},
        ),
        Property(
            "small-and-missing",
            "robustness",
            1,
            "Fewer numbers than ranks work; a parameter in no unit is refused with a ValueError that names"
            " it.",
            "",
            {"tiny": _ALL, "homeless": is_refused("refusal", "ValueError", names=lambda case: ["third"])},
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
