"""What ranks send in a call inside a model, where the input is no leaf of autograd's graph, and in calls in
which they may send less than usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.shared.beside import Call, calls_are, calls_of, calls_text

INSIDE = "inside a model"  # in the names of what is answered and recorded there


def calls_if_recorded(phase: str, expected: Sequence[Call], answer: RankAnswer) -> list[Finding]:
    """As `calls_are`, where the phase was reached: whose code raised before that loses other points."""
    return [calls_are(phase, expected, answer)] if phase in answer.collectives else []


def no_more_calls(phase: str, expected: Sequence[Call], answer: RankAnswer) -> Finding:
    """Whether a rank took part in none but these calls, each time that the phase was recorded."""
    phases = [*answer.earlier(phase), phase]
    more = [list((Counter(calls_of(answer, each)) - Counter(expected)).elements()) for each in phases]
    found = [call for calls in more for call in calls]
    told = f"{phase}: no more than {calls_text(expected)}"
    return Finding(not found, told, f"besides: {calls_text(found)}", answer.rank)
