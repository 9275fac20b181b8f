"""Models and machines of all sorts, on which `09.choose-plan` is asked for plans of all sorts."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

from labkit.checks.lesson_09.given import LLAMA_8B, SMALL_GPT, machines
from labkit.checks.lesson_09.settings import Setting, arguments, setting
from labkit.theory.grid import (
    GridPlan,
    costs,
)  # costs is empty where this lesson is graded: ranks do not ask it

MOST_PLANS = 250  # of a setting: a search through all of them is quick, memory included


def of_all_sorts(draw: Random, count: int) -> list[Setting]:
    """As many settings, whose fastest plans differ in what is divided, ZeRO stage, and recomputation."""
    found: dict[tuple[bool, ...], Setting] = {}
    while len(found) < count:
        one = _any_setting(draw)
        if 0 < sum(1 for _ in costs.shaped_plans(*arguments(one)[:3])) <= MOST_PLANS:
            with contextlib.suppress(ValueError):  # nothing fits
                found.setdefault(_sort_of(costs.fastest(*arguments(one))[0]), one)
    return list(found.values())


def _sort_of(plan: GridPlan) -> tuple[bool, ...]:
    """Which of its numbers are more than one, and which of its options are taken."""
    numbers = plan.data, plan.tensor, plan.pipeline, plan.micro_batch
    return (*(number > 1 for number in numbers), bool(plan.zero), plan.recompute)


def _any_setting(draw: Random) -> Setting:
    of = {
        "memory": draw.uniform(12e9, 80e9),
        "flops": draw.uniform(60e12, 600e12),
        "links": draw.choice([50e9, 100e9, 200e9, 400e9]),
        "network": 10 ** draw.uniform(8.5, 10.7),
        "layer_floor": draw.choice([0.0, 0.002, 0.02]),
        "falloff": draw.choice([0.0, 0.3, 0.6]),
    }
    nodes, gpus_per_node = draw.randint(1, 12), draw.choice([1, 2, 3, 4, 6, 8])
    times = draw.choice([1, nodes, nodes * gpus_per_node])
    batch = times * draw.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 48])
    sequence = draw.choice([256, 1024, 2048, 4096, 8192])
    return setting(_any_model(draw), machines(nodes, gpus_per_node, of), batch, sequence)


def _any_model(draw: Random) -> dict[str, Any]:
    heads, size = draw.choice([12, 16, 24, 32, 48]), draw.choice([64, 96, 128])
    model: dict[str, Any] = {"num_layers": draw.randint(8, 60), "hidden": heads * size, "num_heads": heads}
    few = {"num_kv_heads": draw.choice([4, heads]), "ffn": draw.choice([2, 3, 4]) * heads * size}
    return draw.choice([{**SMALL_GPT, **model}, {**LLAMA_8B, **model, **few}])
