"""A model whose layers are split over processes: what its check does on every rank, and its judge."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_02.late_receiver import receives_late
from labkit.checks.lesson_02.plain_model import (
    squared_error,
)
from labkit.checks.lesson_02.small_layers import (
    IDS,
    STEPS,
    Specs,
    build_layers,
    draw_layer_inputs,
    layer_of,
)
from labkit.checks.lesson_02.stage_evidence import (
    AGAIN,
    BesideWhole,
    cuts_of,
    is_last,
    second_batch_equals,
    stage_equals,
)
from labkit.checks.lesson_02.stage_messages import crosses_each_boundary_once, passes_cross_once
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import all_awaited, on_each, step
from labkit.checks.shared.places import Place, enter_group, place_of

CHAIN: Specs = [["dense", 5, 7], ["dense", 7, 4], ["dense", 4, 6], ["dense", 6, 8], ["dense", 8, 3]]
FROZEN = ["0.weight", "2.weight", "2.bias", "3.bias"]  # something is trained on every rank


def _with_a_larger_batch(case: Case, generator: torch.Generator) -> Inputs:
    drawn = draw_layer_inputs(case, generator)
    larger = {f"{AGAIN}{name}": torch.cat([drawn[name]] * 3) * 0.5 for name in ("x", "grad_output")}
    return drawn | larger


def _with_a_batch_behind(case: Case, generator: torch.Generator) -> Inputs:
    drawn = draw_layer_inputs(case, generator)
    return drawn | {f"{AGAIN}x": drawn["x0"].clone(), f"{AGAIN}grad_output": drawn["grad_output"].clone()}


def _own_stage(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The weights of the rank's own layers; x for the first of a group, targets for the last."""
    place = place_of(case, rank)
    layers = range(*cuts_of(case, place))

    def is_handed(name: str) -> bool:
        plain = name.removeprefix(AGAIN)
        if plain.startswith("weights."):
            return layer_of(plain.removeprefix("weights.")) in layers
        return place.position == 0 if plain.startswith("x") else is_last(place)

    return {name: tensor for name, tensor in inputs.items() if is_handed(name)}


@dataclass(frozen=True)
class _Made:
    """The student's stage, and the parameters of this rank's layers in it: a stage may have others beside."""

    stage: nn.Module
    parameters: list[nn.Parameter]
    place: Place


def _stage_of(rank: Rank) -> _Made:
    """The student's stage, with this rank's layers."""
    group, place = enter_group(rank), place_of(rank.case, rank.rank)
    layers = [
        layer.to(rank.device) for layer in build_layers(rank.case, rank.inputs, *cuts_of(rank.case, place))
    ]
    module = nn.Sequential(*layers)
    return _Made(rank.student.RemoteStage(module, group), list(module.parameters()), place)


def train_stage(rank: Rank) -> None:
    """Forward and back, then a few steps of SGD. Answers as the plain model's, numbered within the stage.
    Recording of each of these: step. Fact: changed, what is wrong with their inputs afterwards.
    """
    made, changed = _stage_of(rank), list[JSON]()
    _both_ways(rank, made, between=partial(_use_another, rank) if rank.case.kind == "subgroup" else None)
    for number in range(STEPS):
        x = rank.inputs[f"x{number}"].clone() if made.place.position == 0 else None
        with rank.recording("step"):
            out = _forward(made.stage, x)
            loss = squared_error(out, rank.inputs[f"target{number}"]) if is_last(made.place) else out
            step(made.stage, loss)
        if x is not None and x.requires_grad:
            changed.append("it asks for a gradient")
        if x is not None and not torch.equal(x.detach(), rank.inputs[f"x{number}"]):
            changed.append("it has other numbers")
    rank.fact("changed", changed)
    for number, parameter in enumerate(made.parameters):
        rank.answer(f"trained.{number}", parameter)


def use_twice(rank: Rank) -> None:
    """Forward and back with a batch, and with one of another size; every message is fetched late."""
    made = _stage_of(rank)
    with receives_late():
        for prefix in ("", AGAIN):
            _both_ways(rank, made, prefix)


def use_in_evaluation(rank: Rank) -> None:
    """Forward and back after eval(), as the layers of the plain model are."""
    made = _stage_of(rank)
    made.stage.eval()
    _both_ways(rank, made)


def use_without_gradients(rank: Rank) -> None:
    """Forward alone, under torch.no_grad(), with two batches one behind the other, fetched late. What went in
    and what came out is overwritten at once. Then once more in evaluation mode. Facts: graph, whether that
    output has one; dimensions of it.
    """
    made = _stage_of(rank)
    for prefix in ("", AGAIN):
        x = rank.inputs[f"{prefix}x"].clone() if made.place.position == 0 else None
        with torch.no_grad(), receives_late(), rank.recording(f"{prefix}forward"):
            out = _forward(made.stage, x)
        _report_output(rank, made.place, out, prefix)
        for tensor in (x, out if is_last(made.place) else None):
            if tensor is not None:
                tensor.fill_(float("nan"))
    made.stage.eval()
    with torch.no_grad(), rank.recording("evaluated"):
        out = _forward(made.stage, rank.inputs["x"].clone() if made.place.position == 0 else None)
    rank.fact("graph", out.requires_grad)
    rank.fact("dimensions", out.dim())
    if is_last(made.place):
        rank.answer("evaluated", out)


def _forward(stage: nn.Module, x: Tensor | None) -> Any:
    return stage() if x is None else stage(x)


def _use_another(rank: Rank) -> None:
    """A stage beside the first one, in the chain of all ranks, which hands numbers on."""
    another = rank.student.RemoteStage(nn.Identity(), rank.group)
    with torch.no_grad():
        _forward(another, torch.ones(2, device=rank.device) if rank.rank == 0 else None)


def _both_ways(rank: Rank, made: _Made, prefix: str = "", between: Callable[[], None] | None = None) -> None:
    """Forward and back. between: what is done before backward."""
    made.stage.zero_grad()
    x = rank.inputs[f"{prefix}x"].clone() if made.place.position == 0 else None
    if x is not None:
        x.requires_grad_(x.is_floating_point())
    with rank.recording(f"{prefix}pass") as begin:
        with _noting(rank, f"{prefix}forward", begin):
            out = _forward(made.stage, x)
        _report_output(rank, made.place, out, prefix)
        rank.fact(f"{prefix}dimensions", out.dim())
        if between is not None:
            between()
        with _noting(rank, f"{prefix}backward", begin):
            out.backward(rank.inputs.get(f"{prefix}grad_output"))
    rank.answer(f"{prefix}input_grad", None if x is None else x.grad)
    for number, parameter in enumerate(made.parameters):
        rank.answer(f"{prefix}grad.{number}", parameter.grad)


@contextlib.contextmanager
def _noting(rank: Rank, phase: str, begin: float) -> Iterator[None]:
    """Leaves, as the fact `phase`, the seconds after `begin` when it started and ended. A phase has no
    recording of its own, so that what is started in forward may be waited for in backward.
    """
    start = time.monotonic()
    yield
    rank.fact(phase, [start - begin, time.monotonic() - begin])


def _report_output(rank: Rank, place: Place, out: Any, prefix: str = "") -> None:
    if is_last(place):
        rank.answer(f"{prefix}output", out)


def _run(on_rank: Callable[[Rank], None], inputs: Any = draw_layer_inputs) -> Run:
    return Run(on_rank, inputs, _own_stage, BesideWhole)


RUNS = {
    "values": _run(train_stage),
    "subgroup": _run(train_stage),
    "evaluated": _run(use_in_evaluation),
    "shapes": _run(use_twice, _with_a_larger_batch),
    "no-grad": _run(use_without_gradients, _with_a_batch_behind),
}


# -- judges


def _handle_is_a_scalar(evidence: BesideWhole, answer: RankAnswer) -> Finding:
    """A rank that sends returns a handle without dimensions."""
    found = answer.facts["dimensions"]
    right = is_last(place_of(evidence.case, answer.rank)) or found == 0
    return Finding(right, "a handle of no dimensions", f"one of {found}", answer.rank)


def _awaited(evidence: BesideWhole, answer: RankAnswer) -> Finding:
    return all_awaited(answer)


def _leaves_its_input(evidence: BesideWhole, answer: RankAnswer) -> Finding:
    """An input that asked for no gradient asks for none afterwards, and has the same numbers."""
    changed = ", ".join(dict.fromkeys(answer.facts["changed"]))
    return Finding(not changed, "an input that stays as it was handed over", changed, answer.rank)


def _has_no_graph(evidence: BesideWhole, answer: RankAnswer) -> Finding:
    """Under no_grad the output has no graph."""
    kept = answer.facts["graph"] and is_last(place_of(evidence.case, answer.rank))
    return Finding(not kept, "no graph behind the output under no_grad", "one", answer.rank)


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
    return Case(name, ranks, {"layers": layers, "cuts": cuts, "lead": lead, **params}, seed, kind=kind)


def _stage_cases(seed: int) -> list[Case]:
    pairs = [[0, 3], [1, 2]]
    return [
        stage_case("2 processes", "values", 2, CHAIN, [0, 2, 5], [3], seed),
        stage_case("many rows", "values", 2, CHAIN, [0, 2, 5], [96], seed),
        stage_case("other shapes", "shapes", 2, CHAIN, [0, 3, 5], [2], seed),
        stage_case("in evaluation", "evaluated", 2, CHAIN, [0, 1, 5], [2], seed, resting=[0, 1, 2, 3, 4]),
        stage_case("inference", "no-grad", 2, CHAIN, [0, 2, 5], [3], seed, late=[1]),
        stage_case("whole numbers", "values", 2, IDS, [0, 1, 3], [2, 3], seed),
        stage_case("4 processes", "values", 4, CHAIN, [0, 1, 2, 4, 5], [2, 3], seed, late=[2], frozen=FROZEN),
        stage_case("pairs of 4", "subgroup", 4, CHAIN, [0, 3, 5], [3], seed, groups=pairs),
        stage_case("1 process", "values", 1, CHAIN, [0, 5], [3], seed),
        stage_case("1, in evaluation", "evaluated", 1, CHAIN, [0, 5], [3], seed, resting=[0, 1, 2, 3, 4]),
    ]


BOTH_WAYS, PHASES = ("output", "input_grad", "grad"), ("forward", "backward")
STEPS_CROSS_ONCE = passes_cross_once("step", *PHASES)


EXERCISE = Exercise(
    "02.remote-stage",
    "A stage in each process",
    ("RemoteStage",),
    RUNS,
    _stage_cases,
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The last rank has the output of the whole model.",
            "a stage sends what it received, or its layers were not run",
            {"values": every(stage_equals("output"), on_each(_handle_is_a_scalar))},
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Every stage's parameters, and the input, get the whole model's gradients, after eval() too.",
            "the received activation does not require a gradient, or was sent on without a way back",
            {
                "values": every(stage_equals("input_grad", "grad"), on_each(_leaves_its_input)),
                "evaluated": stage_equals("input_grad", "grad"),
            },
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every stage has the whole model's weights.",
            "state of the first step is used in the second",
            {"values": stage_equals("trained")},
        ),
        Property(
            "messages",
            "mechanism",
            3,
            "One activation crosses each boundary, one gradient comes back, and nothing else is sent.",
            "everything is sent to everyone, or the input goes along with the activation",
            {"values": every(crosses_each_boundary_once(*PHASES), on_each(_awaited), STEPS_CROSS_ONCE)},
            {
                "evaluated": passes_cross_once("pass", *PHASES),
                "shapes": every(
                    passes_cross_once("pass", *PHASES),
                    passes_cross_once(f"{AGAIN}pass", *PHASES, prefix=AGAIN),
                ),
                "subgroup": STEPS_CROSS_ONCE,
                "no-grad": every(
                    passes_cross_once(f"{AGAIN}forward", "forward", prefix=AGAIN),
                    passes_cross_once("evaluated", "forward"),
                ),
            },
        ),
        Property(
            "shapes-may-change",
            "robustness",
            1,
            "A second batch of another size goes through as well.",
            "the receiver remembers the first batch's shape",
            {
                "shapes": every(
                    stage_equals(*BOTH_WAYS),
                    second_batch_equals(*BOTH_WAYS),
                )
            },
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "Two chains of two ranks each work side by side, and another stage on the same ranks.",
            "global ranks where ranks of the group are meant",
            {
                "subgroup": every(
                    stage_equals(*BOTH_WAYS, "trained"),
                    crosses_each_boundary_once(*PHASES),
                )
            },
        ),
        Property(
            "without-gradients",
            "robustness",
            1,
            "Under torch.no_grad() activations are sent, nobody waits for a gradient, and eval() is heard.",
            "the send back is part of forward",
            {
                "no-grad": every(
                    stage_equals("output", "evaluated"),
                    on_each(_has_no_graph),
                    on_each(_handle_is_a_scalar),
                    second_batch_equals("output"),
                    crosses_each_boundary_once("forward"),
                )
            },
        ),
    ),
)
