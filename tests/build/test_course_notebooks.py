"""The notebooks in the repository are what their sources make, and give no solution away."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from labkit.build import compare, read_lesson
from labkit.checks import registry
from labkit.checks.hidden import rules

HOUSE = Path(__file__).resolve().parents[2]
SOURCES = sorted((HOUSE / "solutions").glob("[0-9][0-9]_*.py"))
REGION = re.compile(r"### BEGIN SOLUTION\n(.*?)\n *### END SOLUTION", re.DOTALL)
SAID = re.compile(r'^ *# [^\n]*|""".*?"""', re.DOTALL | re.MULTILINE)  # comments and docstrings
COLUMNS = (
    104  # of code that JupyterLab beside its file browser shows on a laptop; it breaks longer lines anywhere
)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_notebook_is_up_to_date(source: Path) -> None:
    difference = compare(source, HOUSE / "notebooks")
    assert difference is None, f"{difference.path}\n{difference.summary}\nrun: labkit build {source.stem}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_line_of_a_solution_is_released(source: Path) -> None:
    """Longer lines only: `return x` is nobody's secret, and may be right elsewhere."""
    notebook = nbformat.read(HOUSE / "notebooks" / source.stem / f"{source.stem}.ipynb", as_version=4)
    exercises = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("labkit", {})]
    regions = [found for cell in read_lesson(source).cells for found in REGION.findall(cell.source)]
    assert len(exercises) > 0
    assert len(regions) >= len(exercises)
    secrets = {line.strip() for region in regions for line in region.splitlines() if len(line.strip()) > 30}
    released = {line.strip() for cell in exercises for line in cell.source.splitlines()}
    assert secrets & released == set()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_what_is_said_in_code_fits_the_page(source: Path) -> None:
    cells = [cell.source for cell in read_lesson(source).cells if cell.kind == "code"]
    said = [line for text in cells for found in SAID.findall(text) for line in found.split("\n")]
    assert len(said) > 20
    assert [line for line in said if len(line) > COLUMNS] == []


def test_what_an_exercise_forbids_stands_with_it() -> None:
    notebook = nbformat.read(
        HOUSE / "notebooks" / "05_checkpointing" / "05_checkpointing.ipynb", as_version=4
    )
    exercise = registry.exercise("05.checkpoint")
    text = next(cell.source for cell in notebook.cells if f"*`{exercise.id}` ·" in cell.source)
    rule = rules(exercise, registry.exercises(exercise.lesson))
    folded = text.partition("<details><summary>What may not be used</summary>\n\n")[2]
    told, _, after = folded.partition("\n\n</details>\n<details><summary>")
    assert told.replace("`", "") == rule
    assert "`torch.utils.checkpoint.checkpoint`, " in told
    assert after.startswith("Hint")


def test_every_notebook_has_a_source() -> None:
    folders = {path.parent.name for path in (HOUSE / "notebooks").glob("*/*.ipynb")}
    assert folders == {source.stem for source in SOURCES}
