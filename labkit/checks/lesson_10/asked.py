"""Functions of plain data: called with each row of a case, their answers held against the judge's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Finding, Judge, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import number_or_words, wrong_number

Row = Mapping[str, JSON]  # arguments by name
SECONDS = 1e-9  # of answers in seconds: room for the order of sums, and nothing else


def rows_case(name: str, kind: str, rows: Sequence[Row], seed: int) -> Case:
    """As many calls as there are rows."""
    settings = {"rows": [dict(row) for row in rows]}
    return Case(name, 1, settings, seed, kind=kind, own_parts=kind == "own-parts")


def asks(name: str) -> Run:
    """Calls the student's function `name` with each row. Facts: answers; unchanged, whether it left its
    arguments as they were.
    """

    def on_rank(rank: Rank) -> None:
        function, answers, unchanged = getattr(rank.student, name), [], True
        for row in map(_arguments, rank.params["rows"]):
            given = deepcopy(row)
            answers.append(plain(function(**given)))
            unchanged = unchanged and given == row
        rank.fact("answers", answers)
        rank.fact("unchanged", unchanged)

    return Run(on_rank)


def refuses(name: str) -> Run:
    """Calls it with the one row of the case. Fact: refusal."""

    def on_rank(rank: Rank) -> None:
        (row,) = rank.params["rows"]
        with rank.expect_error("refusal"):
            getattr(rank.student, name)(**_arguments(row))

    return Run(on_rank)


def _arguments(row: Row) -> dict[str, Any]:
    """A row as a function is called with it: stretches and calls are tuples, which JSON does not know."""
    stretches = ("compute", "communication", "calls")
    return {key: list(map(tuple, value)) if key in stretches else value for key, value in row.items()}


def plain(value: object) -> JSON:
    """What a function gave, as JSON can hold it: numbers, lists and dicts of them, the rest in words. What
    numpy and torch have for a list of numbers is one.
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return number_or_words(value)


def gives(reference: Callable[..., JSON], pick: Callable[[Any], Any] = lambda answer: answer) -> Judge:
    """A judge of what `pick` takes of each answer: as `reference(**row)`, numbers but for rounding.

    An answer that cannot be picked from is wrong as it stands.
    """

    def judge(evidence: Evidence) -> Iterator[Finding]:
        answers = evidence.answers[0].facts["answers"]
        for row, seen in zip(evidence.case.params["rows"], answers, strict=True):
            expected = pick(plain(reference(**row)))
            found = _picked(pick, seen)
            told = f"{_short(expected)} for {', '.join(f'{k}={_short(v)}' for k, v in row.items())}"
            yield Finding(_same(expected, found), told, _short(found))

    return judge


def changes_nothing(evidence: Evidence) -> Iterator[Finding]:
    """The arguments are as they were."""
    unchanged = evidence.answers[0].facts["unchanged"]
    yield Finding(unchanged is True, "the lists handed over as they were", "changed")


def _picked(pick: Callable[[Any], Any], seen: Any) -> Any:
    try:
        return pick(seen)
    except (KeyError, IndexError, TypeError):
        return seen


def _same(expected: Any, seen: Any) -> bool:
    if isinstance(expected, dict):
        return (
            isinstance(seen, dict)
            and expected.keys() == seen.keys()
            and all(_same(expected[key], seen[key]) for key in expected)
        )
    if isinstance(expected, list):
        return isinstance(seen, list) and len(seen) == len(expected) and all(map(_same, expected, seen))
    if expected == 0:
        return isinstance(seen, int | float) and abs(seen) < SECONDS
    return wrong_number(expected, seen) is None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 160 else f"{text[:150]} ..."
