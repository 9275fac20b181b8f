"""Judges what the ranks of a pipeline reported: the other side of `pipeline_runs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.lesson_04.lists import most_held
from labkit.checks.lesson_04.model import STEPS, input_width, reference
from labkit.checks.old_form import Finding
from labkit.theory.schedule import Action

BYTES = 8  # of a float64


@dataclass(frozen=True)
class PipelineEvidence:
    """One case's answers, to be held against one process that had the whole model and the whole batch."""

    case: Case
    inputs: Inputs
    answers: Sequence[RankAnswer]

    @cached_property
    def expected(self) -> dict[str, Tensor]:
        """See pipeline_model.reference."""
        return reference(self.case, self.inputs)

    def losses(self, name: str, steps: int = 1) -> Iterator[Finding]:
        """The last stage's rank returned the loss of the whole batch, in each step."""
        last_rank = (len(self.case.params["widths"]) - 1) % self.case.ranks
        for step in range(steps):
            seen = self.answers[last_rank].tensors.get(f"loss{step}")
            wrong = difference(self.expected[f"loss{step}"], None if seen is None else seen.squeeze())
            what = f"the mean loss over the whole batch of step {step}, returned on the last stage's rank"
            yield Finding(name, wrong is None, what, wrong or "", rank=last_rank)

    def tensors(self, name: str, kind: str, only: str = "") -> Iterator[Finding]:
        """Each gradient ("grad") or trained weight ("trained") equals the reference's."""
        words = {
            "grad": "as the whole model has it after one backward of the whole batch",
            "trained": f"as the whole model has it after {STEPS} steps of SGD on whole batches",
        }
        for key, full in self.expected.items():
            sort, _, parameter = key.partition(".")
            if sort == kind and only in parameter:
                rank = int(parameter.split(".")[0]) % self.case.ranks
                wrong = difference(full, self.answers[rank].tensors.get(key))
                what = f"{'gradient of ' if kind == 'grad' else ''}stage {parameter} {words[kind]}"
                yield Finding(name, wrong is None, what, wrong or "", rank=rank)

    def order(self, name: str) -> Iterator[Finding]:
        """Each rank did its list, in the list's order."""
        for answer in self.answers:
            actions = self.actions(answer.rank)
            wanted, seen = _in_log_form(actions), answer.facts["log"]
            at = next((i for i, pair in enumerate(zip(wanted, seen, strict=False)) if _differ(*pair)), None)
            at = min(len(wanted), len(seen)) if at is None else at
            right = len(wanted) == len(seen) == at
            said = f"{len(seen)} actions; number {at} is {_told(seen, at, actions)}"
            expected = (
                f"the list's {len(wanted)} actions in order; number {at} is {_told(wanted, at, actions)}"
            )
            yield Finding(name, right, expected, said, rank=answer.rank)

    def messages(self, name: str) -> Iterator[Finding]:
        """Activations went one way once and gradients the other way once, and nothing else was sent."""
        for answer in self.answers:
            seen = Counter((c["op"], c["num_bytes"], c["peer"]) for c in answer.collectives["messages"])
            wanted = Counter(self._messages_of(answer.rank))
            text = _extra(wanted - seen, "missing: ") + _extra(seen - wanted, "too many: ")
            what = (
                f"{sum(wanted.values())} messages, one an activation or gradient that crosses to another rank"
            )
            yield Finding(name, seen == wanted, what, text, rank=answer.rank)

    def in_flight(self, name: str) -> Iterator[Finding]:
        """No rank kept more for backwards than its list asks for."""
        for answer in self.answers:
            most = most_held(self.actions(answer.rank))
            what = f"at most {most} micro-batches kept for their backward at once, as the list has it"
            peak = answer.facts["peak"]
            yield Finding(name, 1 <= peak <= most, what, f"{peak} kept", rank=answer.rank)

    def readiness(self, name: str) -> Iterator[Finding]:
        """gradients_ready was called once a stage, right after its last backward."""
        for answer in self.answers:
            wanted = _in_log_form(self.actions(answer.rank))
            for stage in range(answer.rank, len(self.case.params["widths"]), self.case.ranks):
                last = max(i for i, entry in enumerate(wanted) if entry[1] == stage)
                wanted.insert(last + 1, ["ready", stage, 0])
            seen = answer.facts["log"]
            calls = [tuple(entry[:2]) for entry in seen if entry[0] == "ready"]
            where = [seen[: seen.index(["ready", s, 0])] for _, s in calls]
            said = f"calls for stages {[s for _, s in calls]}, after {[len(w) for w in where]} actions"
            what = "gradients_ready called once for each stage of the rank, right after its last backward"
            yield Finding(name, [e[:2] for e in seen] == [e[:2] for e in wanted], what, said, answer.rank)

    def refusals(self, name: str) -> Iterator[Finding]:
        """Each bad list was refused with a ValueError that names the action."""
        for label, words in self.case.params["names"].items():
            fact = self.answers[0].facts[label]
            clear = "ValueError" in (fact.get("kinds") or []) and all(
                _mentions(fact["message"], word) for word in words
            )
            said = f"{fact['raised']}: {fact['message']}" if fact["raised"] else "no error"
            what = f"{label}: a ValueError that names the action ({', '.join(map(str, words))})"
            yield Finding(name, clear, what, said, rank=0)

    def actions(self, rank: int) -> list[Action]:
        """The list a rank was handed."""
        return [Action(*action) for action in self.case.params["lists"][rank]]

    def _messages_of(self, rank: int) -> Iterator[tuple[str, int, int]]:
        stages, ranks = len(self.case.params["widths"]), self.case.ranks
        for kind, stage, i in self.actions(rank):
            up = kind == "forward"
            source, to = (stage - 1, stage + 1) if up else (stage + 1, stage - 1)
            for op, other, boundary in (("recv", source, max(source, stage)), ("send", to, max(to, stage))):
                if 0 <= other < stages and other % ranks != rank:
                    width = input_width(self.case, boundary)
                    yield op, BYTES * width * self.case.params["sizes"][i], other % ranks


def _in_log_form(actions: Sequence[Action]) -> list[list[JSON]]:
    """[kind, stage, which of the stage's forwards the micro-batch was]."""
    forwards: dict[int, list[int]] = {}
    for kind, stage, i in actions:
        if kind == "forward":
            forwards.setdefault(stage, []).append(i)
    return [[kind, stage, forwards[stage].index(i)] for kind, stage, i in actions]


def _differ(wanted: list[JSON], seen: list[JSON]) -> bool:
    return list(wanted) != list(seen)


def _told(log: list[list[JSON]], at: int, actions: Sequence[Action]) -> str:
    """An entry of a log in words; micro-batches by the order of the list's forwards."""
    if at >= len(log):
        return "none"
    kind, stage, which = log[at]
    order = [a.micro_batch for a in actions if a.kind == "forward" and a.stage == stage]
    return f"{kind} of micro-batch {order[which] if which < len(order) else '?'} on stage {stage}"


def _extra(calls: Counter[tuple[str, int, int]], label: str) -> str:
    parts = [f"{count} {op} of {size:,} bytes with rank {peer}" for (op, size, peer), count in calls.items()]
    return f"{label}{', '.join(parts)}. " if parts else ""


def _mentions(message: str, number: int) -> bool:
    """Whether the number stands in the message as a number of its own."""
    import re

    return re.search(rf"(?<!\d){number}(?!\d)", message) is not None
