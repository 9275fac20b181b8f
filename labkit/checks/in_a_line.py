"""Errors that a notebook shows as what they say: the frames below the cell's line are labkit's."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator

_WIDTH = 104  # characters in a line beside JupyterLab's file browser; it breaks longer ones inside a word


@contextlib.contextmanager
def in_a_line(*kinds: type[Exception]) -> Iterator[None]:
    """Lets errors of these kinds through as they are, and has IPython show their type and text alone."""
    try:
        yield
    except kinds as error:
        lines = _lines(error)
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # IPython's own hook for this
        raise


def _lines(error: Exception) -> list[str]:
    text = error.args[0] if type(error) is KeyError and error.args else error  # whose own text has quotes
    told = f"{type(error).__name__}: {text}".splitlines()
    return [
        textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in told
    ]
