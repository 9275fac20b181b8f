"""What a notebook shows of errors: of what labkit refuses in words, the line that asked for it and the words.

Pages of labkit's own source say no more about a wrong argument than the last line does.
"""

from __future__ import annotations

import dis
import os
from itertools import takewhile
from pathlib import Path
from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell

from labkit import unfinished

_OURS = f"{Path(__file__).parent}{os.sep}"
# Not SyntaxError and its like, which IPython shows in ways of its own.
_KINDS = (NameError, NotImplementedError, ValueError, TypeError, LookupError, RuntimeError, OSError)


def install(shell: InteractiveShell) -> None:
    """Have `shell` show less of these; all others keep their tracebacks."""
    shell.set_custom_exc((*_KINDS, AttributeError, ImportError), _show)


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
    if isinstance(error, NameError | NotImplementedError):
        unfinished.shorten(error, shell.user_ns.get("In", []))
    callers = up_to_the_call(traceback)
    if callers is not None:
        error.__cause__ = None  # whose frames are labkit's, too
    shown = (kind, error, callers or traceback)
    shell.showtraceback(shown, tb_offset=tb_offset, running_compiled_code=True)


def up_to_the_call(traceback: TracebackType) -> TracebackType | None:
    """Its frames down to the line that called labkit, if it ends at a `raise` of labkit's own; else None.

    Other errors in labkit's code are mistakes of labkit's: where they were made matters.
    """
    frames = [traceback]
    while (inner := frames[-1].tb_next) is not None:
        frames.append(inner)
    if not (_is_ours(frames[-1]) and _is_raise(frames[-1])):
        return None
    callers = list(takewhile(lambda frame: not _is_ours(frame), frames))
    while len(callers) > 1 and callers[-1].tb_frame.f_code.co_filename == "<string>":
        callers.pop()  # the `__init__` that a dataclass of ours has been given
    cut = None
    for each in reversed(callers):
        cut = TracebackType(cut, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return cut


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)


def _is_raise(frame: TracebackType) -> bool:
    return dis.opname[frame.tb_frame.f_code.co_code[frame.tb_lasti]] == "RAISE_VARARGS"
