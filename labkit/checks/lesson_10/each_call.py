"""Cases of several calls on one model, each written down for itself: judges of one call look at every one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from labkit.checks.case import JSON, Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.places import place_of

Params = Mapping[str, JSON]
ACTS, TRAINING = "acts", "training"  # a journal, and a recording, as judges of one call look for them


def acts_name(recording: str) -> str:
    """The fact that has what was done in a call."""
    return f"{ACTS} of {recording}"


@contextlib.contextmanager
def written_down(rank: Rank, recording: str) -> Iterator[None]:
    """A call's recording, and its journal."""
    with rank.recording(recording), rank.journal(acts_name(recording)):
        yield


def of_each_call(judge: Judge, calls: Callable[[Case], Mapping[str, Params]]) -> Judge:
    """The same judge of each call, by ranks that have others in their group: one that is alone need not
    communicate.

    calls: (case) -> by the recordings of the calls, what of the case's params is another for each.
    """

    def find(evidence: Evidence) -> Iterator[Finding]:
        together = [answer for answer in evidence.answers if place_of(evidence.case, answer.rank).size > 1]
        for recording, params in calls(evidence.case).items():
            case = replace(evidence.case, params={**evidence.case.params, **params})
            answers = [_of_call(answer, recording) for answer in together]
            yield from judge(replace(evidence, case=case, answers=answers))

    return find


def _of_call(answer: RankAnswer, recording: str) -> RankAnswer:
    facts = {**answer.facts, ACTS: answer.facts[acts_name(recording)]}
    return replace(answer, facts=facts, collectives={TRAINING: answer.collectives[recording]})
