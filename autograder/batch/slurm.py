"""The same grading over a Slurm job array: tasks write records to the shared folder, this process merges
them.

Slurm is asked with its own commands. submitit, a library for arrays of Python functions, learns of an end
through `sacct`, which many clusters lack (facebookincubator/submitit, issue 1720), and hands back pickles:
what code of students may have touched is not unpickled here.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autograder.batch.progress import progress
from autograder.batch.submissions import Event, is_graded
from autograder.grade.grading import Conditions
from autograder.grade.records import FOLDER, load, path_of
from autograder.gradebook.course import Course, Submitted
from autograder.gradebook.problems import CourseError
from labkit.slurm.commands import SlurmError, cancelled, command, submit

MOST_TASKS = 200
SHARE = 4  # submissions a task should at least have, so that importing torch is worth it
JOBS = 2  # submissions at once in a task, where nobody says how many: who sends it does not know the node
CPUS = 2  # of a task for each of these
LOOK_EVERY = (1.0, 15.0)  # seconds, at first and later: the controller serves everybody
SILENCE = 900.0  # seconds without an answer of the controller's; it may be restarted


class SlurmFailed(CourseError):
    """sbatch refused the array, or Slurm does not answer; what was graded is kept, and the command can be run
    again.
    """


def grade_on_slurm(
    course: Course, conditions: Conditions, jobs: int, students: Sequence[str] = (), force: bool = False
) -> dict[str, str]:
    """Write the records of the submissions that lack one, of all with `force`, as an array of `autograder
    work` tasks, and wait for it. Returns whom it left ungraded -> where to see why.

    course must be on a file system all nodes share. students: only these. An interrupt ends the array.
    """
    chosen = [s for s in course.submissions(conditions.lesson) if not students or s.student in students]
    waiting = _Waiting.of(course.root, conditions, chosen, force)
    total = len(waiting.left)
    if not total:
        return {}
    tasks = max(1, min(MOST_TASKS, total // SHARE))
    logs = course.root / FOLDER / conditions.lesson / "slurm"
    logs.mkdir(parents=True, exist_ok=True)
    options = [
        *(f"--array=0-{tasks - 1}", "--job-name=grading", f"--chdir={course.root}"),
        *(f"--output={logs}/%A_%a.log", f"--cpus-per-task={CPUS * jobs}"),
    ]
    try:
        array = submit(options, _script(course.root, conditions.lesson, tasks, jobs, students, force))
        _wait_for(array, waiting)
    except SlurmError as error:
        raise SlurmFailed(str(error)) from None
    return {s.student: f"the job array did not grade it in full; see {logs}" for s in waiting.left}


@dataclass
class _Waiting:
    """What an array has to do. left: not yet done. before: where all are graded again, their records as they
    were, by student.
    """

    root: Path
    conditions: Conditions
    left: list[Submitted]
    before: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path, conditions: Conditions, chosen: list[Submitted], force: bool) -> _Waiting:
        """All of `chosen` with `force`, else those without a record."""
        if not force:
            return cls(root, conditions, [s for s in chosen if not is_graded(root, s, conditions)])
        before = {s.student: _version(path_of(root, conditions.lesson, s.student)) for s in chosen}
        return cls(root, conditions, chosen, before)

    def done(self) -> list[Submitted]:
        """Those that are done since this was asked last."""
        found = [s for s in self.left if self._is_done(s)]
        self.left = [s for s in self.left if s not in found]
        return found

    def _is_done(self, submitted: Submitted) -> bool:
        path = path_of(self.root, self.conditions.lesson, submitted.student)
        if submitted.student in self.before and _version(path) == self.before[submitted.student]:
            return False
        return is_graded(self.root, submitted, self.conditions)


def _version(path: Path) -> tuple[int, int] | None:
    """Another one whenever a file was written. It is opened, since NFS asks its server then."""
    try:
        with path.open("rb") as file:
            seen = os.fstat(file.fileno())
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns


def _wait_for(array: str, waiting: _Waiting) -> None:
    """Until no task of the array is queued or running. It is cancelled where the waiting is interrupted, and
    that is told; where Slurm does not hear it, how to end the array.
    """
    lesson, root = waiting.conditions.lesson, waiting.root
    bar, note = progress(lesson, len(waiting.left))
    try:
        with bar:
            for standing in _looks(array):
                bar.update(bar.task_ids[0], description=f"{lesson}, job {array}: {standing}")
                for submitted in waiting.done():
                    note(Event(submitted.student, load(root, lesson, submitted.student)))
    except BaseException:
        print(cancelled(array, f"scancel {array}"), file=sys.stderr)
        raise
    waiting.done()


def _looks(array: str) -> Iterator[str]:
    """How the array stands, again and again until it is over. SlurmError where nobody answers for long."""
    began = time.monotonic()
    silent_since: float | None = None
    while (states := _states(array)) != []:
        now = time.monotonic()
        silent_since = None if states else silent_since or now
        if silent_since is not None and now - silent_since > SILENCE:
            raise SlurmError(f"Slurm's controller has not answered for {SILENCE:g} s")
        yield _standing(states) if states else "Slurm does not answer"
        time.sleep(min(LOOK_EVERY[1], max(LOOK_EVERY[0], (now - began) / 20)))


def _standing(states: list[str]) -> str:
    queued = states.count("PENDING")
    return f"{len(states) - queued} tasks running, {queued} waiting"


def _states(array: str) -> list[str] | None:
    """Those of the tasks that are not over; None where Slurm does not answer."""
    try:
        return command("squeue", "--noheader", "--array", "--format=%T", f"--job={array}").split()
    except SlurmError as error:
        return [] if "Invalid job id" in str(error) else None


def _script(root: Path, lesson: str, tasks: int, jobs: int, students: Sequence[str], force: bool) -> str:
    work = [sys.executable, "-m", "autograder", "work", lesson, "--course", str(root), "--jobs", str(jobs)]
    work += [word for student in students for word in ("--student", student)]
    work += ["--force"] if force else []
    return f"#!/bin/sh\nexec {shlex.join(work)} --part $SLURM_ARRAY_TASK_ID --parts {tasks}\n"
