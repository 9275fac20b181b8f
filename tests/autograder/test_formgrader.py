"""The formgrader page in a browser: its autograde button goes through the sandbox."""

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

import pytest
from conftest import F_ID, LESSON, MakeCourse, hand_in, notebook, solution

from autograder.grade.records import load
from labkit import doctor
from labkit.checks import registry

pytestmark = [pytest.mark.sandbox, pytest.mark.browser, pytest.mark.timeout(300)]


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


def test_the_button_grades_in_the_sandbox(server: str, course: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(doctor.find_browser()), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(f"{server}/formgrader/manage_submissions/{LESSON}")
        page.wait_for_selector("text=ada", timeout=30_000)
        page.click("td.autograde a", timeout=30_000)
        page.wait_for_selector("text=Successfully autograded", timeout=200_000)
        page.screenshot(path=str(course / "formgrader.png"))
        most = registry.exercise(F_ID).max_points
        page.goto(f"{server}/formgrader/manage_submissions/{LESSON}")
        page.wait_for_selector(f"text={most:g} / ", timeout=30_000)
        browser.close()
    record = load(course, LESSON, "ada")
    assert record is not None
    assert record.sandbox == "bubblewrap"
    assert record.points == most
