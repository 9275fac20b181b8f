"""What came of the trials, kept so that only what changed is tried again, here or on another machine.

One file a lesson under `benchmarks/results/trials`, a line a trial. It holds for the digest of what decides
it: the exercise's own check and cases, and the code of the notebook that is run. Only what was as it must
be is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from autograder.grade.reference import REPOSITORY
from autograder.selftest.needed_code import check_code, code_put_in
from autograder.selftest.trials import Row, Trial
from labkit.whole_file import write_whole

FOLDER = REPOSITORY / "benchmarks" / "results" / "trials"


class Outcome(msgspec.Struct, frozen=True):
    """What came of one trial. trial: its name, of those of its exercise. sandbox: where it ran.

    lost: the properties that evidence speaks against.
    """

    exercise: str
    trial: str
    sandbox: str
    digest: str
    verdict: str
    points: float
    max_points: float
    lost: list[str]

    @property
    def share(self) -> float:
        """Of the exercise's points: what was kept."""
        return self.points / self.max_points


class Outcomes:
    """Those of one lesson in one kind of sandbox, read from the file in `folder` and written to it."""

    def __init__(self, lesson: str, sandbox: str, folder: Path = FOLDER) -> None:
        self.sandbox = sandbox
        self._path = folder / f"lesson_{lesson[:2]}.jsonl"
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        found = [msgspec.json.decode(line, type=Outcome) for line in lines]
        self._by_key = {(o.exercise, o.trial, o.sandbox): o for o in found}

    def of(self, trial: Trial) -> Outcome | None:
        """What came of a trial; None where it was never as it must be, or what decides it has changed."""
        outcome = self._by_key.get(self._key(trial))
        return outcome if outcome and outcome.digest == digest_of(trial) else None

    def keep(self, row: Row) -> None:
        """Write down what came of a trial."""
        report, trial = row.graded.report, row.trial
        self._by_key[self._key(trial)] = Outcome(
            *self._key(trial), digest_of(trial), report.verdict, report.points, report.max_points, row.lost
        )
        self._write()

    def forget_all_but(self, trials: Sequence[Trial]) -> None:
        """Drop what there is of trials in this sandbox that are no more: a wrong answer that was renamed."""
        there = {self._key(trial) for trial in trials}
        kept = {key: o for key, o in self._by_key.items() if key in there or o.sandbox != self.sandbox}
        if kept != self._by_key:
            self._by_key = kept
            self._write()

    def _key(self, trial: Trial) -> tuple[str, str, str]:
        return trial.exercise.id, trial.name, self.sandbox

    def _write(self) -> None:
        lines = (msgspec.json.encode(outcome) for _, outcome in sorted(self._by_key.items()))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, b"".join(line + b"\n" for line in lines))


def digest_of(trial: Trial) -> str:
    """What the outcome of a trial on all cases rests on."""
    asked = f"{trial.must_fail} {trial.verdict}"
    parts = [asked, *check_code(trial.exercise.id, trial.seed), *code_put_in(trial.exercise, trial.cells)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
