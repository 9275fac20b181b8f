"""No sandbox: student code runs as whoever grades, for trying the grader out. Every grade is marked."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

import labkit
from autograder.sandbox.sandbox import Sandbox, Started, spawn
from autograder.sandbox.usage import Traffic, Usage, end_all, in_use


@dataclass(frozen=True, kw_only=True)
class Unconfined(Sandbox):
    """Confines nothing."""

    name: ClassVar[str] = "none"

    def start(self, requests: Path, hide: Sequence[str]) -> Started:
        """See `Sandbox.start`; nothing is hidden."""
        course = Path(labkit.__file__).parents[1]
        out = tempfile.TemporaryDirectory(prefix="unconfined-")
        command = [
            *(sys.executable, "-s", "-E", "-B", str(Path(__file__).with_name("inside.py"))),
            *(str(requests), out.name, str(course), "{}", "together"),
        ]
        return _Started(spawn(command, (), None), out)


class _Started(Started):
    def __init__(self, process: subprocess.Popen[bytes], out: tempfile.TemporaryDirectory[str]) -> None:
        self.process, self._out = process, out

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> Path:
        return Path(self._out.name)

    def usage(self) -> Usage:
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return Usage()
        return Usage(*in_use(Path(f"/proc/{child.pid}") for child in children))

    def traffic(self) -> Traffic | None:
        return None

    def end(self) -> None:
        if self.process.poll() is None:
            end_all(self.process.pid)
        try:
            super().end()
        finally:
            self._out.cleanup()
