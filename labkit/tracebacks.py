"""What a notebook shows of errors: of what labkit refuses in words, the line that asked for it and the words.

Pages of labkit's own source say no more about a wrong argument than the last line does. Programs see all.
"""

from __future__ import annotations

import dis
import os
import textwrap
from itertools import takewhile
from pathlib import Path
from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell

from labkit import unfinished
from labkit.record.lines import is_library_file

_OURS = f"{Path(__file__).parent}{os.sep}"
_WIDTH = 104  # characters in a line beside JupyterLab's file browser; it breaks longer ones inside a word


def install(shell: InteractiveShell) -> None:
    """Have `shell` show less of these; all others keep their tracebacks."""
    shell.set_custom_exc((Exception,), _show)


def uninstall(shell: InteractiveShell) -> None:
    """Undo `install`."""
    shell.set_custom_exc((), None)


def _show(
    shell: InteractiveShell,
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType,
    tb_offset: int | None = None,
) -> None:
    if told := unfinished.explain(error, shell.user_ns.get("In", [])):
        _have_shown(error, _wrapped(told))
    callers = up_to_the_call(traceback, error)
    if callers is not None:
        error.__cause__ = None  # whose frames are labkit's, too
        if not isinstance(error, SyntaxError) and not hasattr(error, "_render_traceback_"):
            *frames, told = shell.InteractiveTB.structured_traceback(kind, error, callers, tb_offset)
            if kind is KeyError:
                told = told.replace(str(error), str(error.args[0]))  # its own text is in quotes
            _have_shown(error, [*frames, *_wrapped(told)])
    # Of a SyntaxError IPython shows frames if it is told that code ran: none did where a cell is no Python.
    ran = callers is None and not all(map(_is_librarys, _all(traceback)))
    shell.showtraceback((kind, error, callers or traceback), tb_offset=tb_offset, running_compiled_code=ran)


def _have_shown(error: BaseException, lines: list[str]) -> None:
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # IPython's own hook for this


def up_to_the_call(traceback: TracebackType, error: BaseException) -> TracebackType | None:
    """Its frames down to the line that called labkit, if labkit has something to say of the call; else None.

    So it has where it ends at a `raise` of labkit's own. What the system refuses, and what is no Python, may
    be told by any library that labkit called. Other errors are mistakes of labkit's: where they were made
    matters.
    """
    frames = _all(traceback)
    callers = list(takewhile(lambda frame: not _is_ours(frame), frames))
    if isinstance(error, OSError | SyntaxError):
        meant = len(callers) < len(frames) and all(map(_is_librarys, frames[len(callers) :]))
    else:
        meant = _is_ours(frames[-1]) and _is_raise(frames[-1])
    if not meant:
        return None
    while len(callers) > 1 and callers[-1].tb_frame.f_code.co_filename == "<string>":
        callers.pop()  # the `__init__` that a dataclass of ours has been given
    cut = None
    for each in reversed(callers):
        cut = TracebackType(cut, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return cut


def _all(traceback: TracebackType) -> list[TracebackType]:
    frames = [traceback]
    while (inner := frames[-1].tb_next) is not None:
        frames.append(inner)
    return frames


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)


def _is_librarys(frame: TracebackType) -> bool:
    return is_library_file(frame.tb_frame.f_code.co_filename)


def _is_raise(frame: TracebackType) -> bool:
    return dis.opname[frame.tb_frame.f_code.co_code[frame.tb_lasti]] == "RAISE_VARARGS"


def _wrapped(text: str) -> list[str]:
    return [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(
            line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    ]
