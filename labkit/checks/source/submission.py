"""Collects a student's source from a notebook, and loads it where it is to run.

Practice and grading take the same path: the notebook is read as data, its definitions are kept, and only
those that an exercise needs are executed, under file names such as "cell 12" so that an error shows the
student's own line.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from labkit.checks.source.lookups import lookups
from labkit.checks.source.statements import (
    ParsedCell,
    Statement,
    compile_statements,
    methods_of,
    needed_for,
    parse_cell,
)
from labkit.checks.source.text import python_lines

MODULE_NAME = "notebook"
_LISTS = ("statements", "reference", "additions")
ONLY_DEFINITIONS = (
    "only imports, functions, classes and plain assignments are collected: write it as one of these, or "
    "compute it where it is used"
)
MOST_TOLD = 3  # names that a report says are overlooked


@dataclass(frozen=True)
class Cell:
    """One code cell: what an error calls it, its text, and the exercise its metadata names, if any.

    place: which cell of its notebook it is, from 1; 0 where it comes from no notebook's file.
    """

    label: str
    source: str
    exercise: str | None = None
    parsed: ParsedCell | None = field(default=None, compare=False, repr=False)  # where it was read before
    place: int = 0

    def read(self) -> ParsedCell:
        """What the cell holds."""
        return self.parsed or parse_cell(self.label, self.source)


@dataclass
class Submission:
    """The statements of a notebook that one exercise needs, ready to travel as JSON.

    reference: statements that stand in for earlier exercises (grading only); loaded in a namespace of their
        own.
    additions: the student's own earlier classes that have methods which the reference's do not.
    replaced: names that come from `reference` instead of the student's cells.
    left_out: names the student's cells set by code that is not a definition -> where, for error messages.
    overlooked: names among the statements that other code sets or changes further down -> where.
    problems: cells that cannot be read as Python -> why.
    """

    statements: list[Statement]
    sources: dict[str, str] = field(default_factory=dict)  # cell label -> its text
    reference: list[Statement] = field(default_factory=list)
    reference_sources: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    additions: list[Statement] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    overlooked: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    found: bool = True  # the notebook has a cell for this exercise

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return {
            **self.__dict__,
            "statements": [s.to_json() for s in self.statements],
            "reference": [s.to_json() for s in self.reference],
            "additions": [s.to_json() for s in self.additions],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Submission:
        """The submission that `to_json` wrote."""
        lists = {key: [Statement.from_json(s) for s in data[key]] for key in _LISTS}
        return cls(**{**data, **lists})

    @property
    def notes(self) -> list[str]:
        """What may explain that this code does something else than it does in the notebook."""
        return [
            f"{name[:60]} is set or changed in {where} by code that is no definition, which is not executed "
            f"here; {ONLY_DEFINITIONS}"
            for name, where in list(self.overlooked.items())[:MOST_TOLD]
        ]

    def load(self) -> types.ModuleType:
        """Execute the statements in a new module and return it. Lets the student's errors through."""
        stand_ins = _new_module("reference")
        _execute(stand_ins, self.reference, self.reference_sources)
        module = _new_module(MODULE_NAME)
        vars(module).update(lookups())
        vars(module).update({name: vars(stand_ins)[name] for name in self.replaced})
        _execute(module, self.statements, self.sources)
        for statement in self.additions:
            _add_methods(module, statement, self.sources[statement.cell])
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
    parsed = [cell.read() for cell in cells]
    statements = [s for result in parsed for s in result.statements]
    solution = [cell.read() for cell in reference]
    stand_ins = needed_for(replaced, [s for result in solution for s in result.statements])
    additions = _with_more_methods(replaced, statements, stand_ins)
    wanted = [*names, *also, *(name for s in additions for name in (*s.needs, *s.uses))]
    kept = needed_for(wanted, [s for s in statements if not set(s.defines) & set(replaced)])
    asked_for = [s for s in kept if set(s.defines) & set(names)]
    return Submission(
        statements=kept,
        sources=_texts([*kept, *additions], cells, parsed),
        reference=stand_ins,
        reference_sources=_texts(stand_ins, reference, solution),
        replaced=list(replaced),
        additions=additions,
        left_out={name: where for result in parsed for name, where in result.left_out.items()},
        overlooked=_overlooked(kept, cells, parsed),
        problems={cell.label: r.problem for cell, r in zip(cells, parsed, strict=True) if r.problem},
        found=bool(asked_for) or any(cell.exercise == exercise_id for cell in cells),
    )


def _overlooked(
    kept: Sequence[Statement], cells: Sequence[Cell], parsed: Sequence[ParsedCell]
) -> dict[str, str]:
    """The names of these statements that code below them sets or changes which is no definition."""
    order = {cell.label: number for number, cell in enumerate(cells)}
    defined = {name: (order[s.cell], s.last_line) for s in kept for name in s.defines if not s.imports}
    return {
        name: where
        for number, result in enumerate(parsed)
        for name, where in (*result.left_out.items(), *result.left_changes.items())
        if name in defined and (number, int(where.rpartition(" ")[2])) > defined[name]
    }


def _with_more_methods(
    names: Sequence[str], own: Sequence[Statement], stand_ins: Sequence[Statement]
) -> list[Statement]:
    """The student's last versions of classes that a stand-in replaces, where they have methods it has not."""
    last = {name: s for s in own for name in s.defines if name in names}
    theirs = {name: s for s in stand_ins for name in s.defines if name in names}
    return [s for name, s in last.items() if name in theirs and set(s.methods) - set(theirs[name].methods)]


def _texts(kept: Sequence[Statement], cells: Sequence[Cell], parsed: Sequence[ParsedCell]) -> dict[str, str]:
    needed = {statement.cell for statement in kept}
    return {c.label: p.source for c, p in zip(cells, parsed, strict=True) if c.label in needed}


def _execute(module: types.ModuleType, statements: Sequence[Statement], sources: Mapping[str, str]) -> None:
    for label, group in groupby(statements, key=lambda s: s.cell):
        source = sources[label]
        _show_in_tracebacks(label, source)
        for code in compile_statements(label, source, group):
            exec(code, vars(module))


def _add_methods(module: types.ModuleType, statement: Statement, source: str) -> None:
    """Give the stand-in of a student's class the methods that only the student's has.

    One that cannot be defined is left away: who calls it is told that it is not there.
    """
    (name,) = statement.defines
    stand_in = vars(module)[name]
    _show_in_tracebacks(statement.cell, source)
    for method in methods_of(source, statement, set(statement.methods) - set(dir(stand_in))):
        body = ast.Module(body=[method], type_ignores=[])
        namespace: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            exec(compile(body, statement.cell, "exec", dont_inherit=True), vars(module), namespace)
            for added, function in namespace.items():
                setattr(stand_in, added, function)


def _show_in_tracebacks(label: str, source: str) -> None:
    linecache.cache[label] = (len(source), None, python_lines(source), label)


def _new_module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses and inspect look a class's module up by name
    return module
