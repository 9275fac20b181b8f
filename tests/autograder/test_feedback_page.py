"""The page that a student gets back: what it says, and that it can be read, on a phone too."""

from __future__ import annotations

import itertools
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup, Tag
from conftest import notebook, solution
from hostile import text_cell
from nbgrader.api import Gradebook
from recorded import DEADLOCK, LESSON, MOST, RING, SECONDS, new_course, not_attempted, record, stopped, wrong

from autograder.gradebook.course import CONFIG_FILE, Course
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id
from labkit.show.style import ENOUGH, contrast

ERROR = "rank 1 (and on 2 more): ZeroDivisionError: division by zero (cell 2, line 7)"
LONG = "# " + "a comment that is wider than a telephone " * 6 + "\n"
CHANGED = grade_id(SECONDS, "limits")
TWO_OFF = """
from nbgrader.plugins import BasePlugin

class TwoOff(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 2
"""

# Every text on the page: what it says, its colour and its opacity, and the first colour behind it.
TEXTS = """
() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !parent.checkVisibility() || parent.closest("script, style")) continue;
    let e = parent;
    while (e.parentElement && getComputedStyle(e).backgroundColor === "rgba(0, 0, 0, 0)") e = e.parentElement;
    const style = getComputedStyle(parent), numbers = css => css.match(/[\\d.]+/g).map(Number);
    found.push([text, numbers(style.color), numbers(getComputedStyle(e).backgroundColor), style.opacity]);
  }
  return found;
}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The feedback of somebody who has met everything."""
    root = tmp_path_factory.mktemp("course")
    new_course(root)
    (root / "two_off.py").write_text(TWO_OFF)
    with (root / CONFIG_FILE).open("a") as config:
        config.write("c.AssignLatePenalties.plugin_class = 'two_off.TwoOff'\n")
    course = Course(root)
    mine = notebook(LONG + solution(RING), solution(SECONDS))
    mine["cells"].append(text_cell("# My own heading\n\nand a text"))
    record(
        course,
        "ada",
        mine,
        {RING: wrong("sum-values", "messages"), SECONDS: stopped(ERROR), DEADLOCK: not_attempted},
    )
    by_a_person(course)
    return course.feedback(LESSON, "ada")


def by_a_person(course: Course) -> None:
    """A score, a comment, and a due date before the work was handed in."""
    with Gradebook(course.db_url) as gradebook:
        gradebook.find_grade(CHANGED, LESSON, LESSON, "ada").manual_score = 0.5
        gradebook.find_grade(grade_id(DEADLOCK, "mean-loss-calls"), LESSON, LESSON, "ada").auto_score = None
        comment = gradebook.find_comment(grade_id(RING), LESSON, LESSON, "ada")
        comment.manual_comment = "Look at `chunk` again <script>window.ran = 1</script>"
        submission = gradebook.find_submission(LESSON, "ada")
        submission.assignment.duedate, submission.timestamp = datetime(2026, 11, 20), datetime(2026, 11, 21)
        gradebook.db.commit()


@pytest.fixture(scope="module")
def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def section(soup: BeautifulSoup, exercise: str) -> Tag:
    heading = soup.find(id="exercise-" + exercise.replace(".", "-"))
    assert heading is not None
    found = heading.find_parent("section")
    assert found is not None
    return found


def test_the_index_is_by_exercise(soup: BeautifulSoup) -> None:
    rows = soup.select("table.index tbody tr")
    titles = [exercise.title for exercise in registry.exercises(LESSON)]
    assert [row.find("th").get_text() for row in rows] == titles  # type: ignore[union-attr]
    results = [row.find_all("td")[-1].get_text() for row in rows]
    assert results == ["some lost, comment", "error", "all points", "waits for a person"]
    assert all(soup.find(id=str(link["href"])[1:]) for link in soup.select("nav a"))
    assert "Test cell" not in soup.get_text()


def test_headings_are_an_outline(soup: BeautifulSoup) -> None:
    """One of the page, one for each exercise, and a student's own below theirs."""
    levels = [int(tag.name[1]) for tag in soup.find_all(["h1", "h2", "h3", "h4", "h5", "h6"])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert soup.find("h3", string="My own heading") is not None


def test_points_by_a_person_and_for_lateness(soup: BeautifulSoup) -> None:
    lost = sum(registry.exercise(RING).property(name).points for name in ("sum-values", "messages"))
    lost += registry.exercise(SECONDS).max_points + registry.exercise(DEADLOCK).max_points
    total = soup.select_one("header")
    assert total is not None
    assert f"{MOST - lost + 0.5 - 2:g} of {MOST} points" in total.get_text()
    assert "2 less as it was handed in late" in total.get_text()
    assert "A person gave limits 0.5 of 1 points in place of 0" in section(soup, SECONDS).get_text()
    assert "a person will look at it: mean-loss-calls" in section(soup, DEADLOCK).get_text()


def test_a_comment_stands_above_the_table_and_runs_nothing(soup: BeautifulSoup) -> None:
    parts = [tag for tag in section(soup, RING).children if isinstance(tag, Tag)]
    warning = "p"  # that this was graded without a sandbox
    assert [tag.name for tag in parts] == ["h2", "div", warning, "table", "details"]
    assert parts[1].find("code", string="chunk") is not None
    assert not soup.select("main script")


def test_what_stopped_an_exercise_is_told_once(soup: BeautifulSoup) -> None:
    text = section(soup, SECONDS).get_text()
    assert text.count("ZeroDivisionError") == 1
    assert text.count("Stopped") == 1
    assert text.count("Not reached.") == len(registry.exercise(SECONDS).properties)
    assert "Usual cause" not in text


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
def test_it_can_be_read_at_a_width(browser: Any, page: Path, width: int) -> None:
    """Nothing is cut off or has to be pushed sideways, and every text stands out from what is behind it."""
    tab = browser.new_page(viewport={"width": width, "height": 800})
    tab.route("http**", lambda route: route.abort())
    tab.goto(page.as_uri(), wait_until="load")
    tab.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    if folder := os.environ.get("LABKIT_SCREENSHOTS"):
        tab.screenshot(path=str(Path(folder) / f"feedback_{width}.png"), full_page=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    texts = tab.evaluate(TEXTS)
    assert len(texts) > 50
    assert [text for text, *colours in texts if ratio(*colours) < ENOUGH] == []
    tab.close()


def ratio(colour: list[float], behind: list[float], opacity: str) -> float:
    """Contrast of a text, seen through to what is behind it as far as its opacity says."""
    under = [c / 255 * alpha_of(behind) + 1 - alpha_of(behind) for c in behind[:3]]
    share = float(opacity) * alpha_of(colour)
    seen = [share * c / 255 + (1 - share) * b for c, b in zip(colour[:3], under, strict=True)]
    return contrast((seen[0], seen[1], seen[2]), (under[0], under[1], under[2]))


def alpha_of(colour: list[float]) -> float:
    return colour[3] if len(colour) > 3 else 1.0
