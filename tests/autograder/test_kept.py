"""What was graded stays so: gradebook and pages that got lost are written again, and a record is of one
notebook.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conftest import hand_in, notebook, solution
from nbgrader.api import Gradebook
from recorded import BANDWIDTH, LESSON, MOST, RING, new_course, record

from autograder.batch.submissions import grade_one, is_graded, merge_if_needed, regrade
from autograder.grade.grading import Conditions
from autograder.grade.records import load, save
from autograder.gradebook.course import Course, Submitted
from autograder.sandbox.unconfined import Unconfined
from labkit.checks import registry

pytestmark = pytest.mark.days()

CONDITIONS = Conditions(LESSON, 3, Unconfined())


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """Ada has all points of lesson 00."""
    found = new_course(tmp_path)
    record(found, "ada", notebook(solution(RING)))
    return found


def submission(course: Course, student: str = "ada") -> Submitted:
    return next(s for s in course.submissions(LESSON) if s.student == student)


def again(course: Course) -> list[float]:
    """The scores after a second `autograder grade`, which grades nobody again."""
    assert is_graded(course.root, submission(course), CONDITIONS)
    merge_if_needed(course, LESSON, submission(course), feedback=True)
    return [score.score for score in course.scores(LESSON)]


def test_a_lost_gradebook_is_written_again(course: Course) -> None:
    (course.root / "gradebook.db").unlink()
    course.add_lesson(LESSON)
    assert course.scores(LESSON) == []
    assert again(course) == [MOST]


def test_a_student_who_was_taken_out_and_handed_in_is_put_back(course: Course) -> None:
    with Gradebook(course.db_url) as gradebook:
        gradebook.remove_student("ada")
    assert again(course) == [MOST]


def test_an_older_copy_of_the_gradebook_is_brought_up_to_date(course: Course) -> None:
    """A person's changes in it stay."""
    first = registry.exercise(RING).properties[0]
    name = f"{RING.replace('.', '_')}__{first.name}"
    with Gradebook(course.db_url) as gradebook:
        grade = gradebook.find_grade(name, LESSON, LESSON, "ada")
        grade.auto_score, grade.extra_credit = 0, 2
        gradebook.db.commit()
    assert again(course) == [MOST + 2]


@pytest.mark.parametrize("folder", ["feedback", "autograded"])
def test_lost_pages_are_made_again(course: Course, folder: str) -> None:
    shutil.rmtree(course.root / folder)
    assert again(course) == [MOST]
    assert len([path for path in (course.root / folder).rglob(f"{LESSON}.*") if path.is_file()]) == 1


def test_what_is_as_it_was_is_not_written_again(course: Course) -> None:
    page = course.root / "feedback" / "ada" / LESSON / f"{LESSON}.html"
    before = page.stat().st_mtime_ns
    again(course)
    assert page.stat().st_mtime_ns == before


def test_a_marker_that_is_no_text_is_written_again(course: Course) -> None:
    (marker,) = (course.root / "records" / LESSON).glob("ada*.merged")
    marker.write_bytes(b"\xff\x00")
    assert again(course) == [MOST]
    marker.read_text(encoding="ascii")


def test_one_exercise_of_another_notebook_is_not_graded_alone(course: Course) -> None:
    """The record would have its points beside those of the notebook before, or no others."""
    hand_in(course.root, "ada", notebook(), lesson=LESSON)
    made = regrade(course, CONDITIONS, submission(course), [BANDWIDTH])
    assert made.points == 0
    assert list(made.graded) == [exercise.id for exercise in registry.exercises(LESSON)]


def test_a_record_that_lacks_an_exercise_is_made_again(course: Course) -> None:
    made = load(course.root, LESSON, "ada")
    assert made is not None
    del made.graded[BANDWIDTH]
    save(course.root, made)
    assert not is_graded(course.root, submission(course), CONDITIONS)


def test_one_exercise_again_leaves_the_others(course: Course) -> None:
    made = regrade(course, CONDITIONS, submission(course), [BANDWIDTH])
    assert made.points == MOST - registry.exercise(BANDWIDTH).max_points, "it was recorded, and is not there"


def test_a_renamed_notebook_that_was_handed_in_again_is_graded(course: Course) -> None:
    """Not the copy of the first one, which has the name that nbgrader looks for."""
    path = hand_in(course.root, "bob", notebook("first = 1"), "my work", LESSON)
    for number, text in enumerate(("first = 1", "second = 2", "third = 3")):
        hand_in(course.root, "bob", notebook(text), "my work", LESSON)
        os.utime(path, (number, number))
        bobs = submission(course, "bob")
        assert bobs.notebook == path
        assert is_graded(course.root, bobs, CONDITIONS) is False
        grade_one(course.root, bobs, CONDITIONS)
        merge_if_needed(course, LESSON, bobs, feedback=False)
        assert path.with_name(f"{LESSON}.ipynb").read_bytes() == path.read_bytes()
        assert is_graded(course.root, submission(course, "bob"), CONDITIONS)
    hand_in(course.root, "bob", notebook("with the right name"), lesson=LESSON)
    assert submission(course, "bob").notebook.name == f"{LESSON}.ipynb"
    assert submission(course, "bob").others == ("my work.ipynb",)
