"""The planner in a notebook: choose a model and a cluster, and see three plans to measure.

    Planner()                                    # controls, in a running notebook
    Planner(model="Llama 3 70B", nodes=64)       # the same, from another start
    Planner(model="Mixtral 8x7B", ep=8)          # a layer's experts over 8 ranks, instead of any number

`labkit plan` says the same in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from labkit.show.html import render
from labkit.show.live import Live, checked_start, menu, slider
from labkit.show.memory import MemoryBars
from labkit.show.table import Table
from labkit.theory.hardware import GPUS
from labkit.theory.models import PRESETS
from labkit.theory.planning.accuracy import measured
from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.footprint import Footprint
from labkit.theory.planning.job import Job
from labkit.theory.planning.question import Question
from labkit.theory.planning.search import TERMS, Choice, Priced
from labkit.theory.planning.software import SOFTWARE
from labkit.theory.planning.told import EVEN, experts_at
from labkit.theory.recipes import RECIPES

START: Mapping[str, Any] = {
    "model": "Llama 3 8B",
    "recipe": "mixed AdamW, 20 B",
    "sequence": 8192,
    "batch": 512,
    "gpu": "H100 80 GB",
    "nodes": 16,
    "gpus_per_node": 8,
    "network": 50,
    "software": "nanotron",
    "ep": None,
}
LEFT = ("model", "ep", "recipe", "sequence", "batch")  # what is trained
DEGREES = [2**i for i in range(9)]  # ranks that share a layer's experts out


def question_of(settings: Mapping[str, Any]) -> Question:
    """What the controls ask."""
    cluster = Cluster(
        GPUS[settings["gpu"]], settings["nodes"], settings["gpus_per_node"], settings["network"] * 1e9
    )
    job = Job(
        PRESETS[settings["model"]], settings["sequence"], settings["batch"], RECIPES[settings["recipe"]]
    )
    return Question(job, cluster, SOFTWARE[settings["software"]], expert=settings["ep"] or None)


def answer_html(settings: Mapping[str, Any]) -> str:
    """Three plans, their memory and time, and why the next lost; the reason where there is none."""
    question = question_of(settings)
    try:
        choice = question.choose()
    except ValueError as problem:
        return render("no_plan", problem=problem)
    names = [f"plan {place}" for place in range(1, len(choice.best) + 1)]
    bars = {name: _drawn(plan.held[plan.fullest]) for name, plan in zip(names, choice.best, strict=True)}
    return render(
        "choice",
        heading=question.heading(),
        plans=_plans(names, choice)._repr_html_(),
        warning=measured().warning(question.cluster.nodes),
        experts=_experts(question, names, choice),
        even=EVEN,
        bars=MemoryBars(bars, question.cluster.gpu, "The fullest GPU of each plan").svg(),
        terms=_terms(names, choice.best)._repr_html_(),
        runners_up=[(str(loser.plan), why) for loser, why in choice.runners_up],
        accuracy=str(measured()),
    )


def _experts(question: Question, names: list[str], choice: Choice) -> list[tuple[str, str]]:
    """Plan -> where its experts are; empty for a model without."""
    if question.job.model.mixture is None:
        return []
    return [(name, experts_at(question, one)) for name, one in zip(names, choice.best, strict=True)]


def _drawn(held: Footprint) -> dict[str, float]:
    """The parts that the figures have colours for."""
    parts = held.as_dict()
    copies, runtime = parts.pop("copies"), parts.pop("runtime")
    return parts | {
        "activations": parts["activations"] + copies,
        "working": parts["working"] + runtime,
    }


def _plans(names: list[str], choice: Choice) -> Table:
    return Table(
        ["", "plan", "a step", "tokens/s/GPU", "MFU"],
        [
            [
                name,
                str(one.plan),
                f"{one.time.total:.3g} s",
                round(one.tokens_per_gpu),
                f"{one.utilization:.1%}",
            ]
            for name, one in zip(names, choice.best, strict=True)
        ],
        caption=f"{choice.considered:,} plans looked at, {choice.fitting:,} fit. To be measured:",
    )


def _terms(names: list[str], plans: tuple[Priced, ...]) -> Table:
    """Seconds of a step by term, for terms that count in some plan."""
    rows = []
    for term, told in TERMS.items():
        seconds = [plan.time.as_dict()[term] for plan in plans]
        if any(s >= plan.time.total / 200 for s, plan in zip(seconds, plans, strict=True)):
            rows.append([told, *(f"{s:.3f}" for s in seconds)])
    return Table(["seconds of a step", *names], rows)


class Planner(Live):
    """Controls over a job and a cluster, and the plans that the search finds."""

    def __init__(self, **start: Any):
        super().__init__(_controls(checked_start(START, start)), LEFT, answer_html)

    def __repr__(self) -> str:
        question = question_of(self.settings)
        try:
            best = question.choose().best[0]
        except ValueError as problem:
            return f"no such plan: {problem}"
        return f"{best.plan}: {best.time.total:.3g} s a step, MFU {best.utilization:.1%}"


def _controls(start: Mapping[str, Any]) -> dict[str, widgets.ValueWidget]:
    return {
        "model": menu(start, "model", "model", list(PRESETS)),
        # 0 and not None: a menu whose value is None shows nothing
        "ep": menu({"ep": start["ep"] or 0}, "ep", "experts over", [("any number of ranks", 0), *_degrees()]),
        "recipe": menu(start, "recipe", "precision", list(RECIPES)),
        "sequence": slider(start, "sequence", "sequence s", [2**i for i in range(9, 18)]),
        "batch": slider(start, "batch", "sequences a step", [2**i for i in range(3, 13)]),
        "gpu": menu(start, "gpu", "GPU", list(GPUS)),
        "nodes": slider(start, "nodes", "nodes", [2**i for i in range(8)]),
        "gpus_per_node": slider(start, "gpus_per_node", "GPUs a node", [1, 2, 4, 8]),
        "network": slider(start, "network", "GB/s of network", [1, 3, 6, 12, 25, 50, 100]),
        "software": menu(start, "software", "framework", list(SOFTWARE)),
    }


def _degrees() -> list[tuple[str, int]]:
    return [(f"{degree} rank{'s' if degree > 1 else ''}", degree) for degree in DEGREES]
