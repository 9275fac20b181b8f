"""The memory calculator: choose a model and a plan, and see what fills one GPU.

    MemoryCalculator()                      # sliders, in a running notebook
    MemoryCalculator(model="Llama 3 70B")   # the same, from another start

The picture is an output of its own below the sliders: a notebook that is saved or printed keeps the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from labkit.show.html import render
from labkit.show.live import Live, checked_start, menu, slider
from labkit.show.memory import MemoryBars
from labkit.theory import memory, parameters
from labkit.theory.choices import plan_of
from labkit.theory.hardware import GPUS
from labkit.theory.models import PRESETS
from labkit.theory.recipes import RECIPES
from labkit.theory.units import bytes_text

POWERS = [2**i for i in range(11)]
SEQUENCES = [2**i for i in range(9, 18)]
LEFT = ("model", "gpu", "recipe", "recompute", "attention", "sequence", "micro_batch")  # what is trained

START: Mapping[str, Any] = {
    "model": "Llama 3 8B",
    "gpu": "H100 80 GB",
    "recipe": "mixed AdamW, 16 B",
    "sequence": 4096,
    "micro_batch": 1,
    "recompute": "none",
    "attention": "fused",
    "tensor_parallel": 1,
    "sequence_parallel": True,
    "pipeline_parallel": 1,
    "num_micro_batches": 8,
    "data_parallel": 8,
    "zero_stage": 0,
}


def answer_html(settings: Mapping[str, Any]) -> str:
    """The picture and two lines of numbers for these settings; the reason where there is no such plan."""
    try:
        plan = plan_of(settings)
    except ValueError as problem:
        return render("no_plan", problem=problem)
    gpu = GPUS[settings["gpu"]]
    stage, held = memory.worst_stage(plan)
    pipeline = plan.pipeline_parallel > 1
    where = f"stage {stage + 1} of {plan.pipeline_parallel}" if pipeline else "each GPU"
    count = parameters.count_parameters(plan.model)
    return render(
        "plan",
        model=plan.model.name,
        total=count.total / 1e9,
        active=count.active / 1e9,
        gpus=plan.num_gpus,
        where=where,
        needs=bytes_text(held.total),
        has=bytes_text(gpu.memory),
        share=held.total / gpu.memory,
        bars=MemoryBars({where: held.as_dict()}, gpu).svg(),
    )


class MemoryCalculator(Live):
    """Sliders over a training plan, and a stacked bar of what it puts on the fullest GPU."""

    def __init__(self, **start: Any):
        super().__init__(_controls(checked_start(START, start)), LEFT, answer_html)

    def __repr__(self) -> str:
        try:
            return str(memory.worst_stage(plan_of(self.settings))[1])
        except ValueError as problem:
            return f"no such plan: {problem}"


def _controls(start: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": menu(start, "model", "model", list(PRESETS)),
        "gpu": menu(start, "gpu", "GPU", list(GPUS)),
        "recipe": menu(start, "recipe", "precision", list(RECIPES)),
        "recompute": menu(start, "recompute", "recompute", ["none", "selective", "full"]),
        "attention": menu(start, "attention", "attention", ["fused", "explicit"]),
        "sequence": slider(start, "sequence", "sequence s", SEQUENCES),
        "micro_batch": slider(start, "micro_batch", "micro-batch b", POWERS[:8]),
        "tensor_parallel": slider(start, "tensor_parallel", "tensor t", POWERS[:5]),
        "sequence_parallel": widgets.Checkbox(
            value=start["sequence_parallel"], description="sequence parallel too", indent=False
        ),
        "pipeline_parallel": slider(start, "pipeline_parallel", "pipeline p", POWERS[:7]),
        "num_micro_batches": slider(start, "num_micro_batches", "micro-batches", POWERS[:9]),
        "data_parallel": slider(start, "data_parallel", "data d", POWERS),
        "zero_stage": slider(start, "zero_stage", "ZeRO stage", [0, 1, 2, 3]),
    }
