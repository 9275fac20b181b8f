"""What is recorded more than once under a name is kept each time, and can be asked to be the same."""

from __future__ import annotations

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence
from labkit.checks.shared.beside import as_each_time, calls_of


def call(op: str, num_bytes: int) -> dict[str, object]:
    return {"op": op, "num_bytes": num_bytes, "source": "python", "group": [0, 1], "start": 0.0, "end": 1.0}


def answer(*steps: list[dict[str, object]]) -> RankAnswer:
    *before, last = steps
    named = {f"step (time {number})": calls for number, calls in enumerate(before, 1)}
    return RankAnswer(0, {}, {}, {**named, "step": last}, {})  # type: ignore[arg-type]


def test_earlier_recordings_are_told_in_their_order() -> None:
    several = answer([], [call("send", 8)], [call("send", 16)])
    assert several.earlier("step") == ["step (time 1)", "step (time 2)"]
    assert several.earlier("other") == []
    assert [calls_of(several, name) for name in several.earlier("step")] == [[], [("send", 8)]]


def test_who_sends_more_in_an_earlier_step_is_found_out() -> None:
    for first, alike in (([call("send", 8)], True), ([call("send", 8), call("all_gather", 4)], False)):
        evidence = Evidence(Case("two ranks", 2), {}, [answer(first, [call("send", 8)])])
        assert [finding.passed for finding in as_each_time("step")(evidence)] == [alike]
