"""A student asks for another look, `autograder report` lists it, and a person answers by a comment."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import notebook, solution
from nbgrader.api import Gradebook
from recorded import BANDWIDTH, LESSON, RING, new_course, record, wrong

from autograder.batch.submissions import merge_if_needed
from autograder.cli import main
from autograder.grade.submitted import parse_notebook
from autograder.gradebook.course import Course, Submitted
from autograder.gradebook.requests import LONGEST, MOST, requests_in
from labkit.checks.source.notebook import grade_id


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Ada asks in a file, after she was graded; Bob in the notebook's metadata."""
    found = new_course(tmp_path_factory.mktemp("asked"))
    record(found, "ada", notebook(solution(RING)), {RING: wrong("messages")})
    folder = found.root / "submitted" / "ada" / LESSON
    (folder / "regrade.txt").write_text(f"{RING}: I count <b>two</b> messages.\nAnd it was late at night.\n")
    merge_if_needed(found, LESSON, Submitted("ada", folder / f"{LESSON}.ipynb"), feedback=True)
    asks = notebook(solution(BANDWIDTH))
    asks["metadata"]["regrade_request"] = {BANDWIDTH: "GB or GiB?"}
    record(found, "bob", asks)
    return found


def test_it_is_listed_until_it_is_answered_and_after(course: Course) -> None:
    words = ["report", "00", "--course", str(course.root)]
    told = CliRunner().invoke(main, words).stdout.partition("another look:\n")[2].splitlines()
    assert told == [
        f"  ada, {RING}: I count <b>two</b> messages.",
        f"  ada, {LESSON}: And it was late at night.",
        f"  bob, {BANDWIDTH}: GB or GiB?",
    ]
    with Gradebook(course.db_url) as gradebook:
        gradebook.find_comment(grade_id(RING), LESSON, LESSON, "ada").manual_comment = "Count again."
        gradebook.db.commit()
    told = CliRunner().invoke(main, words).stdout.partition("another look:\n")[2].splitlines()
    assert told[-1] == f"  ada, {RING}: I count <b>two</b> messages. (answered: Count again.)"
    assert "Count again." in course.feedback(LESSON, "ada").read_text()


def test_formgrader_asks_a_person_to_look(course: Course) -> None:
    """The exercise waits for a person with the points it has, and its reason stands over the table."""
    with Gradebook(course.db_url) as gradebook:
        grades = gradebook.find_submission_notebook(LESSON, LESSON, "ada").grades
        assert [g.name for g in grades if g.needs_manual_grade] == [grade_id(RING, "sum-values")]
        assert all(grade.auto_score is not None for grade in grades)
    page = (course.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb").read_text()
    assert page.index("Asked for another look: I count <b>two</b>") < page.index("labkit-report")


def test_what_is_no_reason_is_no_request(tmp_path: Path) -> None:
    """Files that are no text, and metadata of any form."""
    path = tmp_path / f"{LESSON}.ipynb"
    assert requests_in(tmp_path, LESSON) == []
    (tmp_path / "regrade.txt").write_bytes(b"\n\x1b[2J\n" + b"x" * 2000 + b"\n")
    path.write_text('{"cells": [], "metadata": {"regrade_request": [3]}, "nbformat": 4}')
    assert requests_in(tmp_path, LESSON) == [("", "\\x1b[2J"), ("", "x" * LONGEST)]
    (tmp_path / "regrade.txt").unlink()
    (tmp_path / "regrade.txt").symlink_to(path)
    assert requests_in(tmp_path, LESSON) == [("", "regrade.txt cannot be read: it is a symbolic link")]


def test_empty_lines_take_no_place_of_a_reason(tmp_path: Path) -> None:
    (tmp_path / "regrade.txt").write_text("\n" * MOST + "please count again\n")
    assert requests_in(tmp_path, LESSON) == [("", "please count again")]


WITHOUT_END = {
    "one line": ("\u202e" * 4_000_000, [("", ("\\u202e" * 200)[:LONGEST])]),
    "line ends": ("\x85" * 4_000_000, []),
    "lines": ("a\n" * 2_000_000, [("", "a")]),
    "empty lines": ("\n" * 4_000_000 + "x", []),
    "exercises": ({f"{n}": "x" for n in range(300_000)}, [("", f"{n}: x") for n in range(MOST)]),
    "a reason": ({RING: "\x85" * 4_000_000}, [(RING, ("\\x85" * 200)[:LONGEST])]),
    "a reason that is none": ({RING: [0] * 1_000_000}, [(RING, "expected a text, found a list")]),
}


@pytest.mark.days
@pytest.mark.parametrize("what", WITHOUT_END)
def test_what_has_no_end_is_cut_before_it_is_looked_at(tmp_path: Path, what: str) -> None:
    asked, found = WITHOUT_END[what]
    path = tmp_path / f"{LESSON}.ipynb"
    path.write_text(json.dumps({**notebook(), "metadata": {"regrade_request": asked}}))
    began = time.process_time()
    parse_notebook(path.read_bytes())
    reading = time.process_time() - began
    began = time.process_time()
    assert requests_in(tmp_path, LESSON) == found
    assert time.process_time() - began < 2 * reading + 1
