"""Compares what the recorder in the ranks reported with what the kernel counted on the sandbox's network.

The recorder shares a process with the student's code, the kernel's counters do not. The reference solution,
run on the same cases under the same conditions, tells how many bytes on the wire go with a record. A
submission whose record is the reference's, but whose wire is not, has a record that is not true.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.grade.scan import Flag
from autograder.sandbox.usage import Traffic
from autograder.sandbox.within.salvage import tail
from labkit.checks.files import RunRequest

TOLERANCE = 0.12  # two runs of the same code differ by 2%: acknowledgements, polling of the store
SLACK = 1500  # bytes
HEADERS = 66  # bytes of a segment beside its data
SEGMENT = 65483  # bytes of data, the most that TCP sends at once on a loopback
MOST_RESENT = 0.5  # of the reference's bytes: what is sent again explains no more than that
LARGEST_RECORDS = 8 * 2**20


@dataclass(frozen=True)
class JobEvidence:
    """One job that ran to its end. calls, num_bytes: as recorded in all ranks; largest: bytes of the largest
    call; native: calls the hooks did not see; wire: bytes on the network; resent: segments sent again, as
    happens on a loopback too when a receiver is full.
    """

    exercise: str
    ranks: int
    cases: tuple[str, ...]
    calls: int
    num_bytes: int
    largest: int
    native: int
    wire: int
    resent: int

    @property
    def key(self) -> str:
        return json.dumps([self.exercise, self.ranks, self.cases])


@dataclass
class Baseline:
    """What the reference's jobs sent, by job."""

    jobs: dict[str, JobEvidence] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Sequence[JobEvidence]) -> Baseline:
        return cls({job.key: job for job in jobs})

    def flags(self, jobs: Sequence[JobEvidence]) -> list[Flag]:
        """What disagrees, for a person to look at."""
        return [
            flag for job in jobs if (usual := self.jobs.get(job.key)) for flag in _disagreements(job, usual)
        ]


def _disagreements(job: JobEvidence, usual: JobEvidence) -> list[Flag]:
    flags = []
    where = f"on {job.ranks} ranks"
    if job.native > usual.native:
        flags.append(
            Flag(f"{job.native} calls {where} went past the recorder (the reference: {usual.native})")
        )
    same_record = (job.calls, job.num_bytes) == (usual.calls, usual.num_bytes)
    if same_record and _apart(job, usual) > TOLERANCE * usual.wire + SLACK:
        flags.append(
            Flag(
                f"{where}, {job.calls} calls were recorded as in the reference, but the network carried "
                f"{job.wire} bytes where the reference's carried {usual.wire}"
            )
        )
    return flags


def _apart(job: JobEvidence, usual: JobEvidence) -> float:
    """Bytes by which two jobs' traffic differs, whatever it was that TCP sent again."""
    more, less = (job, usual) if job.wire > usual.wire else (usual, job)
    again = more.resent * (min(SEGMENT, usual.largest) + HEADERS)
    return more.wire - min(again, MOST_RESENT * usual.wire) - less.wire


def job_evidence(request: RunRequest, answers: Path, job: Path, traffic: Traffic) -> JobEvidence:
    """Evidence of a job. answers: the grader's own copy of what the ranks wrote; job: the job's folder,
    theirs.
    """
    reports = [
        _collectives(answers / f"case{c}.rank{r}.json")
        for c in range(len(request.cases))
        for r in range(request.ranks)
    ]
    calls = [call for report in reports for call in report]
    native = sum(
        _native(tail(job, f"rank{rank}.records.json", LARGEST_RECORDS)) for rank in range(request.ranks)
    )
    sizes = [n for call in calls if isinstance(n := call.get("num_bytes"), int)]
    return JobEvidence(
        exercise=request.exercise,
        ranks=request.ranks,
        cases=tuple(case.name for case in request.cases),
        calls=len(calls),
        num_bytes=sum(sizes),
        largest=max(sizes, default=0),
        native=native,
        wire=traffic.bytes,
        resent=traffic.resent,
    )


def _collectives(path: Path) -> list[dict[str, Any]]:
    try:
        windows = json.loads(path.read_bytes())["collectives"]
        return [call for window in windows.values() for call in window if isinstance(call, dict)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _native(text: str) -> int:
    try:
        return sum(1 for call in json.loads(text)["collectives"] if call["source"] == "native")
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
