"""What travels between a check's two sides: a case with its inputs on the way in, a rank's answers on the way
out. Data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

JSON = Any  # None, bool, int, float, str, or lists and string-keyed dicts of these
Inputs = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Case:
    """One situation the student's code is put in.

    kind: which of the exercise's runs it is; from it follow the properties that the case shows.
    own_parts: earlier exercises are the student's own here, even where the grader puts reference versions
        in place.
    timeout: seconds this case may take on every rank together.
    expected: values that only judges see; they are never sent to where the student's code runs.
    """

    name: str
    ranks: int
    params: Mapping[str, JSON] = field(default_factory=dict)
    seed: int = 0
    hidden: bool = False
    own_parts: bool = False
    timeout: float = 20.0
    expected: Mapping[str, JSON] = field(default_factory=dict)
    kind: str = ""

    def to_json(self) -> dict[str, JSON]:
        """Plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Case:
        """The case that `to_json` wrote."""
        return cls(**data)


@dataclass(frozen=True)
class StudentError:
    """An exception raised by the student's code, told by its own lines."""

    type: str
    message: str
    where: str  # "cell 12, line 7: out = self.linear(x)"; empty when no line is the student's

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" + (f" ({self.where})" if self.where else "")


@dataclass
class RankAnswer:
    """What one rank sent back from one case.

    collectives: what was recorded, by name; of several recordings of a name the last one has it, and the
        earlier ones "NAME (time 1)", "NAME (time 2)" and so on.
    """

    rank: int
    tensors: dict[str, torch.Tensor]
    facts: dict[str, JSON]
    collectives: dict[str, list[dict[str, JSON]]]
    errors: dict[str, StudentError]  # property -> what was raised inside `rank.attempt(property)`

    def earlier(self, name: str) -> list[str]:
        """The names of all recordings of a name but the last, in the order they were made in."""
        return [
            of for n in range(len(self.collectives)) if (of := f"{name} (time {n + 1})") in self.collectives
        ]
