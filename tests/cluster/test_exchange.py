"""The exchange between an instructor and students: three real users, nbgrader's own commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from people import REPOSITORY, People, people

from labkit.jupyter.exchange import CannotRelease, problems, release

LESSON = "00_collectives"

# What a student may try with the exchange; prints the names of what worked.
TRIES = """
import os, pathlib, shutil, sys
root, course = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
tml = root / "tml"
released = next((tml / "outbound").glob("*/*.ipynb"))
tries = {
    "list inbound": lambda: os.listdir(tml / "inbound"),
    "change what is released": lambda: released.write_text("{}"),
    "replace what is released": lambda: released.unlink(),
    "add to what is released": lambda: (tml / "outbound" / "mine").mkdir(),
    "move the course away": lambda: tml.rename(root / "gone"),
    "read the course": lambda: os.listdir(course),
    "read another's work": lambda: os.listdir(course.parent.parent / "ada"),
    "read what is released": lambda: released.read_text(),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name)
    except PermissionError:
        pass
"""


@pytest.fixture
def house() -> Iterator[People]:
    with people("teacher", "ada", "bob") as made:
        yield made


@pytest.mark.days
def test_a_lesson_goes_out_and_comes_back_and_nobody_else_sees_it(house: People) -> None:
    """As cluster/README.md tells the operator, the instructor and the students to do."""
    exchange, course = house.root / "exchange", house.home("teacher") / "course"
    house.run("root", "install", "-d", "-m", "1777", str(exchange))
    house.run("root", "install", "-d", "-m", "755", "-o", "teacher", str(exchange / "tml"))
    make_course(course, exchange)
    house.run("root", "chown", "-R", "teacher:teacher", str(course))
    told = house.run("teacher", "labkit", "release", "00", "--course", str(course))
    assert f"nbgrader fetch_assignment {LESSON} --course tml" in told.stdout

    site = house.root / "etc" / "nbgrader_config.py"  # as an operator's, for everybody on the machine
    site.parent.mkdir()
    site.write_text(f'c = get_config()\nc.Exchange.root = "{exchange}"\n')
    find_site = ["env", f"JUPYTER_CONFIG_PATH={site.parent}", "nbgrader"]
    house.run("ada", *find_site, "fetch_assignment", LESSON, "--course", "tml")
    mine = house.home("ada") / LESSON / f"{LESSON}.ipynb"
    assert mine.read_bytes() == (course / "release" / LESSON / mine.name).read_bytes()
    answer = json.loads(mine.read_text())
    answer["cells"][1]["source"] = "# ada's"
    mine.write_text(json.dumps(answer))
    house.run("ada", *find_site, "submit", LESSON, "--course", "tml")

    did = house.run("bob", sys.executable, "-c", TRIES, str(exchange), str(course)).stdout.splitlines()
    assert did == ["read what is released"]

    house.run("teacher", "nbgrader", "collect", LESSON, cwd=course)
    collected = course / "submitted" / "ada" / LESSON
    assert json.loads((collected / mine.name).read_text()) == answer


def make_course(course: Path, exchange: Path) -> None:
    """A course with one lesson to hand out."""
    shutil.copytree(REPOSITORY / "notebooks" / LESSON, course / "release" / LESSON)
    course.chmod(0o700)
    (course / "nbgrader_config.py").write_text(
        f'c = get_config()\nc.CourseDirectory.course_id = "tml"\nc.Exchange.root = "{exchange}"\n'
    )


@pytest.fixture
def released(tmp_path: Path) -> tuple[Path, Path]:
    """An exchange as nbgrader lays it out, with the permissions this course asks for, and a course."""
    exchange, course = tmp_path / "exchange", tmp_path / "course"
    outbound, inbound = exchange / "tml" / "outbound" / LESSON, exchange / "tml" / "inbound"
    for folder in (outbound, inbound, course):
        folder.mkdir(parents=True)
    (outbound / "lesson.ipynb").write_text("{}")
    for path, mode in {exchange: 0o1777, inbound: 0o2733, course: 0o700}.items():
        path.chmod(mode)
    for folder in (exchange, *exchange.parents):  # pytest's folders are this user's alone
        if folder.is_relative_to("/tmp") and folder != Path("/tmp") and folder.owner() == course.owner():
            folder.chmod(folder.stat().st_mode | 0o001)
    return exchange, course


@pytest.mark.parametrize(
    ("path", "mode", "told"),
    [
        ("exchange", 0o1755, "refuses to fetch"),
        ("exchange", 0o777, "rename or remove a course"),
        ("exchange/tml", 0o750, "cannot use it"),
        ("exchange/tml", 0o777, "replace what is released"),
        ("exchange/tml/inbound", 0o2777, "read what others hand in"),
        ("exchange/tml/inbound", 0o2700, "cannot use it"),
        (f"exchange/tml/outbound/{LESSON}", 0o777, "replace what is released"),
        (f"exchange/tml/outbound/{LESSON}/lesson.ipynb", 0o600, "cannot use it"),
        (f"exchange/tml/outbound/{LESSON}/lesson.ipynb", 0o666, "replace what is released"),
        ("course", 0o755, "read the solutions"),
    ],
)
def test_a_wrong_permission_is_told_with_what_puts_it_right(
    released: tuple[Path, Path], tmp_path: Path, path: str, mode: int, told: str
) -> None:
    exchange, course = released
    assert list(problems(exchange, "tml", course)) == []
    (tmp_path / path).chmod(mode)
    found = list(problems(exchange, "tml", course))
    assert len(found) == 1, found
    assert told in found[0]
    assert str(tmp_path / path) in found[0]
    subprocess.run(found[0].split(": ")[-1].split(), check=True)
    assert list(problems(exchange, "tml", course)) == []


def test_a_link_to_nothing_holds_nobody_up(released: tuple[Path, Path]) -> None:
    exchange, course = released
    (exchange / "tml" / "outbound" / LESSON / "data").symlink_to("/nowhere")
    assert list(problems(exchange, "tml", course)) == []


def test_what_puts_it_right_goes_into_a_shell_whatever_the_folder_is_called(tmp_path: Path) -> None:
    exchange, course = tmp_path / "the exchange; of 2026", tmp_path / "Ada's course"
    for folder in (exchange / "tml" / "outbound", exchange / "tml" / "inbound", course):
        folder.mkdir(parents=True)
    own = [told for told in problems(exchange, "tml", course) if str(exchange) in told]
    assert own
    for told in own:
        subprocess.run(["sh", "-c", told.rpartition(": ")[2]], check=True)
    assert [told for told in problems(exchange, "tml", course) if str(exchange) in told] == []


def test_an_exchange_told_from_the_courses_folder_on(released: tuple[Path, Path]) -> None:
    exchange, course = released
    make_course(course, Path("../exchange"))
    found = release("00", course, force=True)
    assert found.folder.samefile(exchange / "tml" / "outbound" / LESSON)
    assert found.folder.is_absolute()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(CannotRelease, match=r"autograder init"):
        release("00", tmp_path)
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\n")
    with pytest.raises(CannotRelease, match=r"there: none.*autograder add 00"):
        release("00", tmp_path)
    shutil.copytree(REPOSITORY / "notebooks" / LESSON, tmp_path / "release" / LESSON)
    here = os.getcwd()
    with pytest.raises(CannotRelease, match=r"course_id ="):
        release("00", tmp_path)
    assert os.getcwd() == here
