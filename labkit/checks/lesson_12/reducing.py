"""What the gradients of two kinds of parameters must be: those every rank has, and those of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_12.exchange import EXCHANGE_ID, own_names
from labkit.checks.lesson_12.grid import enter_alone, enter_grid, grid_case, seats_of, stays_in_job
from labkit.checks.lesson_12.layer import PARTS, Whole, make_experts
from labkit.checks.lesson_12.permuting import PERMUTE_ID
from labkit.checks.lesson_12.reference import decided_tokens
from labkit.checks.lesson_12.routing import ROUTE_ID
from labkit.checks.lesson_12.spread import SPREAD_ID
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import SCALE, STEPS, calls_of, descend, on_each, same
from labkit.checks.shared.split import drawn, dtype_of
from labkit.checks.shared.twins import each_once

REDUCE_ID = "12.reduce-gradients"
LARGE = 2**20
Shapes = Mapping[str, tuple[tuple[int, ...], ...]]  # of the parameters of each kind
SHAPES: Shapes = {"shared": ((3, 4), (5,)), "experts": ((4, 2), (2,), (4, 2))}
TRAINED = ("trained", "own-parts")  # kinds of case with a layer of experts
STACKED = (2, 3, 2)  # of experts that are one parameter, in cases about layouts


def reduce_case(name: str, kind: str, copies: int, spread: int, seed: int, **params: Any) -> Case:
    """missing: "KIND.NUMBER" -> the ranks on which that parameter has no gradient. zero: those on which it is
    zero. frozen: those on which it does not ask for one. without: the kind of which the model has no
    parameters. turned: matrices are stored column after column, their gradients too; of more dimensions the
    last two change places, or "all" are in reversed order. late: the ranks that come last. tuples: parameters
    are handed over as tuples. after_alone: another model comes first, one that every rank has for itself.
    dtypes: "KIND.NUMBER" -> that of a parameter, whatever the others are in. large: parameters with gradients
    of which float16 would make infinities.
    """
    return grid_case(name, kind, copies, spread, seed, **params)


def trained_case(
    name: str, kind: str, copies: int, spread: int, tokens: list[int], shape: list[int], seed: int
) -> Case:
    """kind: one of TRAINED. tokens: of each rank. shape: [h, f, experts of a rank]."""
    return grid_case(name, kind, copies, spread, seed, tokens=tokens, shape=shape)


def _cases(seed: int) -> list[Case]:
    gone = {"shared.1": [0, 3], "experts.0": [1], "experts.2": [1, 2]}
    zero = {"shared.0": [2], "experts.1": [0]}
    without = {"shared.1": [0, 3], "experts.2": [0, 2]}
    frozen = {**without, "shared.0": [0, 1, 2, 3], "experts.0": [1], "experts.1": [0, 1, 2, 3]}
    narrow = dict.fromkeys(("shared.0", "experts.0", "experts.1"), "bfloat16")
    beside_wide = {"shared.1": "float32", "experts.0": "bfloat16"}
    return [
        reduce_case("two copies over two", "values", 2, 2, seed, late=[1]),
        reduce_case("three copies, float32", "values", 3, 1, seed, dtype="float32"),
        reduce_case("other layouts, experts in one tensor", "turned", 2, 2, seed, turned="last"),
        reduce_case("float32 beside bfloat16", "mixed", 2, 2, seed, dtype="float32", dtypes=narrow),
        reduce_case("float64 beside others", "mixed", 2, 1, seed, dtypes=beside_wide),
        reduce_case("one copy over three", "single", 1, 3, seed),
        reduce_case("without gradient here and there", "missing", 2, 2, seed, missing=gone, zero=zero),
        reduce_case("frozen here and there", "missing", 2, 2, seed, missing=without, frozen=frozen),
        reduce_case("a model without experts", "missing", 2, 1, seed, without="experts"),
        reduce_case("two jobs", "subgroup", 2, 1, seed, jobs=2),
        reduce_case("alone, with tuples", "subgroup", 1, 1, seed, tuples=True),
        trained_case("two steps", "trained", 2, 2, [5, 4, 6, 3], [4, 3, 2], seed),
        trained_case("with your own layer", "own-parts", 2, 2, [4, 6, 3, 5], [3, 4, 2], seed),
    ]


# -- gradients that are handed over


def shapes_of(case: Case, shapes: Shapes) -> Shapes:
    """Of the parameters of both kinds: none of a kind that the case is without, one more where layouts are
    what a case is about.
    """
    found = {kind: () if kind == case.params.get("without") else of_kind for kind, of_kind in shapes.items()}
    return {**found, "experts": (*found["experts"], STACKED)} if case.kind == "turned" else found


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each rank KIND.NUMBER.R, the gradients it comes with; none where they are missing."""
    missing, zero = case.params.get("missing", {}), case.params.get("zero", {})
    return {
        f"{kind}.{number}.{rank}": gradient.to(dtype_of_gradient(case, f"{kind}.{number}"))
        * (rank not in zero.get(f"{kind}.{number}", []))
        * (LARGE if f"{kind}.{number}" in case.params.get("large", []) else 1)
        for rank in range(case.ranks)
        for kind, shapes in shapes_of(case, SHAPES).items()
        for number, gradient in enumerate(drawn(case, generator, *shape) for shape in shapes)
        if rank not in missing.get(f"{kind}.{number}", [])
    }


def dtype_of_gradient(case: Case, name: str) -> torch.dtype:
    """Of a parameter, KIND.NUMBER, too."""
    own: str | None = case.params.get("dtypes", {}).get(name)
    return getattr(torch, own) if own else dtype_of(case)


def _stored(rank: Rank, tensor: Tensor) -> Tensor:
    """A copy, in the layout that the case asks for."""
    order = list(range(tensor.dim()))
    match rank.params.get("turned"):
        case "all":
            order.reverse()
        case "last":
            order[-2:] = reversed(order[-2:])
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(order)


def parameters_of(rank: Rank, of_kinds: Shapes) -> dict[str, Sequence[nn.Parameter]]:
    """Kind -> parameters with the gradients that were handed over; some are frozen, whether they have one or
    not.
    """
    owned: dict[str, Sequence[nn.Parameter]] = {}
    for kind, shapes in of_kinds.items():
        found = [_parameter(rank, f"{kind}.{number}", shape) for number, shape in enumerate(shapes)]
        owned[kind] = tuple(found) if rank.params.get("tuples") else found
    if rank.params.get("buffer"):
        _into_one_buffer([parameter for found in owned.values() for parameter in found])
    return owned


def other_parameters_of(rank: Rank, of_kinds: Shapes) -> dict[str, Sequence[nn.Parameter]]:
    """Those of another model: the same sizes, and gradients of the opposite sign, twice as large."""
    owned = parameters_of(rank, of_kinds)
    for parameter in (p for found in owned.values() for p in found):
        if parameter.grad is not None:
            parameter.grad.mul_(-2)
    return owned


def _into_one_buffer(parameters: Sequence[nn.Parameter]) -> None:
    """Gradients, which all parameters have, become views of one tensor."""
    buffer = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    parts = buffer.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


def _parameter(rank: Rank, name: str, shape: tuple[int, ...]) -> nn.Parameter:
    zeros = torch.zeros(shape, dtype=dtype_of_gradient(rank.case, name), device=rank.device)
    parameter, gradient = nn.Parameter(_stored(rank, zeros)), rank.inputs.get(name)
    parameter.grad = None if gradient is None else _stored(rank, gradient)
    parameter.requires_grad_(rank.rank not in rank.params.get("frozen", {}).get(name, []))
    return parameter


def _reduce(rank: Rank) -> None:
    """Answers KIND.NUMBER, the gradients afterwards, in a case "values" when another model's have been
    reduced too. Recording all. Fact changed: the parameters that are frozen or trained where they were not.
    """
    sides, shapes = enter_grid(rank), shapes_of(rank.case, SHAPES)
    if rank.params.get("after_alone"):
        alone, others = enter_alone(rank), parameters_of(rank, shapes)
        rank.student.reduce_gradients(others["shared"], others["experts"], alone, alone)
    owned = parameters_of(rank, shapes)
    asked = {f"{kind}.{n}": p.requires_grad for kind, ps in owned.items() for n, p in enumerate(ps)}
    with rank.recording("all"):
        rank.student.reduce_gradients(owned["shared"], owned["experts"], sides.everyone, sides.replicas)
    now = {f"{kind}.{n}": p.requires_grad for kind, ps in owned.items() for n, p in enumerate(ps)}
    rank.fact("changed", [name for name in asked if asked[name] != now[name]])
    if rank.case.kind == "values":
        others = other_parameters_of(rank, shapes)
        rank.student.reduce_gradients(others["shared"], others["experts"], sides.everyone, sides.replicas)
    for kind, parameters in owned.items():
        for number, parameter in enumerate(parameters):
            rank.answer(f"{kind}.{number}", parameter.grad)


def _means(evidence: Evidence) -> Iterator[Finding]:
    told = {
        "shared": "the mean over all ranks",
        "experts": "the sum over the ranks with that expert, divided by the number of all ranks",
    }
    for answer in evidence.answers:
        seats, shapes = seats_of(evidence.case, answer.rank), shapes_of(evidence.case, SHAPES)
        for kind, ranks in (("shared", seats.everyone), ("experts", seats.replicas)):
            for number, shape in enumerate(shapes[kind]):
                total = _total(evidence, f"{kind}.{number}", ranks, shape) / len(seats.everyone)
                yield same(f"gradient {number} of {kind}: {told[kind]}", total, answer, f"{kind}.{number}")


def _frozen_as_before(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        changed = answer.facts["changed"]
        told, seen = "every parameter as frozen as it was", f"changed: {', '.join(changed)}"
        yield Finding(not changed, told, seen, answer.rank)


def _total(evidence: Evidence, name: str, ranks: list[int], shape: tuple[int, ...]) -> Tensor:
    zeros = torch.zeros(shape, dtype=dtype_of_gradient(evidence.case, name))
    found = (evidence.inputs.get(f"{name}.{rank}", zeros) for rank in ranks)
    return torch.stack(list(found)).sum(0)


def _numbers_once(evidence: Evidence, answer: RankAnswer, phase: str) -> Iterator[Finding]:
    """Every gradient is reduced once, among the ranks that have it, in whatever dtype; a number more for each
    may say who has it, or fill a call up. What nobody has need not travel.
    """
    seats, all_shapes = seats_of(evidence.case, answer.rank), _shapes(evidence.case)
    calls = each_once(answer.collectives.get(phase, []))
    for kind, ranks in (("shared", seats.everyone), ("experts", seats.replicas)):
        among = [c for c in calls if sorted(c["group"]) == sorted(ranks)]
        shapes = all_shapes[kind]
        if sorted(seats.everyone) == sorted(seats.replicas):  # which call was for which cannot be told
            shapes = tuple(shape for of_kind in all_shapes.values() for shape in of_kind)
        expected = sum(torch.Size(shape).numel() for shape in shapes)
        seen = sum(c["num_bytes"] // getattr(torch, c["dtype"]).itemsize for c in among if c["dtype"])
        told = f"all_reduces of {expected:,} numbers in all among ranks {ranks}"
        least = 0 if ranks == [answer.rank] or evidence.case.kind == "missing" else expected
        once = least <= seen <= expected + len(shapes)
        reduced = all(c["op"] == "all_reduce" for c in among)
        yield Finding(once and reduced, told, f"{seen:,} numbers in {len(among)} calls", answer.rank)
    others = [c for c in calls if sorted(c["group"]) not in (sorted(seats.everyone), sorted(seats.replicas))]
    yield Finding(not others, "no other group is used", f"{calls_of(answer, phase)}", answer.rank)


def _shapes(case: Case) -> Shapes:
    """Of what is reduced in a case: of the layer that is trained, or of what is handed over."""
    if case.kind not in TRAINED:
        return shapes_of(case, SHAPES)
    hidden, ffn, local = case.params["shape"]
    expert = ((ffn, hidden), (ffn,), (hidden, ffn), (hidden,))
    return {"shared": ((local * case.params["spread"], hidden),), "experts": local * expert}


def _judge_once(evidence: Evidence) -> Iterator[Finding]:
    """Each time."""
    for answer in evidence.answers:
        for phase in ("all", *answer.earlier("all")):
            yield from _numbers_once(evidence, answer, phase)


# -- with a layer of experts


def _layer_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """router and PART [E, ...] of the whole; for each rank R and step I tokens.I.R."""
    hidden, ffn, local = case.params["shape"]
    num_experts = local * case.params["spread"]
    shapes = {"up": (ffn, hidden), "up_bias": (ffn,), "down": (hidden, ffn), "down_bias": (hidden,)}
    inputs = {part: drawn(case, generator, num_experts, *shape) for part, shape in shapes.items()}
    router = drawn(case, generator, num_experts, hidden)
    for rank, count in enumerate(case.params["tokens"]):
        for step in range(STEPS):
            inputs[f"tokens.{step}.{rank}"] = decided_tokens(case, generator, count, router, 2).clone()
    return {"router": router, **inputs}


def _own_layer(case: Case, inputs: Inputs, rank: int) -> Inputs:
    local = case.params["shape"][2]
    first = rank % case.params["spread"] * local
    handed = {part: inputs[part][first : first + local].clone() for part in PARTS}
    tokens = {f"tokens.{step}": inputs[f"tokens.{step}.{rank}"] for step in range(STEPS)}
    return {"router": inputs["router"], **handed, **tokens}


def _train(rank: Rank) -> None:
    """Steps of SGD on the mean of the ranks' losses. Answers router and expert.NUMBER. Recordings all, of
    each step.
    """
    sides = enter_grid(rank)
    router, experts = nn.Parameter(rank.inputs["router"].clone()), make_experts(rank.inputs)
    layer = rank.student.ExpertParallel(router, experts, 2, sides.spread)
    of_experts = [parameter for expert in experts for parameter in expert.parameters()]
    for step in range(STEPS):
        layer.zero_grad()
        (SCALE * layer(rank.inputs[f"tokens.{step}"].clone()).square().sum()).backward()
        with rank.recording("all"):
            rank.student.reduce_gradients([router], of_experts, sides.everyone, sides.replicas)
        descend(layer)
    rank.answer("router", router)
    for number, parameter in enumerate(of_experts):
        rank.answer(f"expert.{number}", parameter)


@dataclass(frozen=True)
class Layer(Evidence):
    """Answers, to be held against one layer of all experts and all tokens in one process."""

    @cached_property
    def trained(self) -> Whole:
        """After the steps."""
        whole = Whole(self.inputs["router"], make_experts(self.inputs), 2)
        for step in range(STEPS):
            whole.zero_grad()
            tokens = torch.cat([self.inputs[f"tokens.{step}.{rank}"] for rank in range(self.case.ranks)])
            (SCALE * whole(tokens).square().sum() / self.case.ranks).backward()
            descend(whole)
        return whole


def _trained(evidence: Layer) -> Iterator[Finding]:
    local = evidence.case.params["shape"][2]
    for answer in evidence.answers:
        yield same(f"the router after {STEPS} steps", evidence.trained.router.detach(), answer, "router")
        first = answer.rank % evidence.case.params["spread"] * local
        own = evidence.trained.experts[first : first + local]
        for number, parameter in enumerate(p for expert in own for p in expert.parameters()):
            told = f"parameter {number} of this rank's experts after {STEPS} steps"
            yield same(told, parameter.detach(), answer, f"expert.{number}")


RUN = Run(_reduce, _inputs, own_names)
EXERCISE = Exercise(
    REDUCE_ID,
    "Gradients of two kinds",
    ("reduce_gradients",),
    {
        **dict.fromkeys(("values", "turned", "mixed", "single", "missing", "subgroup"), RUN),
        **dict.fromkeys(TRAINED, Run(_train, _layer_inputs, _own_layer, Layer)),
    },
    _cases,
    (
        Property(
            "gradients",
            "numbers",
            3,
            "All gradients, of any layout and dtype, are those of the mean of the ranks' losses, and stay so"
            " when another model's are reduced.",
            "experts divided by the number of their copies: they have seen the tokens of every rank",
            dict.fromkeys(("values", "turned", "mixed"), _means),
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "Every gradient is reduced once, among the ranks that have its parameter.",
            "experts reduced among all: other ranks have other experts in that place",
            {"values": _judge_once},
            dict.fromkeys(("turned", "mixed", "single", "missing", "subgroup", *TRAINED), _judge_once),
        ),
        Property(
            "trained",
            "numbers",
            1,
            "After some steps a layer of experts is what one process makes of it.",
            "gradients summed and not averaged, or reduced a second time in the next step",
            {"trained": _trained},
        ),
        Property(
            "single",
            "robustness",
            2,
            "Experts of which there is one copy are divided all the same.",
            "skipped altogether: then they learn n times as fast as the rest",
            {"single": _means},
        ),
        Property(
            "missing",
            "robustness",
            2,
            "A parameter without gradient on some rank, frozen or not, counts as zeros there, and has one"
            " afterwards.",
            "left out where it is None: others wait for it, or add it to the next one",
            {"missing": every(_means, _frozen_as_before)},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works where not all ranks of the job belong together, and on one rank alone.",
            "a division by the ranks of the job",
            {"subgroup": every(_means, on_each(stays_in_job))},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It also works with your own earlier parts.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": _trained},
        ),
    ),
    builds_on=(ROUTE_ID, PERMUTE_ID, EXCHANGE_ID, SPREAD_ID),
)
