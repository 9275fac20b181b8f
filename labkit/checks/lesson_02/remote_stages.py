"""A model whose layers are split over processes: what its check does on every rank, and its judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Property
from labkit.checks.lesson_02.small_layers import (
    LEARNING_RATE,
    STEPS,
    Specs,
    activation_bytes,
    build_layers,
    draw_layer_inputs,
    reference,
)
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import Place, enter_group, place_of

Message = tuple[str, int, int]  # "send" or "recv", bytes, the other rank


def draw_stage_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """The layers' inputs, and a second, larger batch where the case asks for one."""
    drawn = draw_layer_inputs(case, generator)
    if case.params["kind"] == "shapes":
        drawn |= {f"again.{name}": torch.cat([drawn[name]] * 3) * 0.5 for name in ("x", "grad_output")}
    return drawn


def layers_of(case: Case, inputs: Inputs, place: Place) -> list[nn.Module]:
    """The layers that the rank at `place` has, of the whole model."""
    first, last = case.params["cuts"][place.position : place.position + 2]
    return build_layers(case, inputs)[first:last]


def use_remote_stage(rank: Rank) -> None:
    """Run the student's stage on every rank, forward and back, train it, and report."""
    group, place = enter_group(rank), place_of(rank.case, rank.rank)
    layers = [layer.to(rank.device) for layer in layers_of(rank.case, rank.inputs, place)]
    stage = rank.student.RemoteStage(nn.Sequential(*layers), group)
    match rank.params["kind"]:
        case "no-grad":
            with torch.no_grad(), rank.recording("forward"):
                out = _forward(stage, place, rank.inputs["x"])
            _report_output(rank, place, out)
        case "shapes":
            for prefix in ("", "again."):
                _both_ways(rank, stage, place, prefix)
        case _:
            _both_ways(rank, stage, place, "")
            _train(rank, stage, place)


def _forward(stage: nn.Module, place: Place, x: Tensor) -> Any:
    return stage(x) if place.position == 0 else stage()


def _both_ways(rank: Rank, stage: nn.Module, place: Place, prefix: str) -> None:
    stage.zero_grad()
    x = rank.inputs[f"{prefix}x"].clone().requires_grad_()
    with rank.recording(f"{prefix}forward"):
        out = _forward(stage, place, x)
    _report_output(rank, place, out, prefix)
    with rank.recording(f"{prefix}backward"):
        out.backward(rank.inputs[f"{prefix}grad_output"] if _is_last(place) else None)
    if place.position == 0:
        rank.answer(f"{prefix}input_grad", x.grad)
    for number, parameter in enumerate(stage.parameters()):
        rank.answer(f"{prefix}grad.{number}", parameter.grad)


def _report_output(rank: Rank, place: Place, out: Any, prefix: str = "") -> None:
    if _is_last(place):
        rank.answer(f"{prefix}output", out)


def _train(rank: Rank, stage: nn.Module, place: Place) -> None:
    optimizer = torch.optim.SGD(stage.parameters(), lr=LEARNING_RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        out = _forward(stage, place, rank.inputs[f"x{step}"].clone())
        if _is_last(place):
            out = (out - rank.inputs[f"target{step}"]).square().sum()
        out.backward()
        optimizer.step()
    for number, parameter in enumerate(stage.parameters()):
        rank.answer(f"trained.{number}", parameter)


def _is_last(place: Place) -> bool:
    return place.position == place.size - 1


def judge_remote_stage(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Hold every rank's report against the whole model on one process."""
    for answer in answers:
        place = place_of(case, answer.rank)
        expected = _expected(case, inputs, place)
        match case.params["kind"]:
            case "values":
                yield from _equal("forward-values", expected, answer, "output")
                yield from _equal("gradients", expected, answer, "input_grad", "grad")
                yield from _equal("trained-weights", expected, answer, "trained")
                yield from _messages("messages", case, inputs, answer, place, "forward", "backward")
            case "subgroup":
                yield from _equal("subgroup", expected, answer, "output", "input_grad", "grad", "trained")
                yield from _messages("subgroup", case, inputs, answer, place, "forward", "backward")
            case "shapes":
                again = {n.removeprefix("again."): t for n, t in inputs.items() if n.startswith("again.")}
                second = _expected(case, inputs | again, place)
                second = {f"again.{key}": tensor for key, tensor in second.items()}
                yield from _equal(
                    "shapes-may-change", expected | second, answer, "output", "input_grad", "grad"
                )
            case "no-grad":
                yield from _equal("without-gradients", expected, answer, "output")
                yield from _messages("without-gradients", case, inputs, answer, place, "forward")


def _expected(case: Case, inputs: Inputs, place: Place) -> dict[str, Tensor]:
    """The part of the whole model's tensors that this rank should report, under its own numbers."""
    counts = [len(list(layer.parameters())) for layer in build_layers(case, inputs)]
    first, last = case.params["cuts"][place.position : place.position + 2]
    start, stop = sum(counts[:first]), sum(counts[:last])
    found = {}
    for key, tensor in reference(case, inputs).items():
        kind, _, number = key.partition(".")
        if kind in ("grad", "trained") and start <= int(number) < stop:
            found[f"{kind}.{int(number) - start}"] = tensor
        if (kind == "output" and _is_last(place)) or (kind == "input_grad" and place.position == 0):
            found[kind] = tensor
    return found


def _equal(name: str, expected: dict[str, Tensor], answer: RankAnswer, *kinds: str) -> Iterator[Finding]:
    for key, tensor in expected.items():
        if key.removeprefix("again.").partition(".")[0] not in kinds:
            continue
        wrong = difference(tensor, answer.tensors.get(key))
        told = f"{key} of this rank's layers, as the whole model on one process has it"
        yield Finding(name, wrong is None, told, f"{key}: {wrong}", answer.rank)


def _messages(
    name: str, case: Case, inputs: Inputs, answer: RankAnswer, place: Place, *phases: str
) -> Iterator[Finding]:
    """One activation over each boundary forward, one gradient back, and nothing else that carries values."""
    sizes, cuts = activation_bytes(case, inputs), case.params["cuts"]
    here, members = place.position, place.members
    expected: dict[str, list[Message]] = {"forward": [], "backward": []}
    if here > 0:
        size = sizes[cuts[here]]
        expected["forward"].append(("recv", size, members[here - 1]))
        expected["backward"].append(("send", size, members[here - 1]))
    if not _is_last(place):
        size = sizes[cuts[here + 1]]
        expected["forward"].append(("send", size, members[here + 1]))
        expected["backward"].insert(0, ("recv", size, members[here + 1]))
    for phase in phases:
        calls = answer.collectives.get(phase, [])
        seen = [(c["op"], c["num_bytes"], c["peer"]) for c in calls if _carries_values(c)]
        told, was = f"{phase}: {_in_words(expected[phase])}", f"{phase}: {_in_words(seen)}"
        yield Finding(name, seen == expected[phase], told, was, answer.rank)


def _carries_values(call: dict[str, JSON]) -> bool:
    """Whether a call is more than the announcement of a tensor's shape."""
    return call["op"] not in ("send", "recv") or "int" not in call["dtype"]


def _in_words(messages: list[Any]) -> str:
    return ", ".join(f"{op} {size:,} bytes, rank {peer}" for op, size, peer in messages) or "no messages"


# ---- the exercise

CHAIN: Specs = [["dense", 5, 7], ["dense", 7, 4], ["dense", 4, 6], ["dense", 6, 8], ["dense", 8, 3]]


def stage_case(
    name: str,
    kind: str,
    ranks: int,
    layers: Specs,
    cuts: list[int],
    lead: list[int],
    seed: int,
    **params: Any,
) -> Case:
    """Rank r of a group has layers cuts[r] to cuts[r + 1]."""
    about = {
        "values": ("forward-values", "gradients", "trained-weights", "messages"),
        "subgroup": ("subgroup",),
        "shapes": ("shapes-may-change",),
        "no-grad": ("without-gradients",),
    }[kind]
    given = {"kind": kind, "layers": layers, "cuts": cuts, "lead": lead, **params}
    return Case(name, ranks, given, seed, about)


def _stage_cases(seed: int) -> list[Case]:
    pairs = [[0, 3], [1, 2]]
    return [
        stage_case("2 processes", "values", 2, CHAIN, [0, 2, 5], [3], seed),
        stage_case("other shapes", "shapes", 2, CHAIN, [0, 3, 5], [2], seed),
        stage_case("inference", "no-grad", 2, CHAIN, [0, 2, 5], [3], seed),
        stage_case("4 processes", "values", 4, CHAIN, [0, 1, 2, 4, 5], [2, 3], seed),
        stage_case("pairs of 4", "subgroup", 4, CHAIN, [0, 3, 5], [3], seed, groups=pairs),
        stage_case("1 process", "values", 1, CHAIN, [0, 5], [3], seed),
    ]


REMOTE = Exercise(
    "02.remote-stage",
    "A stage in each process",
    ("RemoteStage",),
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The last rank has the output of the whole model.",
            "a stage sends what it received, or its layers were not run",
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Every stage's parameters, and the input, get the whole model's gradients.",
            "the received activation does not require a gradient, or was sent on without a way back",
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every stage has the whole model's weights.",
            "state of the first step is used in the second",
        ),
        Property(
            "messages",
            "mechanism",
            3,
            "One activation crosses each boundary, one gradient comes back, and nothing else is sent.",
            "everything is sent to everyone, or the input goes along with the activation",
        ),
        Property(
            "shapes-may-change",
            "robustness",
            1,
            "A second batch of another size goes through as well.",
            "the receiver remembers the first batch's shape",
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "Two chains of two ranks each work side by side.",
            "global ranks where ranks of the group are meant",
        ),
        Property(
            "without-gradients",
            "robustness",
            1,
            "Under torch.no_grad() activations are sent, and nobody waits for a gradient.",
            "the send back is part of forward",
        ),
    ),
    _stage_cases,
    draw_stage_inputs,
    use_remote_stage,
    judge_remote_stage,
)
