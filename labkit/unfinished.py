"""Short words in place of tracebacks for cells that ran before their exercise was written.

A cell below an unsolved exercise cannot work, and a page of frames says no more about that than one line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

STUB = re.compile(r"\d\d\.[\w-]+: not written yet")  # what the stub of every exercise raises

_WIDTH = 104  # characters in a line beside JupyterLab's file browser; it breaks longer ones inside a word


def shorten(error: BaseException, cells: Sequence[str]) -> None:
    """Have IPython show `error` in the words of `explain`, where there are any."""
    text = explain(error, cells)
    if text:
        lines = textwrap.wrap(
            text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # IPython's own hook for this


def explain(error: BaseException, cells: Sequence[str]) -> str:
    """What to say of `error` in a notebook that ran `cells` (the last one failed); "" for nothing.

    A stub's error says which exercise to write. A missing name is explained when an earlier cell assigns it:
    that cell failed, or stopped before it got there.
    """
    if isinstance(error, NotImplementedError) and STUB.fullmatch(str(error)):
        return f"NotImplementedError: {error}. Write this exercise, run its cell, then run this one."
    if not isinstance(error, NameError) or not error.name:
        return ""
    assigns = re.compile(rf"^[\w, ]*\b{re.escape(error.name)}\b[\w, ]* = ", re.MULTILINE)
    number = max((n for n, cell in enumerate(cells[:-1]) if assigns.search(cell)), default=0)
    if not number:
        return ""
    return f"NameError: {error}. Cell In[{number}] should have made it: get that one to run first."
