"""What labkit shows in JupyterLab can be read, in the light and in the dark theme, and worked by keyboard.

LABKIT_SCREENSHOTS=folder keeps a picture of each output in each theme.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_page import THEMES, NotebookPage, browser_page, choose_theme, jupyter_lab
from matplotlib.image import imread
from playwright.sync_api import Locator, Page, expect

from labkit.show.style import ENOUGH, contrast

pytestmark = [pytest.mark.browser, pytest.mark.days(3), pytest.mark.timeout(300)]

SETUP = """
%load_ext labkit
import time
import torch
import torch.distributed as dist
import labkit
from labkit.checks.report import PropertyResult, Report, Stop
from labkit.show import Table, draw_timeline
from labkit.show.calculator import MemoryCalculator
from labkit.show.planner import Planner

LONG = "a sentence of several words that is longer than a line of the notebook can be, " * 3

def work(group):
    with labkit.span("read the batch"):
        time.sleep(0.05)
    with labkit.span("grow", "backward"):
        time.sleep(0.05)
    dist.all_reduce(torch.ones(2**16))
    return dist.get_rank(group)

def broken(group):
    dist.barrier(group)
    if dist.get_rank(group) == 1:
        raise ValueError(LONG)
    dist.all_reduce(torch.ones(4))
"""
PRINTED = """
%%ranks 3
print(LONG, "rank", dist.get_rank())
"""
REPORT = """
causes = {"expected": "2 calls", "seen": "3", "rank": 1, "case": "two ranks", "usual_cause": "one too many"}
right = PropertyResult("outputs", "numbers", 2, 2, True, "Every output is that of `forward`.")
wrong = PropertyResult("calls", "mechanism", 0, 2, False, "There are two calls.", **causes)
Report("06.x", "t", [right, wrong], "failed", ["A note."], [Stop(LONG, "two ranks")])
"""
CELLS = {
    "setup": SETUP,
    "printed": PRINTED,
    "job": "job = labkit.launch(work, ranks=2)\njob",
    "timeline": "draw_timeline(job)",
    "report": REPORT,
    "open": 'Report("06.x", "t", [wrong], "not_attempted")',
    "table": 'Table(["", "bytes"], [["ours", 3], ["theirs", 4]], caption="Two rows")',
    "calculator": "MemoryCalculator()",
    "planner": "Planner()",
    "failure": "labkit.launch(broken, ranks=2)",
}
"""Name -> source; the last one fails."""

# Each piece of text an output shows, but for JupyterLab's own number before it: what it says, its colour, and
# the colours behind it, nearest first.
TEXTS = """
root => {
  const found = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    const theirs = parent.closest('style, svg, select, .jp-OutputPrompt');
    if (!text || theirs || !parent.checkVisibility()) continue;
    let opacity = 1;
    const behind = [];
    for (let e = parent; e; e = e.parentElement) {
      const style = getComputedStyle(e);
      opacity *= Number(style.opacity);
      behind.push(style.backgroundColor);
    }
    found.push({text, color: getComputedStyle(parent).color, opacity, behind});
  }
  return found;
}
"""
BREAKS = """
root => {
  const broken = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.parentElement.checkVisibility() || node.parentElement.closest('style, svg, select')) continue;
    for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}
"""


@dataclass(frozen=True)
class Shown:
    """The page of the notebook, and where the outputs are on it."""

    theme: str
    page: Page

    def output(self, name: str) -> Locator:
        """What the cell of that name has shown."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(list(CELLS).index(name))
        return cell.locator(".jp-Cell-outputArea")


@pytest.fixture(scope="module", params=THEMES)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """The notebook of `CELLS`, run in one theme."""
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    choose_theme(home, request.param)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source.strip(), id=name) for name, source in CELLS.items()],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}},
    )
    nbformat.write(notebook, root / "shown.ipynb")
    with (
        jupyter_lab(root, home) as url,
        browser_page() as page,
        NotebookPage.open(page, url, "shown.ipynb") as opened,
    ):
        saved = opened.run_all(root / "shown.ipynb", seconds=120)
        failed = [cell.id for cell in saved.cells for o in cell.outputs if o.output_type == "error"]
        assert failed == ["failure"]
        found = Shown(request.param, page)
        keep_pictures(found)
        yield found


def keep_pictures(shown: Shown) -> None:
    folder = os.environ.get("LABKIT_SCREENSHOTS")
    for name in CELLS if folder else ():
        if name != "setup":
            shown.output(name).screenshot(path=Path(str(folder)) / f"{shown.theme.split()[1]}_{name}.png")


def test_text_stands_out_from_what_is_behind_it(shown: Shown) -> None:
    """Contrast as WCAG computes it, of all text in every output."""
    faint = []
    for name in list(CELLS)[1:]:
        texts = shown.output(name).evaluate(TEXTS)
        assert texts or name == "timeline", f"{name} shows no text"
        found = [(name, one["text"][:40], round(contrast_of(one), 1)) for one in texts]
        faint += [one for one in found if one[2] < ENOUGH]
    assert faint == []


def contrast_of(text: dict[str, Any]) -> float:
    """Of a piece of text with the colours behind it, each laid over those further back."""
    behind = (1.0, 1.0, 1.0)
    for layer in reversed(text["behind"]):
        behind = laid_over(layer, behind)
    return contrast(laid_over(text["color"], behind, text["opacity"]), behind)


def laid_over(css: str, behind: Sequence[float], opacity: float = 1.0) -> tuple[float, float, float]:
    """What is seen of a colour as a browser tells it, "rgba(213, 94, 0, 0.12)", over another."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", css)]
    scale = 1 if css.startswith("color(") else 255  # "color(srgb 0.1 0.2 0.3)"
    alpha = opacity * (numbers[3] if len(numbers) > 3 else 1.0)
    red, green, blue = (alpha * c / scale + (1 - alpha) * b for c, b in zip(numbers[:3], behind, strict=True))
    return red, green, blue


def test_no_word_is_broken_over_two_lines(shown: Shown) -> None:
    broken = {name: shown.output(name).evaluate(BREAKS) for name in list(CELLS)[1:]}
    assert {name: words for name, words in broken.items() if words} == {}


def test_figures_are_as_light_or_as_dark_as_the_page(shown: Shown) -> None:
    """The paper they are drawn on, at its corners, is nearly the colour of the notebook."""
    page = laid_over(
        shown.page.locator(".jp-Notebook").evaluate("e => getComputedStyle(e).backgroundColor"), (1, 1, 1)
    )
    for name, figure in (
        ("timeline", "img"),
        ("calculator", "svg.labkit-drawn"),
        ("planner", "svg.labkit-drawn"),
    ):
        picture = imread(io.BytesIO(shown.output(name).locator(figure).screenshot()), format="png")
        for corner in (picture[3, 3], picture[-4, -4]):
            assert contrast(corner[:3], page) < 1.2, f"{name}: {corner} on {page}"


def test_ranks_are_chosen_by_keyboard(shown: Shown) -> None:
    """From the cell to its output by Tab, and from rank to rank by the arrow keys; the notebook stays."""
    output, keyboard = shown.output("printed"), shown.page.keyboard
    panes, choices = output.locator("section"), output.get_by_role("radio")
    shown.page.locator(".jp-Notebook .jp-CodeCell").nth(1).locator(".jp-InputPrompt").click()
    for _ in range(10):
        if choices.nth(0).evaluate("e => e === document.activeElement"):
            break
        keyboard.press("Tab")
    for key, rank in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("ArrowUp", 0)):
        keyboard.press(key)
        expect(choices.nth(rank)).to_be_focused()
        expect(choices.nth(rank)).to_be_checked()
        visible = [number for number in range(3) if panes.nth(number).is_visible()]
        assert visible == [rank]
    active = shown.page.locator(".jp-Notebook .jp-CodeCell.jp-mod-active")
    expect(active).to_contain_text("%%ranks 3")


def test_what_a_screen_reader_is_told(shown: Shown) -> None:
    """Chromium's own accessibility tree."""
    nodes = shown.page.context.new_cdp_session(shown.page).send("Accessibility.getFullAXTree")["nodes"]
    told = [(text_of(node, "role"), text_of(node, "name")) for node in nodes if not node["ignored"]]
    assert told.count(("radiogroup", "shown ranks")) == 2  # of the printed lines, and of the job's results
    assert [name for role, name in told if role == "radio"] == [
        *("rank 0", "rank 1", "rank 2"),
        *("rank 0", "rank 1"),
    ]
    assert ("group", "rank 0") in told
    pictures = [name for role, name in told if role in ("image", "img") and name]
    assert any(name.startswith("Timeline of 2 ranks") and "read the batch" in name for name in pictures)
    assert len([name for name in pictures if "GiB" in name]) == 2  # the calculator's and the planner's bars


def text_of(node: dict[str, Any], what: str) -> str:
    return str(node.get(what, {}).get("value", ""))


def test_the_line_a_job_failed_in_stands_out(shown: Shown) -> None:
    """In bold: what happened, and the line of the student's it happened in."""
    bold = shown.output("failure").locator(".ansi-bold").all_inner_texts()
    assert len(bold) == 2
    assert bold[0].startswith("RankError: rank 1 failed: ValueError: a sentence")
    assert bold[1] == "--> raise ValueError(LONG)"
