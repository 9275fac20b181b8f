"""Grades one submission: its source goes into the sandbox, data comes out, and the judging happens here.

No student code is imported, unpickled or executed by this process. Each exercise is a request of its own,
served by one sandbox for the whole submission; a sandbox that dies or hangs is replaced for the exercises
that follow.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import msgspec

from autograder.grade.evidence import Baseline, JobEvidence, job_evidence
from autograder.grade.faults import fault_told
from autograder.grade.feedback import for_the_student
from autograder.grade.reading import ReadCell
from autograder.grade.reference import all_cases, graded_submission, shown_seed, solved_cells
from autograder.grade.scan import Flag, scan
from autograder.grade.watched_names import SENDS_OBJECTS, WRITES_FILES
from autograder.sandbox.confined import Confined, Outcome
from autograder.sandbox.inside import AGENT_ENDED, EXPECTED, FAILURE, WIRE
from autograder.sandbox.sandbox import MIB, CouldNotEnd, CouldNotStart, Sandbox
from autograder.sandbox.within.mesh import Counted
from autograder.sandbox.within.salvage import tail, take
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.files import REQUEST, RunRequest, answer_names
from labkit.checks.jobs import CouldNotBeGraded, JobFailure
from labkit.checks.judge import judge_exercise
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.submission import Cell, Submission
from labkit.launch.failure.words import LOCKED_OUT
from labkit.launch.handover.directory import remove_stale

GRACE = 10.0
_BY_RECORD = (
    "Ranks were not kept apart here: points for the mechanism rest on what ranks themselves recorded, and "
    "on the sum of what all of them sent where that is counted."
)
_KEPT = (
    "Graded with your own {} in place of the course's: your later code uses what only yours has, and with it "
    "passes what is asked of your own parts together."
)
_ENDED_TWICE = f"twice, {AGENT_ENDED} before it could say how the job had; {LOCKED_OUT}"
MOST_LATE = 6  # jobs of an exercise that do not end in time
KNOWN_VERDICTS = ("error", "timeout", "deadlock", "out_of_memory", "killed")


@dataclass
class Graded:
    """One exercise's outcome: the report, what a person should look at, and how long it took."""

    report: Report
    flags: list[Flag] = field(default_factory=list)
    seconds: float = 0.0
    held: list[str] = field(default_factory=list)  # properties that wait for a person
    jobs: list[JobEvidence] = field(default_factory=list)  # those that ran to their end


def hold_back(graded: Graded, everything: bool = False) -> None:
    """Take the points that rest on a record which is not true, or all, until a person has looked: not a
    zero.
    """
    rows = [row for row in graded.report.rows if everything or row.kind == "mechanism"]
    graded.held += [row.name for row in rows if row.passed]
    told = "held back until a person has looked at it"
    rows = [
        replace(row, passed=False, points=0, seen=told) if row.name in graded.held else row
        for row in graded.report.rows
    ]
    verdict = "failed" if graded.held else graded.report.verdict
    graded.report = replace(graded.report, rows=rows, verdict=verdict)


class Harness:
    """Grades exercises of one submission in one sandbox at a time. Use as a context manager.

    hide: files and folders of labkit that must not be seen. grace: seconds beyond a job's own deadline, at
    which the job names the ranks that hang, until the sandbox is ended from outside.
    """

    def __init__(self, sandbox: Sandbox, hide: Sequence[str] = (), grace: float = GRACE) -> None:
        self.sandbox, self.hide, self.grace = sandbox, hide, grace
        self.outcomes: list[Outcome] = []
        self.evidence: list[JobEvidence] = []
        remove_stale()
        self._folder = tempfile.TemporaryDirectory(prefix="labkit-grading-")
        self._confined: Confined | None = None
        self._count = self._late = 0

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end()
        finally:
            self._folder.cleanup()

    def grade(
        self, exercise: Exercise, cells: Sequence[Cell], seed: int, cases: Sequence[Case] | None = None
    ) -> Graded:
        """Points for one exercise. Its verdict is "could_not_be_graded" when the fault is not the
        student's.
        """
        submission, own_parts = graded_submission(cells, exercise)
        known = {cell.label: cell.clues for cell in cells if isinstance(cell, ReadCell)}
        objects, files = (
            not some.isdisjoint((exercise.id, *exercise.builds_on)) for some in (SENDS_OBJECTS, WRITES_FILES)
        )
        both = (scan(one, exercise.forbids, known, objects, files) for one in (submission, own_parts))
        flags = list(dict.fromkeys(chain.from_iterable(both)))
        self.outcomes = []
        try:
            cases = all_cases(exercise, shown_seed(seed)) if cases is None else cases
            report, jobs = self._judged(exercise, cases, submission, own_parts, seed)
            if submission.replaced and _needs_own_parts(exercise, cases, report):
                again, own_jobs = self._judged(exercise, cases, own_parts, own_parts, seed)
                if again.points > report.points:
                    again.notes.append(_KEPT.format(", ".join(submission.replaced)))
                    report, jobs = again, own_jobs
        except (CouldNotBeGraded, CouldNotEnd) as problem:
            return Graded(without_points(exercise, "could_not_be_graded", str(problem)), flags)
        except OSError:
            raise  # this machine's: all of the notebook is graded again
        except Exception as fault:  # of a judge with an answer: it costs no other exercise its grade
            return Graded(without_points(exercise, "could_not_be_graded", fault_told(fault)), flags)
        report.notes += [] if report.passed else submission.notes
        seconds = sum(outcome.seconds for outcome in self.outcomes)
        if not self.sandbox.apart and any(row.kind == "mechanism" and row.passed for row in report.rows):
            report.notes.append(_BY_RECORD)
        return Graded(for_the_student(report, exercise, own_parts), flags, seconds, jobs=jobs)

    def _judged(
        self,
        exercise: Exercise,
        cases: Sequence[Case],
        submission: Submission,
        own_parts: Submission,
        seed: int,
    ) -> tuple[Report, list[JobEvidence]]:
        """The report, and the evidence of the jobs that it comes from."""
        self.evidence, self._late = [], 0
        report = judge_exercise(exercise, cases, submission, own_parts, self.run_job, secret=str(seed))
        return report, self.evidence

    def cross_check(self, graded: Graded, exercise: Exercise, seed: int, baseline: Baseline | None) -> None:
        """Flag jobs whose record the network contradicts, and hold back what rests on the record; so too
        where code reaches for what could forge one, and all points where it could ask the checks.

        baseline: what the reference sends; where it is not known, it is measured now.
        """
        if graded.jobs and any(row.kind == "mechanism" and row.passed for row in graded.report.rows):
            if baseline is None:
                reference = self.grade(exercise, solved_cells(exercise.lesson), seed)
                baseline = Baseline.of(reference.jobs)
            contradictions = baseline.flags(graded.jobs)
            graded.flags += contradictions
            if contradictions or any(flag.holds for flag in graded.flags):
                hold_back(graded)
        if any(flag.holds_all for flag in graded.flags):
            hold_back(graded, everything=True)

    def run_job(self, directory: Path, request: RunRequest) -> JobFailure | None:
        """Run the request in `directory` inside, and put what came out beside it. How it failed, if it
        did. Once many jobs of the exercise did not end in time no other is run: each takes minutes on a busy
        host.
        """
        if self._late >= MOST_LATE:
            return JobFailure("timeout", f"not run: {MOST_LATE} earlier jobs did not end in time")
        outcome, failure = self._run_once(directory, request)
        if _is_agents_end(failure) or outcome.ended == "died":
            # The host's doing, perhaps: once more, with nothing else inside.
            self._end()
            for name in answer_names(request):
                (directory / name).unlink(missing_ok=True)
            outcome, failure = self._run_once(directory, request)
        self._late += failure is not None and failure.verdict == "timeout"
        return JobFailure("error", _ENDED_TWICE) if _is_agents_end(failure) else failure

    def _run_once(self, directory: Path, request: RunRequest) -> tuple[Outcome, JobFailure | None]:
        confined = self._started()
        self._count += 1
        name = f"{self._count:04d}"
        shutil.copytree(directory, Path(self._folder.name) / name)
        (Path(self._folder.name) / name / EXPECTED).write_text(json.dumps(answer_names(request)))
        (Path(self._folder.name) / name / REQUEST).write_text(json.dumps(_what_it_uses(request).to_json()))
        for path in (Path(self._folder.name) / name).iterdir():
            path.chmod(0o644)
        try:
            outcome = confined.run(name, request.timeout + self.grace)
        except CouldNotEnd:
            self._confined = None  # the next request gets another one
            raise
        self.outcomes.append(outcome)
        shutil.rmtree(Path(self._folder.name) / name)
        if outcome.ended != "answered":
            return outcome, _overstepped(outcome, request)
        refused = take(confined.out / name, answer_names(request), directory, self.sandbox.limits.answers)
        if refused:
            for name in {
                f"{stem}.{kind}" for stem in map(_stem, refused) for kind in ("json", "safetensors")
            }:
                (directory / name).unlink(missing_ok=True)  # an answer counts whole or not at all
            return outcome, JobFailure("error", "; ".join(f"{k}: {v}" for k, v in refused.items())[:500])
        failure = _told_failure(tail(confined.out / name, FAILURE, MIB))
        if failure is None and (self.sandbox.apart or outcome.traffic is not None):
            counted = _counted(tail(confined.out / name, WIRE, MIB)) if self.sandbox.apart else None
            job = confined.out / name / "job"
            self.evidence.append(job_evidence(request, directory, job, counted, outcome.traffic))
        return outcome, failure

    def _started(self) -> Confined:
        if self._confined is None or not self._confined.alive:
            self._end()
            try:
                self._confined = Confined(self.sandbox, Path(self._folder.name), self.hide)
            except (CouldNotStart, OSError) as error:
                raise CouldNotBeGraded(f"the sandbox did not start: {str(error)[-500:]}") from None
        return self._confined

    def _end(self) -> None:
        confined, self._confined = self._confined, None
        if confined is not None:
            confined.close()


def _needs_own_parts(exercise: Exercise, cases: Sequence[Case], report: Report) -> bool:
    """Whether an error kept the exercise from working with the course's versions of earlier parts, while the
    student's own parts pass what is asked of them together.
    """
    asked = {name for case in cases if case.own_parts for name in exercise.shown_by(case)}
    return bool(report.stops) and all(report.row(name).passed for name in asked)


def _what_it_uses(request: RunRequest) -> RunRequest:
    """The request as it goes in, where student code can read it: of its two submissions the one that its
    cases use, so that a job with the student's own parts has nothing of the reference.
    """
    if all(case.own_parts for case in request.cases):
        return replace(request, submission=request.own_parts)
    if not any(case.own_parts for case in request.cases):
        return replace(request, own_parts=request.submission)
    raise ValueError(f"{request.exercise}: a job has cases with the student's own parts and cases without")


def hidden_files(exercises: Sequence[Exercise]) -> list[str]:
    """What of labkit holds the answer to one of these exercises."""
    return sorted({name for exercise in exercises for name in exercise.hides})


def grade_cells(
    exercises: Sequence[Exercise],
    cells: Sequence[Cell],
    sandbox: Sandbox,
    seed: int,
    baseline: Baseline | None = None,
    on_graded: Callable[[Graded], None] = lambda graded: None,
) -> list[Graded]:
    """Grade exercises one after the other in one sandbox. An exercise that breaks its sandbox gets a new
    one after it.
    """
    graded = []
    with Harness(sandbox, hidden_files(exercises)) as harness:
        for exercise in exercises:
            graded.append(harness.grade(exercise, cells, seed))
            harness.cross_check(graded[-1], exercise, seed, baseline)
            on_graded(graded[-1])
    return graded


def _is_agents_end(failure: JobFailure | None) -> bool:
    return failure is not None and failure.message == AGENT_ENDED


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def without_points(exercise: Exercise, verdict: str, why: str) -> Report:
    """The report of an exercise that could not be looked at. With the verdict "could_not_be_graded" it is no
    zero: the exercise is to be graded again.
    """
    rows = [PropertyResult(p.name, p.kind, 0, p.points, False, p.says, seen=why) for p in exercise.properties]
    return Report(exercise.id, exercise.title, rows, verdict, [why])


def _overstepped(outcome: Outcome, request: RunRequest) -> JobFailure:
    match outcome.ended:
        case "deadline":
            return JobFailure(
                "timeout", f"not finished after {request.timeout:g} s, and could not be stopped from within"
            )
        case "memory":
            return JobFailure("out_of_memory", outcome.detail)
        case "died":
            return JobFailure("error", "your code ended the process that runs the ranks")
    return JobFailure("error", outcome.detail)


def _counted(text: str) -> Counted:
    """What the cables of the ranks carried, as the inside read it off where no rank reaches."""
    try:
        return msgspec.json.decode(text, type=Counted)
    except ValueError:
        raise CouldNotBeGraded("what the ranks sent to one another was not counted") from None


def _told_failure(text: str) -> JobFailure | None:
    """How the job failed, in the words of the inside: words only, which decide nothing about points."""
    if not text:
        return None
    try:
        told = json.loads(text)
        verdict, message = told["verdict"], str(told["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return JobFailure("error", "the job ended without saying how")
    return JobFailure(verdict if verdict in KNOWN_VERDICTS else "error", message[:4000])
