"""Drives a notebook in a real JupyterLab, as a student would: the menu, the keyboard, what is on the page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from playwright.sync_api import BrowserContext, Locator, Page, expect, sync_playwright

from labkit.doctor import find_browser

# Every cell is on the page at once, so that what is asked of the page is asked of the whole notebook.
SETTINGS = {"@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}'}

THEMES = ("JupyterLab Light", "JupyterLab Dark")

SCALE = 1.5 if "LABKIT_SCREENSHOTS" in os.environ else 1  # pictures that are kept are sharp


@contextmanager
def jupyter_lab(root: Path, home: Path) -> Iterator[str]:
    """`labkit lab` on `root`, with an empty home; yields its URL. At the end nothing of it may be left."""
    for name, text in SETTINGS.items():
        _set(home, name, text)
    command = [sys.executable, "-m", "labkit.cli", "lab", "--root", str(root), "--no-browser"]
    environment = {**os.environ, "HOME": str(home), "SSH_CONNECTION": ""}
    environment.pop("SSH_CONNECTION")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield _announced_url(server)
        finally:
            family = psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGINT)
            _, left = psutil.wait_procs([psutil.Process(server.pid), *family], timeout=20)
            for process in left:
                process.kill()
    assert not left, f"still running after JupyterLab ended: {left}"


def choose_theme(home: Path, theme: str) -> None:
    """The JupyterLab that will run with this home looks like this: one of `THEMES`."""
    _set(home, "@jupyterlab/apputils-extension/themes.jupyterlab-settings", json.dumps({"theme": theme}))


def _set(home: Path, name: str, text: str) -> None:
    path = home / ".jupyter" / "lab" / "user-settings" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _announced_url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError(f"labkit lab ended with {server.wait()} before it said where it is")


@contextmanager
def browser() -> Iterator[BrowserContext]:
    """The system's Chromium, its pages wide enough for a notebook; they share what it has loaded."""
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=find_browser(), args=options)
        try:
            context = started.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=SCALE)
            context.set_default_timeout(60_000)
            yield context
        finally:
            started.close()


@contextmanager
def browser_page() -> Iterator[Page]:
    """One page of a Chromium of its own."""
    with browser() as context:
        yield context.new_page()


@dataclass
class NotebookPage:
    """One open notebook."""

    page: Page

    @classmethod
    @contextmanager
    def open(cls, page: Page, url: str, path: str) -> Iterator[NotebookPage]:
        """Open the notebook at `path` below the root; wait until its cells are there and its kernel rests.

        At the end its kernel is shut down, and its ranks with it.
        """
        page.goto(url.replace("/lab?", f"/lab/tree/{path}?reset&"))  # nothing of the notebook before
        expect(page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=60_000)
        expect(page.locator("#jp-main-statusbar")).to_contain_text(
            "Python 3 (ipykernel) | Idle", timeout=60_000
        )
        page.wait_for_load_state("networkidle")
        yield cls(page)
        page.get_by_role("menuitem", name="Kernel", exact=True).click()
        page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
        expect(page.locator("#jp-main-statusbar")).to_contain_text("No Kernel")

    @property
    def code_cells(self) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell")

    def run_all(self, file: Path, seconds: float) -> nbformat.NotebookNode:
        """Run > Run All Cells; returns the notebook saved to `file` when all cells ran, or one failed."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        deadline = time.monotonic() + seconds
        while True:
            self.page.wait_for_timeout(500)
            expect(self.page.locator(".jp-InputPrompt", has_text="[*]")).to_have_count(
                0, timeout=seconds * 1000
            )
            notebook = self.save(file)
            code = [cell for cell in notebook.cells if cell.cell_type == "code"]
            failed = any(output.output_type == "error" for cell in code for output in cell.outputs)
            if failed or all(cell.execution_count for cell in code):
                return notebook
            assert time.monotonic() < deadline, f"cells still to run after {seconds} s"

    def save(self, file: Path) -> nbformat.NotebookNode:
        """Save until nothing is unsaved (a running cell makes it so again), and read what is on disk."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.page.keyboard.press("Control+s")
            self.page.wait_for_timeout(500)
            if self.page.locator(".jp-mod-dirty").count() == 0:
                with suppress(nbformat.reader.NotJSONError):  # read while Jupyter writes it once more
                    return nbformat.read(file, as_version=4)
        raise AssertionError("the notebook cannot be saved")

    def screenshot(self, at: Locator, path: Path) -> None:
        """What a student sees with `at` at the top of the window."""
        at.evaluate("element => element.scrollIntoView({block: 'start'})")
        self.page.wait_for_timeout(300)  # fonts, formulas and figures settle
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path)
