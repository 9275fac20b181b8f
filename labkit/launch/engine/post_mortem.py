"""pdb on the frames in which a cell failed, one command at a time: nobody is at a rank's keyboard."""

from __future__ import annotations

import io
import linecache
import pdb
import re
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from types import TracebackType

from labkit.record.lines import is_library_file

LONGEST_ANSWER = 20000  # characters
_COMMANDS = """\
w               where it failed: all frames, the innermost last
u, d            one frame up or down         (u 2: two)
l, ll           the source around the line, or of the whole function
a               the arguments of the function
p X, pp X       the value of an expression   (X alone works too, where X is not a command)
whatis X        its type;   source X: the source of a function or class
! STATEMENT     run a statement in the frame
q               leave the debugger"""
_KNOWN = (
    *("w", "where", "bt", "u", "up", "d", "down", "l", "list", "ll", "longlist", "a", "args", "p", "pp"),
    *("whatis", "source", "h", "help"),
)


class PostMortem(pdb.Pdb):
    """The debugger of one exception. It begins at the innermost frame that is the person's own."""

    def __init__(self, error: BaseException) -> None:
        self._text = io.StringIO()
        self._names: dict[str, str] = {}  # how the person knows files
        super().__init__(stdin=io.StringIO(), stdout=self._text, nosigint=True, readrc=False)
        self._error = error
        self._begin()

    def _begin(self) -> None:
        self.reset()
        self.setup(None, _from_own_frame(self._error.__traceback__))
        inner = next((n for n, (frame, _) in enumerate(reversed(self.stack)) if _is_own(frame)), 0)
        if inner:
            self.do_up(str(inner))
        self._clear()

    def _clear(self) -> None:
        self._text.seek(0)
        self._text.truncate()

    def answer(self, line: str | None, cells: Mapping[str, tuple[str, str]]) -> str:
        """What pdb prints for a command; None: what failed, and where, from which commands go on.

        cells: of the notebook, name and source by file name; pdb shows their lines.
        """
        for file, (name, source) in cells.items():
            self._names[file] = name
            for known in (file, name):
                lines = source.splitlines(keepends=True)
                linecache.cache.setdefault(known, (len(source), None, lines, known))  # its own cells it has
        self._clear()
        with redirect_stdout(self._text), redirect_stderr(self._text):
            if line is None:
                self._begin()
                print(f"{type(self._error).__name__}: {self._error}")
                self.print_stack_entry(self.stack[self.curindex])
            else:
                self._do(line)
        text = self._text.getvalue()
        return text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]}…\n"

    def canonic(self, filename: str) -> str:
        """A file's name as it is shown: a cell's is In[3]."""
        return self._names.get(filename, filename)

    def do_help(self, arg: str) -> None:
        """The commands that mean something when nothing runs any more."""
        self.message(_COMMANDS)

    do_h = do_help

    def _do(self, line: str) -> None:
        """A command, or several with ;; between them."""
        self.cmdqueue = [line]
        while self.cmdqueue:
            line = re.sub(r"^\s*!\s*", "!", self.precmd(self.cmdqueue.pop(0)))
            name = self.parseline(line)[0]
            if name and name not in _KNOWN and hasattr(self, f"do_{name}"):
                self.error(
                    f"{name}: the line has failed, and nothing runs on from there; h lists what there is. "
                    f"For a variable of that name: p {name}, or ! {name} = ..."
                )
            else:
                self.onecmd(line)


def _is_own(frame: object) -> bool:
    return not is_library_file(frame.f_code.co_filename)  # type: ignore[attr-defined]


def _from_own_frame(traceback: TracebackType | None) -> TracebackType | None:
    """Without our frames that lead to the cell; all of them where none is the person's."""
    at = traceback
    while at is not None and not _is_own(at.tb_frame):
        at = at.tb_next
    return at or traceback
