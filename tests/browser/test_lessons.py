"""Each lesson in JupyterLab, in a browser: solved, every cell runs and shows; as released, it opens.

One of the lessons is run each day; LABKIT_EVERYTHING=1 takes all.

LABKIT_SCREENSHOTS=folder keeps a picture of every check.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_page import NotebookPage, jupyter_lab
from nbformat import NotebookNode
from playwright.sync_api import Page, expect
from turn import part_of, today

from labkit.build import Lesson, find_lessons, instructor_notebook, read_lesson
from labkit.build.course import lesson_exercises, notebook_text

HOUSE = Path(__file__).resolve().parents[2]
LESSONS = [path.stem for path in sorted((HOUSE / "solutions").glob("[0-9][0-9]_*.py"))]
PARTS = len(LESSONS)
FIGURES = ".jp-Notebook .jp-OutputArea-output img, .jp-Notebook .jp-OutputArea-output svg"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("LABKIT_SCREENSHOTS") or tmp_path / "pictures")


@pytest.fixture
def lesson(name: str) -> Lesson:
    return read_lesson(find_lessons([name], HOUSE / "solutions")[0])


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A JupyterLab for all lessons, with an empty home: its folder and its URL. Nothing of it may be left."""
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    with jupyter_lab(root, home) as url:
        yield root, url


@pytest.mark.parametrize("name", part_of(LESSONS, PARTS, today()))
def test_every_cell_runs_and_shows(lesson: Lesson, page: Page, lab: tuple[Path, str], pictures: Path) -> None:
    """With the reference solution filled in: no error, figures drawn, a passing table for each exercise."""
    root, url = lab
    file = root / "solved" / lesson.name / f"{lesson.name}.ipynb"
    file.parent.mkdir(parents=True)
    file.write_text(notebook_text(instructor_notebook(lesson)))
    with NotebookPage.open(page, url, str(file.relative_to(root))) as opened:
        saved = opened.run_all(file, seconds=300)
        assert [problem for cell in saved.cells for problem in errors(cell)] == []
        assert figures_that_are_not_drawn(page) == []
        for exercise in lesson_exercises(lesson):
            table = page.locator("table.labkit-report", has_text=exercise.id).first
            expect(table).to_be_visible()
            expect(table.locator("tr.passed")).to_have_count(len(exercise.properties))
            expect(table.locator("tr.failed")).to_have_count(0)
            style = "text-align", "left"  # ours, not JupyterLab's
            expect(table.locator("td").nth(2)).to_have_css(*style)
        opened.screenshot(page.locator(".jp-Notebook h1").first, pictures / f"{lesson.name}_opening.png")
        opened.screenshot(page.locator(FIGURES).last, pictures / f"{lesson.name}_figure.png")
        wanted = lesson_exercises(lesson) if "LABKIT_SCREENSHOTS" in os.environ else []  # a second each
        for exercise in wanted:
            check = opened.code_cells.filter(has_text=f'labkit.check("{exercise.id}"').first
            number = check.evaluate("cell => [...document.querySelectorAll('.jp-CodeCell')].indexOf(cell)")
            opened.screenshot(opened.code_cells.nth(number - 1), pictures / f"{exercise.id}.png")


@pytest.mark.parametrize("name", part_of([LESSONS[0], LESSONS[6], LESSONS[-1]], 3, today()))
def test_the_released_lesson_opens(name: str, page: Page, lab: tuple[Path, str], pictures: Path) -> None:
    """What students get shows its title and its stubs, and keeps the graded cells folded away."""
    root, url = lab
    shutil.copytree(HOUSE / "notebooks" / name, root / "released" / name)
    with NotebookPage.open(page, url, f"released/{name}/{name}.ipynb") as opened:
        expect(page.locator(".jp-Notebook h1").first).to_be_visible()
        expect(opened.code_cells.filter(has_text="raise NotImplementedError").first).to_be_visible()
        expect(page.get_by_text("labkit.score(").first).to_be_hidden()
        assert code_that_ends_out_of_sight(page) == []
        expect(page.get_by_role("menuitem", name="Nbgrader")).to_have_count(0)
        dialogs = page.locator(".jp-Dialog, .Toastify__toast")
        expect(dialogs).to_have_count(0)  # no question about news or kernels
        opened.screenshot(page.locator(".jp-Notebook h1").first, pictures / f"{name}_released.png")


def errors(cell: NotebookNode) -> list[str]:
    """What went wrong in a code cell: an exception, or anything on its stderr."""
    outputs = cell.get("outputs", [])
    raised = [f"{cell.id}: {o.ename}: {o.evalue}" for o in outputs if o.output_type == "error"]
    return raised + [f"{cell.id}: {o.text}" for o in outputs if o.get("name") == "stderr"]


def figures_that_are_not_drawn(page: Page) -> list[str]:
    """Figures without a size, or a note that there is none at all."""
    figures = page.locator(FIGURES)
    if figures.count() == 0:
        return ["no figure on the page"]
    sizes = figures.evaluate_all(
        "all => all.map(e => [e.outerHTML.slice(0, 80), e.getBoundingClientRect().width])"
    )
    return [html for html, width in sizes if width < 50]


def code_that_ends_out_of_sight(page: Page) -> list[str]:
    """Beginnings of code cells with a line that is longer than the page is wide."""
    wider = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 80))"
    found: list[str] = page.locator(".jp-Notebook .cm-scroller").evaluate_all(wider)
    return found
