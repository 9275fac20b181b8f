"""File names as the person at the notebook knows them: a cell is In[3], not /tmp/ipykernel_12/345.py."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

from labkit.launch.failure.errors import Diagnosis, Frame, RankReport

_PLACE = re.compile(r"(/[^\s:]+\.py|<ipython-input[^>]*>):(\d+)")


def readable_file(file: str) -> str:
    """In[3] for a cell of this kernel; a path below the current directory without it; else the path."""
    cells = _cells()
    if file in cells:
        return f"In[{cells[file]}]"
    with suppress(FileNotFoundError):  # that directory may be gone
        return file.removeprefix(os.getcwd() + "/")
    return file


def cell_sources() -> dict[str, tuple[str, str]]:
    """The cells of this notebook: by the file name that each was compiled under, In[3] and its source."""
    known = {file: linecache.getlines(file) for file in _cells()}
    return {file: (readable_file(file), "".join(lines)) for file, lines in known.items()}


def current_cell() -> str:
    """The cell that is being executed, as In[3]; "" outside a notebook."""
    cells = _cells()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in cells:
            return f"In[{cells[frame.f_code.co_filename]}]"
        frame = frame.f_back
    return ""


def _cells() -> Mapping[str, int]:
    """The file names that IPython compiles cells under, and the cells' numbers."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    found: Mapping[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return found


def readable_text(text: str) -> str:
    """The same for every "file:line" in a sentence."""
    return _PLACE.sub(lambda found: f"{readable_file(found[1])}:{found[2]}", text)


def readable(diagnosis: Diagnosis) -> Diagnosis:
    """A diagnosis with readable places, and source lines that only this process has (a notebook's cells)."""
    ranks = tuple(_readable_report(report) for report in diagnosis.ranks)
    return replace(diagnosis, summary=readable_text(diagnosis.summary), ranks=ranks)


def _readable_report(report: RankReport) -> RankReport:
    related = tuple(replace(one, traceback=_readable_frames(one.traceback)) for one in report.related)
    frames = _readable_frames(report.traceback)
    return replace(report, line=readable_text(report.line), traceback=frames, related=related)


def _readable_frames(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(_readable_frame(frame) for frame in frames)


def _readable_frame(frame: Frame) -> Frame:
    source = frame.source or linecache.getline(frame.file, frame.line).strip()
    return replace(frame, file=readable_file(frame.file), source=source)
