"""What a submission's text becomes in a page, and what the page lets run."""

from __future__ import annotations

import csv
import io
import re
import time
from pathlib import Path
from typing import Any

import nbformat
import nbgrader
import pytest
from bs4 import BeautifulSoup
from click.testing import CliRunner
from hostile import JS, NAMES, PIXEL, TEXTS, cells, code_cell, text_cell
from nbformat import NotebookNode
from traitlets.config import Config

from autograder.cli import main
from autograder.grade.records import Record
from autograder.gradebook import patience, rebuild
from autograder.gradebook.feedback_page import FeedbackPage
from autograder.gradebook.listing import Listing, as_csv
from autograder.gradebook.pages import LONGEST_TEXT, SubmissionPage
from autograder.gradebook.report import plain
from autograder.gradebook.sanitise import LARGEST_IMAGE, clean_html, images_of
from labkit.checks.source.text import visible

TEMPLATES = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader" / "templates"
STYLES = TEMPLATES.parent / "static" / "node_modules" / "bootstrap" / "dist" / "css"
SCORE = rebuild.graded_cell("06_f__values", 3, 'labkit.score("06.f", "values")')
PICTURE = {"picture.png": {"image/png": PIXEL}}


class WithoutCleaning(FeedbackPage):
    """Only the policy is left."""

    def clean(self, html: str) -> str:
        return html


def page_of(nb: NotebookNode, exporter: type[SubmissionPage] = FeedbackPage) -> str:
    """A notebook's feedback page."""
    config = Config()
    config.HTMLExporter.template_name = "feedback"
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES)]
    config.HTMLExporter.extra_template_paths = [str(STYLES)]
    nbgrader_says = {"notebook": "06", "score": 0, "max_score": 3, "late_penalty": 0}
    resources = {"nbgrader": nbgrader_says, "inlining": {"css": []}, **NAMES}
    return str(exporter(config=config).from_notebook_node(nb, resources=resources)[0])


def autograded(*found: dict[str, Any]) -> NotebookNode:
    """What grading makes of these cells."""
    return rebuild.rebuilt({"cells": list(found)}, {}, [SCORE])


def without_policy(page: str) -> str:
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)


def runs(browser: Any, page: str, folder: Path) -> int:
    """How often something of a student's ran when the page was opened and everything on it pressed."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    tab = browser.new_page()
    tab.route(re.compile("^https?:"), lambda route: route.abort())
    tab.goto(path.as_uri(), wait_until="load")
    tab.evaluate("for (const e of document.querySelectorAll('a, button, summary, span')) e.click()")
    tab.wait_for_timeout(500)
    found = tab.evaluate("window.ran || 0")
    tab.close()
    return int(found)


@pytest.mark.browser
def test_nothing_of_a_students_runs_in_the_feedback_page(browser: Any, tmp_path: Path) -> None:
    assert runs(browser, page_of(autograded(*cells())), tmp_path) == 0


@pytest.mark.days
@pytest.mark.browser
def test_either_wall_stands_alone(browser: Any, tmp_path: Path) -> None:
    """And without both of them these submissions do run."""
    notebook = autograded(*cells())
    unclean = page_of(notebook, WithoutCleaning)
    assert runs(browser, unclean, tmp_path) == 0
    assert runs(browser, without_policy(page_of(notebook)), tmp_path) == 0
    assert runs(browser, without_policy(unclean), tmp_path) >= 10


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_that_could_run_is_left_of_a_text(name: str) -> None:
    body = BeautifulSoup(page_of(autograded(text_cell(TEXTS[name]))), "html.parser").find(id="notebook")
    assert body is not None
    tags = body.find_all(True)
    active = (
        "script",
        "style",
        "iframe",
        "object",
        "svg",
        "math",
        "form",
        "input",
        "button",
        "meta",
        "video",
    )
    assert not [tag for tag in tags if tag.name in active]
    attributes = [(name, str(value)) for tag in tags for name, value in tag.attrs.items()]
    assert not [name for name, value in attributes if name.startswith("on") or JS in value]


def test_what_a_lesson_is_written_in_is_kept() -> None:
    text = (
        "# A heading\n\n*slanted* **bold** `code` [a link](https://example.org) $a_1 < b_2$\n\n"
        "| a | b |\n|:-:|--|\n| 1 | 2 |\n\n- one\n\n<details><summary>More</summary>inside</details>\n\n"
        "```python\nx = 1\n```"
    )
    page = page_of(autograded(text_cell(text)))
    for part in (
        *(
            "<h3>A heading",
            "<em>slanted</em>",
            "<strong>bold</strong>",
            "<code>code</code>",
            "$a_1 &lt; b_2$",
        ),
        *('href="https://example.org"', "text-align:center", "<li>one", "<summary>More</summary>"),
        '<span class="mi">1</span>',
    ):
        assert part in page, part


@pytest.mark.parametrize("exporter", [FeedbackPage, SubmissionPage])
def test_code_is_shown_in_the_order_in_which_it_is_read(exporter: type[SubmissionPage]) -> None:
    """What turns a line around, hides a part of it or ends it where Python does not is there as an escape."""
    code = "a = 1  # \u202e\u2066 }\rb = 2 # \u200b\x0c\u2028\r\nc = 'é 学 😀'\n\td = 4"
    page = page_of(autograded(code_cell(code)), exporter)
    text = BeautifulSoup(page, "html.parser").get_text()
    for line in ("a = 1  # \\u202e\\u2066 }\n", "b = 2 # \\u200b\\x0c\\u2028\n", "c = 'é 学 😀'\n", "d = 4"):
        assert line in text
    assert not set("\u202e\u2066\u200b\u2028") & set(page)


def test_a_link_into_the_server_is_not_kept() -> None:
    assert "href" not in clean_html('<a href="evil.html">x</a><a href="/logout">y</a><a href="//a.b">z</a>')
    assert "src" not in clean_html('<img src="/logout"><img src="https://example.org/seen.png">')


def test_a_pasted_picture_is_shown() -> None:
    cell = text_cell("![seen](attachment:picture.png)", attachments=PICTURE)
    notebook = autograded(cell)
    nbformat.validate(notebook)
    assert f'src="data:image/png;base64,{PIXEL}"' in page_of(notebook)


@pytest.mark.parametrize("there", [None, {}, {"picture.png": {}}, {"picture.png": 3}, {"other.png": PICTURE}])
def test_a_picture_that_is_not_there_spoils_nothing(there: Any) -> None:
    cell = text_cell("![seen](attachment:picture.png) and a text", attachments=there)
    page = page_of(autograded(cell))
    assert "and a text" in page
    assert 'alt="seen"' in page


def test_what_is_not_a_picture_is_left_out() -> None:
    kinds = {"image/png": [PIXEL[:20], PIXEL[20:] + "\n"], "text/html": PIXEL, "image/svg+xml": PIXEL}
    assert images_of({"a": kinds}) == {"a": {"image/png": PIXEL}}
    assert images_of({"a": {"image/png": "AAAA" * (LARGEST_IMAGE // 4 + 1)}}) == {}
    assert images_of({"a": {"image/jpeg": "not base64!"}}) == {}


def test_texts_without_end_are_cut() -> None:
    long = "x" * (LONGEST_TEXT + 1) + "<b>"
    assert f"<pre>{long[:50]}" in page_of(autograded(text_cell(long)))
    many = [text_cell("y" * 150_000) for _ in range(100)]
    assert sum(len(cell.source) for cell in autograded(*many).cells) <= rebuild.MOST_TEXT + 1000
    images = [text_cell("z", attachments={"a": {"image/png": "AAAA" * 2**20}}) for _ in range(20)]
    kept = [cell for cell in autograded(*images).cells if cell.get("attachments")]
    assert len(kept) == rebuild.MOST_IMAGES // 2**22


@pytest.mark.parametrize("slow", [code_cell("\n " * 99_990), text_cell("\\\\[" * 5000)])
def test_a_text_that_takes_an_afternoon_is_shown_plain(
    slow: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cell alone; and once a page has used up its time, all cells after it."""
    monkeypatch.setattr(patience, "OF_A_TEXT", 0.3)
    began = time.process_time()
    page = page_of(autograded(slow, code_cell("class After: pass")))
    assert time.process_time() - began < 4
    assert '<span class="k">class</span>' in page
    monkeypatch.setattr(patience, "OF_A_PAGE", 0.1)
    page = page_of(autograded(slow, code_cell("class After: pass")))
    assert '<div class="highlight"><pre>class After: pass</pre></div>' in page


def test_marks_that_grading_did_not_write_are_not_shown() -> None:
    notebook = autograded(text_cell("hello"))
    notebook.cells[0].metadata["nbgrader"] = {"grade": True, "grade_id": '"><script>', "points": "<b>"}
    assert "<script>" not in page_of(notebook).partition("<body")[2]


def test_a_name_is_no_formula_in_a_table() -> None:
    for name in ("=HYPERLINK(1)", "+1", "-1", "@SUM(1)", " =1"):
        assert plain(name) == f"'{name}"
    record = Record("06_tensor_parallel_ffn", "=1+1", '=HYPERLINK("http://x").ipynb', "", 1, "none", "")
    row = next(csv.DictReader(io.StringIO(as_csv(Listing("06", [record])))))
    assert (row["student"], row["notebook"]) == ("'=1+1", '\'=HYPERLINK("http://x").ipynb')


def test_a_terminal_obeys_nothing_that_is_shown() -> None:
    assert visible("a\x1b[2Jb\x07\r\u202e\x9b\n\té") == "a\\x1b[2Jb\\x07\\r\\u202e\\x9b\n\té"


def test_an_error_with_escapes_is_shown_as_text(tmp_path: Path) -> None:
    path = tmp_path / "06_\x1b[31mx.ipynb"
    path.write_bytes(b"no notebook")
    done = CliRunner().invoke(main, ["verify", str(path), "--unsafe-no-sandbox"])
    assert "\x1b" not in done.output
    assert "is not a notebook" in done.output
