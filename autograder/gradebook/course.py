"""A course's folder: nbgrader's directories, its gradebook, and the few steps that work on them.

course/  nbgrader_config.py  autograder.json  gradebook.db
  source/LESSON  release/LESSON  submitted/STUDENT/LESSON  autograded/...  feedback/...  records/LESSON/*.json
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from sqlalchemy import create_engine
from sqlalchemy.exc import ArgumentError
from traitlets.config import Config, PyFileConfigLoader

from autograder.grade.grading import digest_of
from autograder.grade.records import Record, load
from autograder.grade.reference import lesson_source
from autograder.gradebook.lateness import read_extensions
from autograder.gradebook.links import linked, remove_links
from autograder.gradebook.misplaced import copies_of, in_the_way
from autograder.gradebook.nbgrader_config import COURSE_FILE, configure
from autograder.gradebook.nbgrader_private import database_errors_go_to, take_only
from autograder.gradebook.penalties import PresentPenalties
from autograder.gradebook.problems import CourseError, cause_of, student_id_problem, told
from autograder.gradebook.report import Score
from autograder.gradebook.roster import read_roster
from autograder.gradebook.steps import GradeInSandbox, SafeExporter, SaveGrades, scores
from autograder.gradebook.versions import check_can_be_added
from labkit.build.course import instructor_notebook
from labkit.build.release import Complaints
from labkit.checks.source.text import visible

CONFIG_FILE = "nbgrader_config.py"


@dataclass(frozen=True)
class Submitted:
    """One student's hand-in for a lesson. others: further notebooks in the same folder, which are not
    graded.
    """

    student: str
    notebook: Path
    others: tuple[str, ...] = ()


class Course:
    """The folder of a course, and nbgrader's configuration for it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        _find_our_programs()
        if str(self.root) not in sys.path:
            sys.path.insert(
                0, str(self.root)
            )  # as nbgrader has it: plugins are files beside the configuration
        self.config = _read_config(self.root)
        self.directory = CourseDirectory(config=self.config)
        self.directory.root = str(self.root)
        try:
            create_engine(self.db_url)
        except (ArgumentError, ImportError) as error:
            raise CourseError(
                f"{self.root / CONFIG_FILE}: c.CourseDirectory.db_url cannot be used: {error}; expected one "
                "such as postgresql+psycopg://USER@HOST/NAME, with the package for it installed"
            ) from None
        if not self.db_url.startswith("sqlite:") and not self.directory.course_id:
            # nbgrader stores lessons of the course "", which only SQLite lets pass
            line = 'c.CourseDirectory.course_id = "tml"'
            raise CourseError(
                f"a gradebook on a server needs a course id: add {line} to {self.root / CONFIG_FILE}"
            )

    @property
    def db_url(self) -> str:
        """What SQLAlchemy calls the gradebook: the one configured, or a file in the course."""
        return str(self.directory.db_url)

    def try_configuration(self) -> None:
        """Make every step that grading will make. CourseError says which setting keeps one from it."""
        options = {"coursedir": self.directory, "config": self.config}
        try:
            autograde, feedback = Autograde(**options), GenerateFeedback(**options)
            self._check_steps(autograde)
            _make_steps(autograde, [*autograde.sanitize_preprocessors, *autograde.autograde_preprocessors])
            _make_steps(feedback, feedback.preprocessors)
            read_extensions(self.root)
            read_roster(self.root)
        except CourseError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise CourseError(f"{self.root / CONFIG_FILE} cannot be used: {why}") from error

    def _check_steps(self, autograde: Any) -> None:
        """CourseError where nbgrader would take its own steps, which execute submissions unconfined."""
        if (
            not issubclass(autograde.exporter_class, SafeExporter)
            or GradeInSandbox not in autograde.sanitize_preprocessors
            or SaveGrades not in autograde.autograde_preprocessors
        ):
            line = "from autograder.gradebook.nbgrader_config import configure; configure(c)"
            raise CourseError(
                f"{self.root / CONFIG_FILE} does not have this grader's steps, and nbgrader's own would "
                f"execute what students wrote on this machine: add `{line}` below `c = get_config()`, and "
                "take out what it sets of c.Autograde"
            )

    def add_lesson(self, lesson: str) -> None:
        """Put a lesson's instructor version into source/, its release into release/, and its cells into
        the gradebook.
        """
        source = lesson_source(lesson)
        if self.has_lesson(source.name):
            check_can_be_added(self.db_url, source.name)
        written = self.root / "source" / source.name / f"{source.name}.ipynb"
        written.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(instructor_notebook(source), written)
        with self._about(source.name):
            self._convert(GenerateAssignment)

    def has_lesson(self, lesson: str) -> bool:
        """Whether the gradebook knows the lesson: whether `add_lesson` has put it there."""
        with Gradebook(self.db_url) as gradebook:
            try:
                gradebook.find_notebook(lesson, lesson)
            except MissingEntry:
                return False
        return True

    def submissions(self, lesson: str) -> Iterator[Submitted]:
        """What was handed in for a lesson, by student. A folder whose name nbgrader cannot hold is left
        out, and one that is a link.
        """
        for folder in sorted((self.root / "submitted").glob(f"*/{lesson}")):
            student = folder.parent.name
            if student_id_problem(student) == "":
                found: list[Path] = []
                with suppress(OSError):  # a folder that cannot be read, of which `not_gradable` tells
                    if not linked(folder):
                        found = _choose(folder, lesson, load(self.root, lesson, student))
                if found:
                    yield Submitted(student, found[0], tuple(visible(p.name) for p in found[1:]))

    def holds(self, record: Record, feedback: bool) -> bool:
        """Whether gradebook and folders have what grading wrote for this record. They may have been lost
        since, or put back from a copy.
        """
        lesson, student = record.lesson, record.student
        written = [self.root / "autograded" / student / lesson / f"{lesson}.ipynb"]
        written += [self.root / "feedback" / student / lesson / f"{lesson}.html"] if feedback else []
        if not all(path.is_file() for path in written):
            return False
        with Gradebook(self.db_url) as gradebook:
            try:
                found = gradebook.find_submission_notebook(lesson, lesson, student).grades
            except MissingEntry:
                return False
            there = {grade.name: grade.auto_score for grade in found}
        return all(there.get(name, -1) == points for name, points in scores(record).items())

    def merge(self, lesson: str, student: str) -> None:
        """Write a graded submission into autograded/ and the gradebook, from its record. Only one process
        may do this.
        """
        with self._about(lesson):
            self._convert(_One(student, lesson, self))

    def feedback(self, lesson: str, student: str) -> Path:
        """Write a student's feedback page; returns its path."""
        with self._about(lesson):
            self._convert(_OneFeedback(student, lesson, self))
        return self.root / "feedback" / student / lesson / f"{lesson}.html"

    def scores(self, lesson: str) -> list[Score]:
        """What the gradebook holds for a lesson, by student: with a person's changes, and the penalties that
        late work with these scores costs. Where those cannot be computed a score is not complete.
        """
        found = []
        penalties = PresentPenalties(config=self.config)
        with Gradebook(self.db_url) as gradebook:
            for submission in gradebook.assignment_submissions(lesson):
                grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
                complete = all(g.auto_score is not None or g.manual_score is not None for g in grades)
                late = 0.0
                try:
                    late = sum(penalties.owed(submission).values())
                except CourseError:  # of which grading tells
                    complete = False
                score = submission.score - late
                found.append(Score(submission.student.id, score, submission.max_score, complete, late))
        return sorted(found, key=lambda score: score.student)

    def has_penalty(self, lesson: str, student: str) -> bool:
        """Whether the gradebook has the penalty that a submission costs as it is scored now."""
        with Gradebook(self.db_url) as gradebook:
            submission = gradebook.find_submission(lesson, student)
            return PresentPenalties(config=self.config).is_written(submission)

    def renew_penalty(self, lesson: str, student: str) -> None:
        """Put that penalty into the gradebook, and into what formgrader shows."""
        with Gradebook(self.db_url) as gradebook:
            submission = gradebook.find_submission(lesson, student)
            PresentPenalties(config=self.config).renew(gradebook, submission, self.root)

    def most_points(self, lesson: str) -> float:
        """What can be had in a lesson, as the gradebook has it."""
        with Gradebook(self.db_url) as gradebook:
            return float(gradebook.find_assignment(lesson).max_score)

    @contextmanager
    def _about(self, lesson: str) -> Iterator[None]:
        self.directory.assignment_id = lesson
        try:
            yield
        finally:
            self.directory.assignment_id = ""

    def _convert(self, made: Any) -> None:
        complaints = Complaints()
        converter = made(coursedir=self.directory, config=self.config, log=complaints.log)
        converter.force = True  # over what an earlier time has written
        here = os.getcwd()
        try:
            with database_errors_go_to(complaints):
                converter.start()
        except (Exception, SystemExit) as error:
            cause = cause_of([*complaints.errors, error])
            raise CourseError(told(cause) if cause else _told(complaints.messages, error)) from error
        finally:
            os.chdir(here)


class _One:
    """Makes a converter that takes one submission, named exactly, and no pattern."""

    base: Any = Autograde
    step = "submitted"

    def __init__(self, student: str, lesson: str, course: Course) -> None:
        self.folder = course.root / self.step / student / lesson
        self.notebook = self.folder / f"{lesson}.ipynb"
        if why := linked(self.folder):
            raise CourseError(why)

    def __call__(self, **options: Any) -> Any:
        found = {str(self.folder): [str(self.notebook)]}
        converter = self.base(**options)
        take_only(converter, found)
        return converter


class _OneFeedback(_One):
    base = GenerateFeedback
    step = "autograded"


def _make_steps(converter: Any, steps: Sequence[type]) -> None:
    exporter = converter.exporter_class(parent=converter, config=converter.config)
    for step in steps:
        exporter.register_preprocessor(step, enabled=True)


def init_course(root: Path) -> Path:
    """Make a folder a course: nbgrader's configuration, and nothing else. A new folder is its owner's alone.

    Returns the configuration's path.
    """
    if not root.is_dir():
        root.mkdir(parents=True)
        root.chmod(0o700)  # solutions and the gradebook are in it, and nodes are shared
    path = root / CONFIG_FILE
    if not path.exists():
        path.write_text(COURSE_FILE, encoding="utf-8")
    return path


def without_links(assignment: str, student: str, notebooks: Sequence[str]) -> None:
    """nbgrader's hook before a submission is copied: links in it would be followed, so they are taken out."""
    for notebook in notebooks:
        remove_links(Path(notebook).parent)


def put_in_place(submitted: Submitted, lesson: str) -> None:
    """Give a renamed notebook the name nbgrader looks for, too. The copy is there whole or not at all: one
    that was cut off would pass for the student's own, under the right name.
    """
    wanted, unfinished = (submitted.notebook.with_name(name) for name in copies_of(lesson))
    if submitted.notebook != wanted:
        unfinished.unlink(missing_ok=True)
        try:
            shutil.copyfile(submitted.notebook, unfinished, follow_symlinks=False)
            unfinished.replace(wanted)
        finally:
            unfinished.unlink(missing_ok=True)


def _choose(folder: Path, lesson: str, graded: Record | None) -> list[Path]:
    """The notebook to grade, then the others: the right name first, then the newest.

    A copy that `put_in_place` made of what was graded under another name is not the student's. Names with a
    dot in front are no work: macOS keeps what else it knows of x.ipynb in ._x.ipynb.
    """
    there = [p for p in folder.glob("[!.]*.ipynb") if p.is_symlink() or p.is_file()]
    if graded is not None and len(there) > 1 and graded.notebook != f"{lesson}.ipynb":
        there = [p for p in there if p.stem != lesson or digest_of(p) != graded.sha256]
    if in_the_way(folder, lesson):
        return []  # `not_gradable` tells
    there.sort(key=lambda p: (p.stem != lesson, -p.lstat().st_mtime, p.name))
    return there


def _find_our_programs() -> None:
    """nbgrader starts `alembic` by its bare name: let it be found where this interpreter's programs are."""
    programs = os.path.join(sys.prefix, "bin")
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])


def _read_config(root: Path) -> Config:
    if (root / CONFIG_FILE).is_file():
        try:
            config = PyFileConfigLoader(CONFIG_FILE, path=str(root)).load_config()
        except (Exception, SystemExit) as error:  # it is Python
            why = f"{type(error).__name__}: {error}"
            raise CourseError(f"{root / CONFIG_FILE} cannot be used: {why}; correct it") from None
    else:
        config = Config()
        configure(config)
    config.Exporter.default_preprocessors = []
    return config


def _told(complaints: Sequence[str], error: BaseException) -> str:
    """What went wrong: of a traceback, the error at its end; without sentences that only point there."""
    said = [*complaints, f"{type(error).__name__}: {error}"]
    lines = [_end_of_traceback(message) for message in said if "the above traceback" not in message]
    return "\n".join(list(dict.fromkeys(lines))[-3:])


def _end_of_traceback(message: str) -> str:
    """The error that a traceback tells of; any other message as it is."""
    if not message.startswith("Traceback"):
        return message
    lines = message.strip().splitlines()
    at = max(number for number, line in enumerate(lines) if line.startswith(("Traceback", " ")))
    return "\n".join(lines[at + 1 :])
