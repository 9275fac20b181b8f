"""The words a check is written in: an exercise has properties worth points, and cases that give evidence
for them.

An exercise is judged in two places that never share a process. `on_rank` runs on every rank of a job,
beside the student's code, and only reports what happened. `judge` runs where the student's code has never
been, computes what was expected from the same inputs, and says which properties the evidence supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from labkit.checks.rank import Rank

JSON = Any  # None, bool, int, float, str, or lists and string-keyed dicts of these
Kind = Literal["numbers", "mechanism", "robustness"]
Inputs = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Property:
    """One thing that must be true of a solution, worth its own points."""

    name: str
    kind: Kind
    points: int
    says: str
    usual_cause: str = ""


def numbers(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    """A property of values, gradients or weights."""
    return Property(name, "numbers", points, says, usual_cause)


def mechanism(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    """A property of how it is done: what is communicated, stored, run."""
    return Property(name, "mechanism", points, says, usual_cause)


def robustness(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    """A property of unusual sizes, wrong arguments and strange situations."""
    return Property(name, "robustness", points, says, usual_cause)


@dataclass(frozen=True)
class Case:
    """One situation the student's code is put in.

    properties: what the case gives evidence for, () for all: an error in the case fails these.
    own_parts: earlier exercises are the student's own here, even where the grader puts reference versions
        in place.
    timeout: seconds this case may take on every rank together.
    expected: values that only `judge` sees; they are never sent to where the student's code runs.
    """

    name: str
    ranks: int
    params: Mapping[str, JSON] = field(default_factory=dict)
    seed: int = 0
    properties: tuple[str, ...] = ()
    hidden: bool = False
    own_parts: bool = False
    timeout: float = 20.0
    expected: Mapping[str, JSON] = field(default_factory=dict)

    def to_json(self) -> dict[str, JSON]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Case:
        return cls(**{**data, "properties": tuple(data["properties"])})


def no_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For exercises whose cases hold everything as plain numbers: nothing is drawn."""
    return {}


@dataclass
class RankAnswer:
    """What one rank sent back from one case: data only."""

    rank: int
    tensors: dict[str, torch.Tensor]
    facts: dict[str, JSON]
    collectives: dict[str, list[dict[str, JSON]]]
    errors: dict[str, StudentError]  # property -> what was raised inside `rank.attempt(property)`


@dataclass(frozen=True)
class StudentError:
    """An exception raised by the student's code, told by its own lines."""

    type: str
    message: str
    where: str  # "cell 12, line 7: out = self.linear(x)"; empty when no line is the student's

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True)
class Finding:
    """One observation for or against a property. `expected` and `seen` complete the sentence a student
    reads.
    """

    property: str
    passed: bool
    expected: str = ""
    seen: str = ""
    rank: int | None = None
    case: str = ""


Judge = Callable[[Case, Inputs, "list[RankAnswer]"], Iterable[Finding]]


@dataclass(frozen=True)
class Exercise:
    """Everything that decides the points of one exercise.

    names: what the student defines at top level, for example ("RowParallelLinear",).
    cases: the visible cases for a seed; the grader adds hidden ones of the same form.
    inputs: tensors drawn for a case; every rank is handed the same ones.
    builds_on: ids of earlier exercises that grading replaces with reference versions.
    forbids: dotted names that solve the exercise outright, and must not be called.
    hides: files of labkit ("theory/memory.py") that grading takes away, because they hold the answer.
    """

    id: str
    title: str
    names: tuple[str, ...]
    properties: tuple[Property, ...]
    cases: Callable[[int], list[Case]]
    inputs: Callable[[Case, torch.Generator], Inputs]
    on_rank: Callable[[Rank], None]
    judge: Judge
    builds_on: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [p.name for p in self.properties]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.id}: property names must differ, got {names}")

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
