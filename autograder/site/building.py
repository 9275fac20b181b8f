"""Builds the site: runs lessons, writes Sphinx's sources, builds, and looks for solutions in the result."""

from __future__ import annotations

import html
import platform
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.progress import Progress
from sphinx.application import Sphinx

from autograder.grade.reference import solutions_folder
from autograder.gradebook.release import solution_lines
from autograder.site.calculator import write_browser_python
from autograder.site.pages import Contents
from autograder.site.runs import Outputs, RunError, RunStore
from labkit.build.course import find_lessons
from labkit.build.markup import Lesson, read_lesson

STATIC = Path(__file__).with_name("static")
MARK = "objects.inv"  # a file that every site of Sphinx's has

CONFIGURATION: dict[str, Any] = {
    "project": "Training models too large for one GPU",
    "copyright": "the authors of the workbook, Apache-2.0",
    "extensions": ["myst_nb", "autograder.site.formulas"],
    "myst_enable_extensions": ["dollarmath", "amsmath", "colon_fence"],
    "myst_heading_anchors": 3,
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "html_theme": "furo",
    "html_math_renderer": "mathml",
    "html_title": "Training models too large for one GPU",
    "html_static_path": [str(STATIC)],
    "html_css_files": ["site.css"],
    "html_js_files": ["site.js"],
    "html_copy_source": False,
    "html_show_sphinx": False,
}


class SiteError(Exception):
    """The site cannot be built, or must not be published; the message says why."""


def build_site(folder: Path, work: Path, wanted: Collection[str] = ()) -> Path:
    """Write the site into `folder`, in place of what was built there before. Returns `folder`.

    work: where runs and Sphinx's sources are kept.
    wanted: lessons to run, all when empty; the others have no outputs.
    """
    lessons = tuple(read_lesson(path) for path in find_lessons((), solutions_folder()))
    to_run = [read_lesson(path) for path in find_lessons(wanted, solutions_folder())]
    if folder.exists() and not folder.is_dir():
        raise SiteError(f"{folder} is no folder: give a new or an empty one")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise SiteError(f"{folder} has something in it that is no site: give a new or an empty folder")
    one, other = folder.resolve(), work.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise SiteError(f"{folder}, which is replaced, and {work}, where runs are kept, must be apart")
    contents = Contents(lessons, run_lessons(to_run, work / "runs"), host_in_words())
    sources, built = work / "sources", work / "html"
    for made in (sources, built):
        shutil.rmtree(made, ignore_errors=True)
    contents.write(sources)
    _sphinx(sources, built, work / "doctrees")
    write_browser_python(built / "_static")
    found = list(solutions_in(built))
    if found:
        raise SiteError("the site would show solutions:\n" + "\n".join(found))
    replace_site(folder, built)
    return folder


def replace_site(folder: Path, built: Path) -> None:
    """Put what was built into `folder`, in place of all that is there. The folder itself stays: it may be a
    link to where a server looks, a mount, or in one that takes no other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for there in folder.iterdir():
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        elif there.name != MARK:  # by which a site that was left half written is still known for one
            there.unlink()
    shutil.copy2(built / MARK, folder)
    shutil.copytree(built, folder, dirs_exist_ok=True)


def run_lessons(lessons: Sequence[Lesson], kept: Path) -> dict[str, Outputs]:
    """What each lesson's cells showed, by its name; what must be run is, one lesson after the other."""
    store, found = RunStore(kept), {}
    with Progress(console=Console(stderr=True)) as progress:
        for lesson in lessons:
            bar = progress.add_task(lesson.name, total=None)

            def ran(done: int, cells: int, bar: Any = bar) -> None:
                progress.update(bar, completed=done, total=cells)

            try:
                found[lesson.name] = store.outputs(lesson, ran)
            except RunError as problem:
                raise SiteError(str(problem)) from problem
            progress.update(bar, total=1, completed=1)
    return found


def host_in_words() -> str:
    """What lessons ran on, for the reader: cores, memory and torch."""
    memory = psutil.virtual_memory().total / 2**30
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    gpus = f", {torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else ", no GPU"
    return f"{platform.system()}, {cores} cores, {memory:.0f} GiB{gpus}, torch {torch.__version__}"


def _sphinx(sources: Path, built: Path, doctrees: Path) -> None:
    """Build, with every warning an error: a link that leads nowhere is one."""
    with (sources.parent / "sphinx.log").open("w+", encoding="utf-8") as log:
        app = Sphinx(
            sources, None, built, doctrees, "html", CONFIGURATION, status=None, warning=log, freshenv=True
        )
        app.build()
        log.seek(0)
        warnings = log.read()
    if app.statuscode or warnings:
        raise SiteError(f"Sphinx is not content:\n{warnings}")


def solutions_in(site: Path) -> Iterator[str]:
    """Where a whole line of a solution stands in any file of the site."""
    lines = solution_lines()
    for path in sorted(path for path in site.rglob("*") if path.suffix in (".html", ".js", ".txt")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".html":
            text = html.unescape(re.sub(r"<[^>]*>", "", text))
        shown = {line.strip() for line in text.splitlines()}
        yield from (f"{path}: {line!r} of {lines[line]}" for line in sorted(shown & set(lines)))
