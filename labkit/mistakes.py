"""What a notebook shows of a mistake in what labkit was asked for: a sentence, and the line."""

from __future__ import annotations

import functools
import linecache
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from labkit.record.lines import is_library_file

P = ParamSpec("P")
R = TypeVar("R")

_WIDTH = 96  # characters: JupyterLab breaks longer lines in the middle of a word
_HERE = f"{Path(__file__).parent}/"


def told_plainly(function: Callable[P, R]) -> Callable[P, R]:
    """For functions that notebooks call: what labkit says of its arguments is shown without a traceback.

    Such an exception comes from a `raise` of labkit's, or from the call itself where arguments do not fit; an
    OSError may come from any library. Its type, its text and, for programs, its traceback stay. What other
    code raises meanwhile, or labkit without having meant to, is shown as ever. IPython shows a SyntaxError in
    its own way: of that the frames go.
    """

    @functools.wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except SyntaxError as error:
            if _of_labkit(error):
                error.__traceback__ = None
            raise
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            if _of_labkit(error) and _meant(error):
                show_plainly(error)
            raise

    return asked


def show_plainly(error: BaseException) -> None:
    """Have notebooks show `error` as its text below the line that it comes from, if it has no own way."""
    if not hasattr(error, "_render_traceback_"):
        # IPython's own hook for this; and errors are pickled, which a function made here cannot be
        error._render_traceback_ = functools.partial(_lines, error)  # type: ignore[attr-defined]


def _lines(error: BaseException) -> list[str]:
    shown = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not is_library_file(file):
            shown = [f"--> {linecache.getline(file, line).strip()}"]
    text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    return [*(part for line in text.splitlines() for part in _wrapped(line)), *shown]


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _below(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames below the function that was asked, outermost first, with their lines."""
    return list(traceback.walk_tb(error.__traceback__))[1:]


def _of_labkit(error: BaseException) -> bool:
    return all(is_library_file(frame.f_code.co_filename) for frame, _ in _below(error))


def _meant(error: BaseException) -> bool:
    """Whether it is something that a person is to read."""
    below = _below(error)
    if not below or isinstance(error, OSError):
        return True
    frame, line = below[-1]
    file = frame.f_code.co_filename
    return file.startswith(_HERE) and linecache.getline(file, line).strip().startswith("raise ")
