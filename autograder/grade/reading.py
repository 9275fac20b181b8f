"""Reads a submission's cells in a process of its own, with limits on time and memory.

A cell can be made to take the parser minutes or gigabytes. It is then that cell's problem: those before it
and those after it are read.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labkit.checks.source.statements import ParsedCell, parse_cell
from labkit.checks.source.submission import Cell

CPU_SECONDS = 10  # for all cells from one failure to the next
MEMORY = 2 * 2**30  # bytes
SECONDS = 120.0  # by the clock, where the machine is busy
MOST_FAILURES = 2  # cells that end the process, before the rest is left unread


def read_within_limits(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, read. What a cell could not be read for is its `parsed.problem`."""
    done: list[ParsedCell] = []
    for _ in range(MOST_FAILURES):
        done += _read(cells[len(done) :])
        if len(done) == len(cells):
            break
        label = cells[len(done)].label
        told = f"{label}: reading it took more than {CPU_SECONDS} s or {MEMORY // 2**20} MiB"
        done.append(ParsedCell(problem=told))
    left = cells[len(done) :]
    done += [ParsedCell(problem=f"{c.label} was not read: cells above took too long") for c in left]
    return [replace(cell, parsed=parsed) for cell, parsed in zip(cells, done, strict=True)]


def _read(cells: Sequence[Cell]) -> list[ParsedCell]:
    """The first of these cells, until one ended the process that read them."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps([[cell.label, cell.source] for cell in cells]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            timeout=SECONDS,
        )
        answered = done.stdout
    except subprocess.TimeoutExpired as stopped:
        answered = stopped.stdout or b""
    lines = answered.split(b"\n")[:-1]  # what follows the last line's end is a part of one
    return [ParsedCell.from_json(json.loads(line)) for line in lines]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for asked_label, source in json.load(sys.stdin):
        print(json.dumps(parse_cell(asked_label, source).to_json()), flush=True)
