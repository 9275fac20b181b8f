"""Exercises whose answers are plain numbers: call the student's functions, compare with the judge's values.

A case's kind is the property it is about. Its params hold `calls`: which function, with which arguments. Its
`expected` holds the values in the same order. Practice reads both from a file; grading draws new ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.forbidden import ForbiddenCall
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import as_data, shown, wrong_number
from labkit.theory.hardware import GPU
from labkit.theory.models import ModelConfig

ARGUMENT_TYPES = {"config": ModelConfig, "gpu": GPU}
WHOLE = ("global_batch_size", "accumulation_steps", "largest_micro_batch")  # which give ints, not floats
SHARED = "the very dict of the call before: what was done to that is in it"
LONGEST_TEXT = 2000  # characters of an error that are sent back


@cache
def _recorded() -> dict[str, list[dict[str, JSON]]]:
    path = Path(__file__).with_name("visible.json")
    return json.loads(path.read_text(encoding="utf-8"))


def recorded_cases(exercise_id: str) -> list[Case]:
    """The visible cases of an exercise, with their values, from the file beside the lesson's checks."""
    return [Case.from_json(case) for case in _recorded()[exercise_id]]


def arguments_of(call: dict[str, JSON]) -> dict[str, Any]:
    """A call's arguments as the student's function takes them."""
    return {
        name: ARGUMENT_TYPES[name](**value) if name in ARGUMENT_TYPES else value
        for name, value in call["arguments"].items()
    }


def call_student(rank: Rank) -> None:
    """Make every call of the case and report what each returned or raised.

    What was returned is read after the last call: a later one must not have changed it. A call that is made
    `twice` must give another dict each time: what is done to the first is not the second one's business.
    """
    returned: dict[int, Any] = {}
    shared = set[int]()
    for index, call in enumerate(rank.params["calls"]):
        function = getattr(rank.student, call["function"])
        with _reporting(rank, index):
            returned[index] = function(**arguments_of(call))
            if call.get("twice") and function(**arguments_of(call)) is returned[index]:
                shared.add(index)
    for index, value in returned.items():
        with _reporting(rank, index):
            rank.fact(str(index), {"value": as_data(value), "shared": index in shared})


@contextmanager
def _reporting(rank: Rank, index: int) -> Iterator[None]:
    """Reports what a call raises; that it raised at all is told once where it must not."""
    problem: Exception | None = None
    try:
        yield
    except (NotImplementedError, ForbiddenCall):
        raise
    except Exception as error:
        problem = error
        kinds = [kind.__name__ for kind in type(error).__mro__]
        rank.fact(str(index), {"raised": kinds, "message": str(error)[:LONGEST_TEXT]})
    if problem is not None and not rank.params["calls"][index]["may_raise"]:
        with rank.attempt(rank.case.kind):
            raise problem


def returns_the_values(evidence: Evidence) -> Iterator[Finding]:
    """One finding a call: none where a call raised, which has been told with the student's own line."""
    case = evidence.case
    for answer in evidence.answers:
        if case.kind in answer.errors:
            continue
        for index, (call, value) in enumerate(
            zip(case.params["calls"], case.expected["values"], strict=True)
        ):
            reply = answer.facts[str(index)]
            wrong = _what_is_wrong(reply, value, call)
            hushed = wrong is None or case.hidden
            told = call["told"] if hushed else f"{call['told']} = {_expected_text(value)}"
            yield Finding(wrong is None, told, wrong or "")


def _what_is_wrong(reply: JSON, value: JSON, call: dict[str, JSON]) -> str | None:
    if call["may_raise"]:
        return _wrong_error(reply, call)
    return _wrong_value(value, reply["value"], call) or (reply["shared"] and SHARED) or None


def _wrong_error(reply: JSON, call: dict[str, JSON]) -> str | None:
    """None for a ValueError whose text holds what the call's `naming` lists."""
    if "raised" not in reply:
        return f"no error, but {shown(reply.get('value'))}"
    if "ValueError" in reply["raised"]:
        silent = [name for name in call.get("naming", []) if name not in reply["message"]]
        return f"a ValueError that does not name {', '.join(silent)}" if silent else None
    return f"{reply['raised'][0]}: {reply['message']}"


def _wrong_value(expected: JSON, seen: JSON, call: dict[str, JSON]) -> str | None:
    """None when `seen` is the expected number, or a dict of the expected numbers.

    A call with a `part` asks about that key of a dict alone.
    """
    part = call.get("part")
    if part is not None:
        if not isinstance(seen, dict) or part not in seen:
            return f"{shown(seen)}, which has no {part!r}"
        seen = seen[part]
    if isinstance(expected, dict) and "digest" not in expected:
        if not isinstance(seen, dict):
            return f"{shown(seen)} instead of a dict with {', '.join(expected)}"
        if set(seen) != set(expected):
            return f"keys {', '.join(sorted(seen))} instead of {', '.join(sorted(expected))}"
        problems = ((part, _wrong(expected[part], seen[part], call)) for part in sorted(expected))
        return next((f"{part}: {problem}" for part, problem in problems if problem), None)
    if isinstance(seen, dict):
        return "a dict instead of a number"
    if isinstance(expected, dict):
        near = (digest(call["part"], number) for number in _three_digits(seen))
        return None if expected["digest"] in near else f"{shown(seen)}, which is not it"
    return _wrong(expected, seen, call)


def _wrong(expected: float, seen: JSON, call: dict[str, JSON]) -> str | None:
    """None when `seen` is near enough; without a tolerance a whole number is held to its last digit, which a
    comparison of floats would not see.
    """
    wrong = wrong_number(expected, seen, call["tolerance"])
    if wrong is None and not call["tolerance"] and seen != expected:
        return f"{shown(seen)} instead of {shown(expected)}"
    if wrong is None and call["function"] in WHOLE and isinstance(seen, float):
        return f"{seen!r}, a float, where a whole number is asked for"
    return wrong


def digest(question: str, value: float) -> str:
    """A number to three digits, unreadable: for recorded answers that would otherwise be given away."""
    return hashlib.sha256(f"{question}: {value:.3g}".encode()).hexdigest()[:16]


def _three_digits(value: float) -> Iterator[float]:
    """The numbers of three digits on both sides of a number. One that has three digits itself may have been
    rounded up from what rounds down at another source: half of 1,979 is 989.5, 990 to three digits, and 989.4
    is 989.
    """
    if value and math.isfinite(value):
        unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
        below, above = math.floor(value / unit), math.ceil(value / unit)
        yield from (count * unit for count in (below, above, below - (below == above)))


def _expected_text(expected: JSON) -> str:
    if expected is None:
        return "ValueError"
    if isinstance(expected, dict):
        return "?" if "digest" in expected else ", ".join(f"{k} {shown(v)}" for k, v in expected.items())
    return shown(expected)
