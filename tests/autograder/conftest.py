"""What the grader's tests share: notebooks as students hand them in, and courses to grade them in."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from nbformat import NotebookNode
from waiting import soon

from autograder.batch.run import conditions_for, remember
from autograder.grade.harness import Harness
from autograder.grade.records import FOLDER
from autograder.grade.reference import REPOSITORY, all_cases, lesson_source, solved_cells
from autograder.grade.settings import Settings
from autograder.gradebook.course import Course, init_course
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import Limits
from labkit import doctor
from labkit.build.course import instructor_notebook, student_notebook
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise

LESSON = "06_tensor_parallel_ffn"
F_ID = "06.copy-to-tensor-parallel"
SEED = 3
MEMORY = 3 * 2**30  # bytes; four ranks need one


MakeCourse = Callable[[Path], Course]

# For a program inside a sandbox: the first line it prints is the places it can write to.
PLACES = """
import os

def writable(path):
    try:
        open(path + "/probe", "w").close()
    except OSError:
        return False
    return True

places = [d for d, _, _ in os.walk("/") if not d.startswith("/proc") and writable(d)]
print(sorted({"/".join(d.split("/")[: 3 if d.startswith("/dev") else 2]) for d in places}))
"""

IMPORTS = """import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
"""


def solution(exercise_id: str) -> str:
    """The reference cell of an exercise with the imports it needs, as a student might have written it."""
    return IMPORTS + next(c.source for c in solved_cells(exercise_id[:2]) if c.exercise == exercise_id)


def notebook(*sources: str) -> dict[str, Any]:
    """A notebook's JSON with these code cells."""
    cells = [
        {"cell_type": "code", "source": s, "metadata": {}, "outputs": [], "execution_count": None}
        for s in sources
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def hand_in(course: Path, student: str, what: Any, name: str = "", lesson: str = LESSON) -> Path:
    """Put a notebook (JSON, a NotebookNode, or bytes) under submitted/, by default named as its lesson is."""
    path = course / "submitted" / student / lesson / f"{name or lesson}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(what if isinstance(what, bytes) else json.dumps(what).encode())
    return path


@pytest.fixture(scope="session")
def make_course(tmp_path_factory: pytest.TempPathFactory) -> MakeCourse:
    """Makes courses whose lesson 06 is drawn from SEED. The reference's run, which precedes the first grade,
    is made once for all of them, by the first worker that needs one; test_guide has one of its own.
    """
    mine = tmp_path_factory.getbasetemp()
    common = (
        mine.parent if os.environ.get("PYTEST_XDIST_WORKER") else mine
    )  # a worker's lies beside the others'
    measured = common / "reference"
    with (common / "reference.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not measured.exists():
            init_course(measured)
        remember(Course(measured), LESSON, SEED, False)
        conditions_for(Course(measured), LESSON, lambda unsafe: find_sandbox())

    def make(root: Path) -> Course:
        init_course(root)
        Settings(root, {LESSON: SEED}).save()
        shutil.copytree(measured / FOLDER, root / FOLDER)
        return Course(root)

    return make


@pytest.fixture(scope="session")
def released() -> NotebookNode:
    """Lesson 06 as students get it."""
    return student_notebook(lesson_source("06"))


@pytest.fixture(scope="session")
def solved() -> NotebookNode:
    """Lesson 06 with everything solved."""
    return instructor_notebook(lesson_source("06"))


@pytest.fixture(scope="session")
def f_exercise() -> Exercise:
    return registry.exercise(F_ID)


@pytest.fixture(scope="session")
def two_ranks(f_exercise: Exercise) -> list[Case]:
    """A visible and an unseen case of f, on two ranks, with little time."""
    wanted = [c for c in all_cases(f_exercise, SEED) if c.ranks == 2 and c.kind == "values"]
    visible = next(c for c in wanted if not c.hidden)
    return [replace(c, timeout=4.0) for c in (visible, next(c for c in wanted if c.hidden))]


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    """One harness for tests that grade single exercises; its sandbox is replaced when a test ends it."""
    with Harness(find_sandbox(Limits(memory=MEMORY)), grace=3.0) as made:
        yield made


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    """A server on this host that must never hear from a submission."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium, as Playwright drives it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = {"executable_path": str(doctor.find_browser()), "args": ["--no-sandbox"]}
        browser = playwright.chromium.launch(**options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's sources in a place of their own."""
    root = tmp_path_factory.mktemp("repository")
    for name in ("labkit", "autograder", "solutions"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def ends_with_its_grader(folder: Path, kind: str) -> bool:
    """Whether what a sandbox of that kind runs ends soon when the grader that started it is killed."""
    script = (
        "import time; from pathlib import Path; from autograder.sandbox.confined import Confined\n"
        "from autograder.sandbox.choice import find_sandbox\n"
        f"c = Confined(find_sandbox(kind={kind!r}), Path({str(folder)!r}))\n"
        "print(c.pid, flush=True); time.sleep(60)"
    )
    grader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert grader.stdout is not None
    inside = psutil.Process(int(grader.stdout.readline()))

    def ended() -> bool:
        try:
            return inside.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    grader.send_signal(signal.SIGKILL)
    grader.wait(10)
    return soon(ended)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")
