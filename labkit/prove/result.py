"""One result of a proof, and the file in which a part leaves its results, a line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

State = Literal["passed", "failed", "skipped", "measured"]


@dataclass(frozen=True)
class Result:
    """One thing that was tried.

    state: "measured" is a number that nothing was asked of.  says: one sentence with the figures.
    numbers: the same for programs; units stand in the names (bytes, seconds, bytes_per_second).
    """

    part: str
    name: str
    state: State
    says: str
    numbers: Mapping[str, float] = field(default_factory=dict)


class Results:
    """Where a part leaves what it finds: what was found stays when the part is ended."""

    def __init__(self, part: str, path: Path) -> None:
        self.part, self._path = part, path

    def add(self, name: str, state: State, says: str, **numbers: float) -> None:
        """Keep one result, on disk when this returns."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(Result(self.part, name, state, says, numbers))) + "\n")

    def check(self, name: str, holds: bool, says: str, **numbers: float) -> None:
        """Keep whether something holds."""
        self.add(name, "passed" if holds else "failed", says, **numbers)


def read_results(path: Path) -> list[Result]:
    """What a part has left; a last line that was not finished is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Result(**json.loads(line)) for line in lines]
