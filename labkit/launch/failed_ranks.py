"""The ranks of a session after a failure: what failed can be looked at, until the next cell."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.launch.failure.errors import LaunchError
from labkit.launch.job import Job
from labkit.launch.line import Line, RanksLost
from labkit.launch.names import cell_sources

REPLACED = "The session was replaced: its ranks are fresh, and their variables are gone."
_HELD_ENDED = "The ranks that were held after the failure have ended."
_SECONDS = 60.0  # that a command of the debugger may take


class FailedRanks:
    """Ranks of one job, of which some failed.

    held: whether the others cannot go on, and the job is there for this alone: `end` ends it.
    """

    def __init__(self, job: Job, line: Line, failed: Sequence[int], held: bool) -> None:
        self.failed, self.held = tuple(failed), held
        self._job, self._line = job, line
        self._asked: set[int] = set()  # ranks that know the notebook's cells

    def command(self, rank: int | None, line: str | None) -> str:
        """What pdb answers on a rank (None: the first that failed); line None: what failed, and where.

        ValueError for a rank that has not failed. A LaunchError when the command ends the ranks, or takes
        more than a minute.
        """
        rank = self.failed[0] if rank is None else rank
        if rank not in self.failed:
            others = ", ".join(map(str, self.failed))
            raise ValueError(f"rank {rank} did not fail with an error: choose one of {others}")
        cells = {} if rank in self._asked else cell_sources()
        message = {"do": "debug", "line": line, "cells": cells}
        self._line.interrupted = False  # as the cell that failed may have been
        try:
            answer = self._line.exchange({rank: message}, _SECONDS, _nothing, _nothing)[rank]
        except RanksLost as lost:
            raise self._lost(lost.reason or "cancelled") from None
        self._asked.add(rank)
        return str(answer["text"])

    def end(self, reason: str = "cancelled") -> None:
        """Let go of held ranks."""
        if self.held:
            self._line.close()
            self._job.end(reason)

    def _lost(self, reason: str) -> LaunchError:
        """What ended the ranks, or holds them up for good."""
        self._line.close()
        self._job.end(reason)
        error = self._job.error
        assert error is not None, "ranks that failed do not finish"
        error.add_note(_HELD_ENDED if self.held else REPLACED)
        return error


def _nothing(*_: object) -> None:
    """Nobody needs to hear of answers before they are all there."""
