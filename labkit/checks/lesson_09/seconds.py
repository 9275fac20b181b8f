"""What `09.step-seconds` must show: each term of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, every
from labkit.checks.lesson_09.given import (
    A100_40,
    H100,
    HIDES,
    LLAMA_8B,
    MIXTRAL,
    SMALL_GPT,
    machines,
    told,
)
from labkit.checks.lesson_09.settings import (
    Setting,
    answers_of,
    arguments,
    asks,
    case_of,
    numbers_by_name,
    setting,
)
from labkit.theory.grid import costs  # an empty file where this lesson is graded: judges alone call it

SECONDS_ID = "09.step-seconds"
TOLERANCE = 1e-6
TERMS = ("compute", "tensor", "bubble", "data")
Grid = tuple[int, int, int, int]  # data, tensor, pipeline, micro-batch


def priced(
    model: dict[str, Any],
    given: dict[str, Any],
    batch: int,
    grids: Sequence[Grid],
    zero: int = 0,
    recompute: bool = False,
    sequence: int = 2048,
) -> list[Setting]:
    """Settings of several grids."""
    return [
        setting(
            *(model, given, batch, sequence),
            data=d,
            tensor=t,
            pipeline=p,
            micro_batch=b,
            zero=zero,
            recompute=recompute,
        )
        for d, t, p, b in grids
    ]


def many_stages(draw: Random) -> list[Setting]:
    """Stages of as many layers each, one or few, odd and even; or one stage has one more, or one less."""
    found: list[Setting] = []
    for times, more in ((1, 0), (3, 0), (5, 0), (2, 0), (1, 1), (draw.randint(2, 4), 1), (2, -1)):
        stages = draw.randint(101, 126) if more == 1 else draw.randint(4, 40)
        d, t, b = draw.randint(1, 3), draw.choice([1, 2, 4]), draw.randint(1, 3)
        model = {**SMALL_GPT, "num_layers": times * stages + more}
        given = machines(stages, d * t, {**A100_40, "layer_floor": 0.0})
        found += priced(model, given, d * b * draw.randint(1, 50), [(d, t, stages, b)], sequence=1024)
    return found


def small_layers(network: float, floor: float) -> list[Setting]:
    """New weights gathered beside layers that the host launches slowly, and beside some that it launches at
    once and slow GPUs take as long for.
    """
    grids = [(8, 8, 1, 1), (8, 2, 4, 1), (64, 1, 1, 2)]
    launched = machines(8, 8, H100, network=network, layer_floor=floor)
    at_once = {**launched, "layer_floor": 0.0, "flops": H100["flops"] / 10}
    return [one for given in (at_once, launched) for one in priced(SMALL_GPT, given, 128, grids, zero=1)]


def _cases(seed: int) -> list[Case]:
    gpt_on = machines(2, 8, {**A100_40, "layer_floor": 0.0})
    slow = machines(4, 4, {**A100_40, "network": 2e9})
    grids: list[Grid] = [(2, 4, 2, 1), (1, 8, 2, 4), (8, 2, 1, 2), (16, 1, 1, 1), (4, 1, 4, 3)]
    whole = priced(SMALL_GPT, gpt_on, 96, grids)
    whole += priced({**SMALL_GPT, "head_size": 128}, gpt_on, 96, grids[:1])  # queries are wider than h
    whole += priced(SMALL_GPT, gpt_on, 96, grids[:1], sequence=4096)  # longer than it was made for
    whole += priced(SMALL_GPT, gpt_on, 48, grids[:1])  # one thing after the other is another than before
    whole += priced(SMALL_GPT, {**gpt_on, "flops": 90e12, "links": 1e11, "network": 1e9}, 96, grids[:1])
    whole += priced(MIXTRAL, {**gpt_on, "network": 4e9}, 96, grids[:1])  # more than a token uses
    return [
        case_of("sixteen GPUs", "terms", whole, seed),
        case_of(
            "stages of unequal layers",
            "uneven",
            priced(SMALL_GPT, gpt_on, 60, [(1, 1, 5, 4), (3, 1, 7, 2)], sequence=1024)
            + priced(LLAMA_8B, {**slow, "nodes": 6}, 48, [(8, 1, 3, 1)]),
            seed,
        ),
        case_of("many stages", "uneven", many_stages(Random(f"09/stages/{seed}")), seed),
        case_of("recomputed", "recompute", priced(SMALL_GPT, gpt_on, 96, grids, recompute=True), seed),
        case_of(
            "slow network",
            "exposed",
            priced(LLAMA_8B, slow, 64, [(4, 4, 1, 1), (16, 1, 1, 1), (2, 2, 4, 1)]),
            seed,
        ),
        case_of(
            "new weights gathered",
            "zero",
            priced(LLAMA_8B, slow, 64, [(4, 4, 1, 1), (16, 1, 1, 1), (2, 2, 4, 1)], zero=1),
            seed,
        ),
        case_of(
            "all hidden but the gather", "zero", priced(SMALL_GPT, gpt_on, 512, [(8, 2, 1, 32)], zero=1), seed
        ),
        case_of(
            "small layers",
            "floor",
            priced(SMALL_GPT, machines(8, 8, H100), 128, [(8, 8, 1, 1), (8, 2, 4, 1), (64, 1, 1, 2)])
            + priced(SMALL_GPT, machines(8, 8, H100), 128, [(8, 8, 1, 1)], recompute=True)
            + small_layers(10e9, 4e-3),
            seed,
        ),
        case_of("one GPU", "one", priced(SMALL_GPT, machines(1, 1, H100), 8, [(1, 1, 1, 4)], zero=1), seed),
    ]


def terms(*names: str) -> Judge:
    """These terms are right."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for one, seen in answers_of(evidence):
            yield from _terms_of(one, seen, names)

    return judge


def _terms_of(one: Setting, seen: Any, names: Sequence[str] = TERMS) -> Iterator[Finding]:
    expected = costs.seconds_by_term(*arguments(one))
    for name in names:
        value = seen.get(name) if isinstance(seen, dict) else seen
        right = isinstance(value, float) and abs(value - expected[name]) <= TOLERANCE * max(
            1e-6, expected[name]
        )
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        yield Finding(right, f"{name}: {expected[name]:.6g} s for {told(one)}", shown)


def with_floor(evidence: Evidence) -> Iterator[Finding]:
    """All terms are right where layers have a floor. Those of stage 1 are looked at where the same plans are
    right without a floor: what is wrong in these is not about it.
    """
    answers = list(answers_of(evidence))
    without = [pair for pair in answers if not pair[0]["machines"]["layer_floor"]]
    sound = all(finding.passed for pair in without for finding in _terms_of(*pair))
    for pair in answers:
        if pair not in without and (sound or not pair[0]["plan"]["zero"]):
            yield from _terms_of(*pair)


def four_terms(evidence: Evidence) -> Iterator[Finding]:
    """They are four, by these names: who adds them up counts nothing twice."""
    for one, seen in answers_of(evidence):
        names = ", ".join(seen) if isinstance(seen, dict) else str(seen)
        right = isinstance(seen, dict) and set(seen) == set(TERMS)
        yield Finding(right, f"{', '.join(TERMS)} for {told(one)}", names)


_RUN = asks("step_seconds", numbers_by_name)
EXERCISE = Exercise(
    SECONDS_ID,
    "A step in four terms",
    ("step_seconds",),
    dict.fromkeys(("terms", "uneven", "recompute", "exposed", "zero", "floor", "one"), _RUN),
    _cases,
    (
        Property(
            "compute",
            "numbers",
            2,
            "Compute is that of all micro-batches through one stage's layers.",
            "the whole batch on every replica",
            {"terms": terms("compute")},
        ),
        Property(
            "tensor",
            "numbers",
            2,
            "Tensor-parallel traffic is four all-reduces a layer and micro-batch.",
            "an all-reduce costed as its bytes, without the factor 2 (t - 1) / t",
            {"terms": terms("tensor")},
        ),
        Property(
            "bubble",
            "numbers",
            2,
            "The bubble is p - 1 turns, traffic included.",
            "(p - 1) / m of the time, taken of the wrong total",
            {"terms": terms("bubble")},
        ),
        Property(
            "exposed-traffic",
            "numbers",
            3,
            "Replicas' traffic counts as far as the last backward does not hide it.",
            "the bandwidth of neighbours: replicas stand t ranks apart; or hidden behind the whole step",
            {"terms": terms("data"), "exposed": terms("data")},
        ),
        Property(
            "zero-1",
            "numbers",
            2,
            "With stage 1 the gather of weights is never hidden.",
            "both halves hidden, as with stage 0",
            {"zero": terms("data")},
        ),
        Property(
            "recomputation",
            "numbers",
            1,
            "Recomputation costs a forward, and its all-reduces.",
            "4 all-reduces where forward's two come twice",
            {"recompute": terms(*TERMS)},
        ),
        Property(
            "floor",
            "robustness",
            1,
            "A layer is never faster than the host launches it.",
            "the floor added, or taken of the stage instead of the layer",
            {"floor": with_floor},
        ),
        Property(
            "uneven-stages",
            "robustness",
            1,
            "The slowest stage has ceil(L / p) layers.",
            "L / p",
            {"uneven": terms(*TERMS)},
        ),
        Property(
            "one-gpu",
            "robustness",
            1,
            "One GPU only computes; the four terms are there, and no fifth.",
            "traffic of a group of one, or a total among the terms",
            {"one": every(terms(*TERMS), four_terms)},
        ),
    ),
    hides=HIDES,
)
