"""What `09.choose-plan` must show: plans that run, and are nearly as fast as the fastest there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run
from labkit.checks.lesson_09.drawn import of_all_sorts
from labkit.checks.lesson_09.given import (
    A100_40,
    H100,
    HIDES,
    LLAMA_8B,
    LLAMA_70B,
    OWN_PARTS,
    OWN_PARTS_CAUSE,
    SMALL_GPT,
    machines,
    told,
)
from labkit.checks.lesson_09.reasons import FEASIBLE_ID
from labkit.checks.lesson_09.seconds import SECONDS_ID
from labkit.checks.lesson_09.settings import (
    Setting,
    answers_of,
    arguments,
    asks,
    case_of,
    plan_in_numbers,
    setting,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import refused
from labkit.theory.grid import GridPlan, costs

CHOOSE_ID = "09.choose-plan"
WIDE = {**SMALL_GPT, "num_layers": 18, "hidden": 8192, "num_heads": 64, "vocabulary": 8000}
KINDS = ("usual", "slow", "small", "pairs")
SECONDS = 60.0  # of a case


class ChoiceEvidence(Evidence):
    """Plans that were chosen, beside the best that there are."""

    @cached_property
    def chosen(self) -> list[tuple[Setting, GridPlan | None, list[str], float]]:
        """Setting, plan, why it does not run, and its seconds over the fastest plan's, less 1."""
        return [self._held_against_the_best(one, seen) for one, seen in answers_of(self)]

    def _held_against_the_best(
        self, one: Setting, seen: Any
    ) -> tuple[Setting, GridPlan | None, list[str], float]:
        if not isinstance(seen, dict):
            return one, None, [f"no GridPlan of whole numbers: {seen}"], float("inf")
        plan = GridPlan(**seen)
        reasons = list(_reasons(plan, one))
        if reasons:
            return one, plan, reasons, float("inf")
        seconds = sum(costs.seconds_by_term(plan, *arguments(one)).values())
        return one, plan, [], seconds / costs.fastest(*arguments(one))[1] - 1


def _reasons(plan: GridPlan, one: Setting) -> Iterator[str]:
    if min(plan.data, plan.tensor, plan.pipeline, plan.micro_batch) < 1 or plan.zero not in (0, 1):
        yield "a number below 1, or a ZeRO stage other than 0 and 1"
        return
    for rule, numbers in costs.broken_rules(plan, *arguments(one)).items():
        yield f"{rule}: {' and '.join(f'{number:,.0f}' for number in numbers)}"


def runs(evidence: ChoiceEvidence) -> Iterator[Finding]:
    """Every plan runs."""
    for one, plan, reasons, _ in evidence.chosen:
        yield Finding(not reasons, f"a plan that runs for {told(one)}", f"{plan}: {'; '.join(reasons)}")


def within(most: float) -> Judge:
    """Every plan runs, and takes at most that share longer than the fastest."""

    def judge(evidence: ChoiceEvidence) -> Iterator[Finding]:
        for one, plan, reasons, regret in evidence.chosen:
            words = f"at most {most:.0%} slower than the fastest plan for {told(one)}"
            seen = "it does not run" if reasons else f"{regret:.1%} slower"
            yield Finding(regret <= most, words, f"{plan}: {seen}")

    return judge


def _cases(seed: int) -> list[Case]:
    impossible: list[Setting] = [
        setting(LLAMA_70B, machines(1, 8, A100_40), 8, 4096),
        setting(SMALL_GPT, machines(29, 1, H100), 3, 2048),  # neither replicas nor stages: there is no grid
    ]
    asked: list[tuple[str, str, list[Setting]]] = [
        ("three clusters", "usual", _three_clusters()),
        ("many GPUs for small batches", "usual", _small_batches()),
        ("slow networks", "slow", _slow_networks()),
        ("little memory", "small", _little_memory()),
        ("little memory, and many plans", "small", _far_from_the_first()),
        ("one question after the other", "usual", _one_thing_changed()),
        ("two GPUs a node, six, or sixteen", "pairs", _odd_nodes()),
        ("slow starts", "usual", _slow_starts()),
        ("models and machines of all sorts", "usual", of_all_sorts(Random(f"09/sorts/{seed}"), 5)),
        ("nothing fits", "refused", impossible),
        ("all parts your own", "own-parts", _three_clusters()[1:2]),
    ]
    return [case_of(name, kind, settings, seed, SECONDS) for name, kind, settings in asked]


def _three_clusters() -> list[Setting]:
    # 128 replicas, with one micro-batch of 47 each: half of them, or powers of 2, take half as long again.
    flat = {**H100, "links": 100e9, "network": 200e9, "falloff": 0.0}
    return [
        setting(LLAMA_8B, machines(16, 8, H100), 256, 4096),
        setting(SMALL_GPT, machines(4, 8, A100_40), 192, 2048),
        setting(SMALL_GPT, machines(16, 8, flat), 6016, 128),
    ]


def _small_batches() -> list[Setting]:
    fast = {**H100, "links": 900e9, "layer_floor": 0.0}
    return [
        setting(SMALL_GPT, machines(16, 8, H100), 128, 2048),  # two stages for one micro-batch
        setting(LLAMA_8B, machines(4, 8, fast), 4, 4096),  # a whole node of tensor parallelism
    ]


def _slow_starts() -> list[Setting]:
    """Few GPUs a node, and layers that are long in starting: they want many sequences at once. Or all that a
    node has between them, and nothing to wait for.
    """
    slow = {**H100, "network": 2.5e9, "layer_floor": 0.02}
    apart = {**H100, "links": 87.2e9, "layer_floor": 0.0}
    return [
        setting(LLAMA_8B, machines(6, 2, {**slow, "memory": 24e9}), 256, 1024),  # recomputed, four at once
        setting(SMALL_GPT, machines(8, 2, {**slow, "memory": 40e9}), 96, 1024),  # eight stages, 24 at once
        setting({**SMALL_GPT, "num_layers": 40}, machines(6, 8, apart), 96, 1024),  # eight stages, six nodes
    ]


def _slow_networks() -> list[Setting]:
    return [
        setting(LLAMA_8B, machines(8, 8, {**H100, "network": 1.5e9}), 128, 4096),
        setting(LLAMA_8B, machines(3, 8, {**H100, "network": 1e8}), 16, 4096),
        # Stages inside of nodes, ZeRO 1, and recomputation although other plans run without.
        setting(LLAMA_70B, machines(4, 8, {**H100, "links": 60e9}), 256, 4096),
    ]


def _little_memory() -> list[Setting]:
    lonely = {**A100_40, "memory": 22e9}  # a stage for each layer: what else fits is a third slower
    # Replicas of the whole model, ZeRO 0, and recomputation: any two of these are slower, or do not fit.
    whole = {**A100_40, "memory": 38e9, "network": 12e9}
    return [
        setting(LLAMA_70B, machines(16, 8, A100_40), 256, 4096),
        setting(WIDE, machines(18, 1, lonely), 64, 1024),
        setting(SMALL_GPT, machines(8, 1, whole), 8, 12_288),
    ]


def _odd_nodes() -> list[Setting]:
    fast = {**H100, "links": 900e9, "layer_floor": 0.0}  # all sixteen of a node: eight are a seventh slower
    return [
        setting(LLAMA_8B, machines(16, 2, A100_40), 96, 2048),
        setting(SMALL_GPT, machines(2, 6, {**A100_40, "layer_floor": 0.0}), 4, 2048),
        setting({**LLAMA_8B, "num_kv_heads": 32}, machines(4, 16, fast), 4, 4096),
    ]


def _far_from_the_first() -> list[Setting]:
    """Settings whose best plans stand far down in a list of plans, or between what is usual."""
    thick = {**SMALL_GPT, "num_layers": 60, "hidden": 6144, "num_heads": 64}
    full = {**A100_40, "memory": 17.5e9, "layer_floor": 0.02}  # six hundred faster plans do not fit
    # Half of a node of tensor parallelism, and ZeRO 1 with it: whatever lacks one is a quarter slower.
    wide = {**LLAMA_70B, "num_layers": 20, "num_kv_heads": 64}
    half = {**A100_40, "memory": 21e9, "links": 22e9, "network": 1e9, "layer_floor": 0.0, "falloff": 0.6}
    return [
        setting(thick, machines(6, 8, full), 960, 4096),
        setting(wide, machines(4, 16, half), 12, 4096),
    ]


def _one_thing_changed() -> list[Setting]:
    """A question, and others that differ from it in one thing: its answer is wrong for each of them. All
    models have one name.
    """
    given = machines(2, 4, A100_40)
    return [
        setting(SMALL_GPT, given, 48, 2048),
        setting({**SMALL_GPT, "num_layers": 72}, given, 48, 2048),
        setting(SMALL_GPT, machines(2, 4, A100_40, network=2e8), 48, 2048),
        setting(SMALL_GPT, given, 4, 2048),
        setting(SMALL_GPT, given, 48, 8192),
    ]


def _refuse(rank: Rank) -> None:
    """Facts: refusal NUMBER, of each setting."""
    for number, one in enumerate(rank.params["settings"]):
        with rank.expect_error(f"refusal {number}"):
            rank.student.choose_plan(*arguments(one))


def all_refused(evidence: Evidence) -> Iterator[Finding]:
    """A ValueError for each setting."""
    (answer,) = evidence.answers
    for number, one in enumerate(evidence.case.params["settings"]):
        found = refused(f"refusal {number}", ["ValueError"], answer)
        yield Finding(found.passed, f"{found.expected} for {told(one)}", found.seen, answer.rank)


def _everywhere(judge: Judge) -> dict[str, Callable[..., Any]]:
    return dict.fromkeys(KINDS, judge)


_asked = asks("choose_plan", plan_in_numbers)
_RUN = Run(_asked.on_rank, evidence=ChoiceEvidence)
EXERCISE = Exercise(
    CHOOSE_ID,
    "The plan to measure first",
    ("choose_plan",),
    {**dict.fromkeys((*KINDS, "own-parts"), _RUN), "refused": Run(_refuse)},
    _cases,
    (
        Property(
            "runs", "numbers", 3, "Every plan runs.", "memory asked last, or not at all", _everywhere(runs)
        ),
        Property(
            "within-20-percent",
            "numbers",
            2,
            "No plan is more than 20% slower than the fastest.",
            "a rule of thumb in place of a search",
            _everywhere(within(0.2)),
        ),
        Property(
            "within-10-percent",
            "numbers",
            2,
            "Nor more than 10%.",
            "one kind of plan is searched well and the others not: try every way to split the GPUs",
            _everywhere(within(0.1)),
        ),
        Property(
            "within-5-percent",
            "numbers",
            3,
            "Nor more than 5%.",
            "micro-batches, ZeRO stages or recomputation left out of the search",
            _everywhere(within(0.05)),
        ),
        Property(
            "slow-links",
            "robustness",
            1,
            "Also on a slow network.",
            "data parallelism wherever it fits",
            {"slow": within(0.05)},
        ),
        Property(
            "small-memory",
            "robustness",
            1,
            "Also where memory is scarce.",
            "recomputation never tried",
            {"small": within(0.05)},
        ),
        Property(
            "two-gpus-a-node",
            "robustness",
            1,
            "Also on nodes of two GPUs, of six, or of sixteen.",
            "8 GPUs a node taken for granted",
            {"pairs": within(0.05)},
        ),
        Property(
            "refusal",
            "robustness",
            1,
            "Where nothing fits there is a ValueError.",
            "None, or the plan that is least too large",
            {"refused": all_refused},
        ),
        Property("own-parts", "numbers", 1, OWN_PARTS, OWN_PARTS_CAUSE, {"own-parts": within(0.05)}),
    ),
    builds_on=(SECONDS_ID, FEASIBLE_ID),
    hides=HIDES,
)
