"""The report of a proof, as Markdown to read and as JSON to compare."""

from __future__ import annotations

import json
import platform
import socket
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.prove.result import Result
from labkit.whole_file import write_whole


@dataclass
class Proof:
    """All that was tried so far. seconds: what each part took."""

    date: str
    host: str
    python: str
    results: list[Result] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False

    @classmethod
    def begun(cls) -> Proof:
        """An empty one, of this host and this second."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(now, socket.gethostname(), platform.python_version())

    @property
    def counts(self) -> Counter[str]:
        """How many results have each state."""
        return Counter(result.state for result in self.results)

    @property
    def holds(self) -> bool:
        """Whether something was tried and nothing failed."""
        return bool(self.results) and not self.counts["failed"] and not self.interrupted

    def of(self, part: str) -> list[Result]:
        """The results of one part."""
        return [result for result in self.results if result.part == part]


def to_json(proof: Proof) -> dict[str, Any]:
    """Every field, with the counts and whether it holds."""
    return {**asdict(proof), "counts": dict(proof.counts), "holds": proof.holds}


def to_markdown(proof: Proof) -> str:
    """A table a part."""
    counts = (
        ", ".join(f"{number} {state}" for state, number in sorted(proof.counts.items())) or "nothing tried"
    )
    head = [f"# What {proof.host} can do", "", f"{proof.date}, Python {proof.python}: {counts}."]
    if proof.interrupted:
        head += ["", "**Interrupted**: the parts below are those that had run."]
    tables = [_table(proof, part) for part in dict.fromkeys(result.part for result in proof.results)]
    return "\n".join([*head, "", *tables])


def _table(proof: Proof, part: str) -> str:
    took = f" ({proof.seconds[part]:.0f} s)" if part in proof.seconds else ""
    rows = [f"| {_cell(r.name)} | {r.state} | {_cell(r.says)} |" for r in proof.of(part)]
    return "\n".join([f"## {part}{took}", "", "| what | | found |", "|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(proof: Proof, directory: Path) -> None:
    """directory/report.md and directory/report.json."""
    write_whole(directory / "report.md", to_markdown(proof).encode())
    write_whole(directory / "report.json", (json.dumps(to_json(proof), indent=1) + "\n").encode())
