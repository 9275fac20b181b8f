"""A cell that runs on ranks while the notebook goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from labkit.launch import render
from labkit.launch.cell import CellResult
from labkit.launch.failure.errors import LaunchError


class RunningCell:
    """What `Session.run_async` gives: `done`, `result()`, `interrupt()`.

    work: does the cell.  stop: has the ranks, of which there are `ranks`, stop it.
    """

    def __init__(self, work: Callable[[], CellResult], stop: Callable[[], object], ranks: int) -> None:
        self._work, self._stop, self._ranks = work, stop, ranks
        self._found: CellResult | BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the cell has ended, one way or the other."""
        return not self._thread.is_alive()

    def result(self, timeout: float | None = None) -> CellResult:
        """Wait for the cell; what it did, or the LaunchError of it raised. TimeoutError: it still runs."""
        self._thread.join(timeout)
        if isinstance(self._found, BaseException):
            raise self._found
        if self._found is None:
            raise TimeoutError(f"the cell still runs after {timeout} s: wait longer, or call interrupt()")
        return self._found

    def interrupt(self) -> None:
        """Have the ranks stop the cell, as an interrupt of the notebook does for one that it waits for."""
        if not self.done:
            self._stop()

    def _run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._found = error

    def __repr__(self) -> str:
        return f"RunningCell, {self._state()}"

    def _repr_html_(self) -> str:
        line = render.line_html(f"{self._ranks} ranks · {self._state()}")
        return line + (self._found._repr_html_() if isinstance(self._found, CellResult) else "")

    def _state(self) -> str:
        if not self.done:
            return "running: .result() waits for it"
        if isinstance(self._found, LaunchError):
            return f"failed: {self._found.verdict}"
        return "failed" if isinstance(self._found, BaseException) else "finished"
