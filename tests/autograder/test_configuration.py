"""A course's own configuration: who can read it, plugins beside it, mistakes told before grading."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import LESSON

from autograder.batch.run import grade_course
from autograder.cli import main
from autograder.gradebook.course import CONFIG_FILE, Course, init_course
from autograder.gradebook.nbgrader_config import COURSE_FILE
from autograder.gradebook.problems import CourseError
from labkit import doctor

LATE = """
from nbgrader.plugins import BasePlugin

class HalfADay(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return score / 2
"""


def configured(course: Path, line: str) -> Course:
    path = init_course(course)
    path.write_text(path.read_text() + line)
    return Course(course)


def test_a_new_course_is_its_owners_alone(tmp_path: Path) -> None:
    init_course(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "mine").mkdir(mode=0o750)
    init_course(tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o750, "what was there before is left as it was"


def test_a_plugin_beside_the_configuration_is_found(tmp_path: Path) -> None:
    (tmp_path / "late_by_half.py").write_text(LATE)
    configured(tmp_path, "c.AssignLatePenalties.plugin_class = 'late_by_half.HalfADay'\n").try_configuration()


def test_a_plugin_that_is_not_there_stops_before_anybody_is_graded(tmp_path: Path) -> None:
    course = configured(tmp_path, "c.AssignLatePenalties.plugin_class = 'not_there.Penalty'\n")

    def no_sandbox(unsafe: bool) -> None:
        raise AssertionError("grading had begun")

    with pytest.raises(CourseError, match=rf"{CONFIG_FILE} cannot be used"):
        grade_course(course, LESSON, 1, None, False, no_sandbox)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [["grade", "06", "--course"], ["init"]])
@pytest.mark.parametrize("later", ["", "configure(c)\nc.Autograde.autograde_preprocessors = []\n"])
def test_a_course_of_nbgraders_own_is_not_graded_with_nbgraders_steps(
    tmp_path: Path, command: list[str], later: str
) -> None:
    """They would execute submissions on this machine."""
    first = COURSE_FILE.replace("configure(c)\n", "") + "c.CourseDirectory.course_id = 'tml'\n"
    (tmp_path / CONFIG_FILE).write_text(first + later)
    done = CliRunner().invoke(main, [*command, str(tmp_path)])
    assert done.exit_code == 1
    assert f"{CONFIG_FILE} does not have this grader's steps" in done.stderr
    assert not (tmp_path / "source").exists()


def test_a_course_that_is_one_is_not_made_again(tmp_path: Path) -> None:
    assert "wrote" in CliRunner().invoke(main, ["init", str(tmp_path)]).stdout
    assert "is there" in CliRunner().invoke(main, ["init", str(tmp_path)]).stdout


@pytest.mark.parametrize("lines", ["import nosuch", "c.X = (", "1 / 0", "exit()"])
def test_a_configuration_that_cannot_be_read_is_told(tmp_path: Path, lines: str) -> None:
    init_course(tmp_path)
    with (tmp_path / CONFIG_FILE).open("a") as config:
        config.write(f"{lines}\n")
    with pytest.raises(CourseError, match=rf"{CONFIG_FILE} cannot be used: \w+Error|SystemExit"):
        Course(tmp_path)


def test_the_doctor_says_when_others_can_read_a_course(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside pytest's folders, which nobody else can enter anyhow."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        course = Path(made) / "course"
        init_course(course)
        monkeypatch.chdir(course)
        assert [(found.state, found.install) for found in doctor.probe_course()] == [("ok", "")]
        course.chmod(0o755)
        (found,) = doctor.probe_course()
        assert (found.state, found.install) == ("note", f"chmod o-rx {course}")
        assert "everybody can read the solutions and the gradebook" in found.says
        monkeypatch.chdir(made)
        assert doctor.probe_course() == []
