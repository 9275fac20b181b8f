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
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from autograder.grade.clues import CellClues, Clues, clues_of
from autograder.grade.faults import fault_told
from labkit.checks.source.statements import ParsedCell, parse_cell
from labkit.checks.source.submission import Cell

CPU_SECONDS = 10  # for all cells from one failure to the next
MEMORY = 2 * 2**30  # bytes
SECONDS = 120.0  # by the clock, where the machine is busy
MOST_STATEMENTS = 3000  # definitions of a notebook; a solved lesson has a hundred
MOST_NAMES = 100_000  # that these look up; those of a solved lesson are a few hundred
MOST_CODE = 1_000_000  # characters of the cells with definitions; each of these cells is shown whole
MOST_FAILURES = 2  # cells that end the process, before the rest is left unread
READY = b"ready"  # the process's first line: what ends it from here on is a cell's doing


@dataclass(frozen=True)
class ReadCell(Cell):
    """A cell that was read, with what is to be seen in its statements."""

    clues: CellClues = field(default_factory=dict, compare=False, repr=False)


class _Read(msgspec.Struct):
    """What the process tells of a cell, as a line of JSON. parsed: a ParsedCell's."""

    parsed: dict[str, object]
    clues: dict[int, Clues]


def read_within_limits(cells: Sequence[Cell]) -> list[ReadCell]:
    """The cells, read. What a cell could not be read for is its `parsed.problem`.

    ChildProcessError where this host does not run the process: no cell is to blame.
    """
    done: list[_Read] = []
    for _ in range(MOST_FAILURES):
        done += _read(cells[len(done) :])
        if len(done) == len(cells):
            break
        label = cells[len(done)].label
        told = f"{label}: reading it took more than {CPU_SECONDS} s or {MEMORY // 2**20} MiB"
        done.append(_unread(told))
    left = cells[len(done) :]
    done += [_unread(f"{c.label} was not read: cells above took too long") for c in left]
    done = _within_bounds(cells, done)
    return [
        ReadCell(c.label, c.source, c.exercise, ParsedCell.from_json(found.parsed), c.place, found.clues)
        for c, found in zip(cells, done, strict=True)
    ]


def _within_bounds(cells: Sequence[Cell], done: Sequence[_Read]) -> list[_Read]:
    """What was read, but for cells with which the notebook has more than a person wrote: which of all these
    an exercise needs would take the grader too long to tell, and a person, too long to see.
    """
    kept, total = [], _Size()
    for cell, read in zip(cells, done, strict=True):
        with_it = total.and_that_of(cell, ParsedCell.from_json(read.parsed))
        if with_it.is_too_much:
            kept.append(
                _unread(
                    f"{cell.label} was not read: with it the notebook has more than {MOST_STATEMENTS} "
                    f"definitions, or they look up more than {MOST_NAMES} names, or the cells that hold them "
                    f"have more than {MOST_CODE} characters"
                )
            )
        else:
            total = with_it
            kept.append(read)
    return kept


@dataclass(frozen=True)
class _Size:
    """How much there is in cells with definitions: these, names that they look up, characters."""

    statements: int = 0
    names: int = 0
    code: int = 0

    def and_that_of(self, cell: Cell, parsed: ParsedCell) -> _Size:
        return _Size(
            self.statements + len(parsed.statements),
            self.names + sum(len(each.needs) + len(each.uses) for each in parsed.statements),
            self.code + (len(cell.source) if parsed.statements else 0),
        )

    @property
    def is_too_much(self) -> bool:
        return self.statements > MOST_STATEMENTS or self.names > MOST_NAMES or self.code > MOST_CODE


def _unread(why: str) -> _Read:
    return _Read(ParsedCell(problem=why).to_json(), {})


def _read(cells: Sequence[Cell]) -> list[_Read]:
    """The first of these cells, until one ended the process that read them."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps([[cell.label, cell.source] for cell in cells]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            timeout=SECONDS,
            start_new_session=True,  # an interrupt at the terminal ends it too, else, and that costs a cell
        )
        answered, ended = done.stdout, f"with status {done.returncode}"
    except subprocess.TimeoutExpired as stopped:
        answered, ended = stopped.stdout or b"", f"after {SECONDS:g} s"
    ready, *lines = answered.split(b"\n")[:-1] or [b""]  # what follows the last line's end is a part of one
    if ready != READY:
        raise ChildProcessError(
            f"the process that reads cells was ended {ended} before it had read any: see whether this "
            f"machine has memory left and {sys.executable} works, and run the command again"
        )
    return [msgspec.json.decode(line, type=_Read) for line in lines]


def _look_at(label: str, source: str) -> bytes:
    """What there is to tell of a cell. One that our own reading fails on stays unread, as a cell without its
    clues would be graded without its flags; those after it are read.
    """
    try:
        parsed = parse_cell(label, source)
        is_kept = 0 < len(parsed.statements) <= MOST_STATEMENTS  # with more it is left unread, clues or not
        clues = clues_of(parsed.source) if is_kept else {}
        return msgspec.json.encode(_Read(parsed.to_json(), clues))
    except Exception as fault:
        return msgspec.json.encode(_unread(f"{label} was not read: {fault_told(fault)}"))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    sys.stdout.buffer.write(READY + b"\n")
    sys.stdout.buffer.flush()
    for asked_label, source in asked:
        sys.stdout.buffer.write(_look_at(asked_label, source) + b"\n")
        sys.stdout.buffer.flush()
