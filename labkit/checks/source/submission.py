"""Collects a student's source from a notebook, and loads it where it is to run.

Practice and grading take the same path: the notebook is read as data, its definitions are kept, and only
those that an exercise needs are executed, under file names such as "cell 12" so that an error shows the
student's own line.
"""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from labkit.checks.source.statements import ParsedCell, Statement, compile_statements, needed_for, parse_cell

MODULE_NAME = "notebook"


@dataclass(frozen=True)
class Cell:
    """One code cell: what an error calls it, its text, and the exercise its metadata names, if any."""

    label: str
    source: str
    exercise: str | None = None


@dataclass
class Submission:
    """The statements of a notebook that one exercise needs, ready to travel as JSON.

    reference: statements that stand in for earlier exercises (grading only); loaded in a namespace of their
        own.
    replaced: names that come from `reference` instead of the student's cells.
    left_out: names the student's cells set by code that is not a definition -> where, for error messages.
    problems: cells that cannot be read as Python -> why.
    """

    statements: list[Statement]
    sources: dict[str, str] = field(default_factory=dict)  # cell label -> its text
    reference: list[Statement] = field(default_factory=list)
    reference_sources: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    found: bool = True  # the notebook has a cell for this exercise

    def to_json(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "statements": [s.to_json() for s in self.statements],
            "reference": [s.to_json() for s in self.reference],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Submission:
        lists = {key: [Statement.from_json(s) for s in data[key]] for key in ("statements", "reference")}
        return cls(**{**data, **lists})

    def load(self) -> types.ModuleType:
        """Execute the statements in a new module and return it. Lets the student's errors through."""
        stand_ins = _new_module("reference")
        _execute(stand_ins, self.reference, self.reference_sources)
        module = _new_module(MODULE_NAME)
        vars(module).update({name: vars(stand_ins)[name] for name in self.replaced})
        _execute(module, self.statements, self.sources)
        return module


def collect(
    cells: Sequence[Cell],
    exercise_id: str,
    names: Sequence[str],
    also: Sequence[str] = (),
    reference: Sequence[Cell] = (),
    replaced: Sequence[str] = (),
) -> Submission:
    """What `cells` hold for one exercise that asks for `names`.

    also: names of earlier exercises that its check uses too.
    reference, replaced: cells of the reference solution, and the names to be taken from them instead.
    """
    parsed = [parse_cell(cell.label, cell.source) for cell in cells]
    statements = [s for result in parsed for s in result.statements]
    kept = needed_for([*names, *also], [s for s in statements if not set(s.defines) & set(replaced)])
    asked_for = [s for s in kept if set(s.defines) & set(names)]
    solution = [parse_cell(cell.label, cell.source) for cell in reference]
    stand_ins = needed_for(replaced, [s for result in solution for s in result.statements])
    return Submission(
        statements=kept,
        sources=_texts(kept, cells, parsed),
        reference=stand_ins,
        reference_sources=_texts(stand_ins, reference, solution),
        replaced=list(replaced),
        left_out={name: where for result in parsed for name, where in result.left_out.items()},
        problems={cell.label: r.problem for cell, r in zip(cells, parsed, strict=True) if r.problem},
        found=bool(asked_for) or any(cell.exercise == exercise_id for cell in cells),
    )


def _texts(kept: Sequence[Statement], cells: Sequence[Cell], parsed: Sequence[ParsedCell]) -> dict[str, str]:
    needed = {statement.cell for statement in kept}
    return {c.label: p.source for c, p in zip(cells, parsed, strict=True) if c.label in needed}


def _execute(module: types.ModuleType, statements: Sequence[Statement], sources: Mapping[str, str]) -> None:
    for label, group in groupby(statements, key=lambda s: s.cell):
        source = sources[label]
        linecache.cache[label] = (len(source), None, source.splitlines(keepends=True), label)
        for code in compile_statements(label, source, group):
            exec(code, vars(module))


def _new_module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses and inspect look a class's module up by name
    return module
