"""Exercises whose answer is a number: rows of arguments, and the values they must give.

The values of a case are in `Case.expected`, which does not travel to where the student's code runs. Those of
visible cases were recorded; those of the grader's are computed when it draws its cases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import number_or_words, shown, wrong_number

Row = tuple[dict[str, JSON], float]  # arguments by name, value
MOST_ITEMS = 12  # of a sequence that a sentence writes out


def formula_exercise(
    exercise_id: str,
    title: str,
    name: str,
    properties: Sequence[Property],
    cases: Callable[[int], list[Case]],
    forbids: tuple[str, ...] = (),
    hides: tuple[str, ...] = (),
) -> Exercise:
    """An exercise that asks for one function of numbers, `name`. Each property has cases of its own, whose
    kind is its name.
    """
    return Exercise(
        exercise_id,
        title,
        (name,),
        {p.name: Run(_asks(name)) for p in properties},
        cases,
        tuple(replace(p, on={p.name: gives_the_values}) for p in properties),
        forbids=forbids,
        hides=hides,
    )


def values_case(kind: str, rows: Sequence[Row], seed: int = 0, suffix: str = "") -> Case:
    """The function, called with each row's arguments, returns the row's value."""
    arguments, values = [dict(row[0]) for row in rows], [row[1] for row in rows]
    expected = {"values": values}
    return Case(f"{kind}{suffix}", 1, {"rows": arguments}, seed, kind=kind, expected=expected)


def refusal_case(kind: str, rows: Sequence[dict[str, JSON]], seed: int = 0, suffix: str = "") -> Case:
    """The function, called with each row's arguments, raises ValueError."""
    return Case(f"{kind}, refused{suffix}", 1, {"refused": list(rows)}, seed, kind=kind)


def agreement_case(kind: str, rows: Sequence[dict[str, JSON]], seed: int = 0, suffix: str = "") -> Case:
    """The function returns one positive number, the same for all rows."""
    return Case(f"{kind}{suffix}", 1, {"agree": list(rows)}, seed, kind=kind)


def _asks(name: str) -> Callable[[Rank], None]:
    def on_rank(rank: Rank) -> None:
        function = getattr(rank.student, name)
        for kind in ("rows", "agree"):
            rows = rank.params.get(kind, [])
            handed = [_as_handed(index, row) for index, row in enumerate(copy.deepcopy(rows))]
            rank.fact(kind, [number_or_words(function(**row)) for row in handed])
            rank.fact(f"{kind} changed", [_as_handed(0, row) for row in handed] != rows)
        for index, row in enumerate(rank.params.get("refused", [])):
            with rank.expect_error(f"refusal {index}"):
                function(**_as_handed(index, row))

    return on_rank


def _as_handed(index: int, row: dict[str, JSON]) -> dict[str, Any]:
    """A row's arguments: sequences are lists in every second row, tuples in the others."""
    holds = tuple if index % 2 else list
    return {name: holds(value) if isinstance(value, list | tuple) else value for name, value in row.items()}


def gives_the_values(evidence: Evidence) -> Iterator[Finding]:
    """What the function gave, and what it refused, is as the case says."""
    case, facts = evidence.case, evidence.answers[0].facts
    rows = [_as_handed(index, row) for index, row in enumerate(case.params.get("rows", []))]
    for row, value, seen in zip(rows, case.expected.get("values", []), facts["rows"], strict=True):
        wrong = wrong_number(value, seen)
        yield Finding(wrong is None, f"{shown(value)} for {_in_words(row)}", wrong or "")
    changed = facts["rows changed"] or facts["agree changed"]
    yield Finding(not changed, "arguments that stay as they are", "they were changed" if changed else "")
    if "agree" in case.params:
        yield _agreement(facts["agree"])
    for index, row in enumerate(case.params.get("refused", [])):
        raised = facts[f"refusal {index}"]
        seen = f"{raised['raised']}: {raised['message']}" if raised["raised"] else "no error"
        yield Finding("ValueError" in (raised.get("kinds") or ()), f"a ValueError for {_in_words(row)}", seen)


def _agreement(values: Sequence[object]) -> Finding:
    numbers = [v for v in values if isinstance(v, int | float)]
    right = len(numbers) == len(values) and all(v > 0 and not wrong_number(numbers[0], v) for v in numbers)
    seen = ", ".join(map(str, values) if len(numbers) < len(values) else map(shown, numbers))
    return Finding(right, "the same positive number for all of them", seen)


def _in_words(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_argument(value)}" for name, value in row.items())


def _argument(value: object) -> str:
    if isinstance(value, list | tuple) and len(value) > MOST_ITEMS:
        return f"{', '.join(map(str, value[:MOST_ITEMS]))}, ... ({len(value):,} in a {type(value).__name__})"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
