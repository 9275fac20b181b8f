"""Formgrader in a browser: its button grades in the sandbox, and nothing that a student wrote runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
from conftest import F_ID, LESSON, MakeCourse, hand_in, notebook, solution
from nbgrader.api import Gradebook

from autograder.batch.run import grade_course
from autograder.grade.records import load
from autograder.gradebook.course import Course
from autograder.sandbox.choice import find_sandbox
from labkit.checks import registry

pytestmark = [pytest.mark.sandbox, pytest.mark.browser, pytest.mark.days(0), pytest.mark.timeout(300)]

LOADED = "window.formgrader && formgrader.loaded && formgrader.grades.loaded && formgrader.comments.loaded"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, make_course: MakeCourse) -> Path:
    root = tmp_path_factory.mktemp("formgrader")
    make_course(root).add_lesson(LESSON)
    hand_in(root, "ada", notebook(solution(F_ID)))
    return root


@pytest.fixture(scope="module")
def server(course: Path) -> Iterator[str]:
    """JupyterLab with nbgrader's server extensions, in the course's folder; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    extensions = {
        f"nbgrader.server_extensions.{n}": True
        for n in ("formgrader", "assignment_list", "validate_assignment")
    }
    command = [
        *(sys.executable, "-m", "jupyter", "lab", "--no-browser", f"--port={port}", "--allow-root"),
        *("--IdentityProvider.token=", "--ServerApp.password=", "--LabApp.news_url=None"),
        f"--ServerApp.jpserver_extensions={extensions}",
        f"--ServerApp.root_dir={course}",
    ]
    home = course / ".home"
    home.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    log = (course / "server.log").open("wb")
    process = subprocess.Popen(command, cwd=course, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{address}/formgrader", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, (course / "server.log").read_text()[-2000:]
                time.sleep(0.3)
        yield address
    finally:
        process.terminate()
        process.wait(20)
        log.close()


@pytest.fixture(scope="module")
def mallory(course: Path) -> str:
    """The address, under formgrader's, of a graded submission with every attempt to run something in it."""
    found = notebook(solution(F_ID))
    found["cells"] += hostile.cells()
    path = hand_in(course, "mallory", found)
    (path.parent / "evil.html").write_text(hostile.TEXTS["script"])
    grade_course(Course(course), LESSON, 1, None, False, lambda unsafe: find_sandbox(), ["mallory"])
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        gradebook.update_or_create_student("mallory", **hostile.NAMES)
        return f"submissions/{gradebook.find_submission_notebook(LESSON, LESSON, 'mallory').id}/"


def manual_scores(course: Path) -> list[float]:
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        grades = gradebook.find_submission_notebook(LESSON, LESSON, "mallory").grades
        return [grade.manual_score for grade in grades if grade.manual_score is not None]


def opened(page: Any, address: str) -> None:
    """Go to a submission's page and wait until formgrader's scripts have filled it."""
    page.goto(address, wait_until="load")
    deadline = time.monotonic() + 30
    while not page.evaluate(LOADED):
        assert time.monotonic() < deadline, "formgrader's own scripts did not run"
        page.wait_for_timeout(100)


def test_nothing_of_a_students_runs_on_the_page_that_grades_it(
    server: str, course: Path, mallory: str, browser: Any
) -> None:
    page = browser.new_page()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method) if request.method != "GET" else None)
    opened(page, f"{server}/formgrader/{mallory}")
    page.evaluate("for (const e of document.querySelectorAll('#notebook a, #notebook summary')) e.click()")
    page.wait_for_timeout(1000)
    assert mallory in page.url
    assert page.evaluate("window.ran") is None
    assert sent == []
    assert manual_scores(course) == []
    with urllib.request.urlopen(f"{server}/api/kernels", timeout=10) as answer:
        assert answer.read() == b"[]"
    page.close()


def test_formgraders_own_page_works(server: str, course: Path, mallory: str, browser: Any) -> None:
    """A name is shown, as a text, and a score and a comment that a person gives are kept."""
    page = browser.new_page()
    opened(page, f"{server}/formgrader/{mallory}")
    page.click("span.glyphicon.name-hidden")
    assert hostile.NAMES["last_name"] in page.inner_text("a.name-shown")
    with page.expect_response(lambda answer: answer.request.method == "PUT") as put:
        page.locator("input.score").first.fill("0.5")
        page.locator("input.score").nth(1).focus()
    assert put.value.ok
    with page.expect_response(lambda answer: answer.request.method == "PUT") as put:
        page.locator("textarea.comment").first.fill("Well done")
        page.locator("input.score").first.focus()
    assert put.value.ok
    page.close()
    assert manual_scores(course) == [0.5]


def test_other_files_of_a_submission_are_downloads(server: str, mallory: str) -> None:
    with urllib.request.urlopen(f"{server}/formgrader/{mallory}evil.html", timeout=10) as answer:
        headers = answer.headers
    assert headers["Content-Disposition"] == "attachment"
    assert headers["Content-Security-Policy"].startswith("sandbox")


def test_nothing_runs_in_the_students_feedback(course: Path, mallory: str, browser: Any) -> None:
    page = browser.new_page()
    page.goto((course / "feedback" / "mallory" / LESSON / f"{LESSON}.html").as_uri(), wait_until="load")
    page.evaluate("for (const e of document.querySelectorAll('#notebook a, #notebook summary')) e.click()")
    page.wait_for_timeout(500)
    assert page.evaluate("window.ran") is None
    assert "labkit-report" in page.content()
    page.close()


def test_the_button_grades_in_the_sandbox(server: str, course: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.goto(f"{server}/formgrader/manage_submissions/{LESSON}")
    page.wait_for_selector("text=ada", timeout=30_000)
    page.locator("tr", has_text="ada").locator("td.autograde a").click(timeout=30_000)
    page.wait_for_selector("text=Successfully autograded", timeout=200_000)
    page.screenshot(path=str(course / "formgrader.png"))
    most = registry.exercise(F_ID).max_points
    page.goto(f"{server}/formgrader/manage_submissions/{LESSON}")
    page.wait_for_selector(f"text={most:g} / ", timeout=30_000)
    page.close()
    record = load(course, LESSON, "ada")
    assert record is not None
    assert record.sandbox == "bubblewrap"
    assert record.points == most
