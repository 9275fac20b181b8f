"""Recorded figures: every target of a lesson is there, folded, and names what the cell below it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.site.targets import targets
from labkit.show.target import RECORDED, target

SOLUTIONS = Path(__file__).parents[2] / "solutions"


def test_what_lessons_name_is_recorded_and_nothing_else_is() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SOLUTIONS.glob("*.py")]
    named = [name for text in texts for name in re.findall(r'^target\("([\w-]+)"\)$', text, re.MULTILINE)]
    assert named
    assert sorted(named) == sorted(path.stem for path in RECORDED.glob("*.html"))
    for name in named:
        shown = target(name)._repr_html_()
        assert shown.startswith("<details")
        assert "<img " in shown


def test_a_target_that_is_not_recorded_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(LookupError, match=r"04-gpipe.*found 'nothing'"):
        target("nothing")


def test_a_target_is_the_figure_of_the_next_code_cell() -> None:
    cells = [
        new_code_cell('target("a")'),
        new_markdown_cell("text"),
        new_code_cell("draw()"),
        new_code_cell("x"),
    ]
    notebook = new_notebook(cells=cells)
    printed = {"output_type": "stream", "text": "1"}
    figure = {"output_type": "display_data", "data": {"text/html": "<img>", "text/plain": ""}}
    assert list(targets(notebook, {cells[2].id: [printed, figure]})) == [("a", "<img>")]
