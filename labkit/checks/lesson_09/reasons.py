"""What `09.feasible` must show: every reason, each with its numbers, and none where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from random import Random
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property
from labkit.checks.lesson_09.given import A100_40, H100, HIDES, LLAMA_8B, LLAMA_70B, SMALL_GPT, machines, told
from labkit.checks.lesson_09.settings import Setting, answers_of, arguments, asks, case_of, setting
from labkit.theory.grid import costs  # an empty file where this lesson is graded: ranks do not call it
from labkit.theory.units import GIB

FEASIBLE_ID = "09.feasible"
KINDS = ("runs", "gpus", "node", "heads", "layers", "batch", "several", "memory", "close")
Grid = tuple[int, int, int, int]  # data, tensor, pipeline, micro-batch
Asked = tuple[str, str, list[Setting]]  # a case's name and kind, and what is asked in it


def plans(
    model: dict[str, Any], given: dict[str, Any], batch: int, *grids: Grid, sequence: int = 2048
) -> list[Setting]:
    """Settings of several grids."""
    return [
        setting(model, given, batch, sequence, data=d, tensor=t, pipeline=p, micro_batch=b)
        for d, t, p, b in grids
    ]


def filled(model: dict[str, Any], batch: int, share: float, sequence: int = 2048, **plan: Any) -> Setting:
    """A plan on one node of GPUs of which it fills that share of what may be filled."""
    one = setting(model, machines(1, 8, H100), batch, sequence, **plan)
    plan_given, shape, _, *rest = arguments(one)
    held = costs.held_bytes(plan_given, shape, *rest)
    return one | {"machines": {**one["machines"], "memory": held / share / (1 - costs.HEADROOM)}}


def all_options(draw: Random) -> list[Setting]:
    """Plans with few stages and many, of each ZeRO stage, with and without recomputation, of short sequences
    and long ones: each a little too large, and just right.
    """
    found: list[Setting] = []
    lengths = cycle(draw.sample((512, 1536, 3072, 6144, 12_288, 24_576), 6))
    for p, zero, recompute in product((1, 2, 4, 8), (0, 1), (False, True)):
        d = draw.choice([n for n in (2, 4, 8) if 8 % (n * p) == 0] or [1])
        model: dict[str, Any] = draw.choice([SMALL_GPT, LLAMA_8B])
        b, length = draw.randint(1, 3), next(lengths)
        plan = {"data": d, "tensor": 8 // (d * p), "pipeline": p, "micro_batch": b, "zero": zero}
        batch = d * b * draw.randint(1, 2 * p)
        found += [filled(model, batch, s, length, **plan, recompute=recompute) for s in (1.07, 0.93)]
    return found


def one_plan(**plan: Any) -> list[Setting]:
    """A plan, asked about again with another model, with fewer micro-batches, and with longer sequences. All
    models have one name.
    """
    deeper = {**SMALL_GPT, "num_layers": 36}
    asked = [(SMALL_GPT, 8, 2048), (deeper, 8, 2048), (SMALL_GPT, 1, 2048), (SMALL_GPT, 8, 8192)]
    at_once = plan["data"] * plan["micro_batch"]
    return [filled(model, m * at_once, s, length, **plan) for model, m, length in asked for s in (0.93, 1.07)]


TWELVE_HEADS = {**SMALL_GPT, "num_heads": 12, "ffn": 9216}
NARROW = {**SMALL_GPT, "ffn": 9220}


def _cases(seed: int) -> list[Case]:
    settings = [*_running(), *_misshapen(), *_several(), *_too_large(seed), *_just()]
    return [case_of(name, kind, asked, seed) for name, kind, asked in settings]


def _running() -> Iterator[Asked]:
    two = machines(2, 8, H100)
    runs = plans(SMALL_GPT, two, 32, (2, 8, 1, 1), (16, 1, 1, 2), (2, 4, 2, 4), (1, 1, 16, 4))
    runs += plans({**SMALL_GPT, "vocabulary": 50_257}, two, 32, (2, 8, 1, 1))
    runs += plans(SMALL_GPT, two, 32, (2, 8, 1, 1), sequence=4096)  # more tokens than it was made for
    runs += [setting(SMALL_GPT, machines(1, 8, H100), 32, 2048, data=1, tensor=8, pipeline=1, zero=1)]
    yield "plans that run", "runs", runs
    yield "a stage for each layer", "runs", plans(SMALL_GPT, machines(3, 8, H100), 24, (1, 1, 24, 1))


def _misshapen() -> Iterator[Asked]:
    """One rule broken in each, and memory not asked about."""
    node, two, three = (machines(nodes, 8, H100) for nodes in (1, 2, 3))
    few_heads = {**LLAMA_8B, "num_kv_heads": 2}
    yield "another number of GPUs", "gpus", plans(SMALL_GPT, two, 32, (8, 1, 1, 1), (16, 2, 1, 1))
    yield "across nodes", "node", plans(SMALL_GPT, machines(4, 2, H100), 32, (1, 8, 1, 1), (2, 4, 1, 2))
    yield "three of a node's eight", "node", plans(SMALL_GPT, three, 32, (8, 3, 1, 2))
    yield "heads", "heads", plans(TWELVE_HEADS, node, 32, (1, 8, 1, 1))
    yield "key-value heads", "heads", plans(few_heads, node, 32, (2, 4, 1, 1))
    yield "the width of the MLP", "heads", plans(NARROW, node, 32, (1, 8, 1, 1))
    yield "more stages than layers", "layers", plans(SMALL_GPT, machines(4, 8, H100), 32, (1, 1, 32, 1))
    yield "a batch of 12", "batch", plans(SMALL_GPT, two, 12, (16, 1, 1, 1), (4, 4, 1, 2))


def _several() -> Iterator[Asked]:
    pairs, two, small = machines(4, 2, H100), machines(2, 8, H100), machines(1, 8, A100_40)
    several = plans(TWELVE_HEADS, pairs, 10, (3, 8, 1, 1))
    several += plans(TWELVE_HEADS, pairs, 2, (3, 5, 40, 1))  # all rules, and fewer sequences than replicas
    several += plans(NARROW, two, 32, (4, 8, 1, 3))
    several += plans(LLAMA_70B, small, 32, (2, 2, 1, 1), (2, 2, 2, 3))  # memory is not asked about
    yield "everything at once", "several", several


def _too_large(seed: int) -> Iterator[Asked]:
    yield "too large", "memory", plans(LLAMA_8B, machines(1, 8, A100_40), 64, (8, 1, 1, 1), (1, 2, 4, 16))
    yield "all options", "memory", all_options(Random(f"09/options/{seed}"))
    yield "one plan after the other", "memory", one_plan(data=2, tensor=1, pipeline=4, micro_batch=1, zero=1)


def _just() -> Iterator[Asked]:
    """A fiftieth below and above what may be filled."""
    shares = (0.98, 1.02)
    few = {"data": 2, "tensor": 1, "pipeline": 4, "micro_batch": 2, "zero": 1}
    close = {"data": 2, "tensor": 2, "pipeline": 2, "micro_batch": 2}
    both = [filled(SMALL_GPT, 32, share, **close, zero=zero) for zero in (0, 1) for share in shares]
    again = [filled(SMALL_GPT, 32, share, 1536, **close, zero=1, recompute=True) for share in shares]
    small_batch = [filled(SMALL_GPT, 8, share, **few) for share in shares]
    yield "just", "close", both
    yield "just, with fewer micro-batches than stages", "close", small_batch
    yield "just, recomputed", "close", again


def _told_reasons(found: Any) -> JSON:
    """The reasons, where they are texts in a list; anything else in words."""
    if not isinstance(found, list | tuple):
        return f"{type(found).__name__}: {found}"[:200]
    others = [reason for reason in found if not isinstance(reason, str)]
    if others:
        return f"a list with a {type(others[0]).__name__} in it, {others[0]}"[:200]
    return [reason[:300] for reason in found][:20]


def _numbers_of(rule: str, numbers: Sequence[float], one: Setting) -> list[str]:
    if rule != "memory":
        return [str(number) for number in numbers]
    usable = (1 - costs.HEADROOM) * one["machines"]["memory"]
    return [f"{numbers[0] / GIB:.1f}", f"{usable / GIB:.1f}"]


def stands_in(number: str, text: str) -> bool:
    """Whether a number stands in a text, and not as a part of another one. 14,336 is one, 12,8 are two."""
    joined = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)(?!\.\d)", joined) is not None


def all_reasons(evidence: Evidence) -> Iterator[Finding]:
    """As many reasons as rules are broken, and each rule's numbers in one of them."""
    for one, seen in answers_of(evidence):
        broken = costs.broken_rules(*arguments(one))
        rules = {rule: _numbers_of(rule, numbers, one) for rule, numbers in broken.items()}
        wanted = "; ".join(f"{rule}: {' and '.join(numbers)}" for rule, numbers in rules.items())
        expected = f"{len(rules)} reasons ({wanted})" if rules else "no reason"
        about = f"{expected} for {told(one)}"
        shown = "; ".join(seen) if isinstance(seen, list) else seen
        right = isinstance(seen, list) and len(seen) == len(rules) and _matched(list(rules.values()), seen)
        yield Finding(right and _has_words(seen), about, shown or "no reason")


def _has_words(reasons: Sequence[str]) -> bool:
    """Whether each is more than its numbers."""
    return all(any(map(str.isalpha, reason)) for reason in reasons)


def _matched(rules: Sequence[Sequence[str]], reasons: Sequence[str]) -> bool:
    """Whether each rule has a reason of its own that names its numbers."""
    if not rules:
        return True
    numbers, *others = rules
    return any(
        all(stands_in(n, reason) for n in numbers) and _matched(others, [*reasons[:i], *reasons[i + 1 :]])
        for i, reason in enumerate(reasons)
    )


def _shows(*kinds: str) -> dict[str, Judge]:
    return dict.fromkeys(kinds, all_reasons)


EXERCISE = Exercise(
    FEASIBLE_ID,
    "Why a plan does not run",
    ("feasible",),
    dict.fromkeys(KINDS, asks("feasible", _told_reasons)),
    _cases,
    (
        Property(
            "runs",
            "numbers",
            2,
            "Nothing is said against a plan that runs.",
            "a rule of thumb in place of the rules of the text",
            _shows("runs"),
        ),
        Property(
            "gpus",
            "numbers",
            1,
            "The grid has as many ranks as there are GPUs.",
            "more GPUs than ranks are no help",
            _shows("gpus"),
        ),
        Property(
            "inside-a-node",
            "numbers",
            1,
            "Tensor parallelism divides the GPUs of a node.",
            "t held against all GPUs",
            _shows("node"),
        ),
        Property(
            "heads-and-width",
            "numbers",
            2,
            "It divides heads, key-value heads and the MLP.",
            "key-value heads are fewer",
            _shows("heads"),
        ),
        Property(
            "layers",
            "numbers",
            1,
            "Every stage has a layer.",
            "an uneven split is allowed, an empty stage is not: compare stages with layers",
            _shows("layers"),
        ),
        Property(
            "batch",
            "numbers",
            1,
            "Replicas and micro-batches divide the batch.",
            "only the replicas asked for",
            _shows("batch"),
        ),
        Property(
            "memory",
            "numbers",
            2,
            "The fullest stage fits.",
            "the first stage's memory, or the state without activations",
            _shows("memory"),
        ),
        Property(
            "headroom",
            "robustness",
            2,
            "A tenth of the memory stays free, not more and not less.",
            "it fits with 79.9 of 80 GB",
            _shows("close"),
        ),
        Property(
            "every-reason",
            "robustness",
            2,
            "All reasons are told, not the first one.",
            "a return after the first",
            _shows("several"),
        ),
    ),
    hides=HIDES,
)
