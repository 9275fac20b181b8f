"""What experts that are spread over ranks must show beside the same experts in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_12.called import (
    calls_each_once,
    calls_each_once_in_steps,
    has_few_messages,
    has_few_messages_in_steps,
)
from labkit.checks.lesson_12.exchange import CROSSED, EXCHANGE_ID
from labkit.checks.lesson_12.gathered import Gathered
from labkit.checks.lesson_12.handed import as_handed
from labkit.checks.lesson_12.layer import PARTS
from labkit.checks.lesson_12.permuting import PERMUTE_ID
from labkit.checks.lesson_12.reference import decided_tokens
from labkit.checks.lesson_12.routing import ROUTE_ID
from labkit.checks.lesson_12.used import use_once, use_once_and_train
from labkit.checks.shared.beside import STEPS, as_each_time, on_each, same, stays_in_group
from labkit.checks.shared.places import groups_of, place_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split import drawn, dtype_of

SPREAD_ID = "12.expert-parallel"
ROOM_IN_16_BITS = 0.1  # of the largest number


def spread_case(
    name: str, kind: str, ranks: int, tokens: list[int], shape: list[int], k: int, seed: int, **params: Any
) -> Case:
    """tokens: of each rank. shape: [h, f, experts of a rank]. idle: experts that nobody visits. still: ranks
    whose output gets gradients of zero. offset: what is added to all numbers of the router, which changes no
    probability and is rounded off in 16 bits. plain: ranks whose tokens need no gradient. frozen_router:
    whether it is, on all ranks. frozen_experts: the ranks whose experts are. late: the ranks that come last
    to what is recorded.
    """
    own_parts = kind == "own-parts"
    settings = {"tokens": tokens, "shape": shape, "k": k, **params}
    return Case(name, ranks, settings, seed, kind=kind, own_parts=own_parts)


def _cases(seed: int) -> list[Case]:
    return [
        spread_case("three ranks", "values", 3, [7, 5, 6], [4, 5, 2], 2, seed, late=[1]),
        spread_case("four ranks, float32", "values", 4, [6, 3, 5, 4], [5, 3, 1], 3, seed, dtype="float32"),
        spread_case("experts without tokens", "idle", 3, [6, 5, 4], [4, 3, 3], 2, seed, idle=[1, 6]),
        spread_case("a rank that nobody visits", "idle", 3, [5, 6, 4], [4, 3, 2], 2, seed, idle=[2, 3]),
        spread_case(
            "a rank without tokens", "empty", 3, [5, 0, 6], [5, 3, 2], 2, seed, still=[2], plain=[0, 1]
        ),
        spread_case(
            "tokens in bfloat16", "low", 3, [6, 4, 5], [8, 4, 2], 2, seed, dtype="bfloat16", offset=32.0
        ),
        spread_case(
            "frozen, and tokens without gradient",
            "empty",
            2,
            [5, 4],
            [4, 3, 2],
            2,
            seed,
            plain=[0],
            frozen_router=True,
            frozen_experts=[0],
        ),
        spread_case("called again before backward", "again", 2, [6, 4], [4, 3, 2], 2, seed),
        spread_case("a frozen router", "again", 2, [4, 5], [4, 3, 2], 2, seed, frozen_router=True),
        spread_case("crossed groups", "subgroup", 4, [4, 6, 5, 3], [4, 3, 2], 2, seed, groups=CROSSED),
        spread_case("alone", "alone", 1, [7], [4, 3, 4], 2, seed, idle=[1]),
        spread_case("all parts your own", "own-parts", 3, [4, 6, 5], [4, 3, 2], 2, seed),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each group G router.G and PART.G [E, ...]; for each rank R and step I tokens.R.I; grad.R."""
    hidden, ffn, local = case.params["shape"]
    shapes = {"up": (ffn, hidden), "up_bias": (ffn,), "down": (hidden, ffn), "down_bias": (hidden,)}
    inputs: Inputs = {}
    for index, members in enumerate(groups_of(case)):
        num_experts = local * len(members)
        wide = torch.promote_types(dtype_of(case), torch.float32)
        router = drawn(case, generator, num_experts, hidden).to(wide) / hidden**0.5
        router += case.params.get("offset", 0.0)
        inputs[f"router.{index}"] = router
        for part, shape in shapes.items():
            inputs[f"{part}.{index}"] = drawn(case, generator, num_experts, *shape)
        for rank in members:
            count, idle = case.params["tokens"][rank], tuple(case.params.get("idle", []))
            for step in range(STEPS):
                tokens = decided_tokens(case, generator, count, router, case.params["k"], idle=idle)
                inputs[f"tokens.{rank}.{step}"] = tokens.clone()
            still = rank in case.params.get("still", [])
            inputs[f"grad.{rank}"] = drawn(case, generator, count, hidden) * (not still)
    return inputs


def _own(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The router, the rank's own experts, its own tokens."""
    place, local = place_of(case, rank), case.params["shape"][2]
    experts = slice(place.position * local, (place.position + 1) * local)
    handed = {part: inputs[f"{part}.{place.index}"][experts].clone() for part in PARTS}
    tokens = {f"tokens.{step}": inputs[f"tokens.{rank}.{step}"] for step in range(STEPS)}
    return {"router": inputs[f"router.{place.index}"], "grad": inputs[f"grad.{rank}"], **handed, **tokens}


# -- in the judge


TOLD = {
    "output": "output: this rank's tokens through all experts, in their order",
    "evaluated": "output for other tokens, evaluated without a graph",
    "grad.tokens": "gradient of this rank's tokens",
    "grad.router": "gradient of the router, from this rank's tokens",
    "trained.tokens": "gradient of this rank's tokens in the last step, in evaluation",
    "trained.router": f"the router after {STEPS} steps",
}


TOGETHER = {
    "together.output": "output of a call, read after another one",
    "together.first": "gradient of the first call's tokens, in one backward of what two calls gave",
    "together.second": "gradient of the second call's tokens, in one backward of what two calls gave",
    "together.router": "gradient of the router, in one backward of what two calls gave",
}


def _is(*names: str) -> Judge:
    """A judge of what one forward and backward gave under these names; "experts": all of the experts'."""

    def judge(evidence: Gathered) -> Iterator[Finding]:
        for answer in evidence.answers:
            for name, tensor in evidence.once[answer.rank].items():
                group = name if name in TOLD else "experts"
                if group in names:
                    told = TOLD.get(name, f"{name}, from the tokens of all ranks, added up")
                    yield same(told, tensor, answer, name)

    return judge


def _roughly(*names: str) -> Judge:
    """The same in 16 bits, where each rounding shows."""

    def judge(evidence: Gathered) -> Iterator[Finding]:
        for answer in evidence.answers:
            for name, tensor in evidence.once[answer.rank].items():
                if (name if name in TOLD else "experts") in names and tensor.any():
                    told, seen = TOLD.get(name, name), answer.tensors.get(name)
                    yield in_proportion(told, [tensor], [seen], answer.rank, ROOM_IN_16_BITS)

    return judge


def _together(*names: str) -> Judge:
    """A judge of what two calls before one backward gave under these names."""

    def judge(evidence: Gathered) -> Iterator[Finding]:
        for answer in evidence.answers:
            for name, tensor in evidence.together[answer.rank].items():
                if name in names:
                    yield same(TOGETHER[name], tensor, answer, name)

    return judge


def _frozen_stay(evidence: Gathered) -> Iterator[Finding]:
    for answer in evidence.answers:
        thawed = answer.facts["thawed"]
        told = "a frozen router and frozen experts as they were handed over"
        yield Finding(not thawed, told, f"{thawed} of their parameters are trained", answer.rank)


def _frozen_kept(evidence: Gathered) -> Iterator[Finding]:
    for answer in evidence.answers:
        absent = answer.facts["absent"]
        told = "a frozen router and frozen experts as the layer's own parameter and modules"
        yield Finding(not absent, told, f"{absent} parameters are not among the layer's", answer.rank)


def _plain_stay(evidence: Gathered) -> Iterator[Finding]:
    for answer in evidence.answers:
        if answer.rank in evidence.case.params.get("plain", []):
            told = "no gradient of tokens that need none, which stay as they are"
            yield Finding("grad.tokens" not in answer.tensors, told, "they have one", answer.rank)


def _trained(evidence: Gathered) -> Iterator[Finding]:
    for answer in evidence.answers:
        bare = answer.facts["bare"]
        told = "gradients of all experts in the last step, in evaluation"
        yield Finding(not bare, told, f"none of {', '.join(bare)}", answer.rank)
        for name, tensor in evidence.trained[answer.rank].items():
            yield same(TOLD.get(name, f"{name} after {STEPS} steps"), tensor, answer, name)


def _where_trained(judge: Judge) -> Judge:
    """A judge of the steps, silent where these did not end or gave other numbers: that is a property too."""

    def find(evidence: Gathered) -> Iterator[Finding]:
        ended = all("bare" in answer.facts for answer in evidence.answers)
        if ended and all(finding.passed for finding in _trained(evidence)):
            yield from judge(evidence)

    return find


MESSAGES = every(has_few_messages, as_each_time("evaluation"), _where_trained(has_few_messages_in_steps))
CALLS = every(calls_each_once, _where_trained(calls_each_once_in_steps))
OF_TOKENS = _is("grad.tokens", "grad.router")
TOGETHER_GRADIENTS = ("together.first", "together.second", "together.router")
EVERYTHING = _is("output", "evaluated", "grad.tokens", "grad.router", "experts")
ONCE = Run(use_once, _inputs, _own, Gathered)
TRAINED = Run(use_once_and_train, _inputs, _own, Gathered)
EXERCISE = Exercise(
    SPREAD_ID,
    "Experts spread over ranks",
    ("ExpertParallel",),
    {
        "values": TRAINED,
        "idle": TRAINED,
        "empty": TRAINED,
        "low": ONCE,
        "again": ONCE,
        "subgroup": ONCE,
        "alone": ONCE,
        "own-parts": ONCE,
    },
    _cases,
    (
        Property(
            "output",
            "numbers",
            3,
            "Each token gets the gated sum of its experts, wherever they are.",
            "gates of one order multiply rows of another; or the sum was divided by the number of ranks",
            {
                "values": every(_is("output", "evaluated"), on_each(as_handed), _frozen_stay),
                "again": _together("together.output"),
            },
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Tokens and router get the gradients of one process, tokens also where the router is frozen.",
            "gates taken out of the graph; or rows that come back to others' places in backward, or by the"
            " splits of a later call",
            {"values": OF_TOKENS, "again": every(OF_TOKENS, _together(*TOGETHER_GRADIENTS))},
        ),
        Property(
            "expert-gradients",
            "numbers",
            2,
            "An expert's gradients are the sum over the tokens of all ranks.",
            "already complete: whoever reduces or averages them counts them twice",
            {"values": _is("experts")},
        ),
        Property(
            "trained",
            "numbers",
            1,
            f"After {STEPS} steps router and experts are those of one process, and so are the gradients of"
            " the tokens in the last step, which is in evaluation.",
            "copies of the modules and the router that were handed over; or no gradients in evaluation",
            {"values": every(_trained, _frozen_kept)},
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "One all-to-all of counts and two of rows forward, two of rows backward, and nothing else.",
            "tokens gathered from everybody, or rows padded to a capacity",
            {"values": MESSAGES},
            dict.fromkeys(("idle", "empty", "low", "again", "subgroup"), MESSAGES),
        ),
        Property(
            "one-call",
            "mechanism",
            2,
            "Each expert is called once, with the rows of all ranks together.",
            "a call for each rank that rows came from: rows of an expert have to lie together first",
            dict.fromkeys(("values", "idle"), CALLS),
            dict.fromkeys(("empty", "low", "again", "subgroup"), CALLS),
        ),
        Property(
            "idle",
            "robustness",
            2,
            "An expert that nobody visits gets gradients of zero, not None; a rank may get no rows at all.",
            "experts without rows are left out: who reduces gradients later waits for theirs",
            {"idle": every(EVERYTHING, _trained)},
        ),
        Property(
            "empty",
            "robustness",
            1,
            "A rank without tokens takes part, and sends no rows of its own; so does one whose tokens need no"
            " gradient, where router and experts are frozen too.",
            "the other ranks wait for it in forward, or in backward, in training or in evaluation",
            {"empty": every(EVERYTHING, _plain_stay, _trained, has_few_messages)},
        ),
        Property(
            "low-precision",
            "robustness",
            1,
            "Tokens and experts in bfloat16, the router in float32: the output is bfloat16, and gradients"
            " reach all.",
            "rows in float32 do not fit experts in bfloat16, and are twice the bytes",
            {
                "low": every(
                    _is("output"),
                    _roughly("evaluated", "grad.tokens", "grad.router", "experts"),
                    has_few_messages,
                )
            },
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, with another layer's call in another group before"
            " backward, and on one rank alone.",
            "a rank of the job taken for a rank of the group, or the group of the last call kept",
            {"subgroup": every(EVERYTHING, stays_in_group), "alone": EVERYTHING},
        ),
        Property(
            "own-parts",
            "numbers",
            1,
            "It also works with your own earlier parts.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": EVERYTHING},
        ),
    ),
    builds_on=(ROUTE_ID, PERMUTE_ID, EXCHANGE_ID),
)
