"""Exercises whose answer is a number: rows of arguments, and the values they must give.

The values of a case are in `Case.expected`, which does not travel to where the student's code runs. Those of
visible cases were recorded; those of the grader's are computed when it draws its cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from labkit.checks.exercise import JSON, Case, Exercise, Finding, Inputs, Property, RankAnswer, no_inputs
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import number_or_words, shown, wrong_number

Row = tuple[dict[str, JSON], float]  # arguments by name, value


def formula_exercise(
    exercise_id: str,
    title: str,
    name: str,
    properties: Sequence[Property],
    cases: Callable[[int], list[Case]],
    forbids: tuple[str, ...] = (),
    hides: tuple[str, ...] = (),
) -> Exercise:
    """An exercise that asks for one function of numbers, `name`."""
    return Exercise(
        exercise_id,
        title,
        (name,),
        tuple(properties),
        cases,
        no_inputs,
        _asks(name),
        _judge,
        forbids=forbids,
        hides=hides,
    )


def values_case(property_name: str, rows: Sequence[Row], seed: int = 0, suffix: str = "") -> Case:
    """The function, called with each row's arguments, returns the row's value."""
    arguments, values = [dict(row[0]) for row in rows], [row[1] for row in rows]
    name = f"{property_name}{suffix}"
    return Case(name, 1, {"rows": arguments}, seed, (property_name,), expected={"values": values})


def refusal_case(
    property_name: str, rows: Sequence[dict[str, JSON]], seed: int = 0, suffix: str = ""
) -> Case:
    """The function, called with each row's arguments, raises ValueError."""
    return Case(f"{property_name}, refused{suffix}", 1, {"refused": list(rows)}, seed, (property_name,))


def agreement_case(
    property_name: str, rows: Sequence[dict[str, JSON]], seed: int = 0, suffix: str = ""
) -> Case:
    """The function returns one positive number, the same for all rows."""
    return Case(f"{property_name}{suffix}", 1, {"agree": list(rows)}, seed, (property_name,))


def _asks(name: str) -> Callable[[Rank], None]:
    def on_rank(rank: Rank) -> None:
        function = getattr(rank.student, name)
        for kind in ("rows", "agree"):
            rank.fact(kind, [number_or_words(function(**row)) for row in rank.params.get(kind, [])])
        for index, row in enumerate(rank.params.get("refused", [])):
            with rank.expect_error(f"refusal {index}"):
                function(**row)

    return on_rank


def _judge(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    (name,) = case.properties
    facts = answers[0].facts
    for row, value, seen in zip(
        case.params.get("rows", []), case.expected.get("values", []), facts["rows"], strict=True
    ):
        wrong = wrong_number(value, seen)
        yield Finding(name, wrong is None, f"{shown(value)} for {_in_words(row)}", wrong or "")
    if "agree" in case.params:
        yield _agreement(name, facts["agree"])
    for index, row in enumerate(case.params.get("refused", [])):
        raised = facts[f"refusal {index}"]
        seen = f"{raised['raised']}: {raised['message']}" if raised["raised"] else "no error"
        yield Finding(name, raised["raised"] == "ValueError", f"a ValueError for {_in_words(row)}", seen)


def _agreement(name: str, values: Sequence[object]) -> Finding:
    numbers = [v for v in values if isinstance(v, int | float)]
    right = len(numbers) == len(values) and all(v > 0 and not wrong_number(numbers[0], v) for v in numbers)
    seen = ", ".join(map(str, values) if len(numbers) < len(values) else map(shown, numbers))
    return Finding(name, right, "the same positive number for all of them", seen)


def _in_words(row: dict[str, JSON]) -> str:
    return ", ".join(f"{name}={_argument(value)}" for name, value in row.items())


def _argument(value: JSON) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
