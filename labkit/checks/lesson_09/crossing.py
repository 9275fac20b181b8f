"""What `09.bytes-between-nodes` must show: traffic by axis, what crosses, the best order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from random import Random
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_09.given import (
    HIDES,
    LLAMA_8B,
    MIXTRAL,
    OWN_PARTS,
    OWN_PARTS_CAUSE,
    SMALL_GPT,
    TORCHS_GRIDS,
    model_of,
)
from labkit.checks.lesson_09.rank_grid import GRID_ID, MEGATRON
from labkit.checks.lesson_09.settings import numbers_by_name
from labkit.checks.rank import Rank
from labkit.theory.grid import placement  # an empty file where this lesson is graded: ranks do not call it

BYTES_ID = "09.bytes-between-nodes"
AXES = ("dp", "pp", "tp")
CLEARLY = 1.03  # how many times as much the second best order sends
SENT = {"dp": 1000.0, "pp": 10.0, "tp": 100_000.0}
TOLERANCE = 1e-6
# Sizes, GPUs of a node, sent: what an axis sends, times its size or not, does not tell the best order.
EVEN, RISING = {"dp": 3e3, "pp": 2e3, "tp": 2e3}, {"dp": 2e3, "pp": 3e3, "tp": 4e3}
CLOSE = (((2, 2, 4), 3, EVEN), ((2, 3, 3), 4, RISING), ((2, 3, 4), 8, EVEN), ((2, 2, 6), 6, EVEN))
Setting = Mapping[str, Any]


def sent_setting(
    model: Mapping[str, Any], dp: int, pp: int, tp: int, batch: int, b: int, sequence: int = 1024
) -> dict[str, Any]:
    """Arguments of bytes_sent."""
    sizes = {"dp": dp, "pp": pp, "tp": tp}
    return {"model": dict(model), "sizes": sizes, "batch": batch, "sequence": sequence, "micro_batch": b}


def crossing_setting(
    sizes: Sequence[int], order: Sequence[str], node: int, sent: Mapping[str, float] = SENT
) -> dict[str, Any]:
    """Arguments of bytes_between_nodes; sizes of dp, pp, tp."""
    return {
        "sizes": dict(zip(AXES, sizes, strict=True)),
        "order": list(order),
        "gpus_per_node": node,
        "sent": dict(sent),
    }


def settings_case(name: str, settings: Sequence[Setting], seed: int, kind: str) -> Case:
    """One call a setting. What is told by axis is handed over with its axes in any order."""
    draw = Random(f"{name}/{seed}")
    mixed = [{key: _in_any_order(value, draw) for key, value in one.items()} for one in settings]
    return Case(name, 1, {"settings": mixed}, seed, kind=kind, own_parts=kind == "own-parts")


def _in_any_order(value: Any, draw: Random) -> Any:
    """The same entries, where it has some by axis."""
    by_axis = isinstance(value, dict) and set(value) == set(AXES)
    return {axis: value[axis] for axis in draw.sample(AXES, len(AXES))} if by_axis else value


def of_each_order(draw: Random) -> list[Setting]:
    """Settings of best_order, for each order of the axes one in which all others send more between nodes."""
    found: dict[tuple[str, ...], Setting] = {}
    orders = list(permutations(AXES))
    while len(found) < len(orders):
        sizes, node = [draw.randint(2, 5) for _ in AXES], draw.randint(2, 8)
        one = crossing_setting(sizes, AXES, node, {axis: 10 ** draw.uniform(3, 4) for axis in AXES})
        (least, best), (second, _), *_ = sorted((_in_all(one, order), order) for order in orders)
        if second > CLEARLY * least:
            found.setdefault(best, one)
    return [found[order] for order in orders]


def _in_all(setting: Setting, order: Sequence[str]) -> float:
    """Bytes between nodes in that order."""
    about = {name: setting[name] for name in ("sizes", "gpus_per_node", "sent")}
    return sum(placement.between_nodes(order=order, **about).values())


def _cases(seed: int) -> list[Case]:
    orders = (MEGATRON, ("tp", "dp", "pp"), ("dp", "tp", "pp"))
    boxes = [crossing_setting((2, 4, 2), order, node) for order in orders for node in (2, 4, 8)]
    boxes += [crossing_setting((2, 4, 2), MEGATRON, 4, RISING)]
    return [
        settings_case(
            "three models",
            [
                sent_setting(SMALL_GPT, 4, 2, 3, 48, 2),
                sent_setting(LLAMA_8B, 2, 4, 8, 64, 1, sequence=8192),
                sent_setting(SMALL_GPT, 2, 5, 3, 2, 1),
                sent_setting({**SMALL_GPT, "head_size": 128}, 4, 2, 3, 24, 2),  # queries are wider than h
                sent_setting(MIXTRAL, 4, 2, 4, 32, 1),  # more parameters than a token uses
            ],
            seed,
            "sent",
        ),
        settings_case(
            "axes of size 1",
            [sent_setting(SMALL_GPT, 1, 4, 1, 6, 2), sent_setting(SMALL_GPT, 6, 1, 2, 12, 1)],
            seed,
            "sent-of-one",
        ),
        settings_case("boxes", boxes, seed, "crossing"),
        settings_case(
            "nodes that axes do not divide",
            [crossing_setting((3, 2, 2), order, node) for order in orders for node in (3, 5)],
            seed,
            "uneven",
        ),
        settings_case(
            "which order",
            [
                crossing_setting(sizes, MEGATRON, node, sent)
                for sizes in ((4, 2, 2), (2, 4, 4), (8, 1, 2))
                for node in (2, 4)
                for sent in (SENT, {"dp": 9e5, "pp": 1e5, "tp": 1e3}, {"dp": 1.0, "pp": 7e3, "tp": 2e3})
            ]
            + [crossing_setting(sizes, MEGATRON, node, sent) for sizes, node, sent in CLOSE],
            seed,
            "order",
        ),
        settings_case("each order once", of_each_order(Random(f"09/orders/{seed}")), seed, "order"),
        settings_case("all parts your own", boxes[:3], seed, "own-parts"),
    ]


# -- on a rank


def _ask_sent(rank: Rank) -> None:
    def sent(setting: Setting) -> JSON:
        rest = {name: setting[name] for name in ("batch", "sequence", "micro_batch")}
        return numbers_by_name(rank.student.bytes_sent(model_of(setting), dict(setting["sizes"]), **rest))

    rank.fact("answers", [sent(setting) for setting in rank.params["settings"]])


def _ask_crossing(rank: Rank) -> None:
    rank.fact(
        "answers",
        [
            numbers_by_name(
                rank.student.bytes_between_nodes(s["sizes"], tuple(s["order"]), s["gpus_per_node"], s["sent"])
            )
            for s in rank.params["settings"]
        ],
    )


def _ask_order(rank: Rank) -> None:
    rank.fact(
        "answers",
        [
            _told_order(rank.student.best_order(s["sizes"], s["gpus_per_node"], s["sent"]))
            for s in rank.params["settings"]
        ],
    )


def _told_order(found: Any) -> JSON:
    """The axes of a tuple, or of a list; anything else in words."""
    if not isinstance(found, list | tuple):
        return f"{type(found).__name__}: {found}"[:200]
    return [axis if isinstance(axis, str) else f"{type(axis).__name__} {axis}"[:200] for axis in found]


# -- in the judge


def _each(evidence: Evidence) -> Iterator[tuple[Setting, Any]]:
    yield from zip(evidence.case.params["settings"], evidence.answers[0].facts["answers"], strict=True)


def _close(expected: float, seen: Any) -> bool:
    return isinstance(seen, int | float) and abs(seen - expected) <= TOLERANCE * max(1.0, abs(expected))


def _sent(*axes: str) -> Judge:
    def judge(evidence: Evidence) -> Iterator[Finding]:
        for setting, seen in _each(evidence):
            about = {name: setting[name] for name in ("sizes", "batch", "sequence", "micro_batch")}
            expected = placement.sent_by_axis(model_of(setting), **about)
            for axis in axes:
                value = seen.get(axis) if isinstance(seen, dict) else seen
                words = f"{expected[axis]:,.0f} bytes along {axis} for {about}"
                yield Finding(_close(expected[axis], value), words, str(value))

    return judge


def _each_axis_alone(evidence: Evidence) -> Iterator[Finding]:
    """There is an entry for each axis, and no other: who adds them up counts nothing twice."""
    for setting, seen in _each(evidence):
        names = ", ".join(seen) if isinstance(seen, dict) else str(seen)
        right = isinstance(seen, dict) and set(seen) == set(setting["sizes"])
        yield Finding(right, f"bytes along {', '.join(setting['sizes'])} alone", names)


def _crossing(*axes: str) -> Judge:
    def judge(evidence: Evidence) -> Iterator[Finding]:
        for setting, seen in _each(evidence):
            expected = placement.between_nodes(**setting)
            for axis in axes:
                value = seen.get(axis) if isinstance(seen, dict) else seen
                words = (
                    f"{expected[axis]:,.0f} bytes along {axis} for {setting['sizes']} in the order "
                    f"{', '.join(setting['order'])} on nodes of {setting['gpus_per_node']}"
                )
                yield Finding(_close(expected[axis], value), words, str(value))

    return judge


def _least(evidence: Evidence) -> Iterator[Finding]:
    for setting, seen in _each(evidence):
        about = {name: setting[name] for name in ("sizes", "gpus_per_node", "sent")}
        least = placement.least_between_nodes(**about)
        words = (
            f"an order of {', '.join(setting['sizes'])} with {least:,.0f} bytes between nodes, for {about}"
        )
        if not isinstance(seen, list) or sorted(seen) != sorted(AXES):
            yield Finding(False, words, str(seen))
            continue
        found = _in_all(setting, seen)
        yield Finding(_close(least, found), words, f"{', '.join(seen)}, with {found:,.0f}")


EXERCISE = Exercise(
    BYTES_ID,
    "What crosses from node to node",
    ("bytes_sent", "bytes_between_nodes", "best_order"),
    {
        "sent": Run(_ask_sent),
        "sent-of-one": Run(_ask_sent),
        "crossing": Run(_ask_crossing),
        "uneven": Run(_ask_crossing),
        "order": Run(_ask_order),
        "own-parts": Run(_ask_crossing),
    },
    _cases,
    (
        Property(
            "tensor-parallel-bytes",
            "numbers",
            2,
            "Along tp a rank sends four all-reduces for each of its layers and micro-batches.",
            "a ring all-reduce sends twice (t - 1) / t of its bytes",
            {"sent": _sent("tp")},
        ),
        Property(
            "data-parallel-bytes",
            "numbers",
            1,
            "Along dp it sends its gradients' all-reduce, once a step.",
            "the whole model's gradients, or once a micro-batch",
            {"sent": _sent("dp")},
        ),
        Property(
            "pipeline-bytes",
            "numbers",
            1,
            "Along pp it sends one activation for each micro-batch.",
            "the batch of all replicas, or a layer's worth for each layer",
            {"sent": _sent("pp")},
        ),
        Property(
            "size-one",
            "robustness",
            1,
            "An axis of size 1 sends nothing; each axis has its entry, and nothing else has one.",
            "a last stage that sends on, or a total among the axes",
            {"sent-of-one": every(_sent("dp", "pp", "tp"), _each_axis_alone)},
        ),
        Property(
            "rings",
            "numbers",
            2,
            "Along dp and tp what crosses is counted round each ring.",
            "the way back from the last rank to the first",
            {"crossing": _crossing("dp", "tp")},
        ),
        Property(
            "pipeline",
            "numbers",
            1,
            "Along pp it is counted there and back, without a way round.",
            "gradients go back",
            {"crossing": _crossing("pp")},
        ),
        Property(
            "uneven-nodes",
            "robustness",
            1,
            "Groups that lie across nodes are counted border by border.",
            "a group counted as inside or outside as a whole",
            {"uneven": every(_crossing("dp", "pp", "tp"), _each_axis_alone)},
        ),
        Property(
            "best-order",
            "numbers",
            2,
            "The order has the fewest bytes between nodes.",
            "always the same order, whatever is sent",
            {"order": _least},
        ),
        Property(
            "own-parts",
            "numbers",
            1,
            OWN_PARTS,
            OWN_PARTS_CAUSE,
            {"own-parts": _crossing("dp", "pp", "tp")},
        ),
    ),
    builds_on=(GRID_ID,),
    forbids=TORCHS_GRIDS,
    hides=HIDES,
)
