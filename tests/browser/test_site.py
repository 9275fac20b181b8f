"""The course as a web site, in a browser and from a file: every link leads somewhere, every formula and
picture is drawn, the calculator answers without a kernel, nothing is asked of another host, and no solution
is shown.

The site is built with the outputs of one lesson; LABKIT_BUILT_SITE=build/site looks at one of `make site`.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
from PIL import Image, ImageStat
from playwright.sync_api import BrowserContext, Page, Request, expect

from autograder.site.answer import answer_html
from autograder.site.building import build_site, solutions_in
from autograder.site.calculator import calculator_html
from labkit.show.calculator import POWERS, SEQUENCES, START
from labkit.theory.hardware import GPUS
from labkit.theory.models import PRESETS
from labkit.theory.recipes import RECIPES

HOUSE = Path(__file__).resolve().parents[2]
LESSONS = [path.stem for path in sorted((HOUSE / "solutions").glob("[0-9][0-9]_*.py"))]
WITH_CALCULATOR = "01_memory_math"

pytestmark = [pytest.mark.browser, pytest.mark.days(2), pytest.mark.timeout(400)]

LOOK = """() => {
  const text = document.querySelector("article").cloneNode(true);
  text.querySelectorAll("pre, code, math, script, style").forEach(e => e.remove());
  return {
    links: [...document.querySelectorAll("a[href]")].map(a => a.href),
    names: [...document.querySelectorAll("[id]")].map(e => e.id),
    missing: [...document.querySelectorAll("img")].filter(i => !i.naturalWidth).map(i => i.alt),
    formulas: [...document.querySelectorAll("article math")].map(e => e.getBoundingClientRect().width),
    text: text.textContent,
  };
}"""


# At once: the theme scrolls smoothly, and a picture taken meanwhile begins in the middle of a line.
TO_ITS_HEADING = """e => e.closest("section").querySelector("h1, h2, h3, h4")
  .scrollIntoView({block: "start", behavior: "instant"})"""


@dataclass
class Seen:
    """What the browser found on one page."""

    links: list[str]
    names: list[str]
    missing: list[str]
    formulas: list[float]
    text: str
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("LABKIT_BUILT_SITE"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("site")
    return build_site(folder / "site", folder / "work", [WITH_CALCULATOR])


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go: to be kept with LABKIT_SCREENSHOTS, for the README."""
    return Path(os.environ.get("LABKIT_SCREENSHOTS") or tmp_path)


@pytest.fixture(scope="module")
def pages(site: Path, chromium: BrowserContext) -> dict[str, Seen]:
    """Every page that can be reached from the first one, by its address."""
    found: dict[str, Seen] = {}
    left = [(site / "index.html").as_uri()]
    with chromium.new_page() as page:
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.append(asked.url) if _from_elsewhere(asked) else None)
        while left:
            address = left.pop()
            if address in found or not address.endswith(".html"):
                continue
            complaints.clear()
            page.goto(address)
            found[address] = Seen(**page.evaluate(LOOK), complaints=list(complaints))
            left += [urldefrag(link).url for link in found[address].links if link.startswith("file:")]
    return found


def _from_elsewhere(asked: Request) -> bool:
    return not asked.url.startswith(("file:", "data:", "blob:"))


def test_every_link_leads_somewhere(site: Path, pages: dict[str, Seen]) -> None:
    assert {Path(address).stem for address in pages} >= {"index", "node", "start", "labkit-lab", *LESSONS}
    nowhere = []
    for address, seen in pages.items():
        for link in seen.links:
            there, name = urldefrag(link)
            if not there.startswith("file:"):
                assert there.startswith(("https://", "http://")), link
            elif there in pages:
                if name and unquote(name) not in pages[there].names:
                    nowhere.append((address, link))
            elif not Path(unquote(there.removeprefix("file://"))).exists():
                nowhere.append((address, link))
    assert nowhere == []


def test_every_picture_and_formula_is_drawn(pages: dict[str, Seen]) -> None:
    assert [(address, seen.missing) for address, seen in pages.items() if seen.missing] == []
    assert [address for address, seen in pages.items() if not all(width > 0 for width in seen.formulas)] == []
    assert sum(len(seen.formulas) for seen in pages.values()) > 300


def test_no_formula_is_left_as_latex(pages: dict[str, Seen]) -> None:
    raw = re.compile(r"\$[^$\n]{1,80}\$|\\[a-zA-Z]{2,}|\\[([]")
    assert raw.search(r"about $12 L h^2$")
    assert raw.search(r"\frac")
    assert [
        (address, raw.findall(seen.text)) for address, seen in pages.items() if raw.search(seen.text)
    ] == []


def test_nothing_is_asked_of_another_host_and_no_script_fails(pages: dict[str, Seen]) -> None:
    assert [(address, seen.complaints) for address, seen in pages.items() if seen.complaints] == []


def test_a_recorded_run_shows_its_outputs(pages: dict[str, Seen]) -> None:
    """Full marks in every table: what is below the cells is from the reference."""
    (lesson,) = [seen for address, seen in pages.items() if WITH_CALCULATOR in address]
    points = re.findall(r"01\.[\w-]+ · (\d+) of (\d+) points", lesson.text)
    assert len(points) >= 10
    assert all(earned == most for earned, most in points)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def solved_lines() -> set[str]:
    """Lines between nbgrader's marks in solutions/ that no notebook has, without their spaces."""
    notebooks = [nbformat.read(path, as_version=4) for path in (HOUSE / "notebooks").glob("*/*.ipynb")]
    released = squeezed("\n".join(cell.source for notebook in notebooks for cell in notebook.cells))
    regions = [
        region
        for path in (HOUSE / "solutions").glob("[0-9][0-9]_*.py")
        for region in re.findall(r"(?s)### BEGIN SOLUTION\n(.*?)### END SOLUTION", path.read_text())
    ]
    lines = {squeezed(line) for region in regions for line in region.splitlines()}
    return {line for line in lines if len(line) >= 25 and line not in released}


def test_a_lesson_as_its_readers_see_it(site: Path, page: Page, pictures: Path) -> None:
    """An exercise: the stub, what its cells showed, the check's table with full marks."""
    exercise = "01.count-parameters"
    page.goto((site / "lessons" / f"{WITH_CALCULATOR}.html").as_uri())
    table = page.locator("table.labkit-report", has_text=exercise).first
    expect(table.locator("tr.passed").first).to_be_visible()
    expect(table.locator("tr.failed")).to_have_count(0)
    expect(page.locator("pre", has_text=f'NotImplementedError("{exercise}').first).to_be_visible()
    table.evaluate(TO_ITS_HEADING)
    page.screenshot(path=pictures / "site-lesson.png")


def test_no_line_of_a_solution_is_in_any_file(site: Path) -> None:
    """But for the theory that the calculator runs, as students have it in labkit."""
    lines = solved_lines()
    assert len(lines) > 300
    theory = squeezed("".join(path.read_text() for path in (HOUSE / "labkit" / "theory").glob("*.py")))
    for path in sorted(path for path in site.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".html":
            text = html.unescape(re.sub(r"data:image[^\"]*|<[^>]*>", "", text))
        text = squeezed(text)
        told = [line for line in lines if line in text]
        if path.name == "python.js":
            told = [line for line in told if line not in theory]
        assert told == [], path


def test_a_site_with_a_solution_is_refused(tmp_path: Path) -> None:
    solved = (HOUSE / "solutions" / "01_memory_math.py").read_text()
    line = re.findall(r"### BEGIN SOLUTION\n.*\n( *.{30,})\n", solved)[0]
    marked = re.sub(r"(\w+)", r"<span>\1</span>", html.escape(line))
    (tmp_path / "page.html").write_text(f"<pre>def f():\n{marked}\n</pre>")
    assert len(list(solutions_in(tmp_path))) == 1


def test_the_pages_are_light_or_dark(site: Path, chromium: BrowserContext, pictures: Path) -> None:
    """As the reader's system is, and as they choose: page, figures and tables together."""
    with chromium.new_page() as page:
        page.goto((site / "lessons" / f"{WITH_CALCULATOR}.html").as_uri())
        for scheme, light in (("dark", "false"), ("light", "true")):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            expect(page.locator("body")).to_have_attribute("data-jp-theme-light", light)
            drawn = page.locator("svg.labkit-drawn").first
            expect(drawn).to_have_css("filter", "none" if light == "true" else re.compile("invert"))
            page.locator(".calculator").evaluate(TO_ITS_HEADING)
            picture = pictures / f"site-calculator-{scheme}.png"
            page.screenshot(path=picture)
            assert (brightness(picture) > 128) == (light == "true")
        page.locator(".theme-toggle:visible").first.click()
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", re.compile("true|false"))


def brightness(picture: Path) -> float:
    """The mean of all pixels of a PNG, 0 to 255."""
    with Image.open(picture) as image:
        return float(ImageStat.Stat(image.convert("L")).mean[0])


def test_the_search_finds_a_lesson(site: Path, page: Page) -> None:
    page.goto((site / "search.html").as_uri() + "?q=recomputation")
    expect(page.locator("#search-results a", has_text="Activation checkpointing").first).to_be_visible()


def settings_drawn(count: int) -> Iterator[dict[str, Any]]:
    draw = Random(20261122)
    for _ in range(count):
        yield {
            **START,
            "model": draw.choice(list(PRESETS)),
            "gpu": draw.choice(list(GPUS)),
            "recipe": draw.choice(list(RECIPES)),
            "recompute": draw.choice(["none", "selective", "full"]),
            "attention": draw.choice(["fused", "explicit"]),
            "sequence": draw.choice(SEQUENCES),
            "tensor_parallel": draw.choice(POWERS[:5]),
            "pipeline_parallel": draw.choice(POWERS[:4]),
            "zero_stage": draw.randrange(4),
        }


def test_the_calculator_answers_without_a_kernel(site: Path, page: Page) -> None:
    """A slider moved by its key, and the same words as Python's for settings drawn at random."""
    page.goto((site / "lessons" / f"{WITH_CALCULATOR}.html").as_uri())
    answer = page.locator(".calculator-answer")
    expect(answer).to_contain_text("Llama 3 8B")
    moved = re.search(r"needs <b>(.*?)</b>", answer_html({**START, "zero_stage": 1}))
    assert moved is not None
    expect(answer).not_to_contain_text(moved[1])
    slider = page.get_by_role("slider", name="ZeRO stage")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(answer).to_contain_text(moved[1], timeout=120_000)
    expect(page.locator(".calculator output").last).to_have_text("1")
    for settings in settings_drawn(20):
        told = page.evaluate("text => window.answerOf(text)", json.dumps(settings))
        assert told == answer_html(settings), settings


def test_the_calculator_begins_as_the_lesson_says() -> None:
    shown = calculator_html({"model": "Llama 3 70B", "zero_stage": 3})
    assert "<option selected>Llama 3 70B</option>" in shown
    assert answer_html({**START, "model": "Llama 3 70B", "zero_stage": 3}) in shown
