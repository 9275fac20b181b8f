"""What a check adds to errors whose own words do not say what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from labkit.checks.exercise import Exercise
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.submission import Submission
from labkit.checks.source.syntax import parse

# How a call fails that does not fit the function, where no line of the student's made the call.
_CALLED = r"TypeError: (({names})(\.\w+)?)\(\) (got an unexpected|got multiple|got some|takes|missing)[^()]*$"
_MORE = {
    "EOFError: EOF when reading a line": "input() cannot ask anybody on a rank: work with the arguments",
    "MemoryError: ": "A MemoryError without words is Python's own: a rank has no memory for what code makes, "
    "such as a list that never ends",
}


def explain(report: Report, exercise: Exercise, submission: Submission) -> None:
    """Put notes on a report's errors before its other notes, and take the usual causes from rows that saw the
    error of a stop: they speak of wrong values.
    """
    stops = [stop.text for stop in report.stops]
    texts = [*stops, *(row.seen for row in report.rows)]
    report.rows = [_without_cause(row, report) for row in report.rows]
    told = [note for error, note in _MORE.items() if any(error in text for text in texts)]
    told += _of_generators(report, exercise, submission)
    report.notes[:0] = [*_of_calls(stops, exercise, submission), *told]


def _without_cause(row: PropertyResult, report: Report) -> PropertyResult:
    is_told = re.match(r"\w+: ", row.seen) and any(row.seen in stop.text for stop in report.stops)
    return replace(row, usual_cause="") if is_told else row


def _of_calls(stops: list[str], exercise: Exercise, submission: Submission) -> Iterator[str]:
    """On functions and methods that cannot be called as the exercise calls them."""
    pattern = re.compile(_CALLED.format(names="|".join(map(re.escape, exercise.names))))
    for called in dict.fromkeys(found[1] for text in stops if (found := pattern.search(text))):
        written = _written(called, submission)
        yours = f", and yours is {written}" if written else ""
        yield (
            f"{called} is called with the arguments, by their names, that the exercise gave it{yours}: "
            "leave its first line as it was handed out"
        )


def _of_generators(report: Report, exercise: Exercise, submission: Submission) -> Iterator[str]:
    """On functions with a `yield`, where a tuple was seen of what it gave."""
    if any("tuple (" in row.seen for row in report.rows):
        for name in exercise.names:
            function = _function(name, submission)
            if function and any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function)):
                yield f"{name} has a yield: it returns a generator, whose items are read as a tuple"


def _written(called: str, submission: Submission) -> str:
    """A function as it is written, "f(a, b)"; "" where no cell defines it as a function."""
    function = _function(called, submission)
    return f"{called}({ast.unparse(function.args)})" if function else ""


def _function(called: str, submission: Submission) -> ast.FunctionDef | None:
    """The last function of this name, or method, "Class.method"; None where it is none, or something else."""
    name, _, method = called.partition(".")
    for statement in reversed(submission.statements):
        if name in statement.defines:
            node: ast.stmt | None = parse(submission.sources[statement.cell]).body[statement.index]
            if method and isinstance(node, ast.ClassDef):
                node = next((n for n in node.body if getattr(n, "name", "") == method), None)
            return node if isinstance(node, ast.FunctionDef) else None
    return None
