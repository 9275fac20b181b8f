"""The same grading over a Slurm job array: tasks write records to the shared folder, this process merges
them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from autograder.batch.submissions import is_graded
from autograder.grade.grading import Conditions
from autograder.grade.records import FOLDER, path_of
from autograder.gradebook.course import Course
from autograder.gradebook.problems import CourseError

MOST_TASKS = 200
LOOK_EVERY = 1.0  # seconds
SHARE = 4  # submissions a task should at least have, so that importing torch is worth it


class SlurmFailed(CourseError):
    """sbatch refused the array, or a task failed; what was graded is kept, and the command can be run
    again.
    """


def grade_on_slurm(course: Course, conditions: Conditions, jobs: int, force: bool, options: str = "") -> None:
    """Write the records of all submissions that lack one, as an array of `autograder work` tasks, and wait
    for it.

    course must be on a file system all nodes share. options: further options of sbatch, as one text.
    """
    if shutil.which("sbatch") is None:
        raise SlurmFailed("no sbatch here: --executor slurm needs Slurm's commands on PATH")
    everything = list(course.submissions(conditions.lesson))
    if force:
        for submitted in everything:
            path_of(course.root, conditions.lesson, submitted.student).unlink(missing_ok=True)
    todo = [s for s in everything if not is_graded(course.root, s, conditions)]
    if not todo:
        return
    tasks = max(1, min(MOST_TASKS, len(todo) // SHARE))
    logs = course.root / FOLDER / conditions.lesson / "slurm"
    logs.mkdir(parents=True, exist_ok=True)
    command = _command(course.root, conditions.lesson, tasks, jobs, logs, options)
    sent = subprocess.run(command, capture_output=True, text=True)
    if sent.returncode != 0:
        raise SlurmFailed(f"sbatch refused the job array: {sent.stderr.strip()}")
    _wait_for(sent.stdout.strip().split(";")[0])
    left = [s.student for s in todo if not is_graded(course.root, s, conditions)]
    if left:
        raise SlurmFailed(
            f"the job array left {len(left)} of {len(todo)} ungraded ({left[0]}, ...); see {logs}"
        )


def _wait_for(job: str) -> None:
    """Until no task of the array is queued or running."""
    while True:
        asked = subprocess.run(["squeue", "--noheader", "--job", job], capture_output=True, text=True)
        if not asked.stdout.strip():
            return
        time.sleep(LOOK_EVERY)


def _command(root: Path, lesson: str, tasks: int, jobs: int, logs: Path, options: str) -> list[str]:
    work = [sys.executable, "-m", "autograder", "work", lesson, "--course", str(root), "--jobs", str(jobs)]
    quoted = " ".join(_quoted(word) for word in work)
    script = f"exec {quoted} --part $SLURM_ARRAY_TASK_ID --parts {tasks}"
    return [
        *("sbatch", "--parsable", f"--array=0-{tasks - 1}", "--job-name=grading", f"--chdir={root}"),
        *(f"--output={logs}/%A_%a.log", f"--cpus-per-task={2 * jobs}", *options.split()),
        *("--wrap", script),
    ]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
