"""The checks of `broadcast_module` and `average_gradients`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_03.evidence import calls_are, describe, groups_used, tensors_match
from labkit.checks.lesson_03.net import (
    STEPS,
    Net,
    first_net,
    loss_of,
    own_net,
    place_of,
    reference_gradients,
    send_gradients,
    send_state,
    step_plainly,
    uses_aside,
)
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group

# -- broadcast_module


def broadcast_on_rank(rank: Rank) -> None:
    """Broadcast nets that differ on every rank, one of them with a frozen and a shared parameter."""
    group = enter_group(rank)
    net = own_net(rank.case, rank.inputs, rank.rank)
    net.aside.weight.requires_grad_(False)
    net.aside.bias = net.last.bias  # one parameter under two names
    before = {name: tensor.data_ptr() for name, tensor in net.state_dict(keep_vars=True).items()}
    with rank.recording("broadcast"):
        rank.student.broadcast_module(net, group)
    after = {name: tensor.data_ptr() for name, tensor in net.state_dict(keep_vars=True).items()}
    rank.fact("moved", sorted(name for name in before if before[name] != after[name]))
    rank.fact("asks", {name: parameter.requires_grad for name, parameter in net.named_parameters()})
    send_state(rank, net, "state")


def judge_broadcast(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    for answer in answers:
        place = place_of(case, answer.rank)
        net = first_net(case, inputs, answer.rank)
        net.aside.bias = net.last.bias
        state = net.state_dict()
        buffers = {name for name, _ in net.named_buffers()}
        if case.params["kind"] == "subgroup":
            yield from tensors_match("subgroup", answer, "state", state, "of the group's first rank")
            yield from groups_used("subgroup", answer, place.members)
            continue
        parameters = {n: t for n, t in state.items() if n not in buffers}
        told = "of the group's first rank"
        yield from tensors_match("parameters", answer, "state", parameters, told)
        yield from tensors_match("buffers", answer, "state", {n: state[n] for n in buffers}, told)
        moved = answer.facts["moved"]
        yield Finding("in-place", moved == [], "every tensor where it was", f"replaced: {moved}", answer.rank)
        kept = {n: n != "aside.weight" for n, _ in net.named_parameters()}
        yield Finding(
            "in-place", answer.facts["asks"] == kept, "requires_grad as it was", "changed", answer.rank
        )
        yield from _broadcasts(answer, net)


def _broadcasts(answer: RankAnswer, net: Net) -> Iterator[Finding]:
    calls = answer.collectives["broadcast"]
    unique = {t.data_ptr(): t.nbytes for t in net.state_dict(keep_vars=True).values()}
    total, seen = sum(unique.values()), sum(call["num_bytes"] for call in calls)
    fine = seen == total and {call["op"] for call in calls} == {"broadcast"}
    told = f"broadcasts of {total} bytes in all, a tensor with two names once"
    yield Finding("communication", fine, told, f"{seen} bytes: {describe(calls)}", answer.rank)


# -- average_gradients


def average_on_rank(rank: Rank) -> None:
    """Train equal replicas for two steps on rows of their own, averaging gradients in between."""
    group = enter_group(rank)
    net = first_net(rank.case, rank.inputs, rank.rank)
    for step in range(STEPS):
        loss_of(net, rank.case, rank.inputs, step, rank.rank).backward()
        with rank.recording(f"step {step}"):
            rank.student.average_gradients(net, group)
        send_gradients(rank, net, f"grad {step}")
        step_plainly(net)
    send_state(rank, net, "trained")


def judge_average(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    special = {"subgroup": "subgroup", "unused": "unused-parameter"}.get(case.params["kind"])
    for answer in answers:
        place = place_of(case, answer.rank)
        gradients, trained = trained_reference(case, inputs, answer.rank)
        told = "averaged over the group"
        yield from tensors_match(special or "gradients", answer, "grad 0", gradients[0], told)
        yield from tensors_match(special or "gradients", answer, "grad 1", gradients[1], told)
        yield from tensors_match(special or "trained-weights", answer, "trained", trained, "after two steps")
        if special == "subgroup":
            yield from groups_used("subgroup", answer, place.members)
        if special is None and place.size > 1:
            sizes = [g.nbytes for g in gradients[0].values() if g is not None]
            yield from calls_are(
                "communication", answer, "step 0", "all_reduce", sizes, "one for each gradient"
            )


def trained_reference(
    case: Case, inputs: Inputs, rank: int
) -> tuple[list[dict[str, Tensor | None]], dict[str, Tensor]]:
    """Gradients of each step, and the state after all steps, of one process that has the whole group's
    rows.
    """
    net, gradients = first_net(case, inputs, rank), []
    for step in range(STEPS):
        reference_gradients(net, case, inputs, step, rank)
        gradients.append({name: parameter.grad for name, parameter in net.named_parameters()})
        step_plainly(net)
    return gradients, dict(net.state_dict())


__all__ = ["uses_aside"]
