"""Judges what the ranks of a pipeline reported: the other side of `runs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from labkit.checks.case import JSON, Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.lesson_04.lists import most_held
from labkit.checks.lesson_04.model import (
    PipelineEvidence,
    came_back,
    dtype_of,
    entered,
    input_width,
    last_stage,
    rank_with,
    rows_of,
    stages_of,
)
from labkit.checks.shared.beside import STEPS, all_awaited, refused, same
from labkit.checks.shared.places import groups_of, place_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split_judges import MORE_PRODUCTS
from labkit.checks.shared.twins import Recorded, each_once
from labkit.theory.schedule import Action

TIMES_EXCHANGED = 4  # of a tied weight: both halves on both of its ranks, or two ways
HELD_BY_NAME = 2  # messages that names in the student's code may hold a little longer than it needs them
WORDS = {
    "grad": "gradient of stage {}, as the whole model has it after one backward of the whole batch",
    "trained": f"stage {{}}, as the whole model has it after {STEPS} steps of SGD on whole batches",
}


def returns_the_loss(evidence: PipelineEvidence) -> Iterator[Finding]:
    """The last stage's rank returned the loss of the whole batch, without a graph, and no other rank any."""
    for index in range(len(groups_of(evidence.case))):
        answer = evidence.answers[rank_with(last_stage(evidence.case), evidence.case, index)]
        told = "the mean loss over the whole batch, returned on the last stage's rank"
        yield same(told, evidence.expected["output"].float(), answer, "output")
        graph = "it has a graph" if answer.facts["graph"] else ""
        yield Finding(not graph, "a loss without a graph, which would keep activations", graph, answer.rank)
    for answer in evidence.answers:
        returned = "output" in answer.tensors and last_stage(evidence.case) not in stages_of(
            evidence.case, answer.rank
        )
        yield Finding(not returned, "None where the last stage is not", "a loss", answer.rank)


def loss_is_a_scalar_tensor(evidence: PipelineEvidence) -> Iterator[Finding]:
    """What the last stage's rank returned has `.item()`, and no dimensions."""
    for index in range(len(groups_of(evidence.case))):
        answer = evidence.answers[rank_with(last_stage(evidence.case), evidence.case, index)]
        returned = answer.facts["returned"]
        yield Finding(returned == "shape []", "a scalar tensor: shape []", returned, answer.rank)


def equals(kind: str, *parameters: str) -> Judge:
    """Each gradient ("grad") or trained weight ("trained") is the whole model's, and there are no others.

    parameters: names within their stages; none for all.
    """

    def judge(evidence: PipelineEvidence) -> Iterator[Finding]:
        for key, full in evidence.expected.items():
            sort, _, name = key.partition(".")
            stage, _, parameter = name.partition(".")
            if sort != kind or (parameters and parameter not in parameters):
                continue
            for index in range(len(groups_of(evidence.case))):
                answer = evidence.answers[rank_with(int(stage), evidence.case, index)]
                yield same(WORDS[kind].format(name), full, answer, key)
        for answer in evidence.answers:
            named = [key for key in answer.tensors if key.startswith(f"{kind}.")]
            beside = ", ".join(key for key in named if key not in evidence.expected)
            yield Finding(not beside, "no gradient where the whole model has none", beside, answer.rank)

    return judge


def follows_the_list(evidence: PipelineEvidence) -> Iterator[Finding]:
    """Each rank did its list, in the list's order: also a second time, where it did."""
    for answer in evidence.answers:
        for fact in ("log", *{"again"} & answer.facts.keys()):
            yield _in_order(evidence, answer, [e for e in answer.facts[fact] if e[0] != "ready"])


def _in_order(evidence: PipelineEvidence, answer: RankAnswer, seen: list[list[JSON]]) -> Finding:
    """Whether what a rank did is its list."""
    actions = _actions(evidence.case, answer.rank)
    wanted = [entry for entry in _in_log_form(actions) if entry[:2] not in _unseen(evidence)]
    alike = (one == two for one, two in zip(wanted, seen, strict=False))
    at = next((i for i, same_entry in enumerate(alike) if not same_entry), min(len(wanted), len(seen)))
    told, said = (f"number {at} is {_told(log, at, actions)}" for log in (wanted, seen))
    what = f"the list's {len(wanted)} actions in order; {told}"
    return Finding(wanted == seen, what, f"{len(seen)} actions; {said}", answer.rank)


def _unseen(evidence: PipelineEvidence) -> Sequence[list[JSON]]:
    """What no log shows: a backward of the first stage where all of it is frozen."""
    return () if any(key.startswith("grad.0.") for key in evidence.expected) else (["backward", 0],)


def does_the_real_work(evidence: PipelineEvidence) -> Iterator[Finding]:
    """Each action was done with its micro-batch's own numbers, and once. Where gradients are wrong this is
    not asked: that has points of its own.
    """
    if "trained" not in _reported(evidence) and not all(f.passed for f in equals("grad")(evidence)):
        return
    for answer in evidence.answers:
        forwards = [a for a in _actions(evidence.case, answer.rank) if a.kind == "forward"]
        counts = Counter[int]()
        for _, stage, i in forwards:
            given, gradient = evidence.crossing[i][stage]
            about, which = f"of micro-batch {i} on stage {stage}, which was handed", counts[stage]
            yield _real(f"forward {about} its activations", given, answer, entered(stage, which))
            if gradient is not None:
                yield _real(f"backward {about} its gradient", gradient, answer, came_back(stage, which))
            counts[stage] += 1
        most, seen = MORE_PRODUCTS * answer.facts["share"], answer.facts["products"]
        told = f"about {answer.facts['share']:,} operations of matrix products: each action done once"
        yield Finding(seen <= most, told, f"{seen:,}", answer.rank)


def _reported(evidence: PipelineEvidence) -> set[str]:
    """The sorts of tensors that ranks reported of parameters: "grad", or "trained" where they took steps."""
    return {name.partition(".")[0] for answer in evidence.answers for name in answer.tensors}


def _real(told: str, expected: Tensor, answer: RankAnswer, name: str) -> Finding:
    if not expected.is_floating_point():
        return same(told, expected, answer, name)
    return in_proportion(told, [expected], [answer.tensors.get(name)], answer.rank)


def waits_for_messages(evidence: Evidence) -> Iterator[Finding]:
    """Nothing is still on its way when the executor returns: what was started was waited for."""
    return map(all_awaited, evidence.answers)


def sends_each_once(evidence: Evidence) -> Iterator[Finding]:
    """In each step activations went one way once and gradients the other way once, and nothing else was sent
    but a tied weight's halves; a barrier sends nothing.
    """
    for answer in evidence.answers:
        for step, name in enumerate([*answer.earlier("messages"), "messages"]):
            seen = Counter(map(_as_message, _besides_tied(evidence.case, answer.collectives[name])))
            wanted = Counter(_messages_of(evidence.case, answer.rank, step))
            text = _extra(wanted - seen, "missing: ") + _extra(seen - wanted, "too many: ")
            crossing = "one an activation or gradient that crosses to another rank"
            yield Finding(seen == wanted, f"{wanted.total()} messages, {crossing}", text, answer.rank)


def _as_message(call: Recorded) -> tuple[str, int, int]:
    return call["op"], call["num_bytes"], call["peer"]


def _besides_tied(case: Case, calls: Sequence[Recorded]) -> list[Recorded]:
    """The calls that sent something, but for those that exchange the halves of a tied weight: an all_reduce
    among its two ranks, a gather, or whatever else comes to a few times its size.
    """
    calls = [call for call in each_once(calls) if call["op"] != "barrier"]
    if "vocabulary" not in case.params:
        return calls
    weight = case.params["vocabulary"] * input_width(case, 0) * dtype_of(case).itemsize
    ends = sorted({rank_with(stage, case) for stage in (0, last_stage(case))})
    halves = [call for call in calls if _may_be_a_half(call, weight, ends)]
    few = sum(call["num_bytes"] for call in halves) <= TIMES_EXCHANGED * weight
    return [call for call in calls if call not in halves] if few else calls


def _may_be_a_half(call: Recorded, weight: int, ends: list[int]) -> bool:
    if call["op"] in ("send", "recv"):
        return call["num_bytes"] == weight and call["peer"] in ends
    return sorted(call["group"]) == ends


def keeps_few(evidence: Evidence) -> Iterator[Finding]:
    """No rank kept more for backwards than its list asks for, and each kept something."""
    yield from keeps_few_graphs(evidence)
    for answer in evidence.answers:
        most, peak = most_held(_actions(evidence.case, answer.rank)), answer.facts["peak"]
        yield Finding(peak >= 1, "what a forward keeps for its backward kept", "nothing kept", answer.rank)
        inputs, most = answer.facts["inputs"], most + HELD_BY_NAME
        told = f"what a stage received given up after its backward: at most {most} at once"
        yield Finding(inputs <= most, told, f"{inputs} kept", answer.rank)
        gradients, most = answer.facts["gradients"], 1 + HELD_BY_NAME
        told = f"a gradient that was received given up after its backward: at most {most} at once"
        yield Finding(gradients <= most, told, f"{gradients} kept", answer.rank)


def keeps_few_graphs(evidence: Evidence) -> Iterator[Finding]:
    """No rank had more forwards' graphs at once than its list asks for."""
    for answer in evidence.answers:
        most, peak = most_held(_actions(evidence.case, answer.rank)), answer.facts["peak"]
        told = f"at most {most} micro-batches kept for their backward at once, as the list has it"
        yield Finding(peak <= most, told, f"{peak} kept", answer.rank)


def keeps_no_copies(evidence: Evidence) -> Iterator[Finding]:
    """Nor did it keep what it received in another form, or in memory of its own, or anything for later."""
    for answer in evidence.answers:
        beyond = answer.facts["beyond"]
        told = "memory for what the list has the rank keep, and for what is being sent"
        yield Finding(beyond <= 0, told, f"{beyond:,} bytes more than that", answer.rank)
        told, left = "nothing of a batch kept when run_schedule has returned", answer.facts["left"]
        yield Finding(left <= 0, told, f"{left:,} bytes more than a few messages", answer.rank)


def leaves_micro_batches(evidence: Evidence) -> Iterator[Finding]:
    """The micro-batches are as they were handed over: the same numbers, and none asks for a gradient."""
    for answer in evidence.answers:
        changed = ", ".join(answer.facts["changed"])
        yield Finding(not changed, "micro-batches that stay as they are", changed, answer.rank)


def tells_when_ready(evidence: PipelineEvidence) -> Iterator[Finding]:
    """gradients_ready was called once a stage, right after its last backward."""
    unseen = _unseen(evidence)
    for answer in evidence.answers:
        wanted = _in_log_form(_actions(evidence.case, answer.rank))
        for stage in stages_of(evidence.case, answer.rank):
            last = max(i for i, entry in enumerate(wanted) if entry[1] == stage)
            wanted.insert(last + 1, ["ready", stage, 0])
        wanted = [entry for entry in wanted if entry[:2] not in unseen]
        seen = answer.facts["log"]
        calls = [(stage, at) for at, (kind, stage, _) in enumerate(seen) if kind == "ready"]
        said = f"calls for stages {[stage for stage, _ in calls]}, after {[at for _, at in calls]} actions"
        told = "gradients_ready called once for each stage of the rank, right after its last backward"
        yield Finding([e[:2] for e in seen] == [e[:2] for e in wanted], told, said, answer.rank)


def sums_when_all_are_ready(evidence: PipelineEvidence) -> Iterator[Finding]:
    """Each stage was ready before the tied weight's halves were added up, if they were."""
    for answer in evidence.answers:
        summed = same("", evidence.expected["grad.0.embedding"], answer, "shared").passed
        early = answer.facts["early"] if summed else []
        told = "a tied weight summed after gradients_ready has been called for every stage of the rank"
        yield Finding(not early, told, f"the sum, when stages {early} were ready", answer.rank)


def refuses_bad_lists(evidence: Evidence) -> Iterator[Finding]:
    """Each rank refused each bad list with a ValueError that names the action, and had done none of it."""
    for answer in evidence.answers:
        for label, words in evidence.case.params["names"].items():
            for fact in (label, f"{label}, in train_step"):
                found = refused(fact, ["ValueError"], answer, words)
                yield replace(found, expected=f"{fact}: {found.expected}, of the action")
            done, steps = (answer.facts[f"{label}, {what}"] for what in ("done", "steps"))
            told = f"{label}: refused before any action is done"
            yield Finding(done == 0, told, f"{done} forwards and backwards before it", answer.rank)
            told = f"{label}: no step of the optimizer"
            yield Finding(steps == 0, told, f"{steps} steps", answer.rank)


def _actions(case: Case, rank: int) -> list[Action]:
    """The list a rank was handed."""
    return [Action(*action) for action in case.params["lists"][place_of(case, rank).position]]


def _messages_of(case: Case, rank: int, batch: int) -> Iterator[tuple[str, int, int]]:
    """What a rank's list makes it receive and send: the operation, bytes, the other rank."""
    index = place_of(case, rank).index
    for kind, stage, i in _actions(case, rank):
        step = 1 if kind == "forward" else -1
        for op, other in (("recv", stage - step), ("send", stage + step)):
            if 0 <= other <= last_stage(case) and rank_with(other, case, index) != rank:
                width = input_width(case, max(other, stage))
                num_bytes = dtype_of(case).itemsize * width * rows_of(case, batch)[i]
                yield op, num_bytes, rank_with(other, case, index)


def _in_log_form(actions: Sequence[Action]) -> list[list[JSON]]:
    """[kind, stage, which of the stage's forwards the micro-batch was]."""
    forwards: dict[int, list[int]] = {}
    for kind, stage, i in actions:
        if kind == "forward":
            forwards.setdefault(stage, []).append(i)
    return [[kind, stage, forwards[stage].index(i)] for kind, stage, i in actions]


def _told(log: list[list[JSON]], at: int, actions: Sequence[Action]) -> str:
    """An entry of a log in words; micro-batches by the order of the list's forwards."""
    if at >= len(log):
        return "none"
    kind, stage, which = log[at]
    order = [a.micro_batch for a in actions if a.kind == "forward" and a.stage == stage]
    return f"{kind} of micro-batch {order[which] if which < len(order) else '?'} on stage {stage}"


def _extra(calls: Counter[tuple[str, int, int]], label: str) -> str:
    parts = [f"{count} {op} of {size:,} bytes with rank {peer}" for (op, size, peer), count in calls.items()]
    return f"{label}{', '.join(parts)}. " if parts else ""
