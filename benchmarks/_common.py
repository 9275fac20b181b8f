"""What every benchmark shares: rows, a table, and the last recorded run under results/."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

NOT_HERE = 77  # the exit status where nothing can be measured, as test programs end that skip (automake)
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One comparison. ratio: how many times better ours is; target: the least one wanted, None: only told."""

    name: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    target: float | None
    peer_name: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.target is None or self.ratio is None else self.ratio >= self.target


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """'10% to 90% of runs: 0.11 to 0.16', for how noisy the machine was."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[(9 * len(ordered)) // 10]
    return f"{low:.4g} to {high:.4g}"


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of the median, 95%: the order statistics about 0.98 sqrt(n) places from the middle."""
    ordered, half = sorted(ratios), 0.98 * len(ratios) ** 0.5
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, int(middle - half))], ordered[min(len(ordered) - 1, int(middle + half + 1))]


def compared(
    what: str, ours: list[float], theirs: list[float], peer: str, note: str, target: float | None = 1.0
) -> Row:
    """One row of seconds, in milliseconds."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, high = interval(ratios)
    open_ = "cannot be told; " if target is not None and low < target < high else ""
    note = f"{open_}95% of the ratio: {low:.3g} to {high:.3g}; ours {spread([s * 1e3 for s in ours])}; {note}"
    return Row(what, median(ours) * 1e3, median(theirs) * 1e3, "ms", median(ratios), target, peer, note)


def told(rows: list[Row]) -> str:
    """Which targets were met, which were missed, and which this run cannot tell."""
    wanted = [row for row in rows if row.target is not None]
    unknown = [row for row in wanted if row.note.startswith("cannot be told")]
    missed = [row for row in wanted if not row.met and row not in unknown]
    lines = [f"{len(wanted) - len(missed) - len(unknown)} of {len(wanted)} targets met"]
    lines += [f"missed: {row.name} ({row.ratio:.3g})" for row in missed]
    return "\n".join([*lines, *(f"cannot be told: {row.name} ({row.ratio:.3g})" for row in unknown)])


def not_here(why: str) -> NoReturn:
    """End the program: this machine lacks what it measures, or compares with."""
    print(why, file=sys.stderr)
    raise SystemExit(NOT_HERE)


def add_rounds(parser: argparse.ArgumentParser, default: int, least: int = 2) -> None:
    """--rounds: how often each contender has its turn; an error that says so for fewer than `least`."""

    def at_least(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected {least} or more, found {text}")
        return int(text)

    parser.add_argument("--rounds", type=at_least, default=default, help=f"{least} or more ({default})")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line that all share, for a benchmark to add its own options to. description: its docstring.

    Only its `parse_args` reads the command line: --help measures nothing, and what is misspelt is refused.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def report(name: str, rows: Sequence[Row], as_json: bool, gpu: str = "") -> None:
    """Print the rows as a table or as one JSON object, and record them under results/NAME.json.

    gpu: the name of the GPU that they were measured on; they are recorded as NAME_GPU.json then.
    """
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {**host(), "gpu": gpu} if gpu else host(),
        "rows": [{**asdict(row), "met": row.met} for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}_{gpu}.json" if gpu else RESULTS / f"{name}.json").write_text(
        json.dumps(result, indent=1) + "\n"
    )
    print(json.dumps(result) if as_json else table(rows))


def host() -> dict[str, Any]:
    import torch

    return {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }


def table(rows: Sequence[Row]) -> str:
    """The rows in columns."""
    head = ("what", "ours", "peer", "unit", "ratio", "target", "met", "peer is", "note")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    met = {None: "-", True: "yes", False: "NO"}[row.met]
    numbers = number(row.ours), number(row.peer), row.unit, number(row.ratio), number(row.target)
    return row.name, *numbers, met, row.peer_name, row.note
