"""Plans in words and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from labkit.theory.planning.accuracy import measured
from labkit.theory.planning.asked import plan_named
from labkit.theory.planning.feasible import feasible, memory_limit
from labkit.theory.planning.question import Question
from labkit.theory.planning.search import TERMS, Choice, Priced, price
from labkit.theory.units import GIB, binary_text

EVEN = "taken to be visited equally often, with nothing to hide their rows"
WIDEST = 6  # stages shown one by one; of more, the fullest, the first and the last
WIDTH = 96  # characters of a line that a notebook shows whole


def plan_text(question: Question, plan: Priced) -> str:
    """One plan: its speed, its memory by stage, its step by term."""
    speed = (
        f"{plan.time.total:.3g} s a step, {plan.tokens_per_gpu:,.0f} tokens/s/GPU, MFU {plan.utilization:.1%}"
    )
    lines = [str(plan.plan), f"  {speed}"]
    if question.tokens:
        lines.append(f"  {question.days(plan):.3g} days, {question.gpu_hours(plan):,.0f} GPU-hours")
    terms = sorted(plan.time.as_dict().items(), key=lambda term: -term[1])
    shown = [f"{TERMS[name]} {seconds:.3g} s" for name, seconds in terms if seconds >= plan.time.total / 500]
    lines.append(f"  time: {', '.join(shown)}")
    lines += [f"  experts: {experts_at(question, plan)}; {EVEN}"] if question.job.model.mixture else []
    lines += [f"  {line}" for line in _memory_lines(question, plan)]
    return "\n".join(lines)


def experts_at(question: Question, plan: Priced) -> str:
    """Where the experts are; empty for a model without."""
    mixture, ranks = question.job.model.mixture, plan.plan.expert
    if mixture is None:
        return ""
    local = mixture.num_experts // ranks
    copies = plan.plan.replicas // ranks
    replicas = "1 replica" if copies == 1 else f"{copies} replicas"
    return f"{local} of {mixture.num_experts} of each layer on a rank, each on {replicas}"


def _memory_lines(question: Question, plan: Priced) -> list[str]:
    last = len(plan.held) - 1
    every = range(len(plan.held)) if last < WIDEST else sorted({0, plan.fullest, last})
    lines = []
    for stage in every:
        held = plan.held[stage]
        parts = ", ".join(
            f"{name} {size / GIB:.1f}" for name, size in held.as_dict().items() if size > GIB / 20
        )
        where = f"stage {stage + 1} of {last + 1}" if last else "each GPU"
        lines.append(f"memory, {where}: {binary_text(held.total)} ({parts})")
    lines.append(f"        of {binary_text(memory_limit(question.cluster))} that may be filled")
    return lines


def choice_text(question: Question, choice: Choice) -> str:
    """The plans to measure, why the next ones lost, and how far to trust all this."""
    lines = [question.heading(), f"{choice.considered:,} plans looked at, {choice.fitting:,} fit.", ""]
    lines += [line for warning in _warned(question) for line in (warning, "")]
    lines.append(f"{len(choice.best)} plans to measure:")
    for place, plan in enumerate(choice.best, 1):
        lines.append(f"{place}. {plan_text(question, plan)}")
    if choice.runners_up:
        lines += ["", "Behind the first:"]
        lines += [f"- {loser.plan}: {reason}" for loser, reason in choice.runners_up]
    return "\n".join([*lines, "", str(measured())])


def _warned(question: Question) -> list[str]:
    """What is known to go wrong on so many nodes, if anything."""
    warning = measured().warning(question.cluster.nodes)
    return [warning] if warning else []


def plan_json(question: Question, plan: Priced) -> dict[str, Any]:
    """One plan; bytes and seconds."""
    told = {
        "plan": asdict(plan.plan),
        "step_seconds": plan.time.total,
        "seconds_by_term": plan.time.as_dict(),
        "bytes_by_stage": [held.as_dict() | {"total": held.total} for held in plan.held],
        "tokens_per_second_per_gpu": plan.tokens_per_gpu,
        "model_flops_utilization": plan.utilization,
        "refused": feasible(question.job, plan.plan, question.cluster, question.software),
    }
    if question.tokens:
        told |= {"days": question.days(plan), "gpu_hours": question.gpu_hours(plan)}
    return told


def choice_json(question: Question, choice: Choice) -> dict[str, Any]:
    """The whole answer."""
    return {
        "question": question.heading(),
        "considered": choice.considered,
        "fitting": choice.fitting,
        "best": [plan_json(question, plan) for plan in choice.best],
        "runners_up": [plan_json(question, loser) | {"why": why} for loser, why in choice.runners_up],
        "warning": measured().warning(question.cluster.nodes),
        "accuracy": msgspec.to_builtins(measured()),
    }


def _wrapped(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line.lstrip(), WIDTH, initial_indent=indent, subsequent_indent=indent + "    ")


@dataclass(frozen=True)
class Answer:
    """What is said: in words, as JSON, and why a plan that was asked about does not run."""

    text: str
    data: dict[str, Any]
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The words in lines that a notebook shows whole; what goes on is indented."""
        lines = (line.rstrip() for line in self.text.splitlines())
        return "\n".join(line if len(line) <= WIDTH else _wrapped(line) for line in lines)


def answer(question: Question, explain: str | None = None) -> Answer:
    """The plans to measure, or the price of the plan `explain` ("16,2,4"). ValueError where there is none."""
    if explain is None:
        choice = question.choose()
        return Answer(choice_text(question, choice), choice_json(question, choice))
    plan = plan_named(explain)
    priced = price(question.job, plan, question.cluster, question.software)
    refused = feasible(question.job, plan, question.cluster, question.software)
    lines = [question.heading(), *_warned(question), plan_text(question, priced), str(measured())]
    return Answer("\n".join(lines), plan_json(question, priced), tuple(refused))
