"""The words a check is written in: an exercise is a table of properties, each with its points and its judges,
beside the runs that give evidence for them.

An exercise is judged in two places that never share a process. A run's `on_rank` runs on every rank of a job,
beside the student's code, and only reports what happened. Judges run where the student's code has never been,
compute what was expected from the same inputs, and say what the evidence supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.rank import Rank

if TYPE_CHECKING:
    import torch

Kind = Literal["numbers", "mechanism", "robustness"]


@dataclass(frozen=True)
class Finding:
    """One observation for or against a property. `expected` and `seen` complete the sentence a student
    reads.
    """

    passed: bool
    expected: str = ""
    seen: str = ""
    rank: int | None = None


@dataclass(frozen=True)
class Evidence:
    """What one case gave. Subclasses add, as cached properties, what the plain model gives on the same
    inputs.
    """

    case: Case
    inputs: Inputs
    answers: Sequence[RankAnswer]


Judge = Callable[[Any], Iterable[Finding]]  # of the evidence that the run of the case's kind makes


def every(*judges: Judge) -> Judge:
    """A judge that asks all of these."""
    return lambda evidence: (finding for judge in judges for finding in judge(evidence))


@dataclass(frozen=True)
class Property:
    """One thing that must be true of a solution, worth its own points.

    kind: numbers (values, gradients, weights), mechanism (how it is done: what is communicated, stored,
        run), or robustness (unusual sizes, wrong arguments, strange situations).
    says: what must be true. usual_cause: what most often breaks it.
    on: kind of case -> what judges the evidence of such a case.
    also: the same for cases that are about other properties. What is wrong in one costs those, and not this
        one: it is looked at where they hold.
    """

    name: str
    kind: Kind
    points: int
    says: str
    usual_cause: str = ""
    on: Mapping[str, Judge] = field(default_factory=dict)
    also: Mapping[str, Judge] = field(default_factory=dict)


def no_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For cases that hold everything as plain numbers: nothing is drawn."""
    return {}


def to_all(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """Every rank is handed everything that was drawn."""
    return inputs


def own_entry(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """Each rank is handed its entry along the first dimension of everything that was drawn."""
    return {name: tensor[rank] for name, tensor in inputs.items()}


@dataclass(frozen=True)
class Run:
    """What happens in the cases of one kind.

    on_rank: what every rank does beside the student's code.
    inputs: draws a case's tensors, as judges see them.
    hand: (case, inputs, rank) -> what this rank is handed of them, and all that its process ever gets.
    evidence: (case, inputs, answers) -> what judges are given.
    """

    on_rank: Callable[[Rank], None]
    inputs: Callable[[Case, torch.Generator], Inputs] = no_inputs
    hand: Callable[[Case, Inputs, int], Inputs] = to_all
    evidence: Callable[[Case, Inputs, list[RankAnswer]], Evidence] = Evidence


@dataclass(frozen=True, eq=False)
class Exercise:
    """Everything that decides the points of one exercise.

    names: what the student defines at top level, for example ("RowParallelLinear",).
    runs: kind of case -> what happens in cases of that kind.
    cases: the visible cases for a seed; the grader adds hidden ones of the same kinds.
    builds_on: ids of earlier exercises that grading replaces with reference versions.
    forbids: dotted names that solve the exercise outright, and must not be called.
    hides: files of labkit ("theory/memory.py") that grading takes away, because they hold the answer.
    measures: kind of case -> numbers by name that a report shows beside the points, and a ranking goes by
        the first of: what is measured there must not depend on the machine, and less must be better.
    """

    id: str
    title: str
    names: tuple[str, ...]
    runs: Mapping[str, Run]
    cases: Callable[[int], list[Case]]
    properties: tuple[Property, ...]
    builds_on: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    measures: Mapping[str, Callable[[Any], Mapping[str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [p.name for p in self.properties]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.id}: property names must differ, got {names}")
        judged = {kind for p in self.properties for kind in p.on}
        if judged != set(self.runs):
            raise ValueError(
                f"{self.id}: expected a judge for each kind of case that is run, and a run for each that is "
                f"judged; judged are {sorted(judged)}, run are {sorted(self.runs)}"
            )
        unknown = {kind for p in self.properties for kind in p.also} - judged
        twice = {(p.name, kind) for p in self.properties for kind in set(p.on) & set(p.also)}
        if unknown or twice:
            raise ValueError(
                f"{self.id}: expected kinds that other properties are about, found {unknown or twice}"
            )

    @property
    def lesson(self) -> str:
        """The two digits of the lesson this exercise belongs to."""
        return self.id.split(".", 1)[0]

    @property
    def max_points(self) -> int:
        """Points of all properties together."""
        return sum(p.points for p in self.properties)

    def property(self, name: str) -> Property:
        """The property of that name; KeyError names the ones there are."""
        for candidate in self.properties:
            if candidate.name == name:
                return candidate
        raise KeyError(f"{self.id} has no property {name!r}; it has {[p.name for p in self.properties]}")

    def run_of(self, case: Case) -> Run:
        """What happens in a case; KeyError names the kinds there are."""
        if case.kind in self.runs:
            return self.runs[case.kind]
        raise KeyError(f"{self.id}, {case.name}: no run {case.kind!r}; there are {sorted(self.runs)}")

    def shown_by(self, case: Case) -> tuple[str, ...]:
        """Names of the properties a case gives evidence for: an error in the case fails these."""
        return tuple(p.name for p in self.properties if case.kind in p.on)

    def judges_of(self, case: Case) -> list[tuple[str, Judge]]:
        """The judges of a case's evidence, with the names of their properties."""
        return [(p.name, p.on[case.kind]) for p in self.properties if case.kind in p.on]

    def judges_besides(self, case: Case) -> list[tuple[str, Judge]]:
        """Those of properties that the case is not about."""
        return [(p.name, p.also[case.kind]) for p in self.properties if case.kind in p.also]

    def looked_at_in(self, case: Case) -> tuple[str, ...]:
        """Names of the properties that can be lost in a case."""
        return tuple(p.name for p in self.properties if case.kind in {*p.on, *p.also})
