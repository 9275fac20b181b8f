"""What a capacity must show: how many rows an expert takes, and which visits are dropped."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import JSON, Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_12.handed import turned
from labkit.checks.lesson_12.reference import drawn_experts
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import is_refused, same
from labkit.checks.shared.leaving import numbers_leaving
from labkit.checks.shared.split import drawn
from labkit.checks.shared.worked import Worked

CAPACITY_ID = "12.capacity"
MANY = 500  # tokens
PART = 8  # of many tokens there are as many parts: a loop, over however many at a time, is shorter for one


def size_case(name: str, kind: str, settings: Sequence[tuple[int, int, int, float]], seed: int) -> Case:
    """settings: (tokens, k, experts, factor)."""
    return Case(name, 1, {"settings": [list(s) for s in settings]}, seed, kind=kind)


def drop_case(
    name: str, kind: str, tokens: int, experts: int, k: int, capacity: int, seed: int, **params: Any
) -> Case:
    """tokens of k experts each, of which each takes `capacity` rows. used: the experts that are visited, all
    without it. turned: gates and experts are stored column after column. signed: some gates are below 0.
    """
    settings = {"tokens": tokens, "experts": experts, "k": k, "capacity": capacity, **params}
    return Case(name, 1, settings, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    published = [
        (1024, 2, 128, 1.0),
        (4096, 2, 2048, 1.0),
        (512, 1, 8, 1.25),
        (512, 1, 8, 2.0),
        (6, 2, 4, 3.0),
    ]
    ragged = [
        (10, 2, 8, 1.0),
        (7, 1, 3, 1.5),
        (9, 3, 4, 0.5),
        (3, 1, 64, 1.0),
        (0, 2, 8, 1.0),
        (5, 2, 3, 0.0),
        (5, 1, 3, 1.25),  # 6.25, of which the whole part divides
        (200, 7, 25, 1.0),  # 56, but more in floats if 7 / 25 comes first
        (232, 7, 14, 1.0),  # 116, but more in floats if 232 / 14 comes first
    ]
    return [
        size_case("published settings", "sizes", published, seed),
        size_case("that do not divide, and some that do", "ragged", ragged, seed),
        drop_case("twelve tokens", "drops", 12, 4, 2, 4, seed),
        drop_case("one expert each, float32", "drops", 15, 5, 1, 2, seed, dtype="float32"),
        drop_case("three experts each", "drops", 10, 5, 3, 4, seed),
        drop_case("three hundred experts", "drops", 90, 300, 3, 1, seed),
        drop_case("room for as many visits, not for those of one", "drops", 8, 4, 2, 4, seed, used=[1, 2]),
        drop_case("gates in bfloat16, room for thousands", "drops", 5000, 2, 1, 2303, seed, dtype="bfloat16"),
        drop_case("room for all", "roomy", 9, 4, 2, 9, seed),
        drop_case("room for none", "roomy", 6, 3, 2, 0, seed),
        drop_case("one token", "roomy", 1, 4, 2, 1, seed),
        drop_case("gates and experts that are views", "roomy", 11, 4, 3, 6, seed, turned=True),
        drop_case("many tokens", "work", 600, 4, 2, 100, seed),
        size_case("a factor below 0", "refused", [(8, 2, 4, -0.05)], seed),  # rounded up it is 0
    ]


def kept_visits(experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    """[n, k]: whether a visit is kept, one after the other: first choices first (GShard, algorithm 1)."""
    taken = [0] * num_experts
    kept = torch.zeros_like(experts, dtype=torch.bool)
    for choice in range(experts.shape[1]):
        for token in range(experts.shape[0]):
            expert = int(experts[token, choice])
            kept[token, choice] = taken[expert] < capacity
            taken[expert] += 1
    return kept


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    n, num_experts, k = (case.params[name] for name in ("tokens", "experts", "k"))
    used = case.params.get("used", list(range(num_experts)))
    gates = drawn(case, generator, n, k).softmax(-1) + 0.1
    if case.params.get("signed"):
        gates[::2] *= -1
    if case.kind == "drops":
        gates[1::4, 0] = 0  # such a visit takes a row as well
    return {
        "gates": gates,
        "experts": drawn_experts(generator, n, k, used),
        "grad": drawn(case, generator, n, k),
    }


def _sizes(rank: Rank) -> None:
    """Fact sizes: of each setting."""
    found = [rank.student.expert_capacity(*setting) for setting in rank.params["settings"]]
    rank.fact("sizes", [_whole_number(size) for size in found])


def _whole_number(size: object) -> JSON:
    """numpy's and torch's too, but not 4.0, of which nobody can have a list of rows; else in words."""
    try:
        return operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        return repr(size)[:80]


def _refuse(rank: Rank) -> None:
    with rank.expect_error("refusal"):
        rank.student.expert_capacity(*rank.params["settings"][0])


def _drop(rank: Rank) -> None:
    """Answers gates, grad, and as they were handed over, kept, and "kept bare", where nobody asks for a
    gradient. Facts, the more of both calls: operations; left, numbers that went to Python or numpy meanwhile.
    Of many tokens also "operations of a part", with as much less room.
    """
    gates, experts = rank.inputs["gates"].clone(), rank.inputs["experts"].clone()
    if "turned" in rank.params:
        gates, experts = turned(gates), turned(experts)
    gates.requires_grad_()
    num_experts, capacity = rank.params["experts"], rank.params["capacity"]
    rank.student.drop(*others(gates), experts.flip(0), num_experts, capacity)
    if len(gates) >= MANY:
        few = len(gates) // PART
        with Worked() as part:
            rank.student.drop(gates.detach()[:few].clone(), experts[:few], num_experts, capacity // PART)
        rank.fact("operations of a part", part.calls)
    with Worked() as worked, numbers_leaving() as leaving:
        found = rank.student.drop(gates, experts, num_experts, capacity)
    rank.answer("gates", found)
    rank.answer("kept", gates)
    with rank.attempt("gradients"):
        (found * rank.inputs["grad"]).sum().backward()
    rank.answer("grad", gates.grad)
    bare = gates.detach().clone()
    with torch.no_grad(), Worked() as again, numbers_leaving() as leaving_again:
        rank.student.drop(bare, experts, num_experts, capacity)
    rank.answer("kept bare", bare)
    rank.fact("operations", max(worked.calls, again.calls))
    rank.fact("left", max(leaving.numbers, leaving_again.numbers))


def _sizes_are(evidence: Evidence) -> Iterator[Finding]:
    for setting, seen in zip(
        evidence.case.params["settings"], evidence.answers[0].facts["sizes"], strict=True
    ):
        tokens, k, num_experts, factor = setting
        expected = math.ceil(factor * k * tokens / num_experts)
        told = f"{expected} rows for {tokens} tokens, k = {k}, {num_experts} experts, factor {factor:g}"
        yield Finding(seen == expected, told, str(seen))


def _kept(evidence: Evidence) -> Tensor:
    experts, capacity = evidence.inputs["experts"], evidence.case.params["capacity"]
    return kept_visits(experts, evidence.case.params["experts"], capacity)


def _dropped(evidence: Evidence) -> Iterator[Finding]:
    expected = evidence.inputs["gates"] * _kept(evidence)
    for answer in evidence.answers:
        yield same("gates, with 0 for the visits that found no room", expected, answer, "gates")


def _given_stay(evidence: Evidence) -> Iterator[Finding]:
    told, given = "the gates that were handed over, as they were", evidence.inputs["gates"]
    return (same(told, given, answer, name) for answer in evidence.answers for name in ("kept", "kept bare"))


def _gradients(evidence: Evidence) -> Iterator[Finding]:
    expected = evidence.inputs["grad"] * _kept(evidence)
    for answer in evidence.answers:
        yield same("gradients of the gates that are kept, 0 for the others", expected, answer, "grad")


def _few_operations(evidence: Evidence) -> Iterator[Finding]:
    tokens = evidence.case.params["tokens"]
    most = tokens // 2
    for answer in evidence.answers:
        seen, of_part = answer.facts["operations"], answer.facts["operations of a part"]
        told = f"as many operations of torch for {tokens} tokens as for {tokens // PART}, {of_part}"
        yield Finding(seen < 2 * of_part, told, f"{seen}", answer.rank)
        told, left = "no tensor taken apart in Python or numpy", answer.facts["left"]
        yield Finding(left < most, told, f"{left:,} numbers left torch", answer.rank)


def _few_for_many(evidence: Evidence) -> Iterator[Finding]:
    """Where there are enough tokens to tell a loop over them from one over choices or experts."""
    return _few_operations(evidence) if evidence.case.params["tokens"] >= MANY else iter(())


DROP = Run(_drop, _inputs)
EXERCISE = Exercise(
    CAPACITY_ID,
    "A capacity, and what it drops",
    ("expert_capacity", "drop"),
    {
        "sizes": Run(_sizes),
        "ragged": Run(_sizes),
        "refused": Run(_refuse),
        "drops": DROP,
        "roomy": DROP,
        "work": DROP,
    },
    _cases,
    (
        Property(
            "sizes",
            "numbers",
            1,
            "An expert takes factor x k x tokens / E rows: GShard's 2S/E of a group of S, Switch's 1.25 N/E.",
            "k left out: a token visits k experts",
            {"sizes": _sizes_are},
        ),
        Property(
            "rounded-up",
            "robustness",
            1,
            "Where that is no whole number it is rounded up, and a whole number is what it was.",
            "rounded down, before it is divided or after, there is room for fewer rows than there are;"
            " or divided before all is multiplied, so that an error of floats makes a row more",
            {"ragged": _sizes_are},
        ),
        Property(
            "drops",
            "numbers",
            3,
            "All first choices come before all second ones, and earlier tokens before later ones.",
            "token after token, so that the second choice of an early one takes the place of a first choice;"
            " or nothing is dropped where all experts together have room",
            {"drops": every(_dropped, _given_stay)},
        ),
        Property(
            "gradients",
            "numbers",
            1,
            "A gate that is kept gets its gradient, a dropped one gets 0.",
            "gates built anew, outside the graph",
            {"drops": _gradients},
        ),
        Property(
            "work",
            "mechanism",
            1,
            "The number of operations does not grow with the tokens.",
            "a Python loop over tokens: a GPU waits for each of its steps",
            {"work": every(_dropped, _few_operations)},
            {"drops": _few_for_many},
        ),
        Property(
            "roomy",
            "robustness",
            1,
            "With room for all nothing is dropped, without any all is; there may be one token; gates and"
            " experts may be views of any layout.",
            "gates divided by their sum again, which is 0",
            {"roomy": every(_dropped, _gradients)},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "A negative factor is a ValueError.",
            "a capacity below 0 is refused: a small negative factor is rounded up to 0",
            {"refused": is_refused("refusal", "ValueError")},
        ),
    ),
)
