"""Who decides that a job is over and writes down why: one agent alone, or several (nodes/council.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from labkit import processes
from labkit.launch.engine.facts import write_facts
from labkit.launch.failure.deadlock import is_stuck
from labkit.launch.failure.diagnose import RankFacts, diagnose
from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.request import VERDICT, records_path
from labkit.launch.handover.reserved import write_reserved
from labkit.record.agreement import find_disagreement
from labkit.record.state import State

GRACE = 0.2  # seconds between SIGTERM and SIGKILL


class Council(Protocol):
    """What a `Watchdog` asks before it acts."""

    @property
    def overruled(self) -> bool:
        """Whether somebody else ended the job, so that this agent's ranks may be anywhere."""

    def may_part(self) -> bool:
        """Whether ranks that have all finished may be ended: nobody else talks to them any more."""

    def reason(self, own: str) -> str:
        """Why the job must end, "" if it goes on. own: what this agent found against it."""

    def stuck(self, states: Sequence[State]) -> bool:
        """Whether ranks in these states, of which none runs, can never go on."""

    def finished(self, facts: list[RankFacts]) -> str:
        """All ranks returned: write that down. Returns the verdict."""

    def conclude(self, reason: str, facts: list[RankFacts], pids: list[int], timeout: float) -> str:
        """Write down the evidence, and why the job ends; end the ranks. Returns the verdict."""


class CouncilOfOne:
    """The agent of a job on one machine."""

    overruled = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def may_part(self) -> bool:
        return True

    def reason(self, own: str) -> str:
        return own

    def stuck(self, states: Sequence[State]) -> bool:
        return is_stuck(states)

    def finished(self, facts: list[RankFacts]) -> str:
        """Finished, unless the ranks' calls did not fit each other."""
        write_facts(self._directory, facts)
        diagnosis = Diagnosis("finished", "every rank finished")
        wrong = find_disagreement([records_path(self._directory, fact.rank) for fact in facts])
        if wrong:
            diagnosis = diagnose("disagreement", facts, 0.0, wrong)
        write_reserved(self._directory / VERDICT, diagnosis)
        return diagnosis.verdict

    def conclude(self, reason: str, facts: list[RankFacts], pids: list[int], timeout: float) -> str:
        diagnosis = diagnose(reason, facts, timeout)
        processes.end(pids, GRACE)
        write_verdict(self._directory, diagnosis, facts)
        return diagnosis.verdict


def write_verdict(directory: Path, diagnosis: Diagnosis, facts: list[RankFacts]) -> None:
    """Write down how a job ended, and what is known about its ranks."""
    write_facts(directory, facts)
    write_reserved(directory / VERDICT, diagnosis)
