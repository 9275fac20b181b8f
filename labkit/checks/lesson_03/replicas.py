"""What `03.broadcast-module` and `03.average-gradients` must show: the same start, and the same steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_03.handles import asked_handles, waits_for_all
from labkit.checks.lesson_03.left_over import keeps_nothing_between, measured_net, send_grown, some_loss
from labkit.checks.lesson_03.net import (
    EVERY_LAYER,
    GRADIENTS,
    PAIRS,
    TORCHS_OWN,
    Net,
    ReplicaEvidence,
    any_layout,
    equals,
    hand_replica,
    hand_state,
    leaves_frozen_alone,
    lie_differently,
    loss_of,
    net_case,
    net_inputs,
    net_of,
    own_loss,
    send_gradients_and_step,
    send_state,
    stand_anywhere,
    state_of,
    subgroup,
    swap_frozen,
    tied,
    trained,
)
from labkit.checks.lesson_03.not_finite import average_spoiled, means_are_not_finite_either, not_finite_case
from labkit.checks.rank import Rank
from labkit.checks.shared.again import called_before, fill_with_zeros
from labkit.checks.shared.beside import (
    STEPS,
    calls_are,
    calls_of,
    calls_text,
    nbytes,
    same,
    stays_in_group,
)
from labkit.checks.shared.company import in_company
from labkit.checks.shared.places import enter_group

EVIDENCE = partial(ReplicaEvidence, loss=loss_of)
BROADCAST_ID = "03.broadcast-module"

# -- broadcast_module


def _broadcast_cases(seed: int) -> list[Case]:
    return [
        net_case("two ranks", "values", 2, seed, late=[1]),
        net_case("four ranks", "values", 4, seed, width=2, inner=5, late=[0], again=True),
        net_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
        net_case("views on one rank", "layout", 2, seed, views_on=[1]),
        net_case("buffers alone", "no-parameters", 2, seed),
    ]


def _broadcast(rank: Rank) -> None:
    """Broadcast nets that differ on every rank, with gradients, one of their parameters frozen, one shared,
    buffers within, and one layer in evaluation mode. Each rank goes on at once to overwrite what it has.
    Where the case says `again`, the same nets, of zeros, were broadcast before.

    Answers: state.NAME. Facts: moved, asks, changed. Recording: broadcast.
    """
    group, net = enter_group(rank), _with_more(net_of(rank.case, rank.inputs))
    net.aside.weight.requires_grad_(False)
    net.aside.eval()
    stand_anywhere(rank, net)
    lie_differently(rank, net)
    for parameter in trained(net):
        parameter.grad = torch.ones_like(parameter)
    tensors = [*net.parameters(), *net.buffers()]
    called_before(rank, tensors, lambda: rank.student.broadcast_module(net, group))
    before = _addresses(net)
    with asked_handles(rank, "broadcast"), rank.recording("broadcast"):
        rank.student.broadcast_module(net, group)
    rank.fact("moved", sorted(name for name, at in _addresses(net).items() if before[name] != at))
    rank.fact("asks", {name: parameter.requires_grad for name, parameter in net.named_parameters()})
    rank.fact("changed", sorted(_changed(net)))
    send_state(rank, net, "state")
    fill_with_zeros([*net.parameters(), *net.buffers()])


def _broadcast_buffers(rank: Rank) -> None:
    """Broadcast a net without parameters. Answers: state.NAME."""
    net = net_of(rank.case, rank.inputs)
    for module in net.modules():
        for name in [name for name, _ in module.named_parameters(recurse=False)]:
            delattr(module, name)
    rank.student.broadcast_module(net, rank.group)
    send_state(rank, net, "state")


def _with_more(net: Net) -> Net:
    """The net with a parameter and a buffer under two names each, with buffers of its layers, one of numbers
    and one that is None, and with filters of several pixels.
    """
    net.first.register_buffer("shift", net.get_buffer("scale").flip(0).clone())
    net.last.register_buffer("unused", None)
    filters = torch.arange(16.0, dtype=torch.float64).view(2, 2, 2, 2) + net.get_buffer("scale")[0]
    net.last.register_parameter("filters", nn.Parameter(filters))
    net.aside.register_buffer("seen", net.get_buffer("seen"))
    return tied(net)


def _changed(net: Net) -> Iterator[str]:
    """What else than numbers is not as `_broadcast` handed it over."""
    for name, module in net.named_modules():
        if module.training == (name == "aside"):
            yield f"the mode of {name or 'the module'}"
    for name, parameter in net.named_parameters():
        kept = parameter.grad is not None and bool((parameter.grad == 1).all())
        if kept != (name != "aside.weight"):
            yield f"the gradient of {name}"


def _addresses(net: Net) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in state_of(net).items()}


def _has_the_firsts(*kinds: str) -> Judge:
    """Every rank has the "parameters" or "buffers" of its group's first rank."""

    def judge(evidence: ReplicaEvidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            net = _with_more(evidence.first_net(answer))
            buffers = dict(net.named_buffers(remove_duplicate=False))
            for name, tensor in state_of(net).items():
                if ("buffers" if name in buffers else "parameters") in kinds:
                    yield same(f"{name} of the group's first rank", tensor, answer, f"state.{name}")

    return judge


def _has_buffers_alone(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """Every rank has the first rank's buffers, in a module that has nothing else."""
    for answer in evidence.answers:
        for name, buffer in evidence.first_net(answer).named_buffers():
            told = f"{name} of the group's first rank, in a module without parameters"
            yield same(told, buffer, answer, f"state.{name}")


def _stays_in_place(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        moved = answer.facts["moved"]
        yield Finding(moved == [], "every tensor where it was", f"replaced: {moved}", answer.rank)
        parameters = _with_more(evidence.first_net(answer)).named_parameters()
        asked = answer.facts["asks"] == {name: name != "aside.weight" for name, _ in parameters}
        yield Finding(asked, "requires_grad as it was", "changed", answer.rank)
        changed = answer.facts["changed"]
        yield Finding(not changed, "gradients and modes as they were", f"changed: {changed}", answer.rank)


def _each_is_sent_once(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in in_company(evidence):
        tensors = state_of(_with_more(evidence.first_net(answer))).values()
        total = sum({tensor.data_ptr(): nbytes(tensor) for tensor in tensors}.values())
        calls = calls_of(answer, "broadcast")
        right = {op for op, _ in calls} == {"broadcast"} and sum(size for _, size in calls) == total
        told = f"broadcasts of {total:,} bytes in all, a tensor with two names once"
        yield Finding(right, told, calls_text(calls), answer.rank)


BROADCAST = Exercise(
    BROADCAST_ID,
    "The same start",
    ("broadcast_module",),
    {
        **dict.fromkeys(("values", "subgroup", "layout"), Run(_broadcast, net_inputs, hand_state, EVIDENCE)),
        "no-parameters": Run(_broadcast_buffers, net_inputs, hand_state, EVIDENCE),
    },
    _broadcast_cases,
    (
        Property(
            "parameters",
            "numbers",
            2,
            "All ranks end with the first rank's parameters",
            "frozen parameters are left out, or what was received is not written into the parameter",
            on={"values": every(_has_the_firsts("parameters"), waits_for_all("broadcast"))},
            also=dict.fromkeys(("layout", "subgroup"), waits_for_all("broadcast")),
        ),
        Property(
            "buffers",
            "numbers",
            1,
            "All ranks end with the first rank's buffers, of a module that has nothing else too",
            "module.parameters() leaves running averages and counters out, and may be empty",
            {"values": _has_the_firsts("buffers"), "no-parameters": _has_buffers_alone},
        ),
        Property(
            "in-place",
            "mechanism",
            1,
            "Every tensor stays where it was; requires_grad, gradients and modes are as they were",
            "an optimizer made before holds the old tensors: copy into them",
            {"values": _stays_in_place},
            dict.fromkeys(("layout", "subgroup"), _stays_in_place),
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Broadcasts only, each tensor once",
            "a parameter with two names is sent twice, or all_gather was used",
            {"values": _each_is_sent_once},
            dict.fromkeys(("layout", "subgroup"), _each_is_sent_once),
        ),
        subgroup(every(_has_the_firsts("parameters", "buffers"), stays_in_group)),
        any_layout(every(_has_the_firsts("parameters", "buffers"), _stays_in_place)),
    ),
    forbids=TORCHS_OWN,
)

# -- average_gradients


def _average_cases(seed: int) -> list[Case]:
    first, then = ["second.weight"], ["first.bias", "last.weight"]
    return [
        net_case("two ranks", "values", 2, seed, late=[0], more=8),
        net_case("four ranks, in evaluation mode", "values", 4, seed, rows=3, width=1, evaluated=True),
        net_case("a layer one rank does not use", "unused", 2, seed, aside=[1]),
        net_case("a layer nobody uses", "unused", 2, seed, aside=[]),
        net_case("another layer on each rank", "unused", 2, seed, without=[["first"], ["second"]]),
        net_case("no layer on one rank", "unused", 2, seed, without=[EVERY_LAYER, []]),
        net_case("a parameter with two names", "values", 2, seed, tied=True),
        net_case(
            "another frozen layer in each step", "frozen", 2, seed, frozen=first, swapped=[*first, *then]
        ),
        net_case("two groups of two", "subgroup", 4, seed, groups=PAIRS, again=True),
        net_case("one rank", "values", 1, seed),
        net_case("views on one rank", "layout", 2, seed, views_on=[1], aside=[0]),
        not_finite_case("overflown on one rank", 2, seed, [[1, "last.weight", "inf"]]),
    ]


def _average(rank: Rank) -> None:
    """Train equal replicas on rows of their own, averaging gradients in between. In the second step what is
    frozen has a gradient of an earlier one. Where the case says `again`, gradients were averaged over all
    ranks before.

    Answers: grad STEP.NAME, trained.NAME. Facts: graphs STEP, the gradients that hold a graph; where the case
    has `more`, those of `send_grown`. Recordings: step STEP.
    """
    group, net = enter_group(rank), net_of(rank.case, rank.inputs)
    stand_anywhere(rank, net)
    lie_differently(rank, net)
    if rank.params.get("again"):
        own_loss(rank, net, 0).backward()
        rank.student.average_gradients(net, rank.group)
        net.zero_grad()
    for step in range(STEPS):
        own_loss(rank, net, step).backward()
        _turn_gradients(rank, net, step)
        frozen = [p for p in net.parameters() if not p.requires_grad] if step else []
        for parameter in frozen:
            parameter.grad = torch.ones_like(parameter)
        with asked_handles(rank, f"step {step}"), rank.recording(f"step {step}"):
            rank.student.average_gradients(net, group)
        for parameter in frozen:
            parameter.grad = None
        rank.fact(f"graphs {step}", [name for name, p in net.named_parameters() if _has_graph(p.grad)])
        send_gradients_and_step(rank, net, step)
    send_state(rank, net, "trained")
    if "more" in rank.params:
        _train_on(rank)


def _train_on(rank: Rank) -> None:
    """The facts of `send_grown`, in the group of all ranks, beside a step that averages nothing."""
    net = measured_net()

    def step() -> None:
        some_loss(net).backward()
        rank.student.average_gradients(net, rank.group)

    send_grown(rank, net, step, first=lambda: some_loss(net).backward())


def _turn_gradients(rank: Rank, net: Net, step: int) -> None:
    """On the ranks that are not among the case's `views_on`, where it has some: gradients of contiguous
    matrices are stored column after column in the second step.
    """
    if step == 0 or rank.rank in rank.params.get("views_on", [rank.rank]):
        return
    for parameter in net.parameters():
        if parameter.grad is not None and parameter.dim() == 2:
            parameter.grad = parameter.grad.t().contiguous().t()


AWAITED = [waits_for_all(f"step {step}") for step in range(STEPS)]


def _has_graph(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.requires_grad


def _hold_no_graph(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        names = sorted({name for step in range(STEPS) for name in answer.facts[f"graphs {step}"]})
        told = "gradients that ask for none themselves"
        yield Finding(not names, told, f"a graph behind those of {', '.join(names)}", answer.rank)


def _one_for_each_gradient(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in in_company(evidence):
        net = evidence.first_net(answer)
        for step in range(STEPS):
            yield calls_are(f"step {step}", [("all_reduce", nbytes(p)) for p in trained(net)], answer)
            swap_frozen(evidence.case, net)


AVERAGE = Exercise(
    "03.average-gradients",
    "Naive data parallelism",
    ("average_gradients",),
    dict.fromkeys(
        ("values", "unused", "frozen", "subgroup", "layout"),
        Run(_average, net_inputs, hand_replica, EVIDENCE),
    )
    | {"not-finite": Run(average_spoiled, net_inputs, hand_replica, EVIDENCE)},
    _average_cases,
    (
        Property(
            "gradients",
            "numbers",
            3,
            "Every gradient is the mean over the ranks",
            "a sum without dividing by the group's size",
            {
                "values": every(GRADIENTS, _hold_no_graph, *AWAITED),
                "not-finite": means_are_not_finite_either,
            },
            dict.fromkeys(("unused", "frozen", "layout", "subgroup"), every(_hold_no_graph, *AWAITED)),
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            "Two steps of SGD are those of one process with all rows, and steps leave nothing behind",
            "gradients of the step before are averaged again, or kept; a copy that the optimizer never sees",
            on={"values": every(equals("trained"), keeps_nothing_between)},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "One all_reduce for each gradient, none for what is frozen",
            "parameters are averaged instead, or gathered, or frozen ones are given gradients",
            {
                "values": _one_for_each_gradient,
                "frozen": every(GRADIENTS, leaves_frozen_alone, _one_for_each_gradient),
            },
            dict.fromkeys(("unused", "layout", "subgroup"), _one_for_each_gradient),
        ),
        Property(
            "unused-parameter",
            "robustness",
            2,
            "A parameter that some ranks did not use is averaged too",
            "skipping `grad is None` on one rank leaves the others waiting, and sending what was used first"
            " pairs other gradients: use zeros, in one order",
            {"unused": every(GRADIENTS, equals("trained"))},
        ),
        subgroup(every(GRADIENTS, equals("trained"), stays_in_group)),
        any_layout(every(GRADIENTS, equals("trained"))),
    ),
    forbids=TORCHS_OWN,
    hides=("parallel",),
)
