"""`%load_ext labkit`: the cell magics `%%ranks` and `%%torchrun`, and `%ranks`."""

from __future__ import annotations

import os
import re
import sys
import traceback
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from keyword import iskeyword
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.utils.text import DollarFormatter

from labkit import tracebacks
from labkit.launch import client
from labkit.launch.background import RunningCell
from labkit.launch.cell import CellOptions, CellResult
from labkit.launch.debugger import debug
from labkit.launch.failure.errors import LaunchError, locals_text
from labkit.launch.handover.request import LONGEST_TIMEOUT, check_timeout
from labkit.launch.names import current_cell
from labkit.launch.render import progress_html
from labkit.launch.screen import Screen, shell
from labkit.launch.session import Session
from labkit.launch.session import session as new_session
from labkit.launch.staying_ranks import NotNow
from labkit.launch.torchrun import run_script
from labkit.record.trace import TraceFile, trace
from labkit.scripts import write_script

_RANK_OR_NUMBER = re.compile(r"--rank[\s=]\s*[\d,]+\s+\d")  # is the last another rank, or how many?


def _rank_list(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected ranks such as 0,2 and found {text!r}") from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(name.isidentifier() for name in names):
        raise ArgumentTypeError(f"expected names such as model,optimizer and found {text!r}")
    return names


def _name(text: str) -> str:
    if not text.isidentifier() or iskeyword(text):
        raise ArgumentTypeError(f"expected a name such as job and found {text!r}")
    return text


def _rank_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected how many ranks, such as 4, and found {text!r}")
    return int(text)


def _path(text: str) -> Path:
    """A path as it is typed: IPython leaves quotes on, and ~ as it is. Where nobody is called so, ~ stays."""
    bare = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    return Path(os.path.expanduser(bare))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number and found {text!r}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
        check_timeout(seconds)
    except ValueError:
        days = LONGEST_TIMEOUT // 86400
        told = f"expected a number of seconds, more than 0 and at most {days} days, and found {text!r}"
        raise ArgumentTypeError(told) from None
    return seconds


def _parsed(magic: Any, sign: str, line: str) -> Any:
    """What the line of a magic asks for. UsageError says what is wrong with it. sign: "%%ranks"."""
    try:
        return parse_argstring(magic, line)
    except UsageError as problem:
        told = f"{sign} {line}: {problem}"
        if "unrecognized" in told:
            usage = magic.parser.format_usage().split()  # "::", the magic's name, what may stand behind it
            told += f". There is {sign} {' '.join(usage[2:])}"
        raise UsageError(told) from None
    except ValueError as problem:  # of shlex
        raise UsageError(f"{sign} {line}: a quotation mark is missing ({problem})") from None


@contextmanager
def _in_a_line(sign: str) -> Iterator[None]:
    """UsageError, which is one line in a notebook, for what labkit or the system refuses."""
    try:
        yield
    except OSError as error:
        told = ": ".join(str(part) for part in (error.strerror or error, error.filename) if part)
        raise UsageError(f"{sign}: {told}") from None
    except (NotNow, ValueError) as error:
        raise UsageError(f"{sign}: {error}") from None


def _new_session(ranks: int | None, options: Any, there: Session | None) -> Session:
    nodes = 1 if options.nodes is None else options.nodes
    return new_session(ranks, nodes=nodes, seed=options.seed, queue=options.queue, instead_of=there)


def _trace(session: Session, path: Path) -> TraceFile:
    """What the last cell did, as a file. UsageError where there is nothing to write, or nowhere."""
    try:
        return trace(session.record(), path)
    except NotNow as problem:
        raise UsageError(f"%ranks trace: {problem}") from None
    except OSError as error:
        raise UsageError(f"%ranks trace: {path} cannot be written: {error.strerror}") from None


@magics_class
class RanksMagics(Magics):
    """The magics of one notebook, and its session of ranks."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.session: Session | None = None

    @no_var_expand  # what the debugger is told has `{names}` of the rank's
    @magic_arguments()
    @argument("what", nargs="?", help="how many ranks; without a cell: status, stop, restart or trace")
    @argument("file", nargs="?", help="where `%ranks trace` writes")
    @argument(
        "--nodes", type=_whole, default=None, help="spread the ranks over this many nodes of a Slurm cluster"
    )
    @argument("--queue", type=_seconds, default=None, help="seconds new ranks on nodes may wait for a turn")
    @argument("--rank", type=_rank_list, default=None, help="only these ranks, such as 0,2")
    @argument("--seed", type=_whole, default=None, help="for the random numbers of new ranks, as in launch")
    @argument("--push", type=_names, default=(), help="send the notebook's values of names such as a,b")
    @argument(
        "--async",
        dest="handle",
        type=_name,
        default=None,
        metavar="NAME",
        help="do not wait: NAME.result() does",
    )
    @argument("--fresh", action="store_true", help="start new ranks first, without the variables")
    @argument("--timeout", type=_seconds, default=60.0, help="seconds until the cell is ended")
    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Run a cell on every rank of a session that stays alive between cells.

        %%ranks 4            run the cell on 4 ranks; `rank` and `world_size` are defined, variables persist
        %%ranks 8 --nodes 2  on 8 ranks of two nodes
        %%ranks --push model  also with the notebook's `model`, whatever the ranks have under that name
        %%ranks --async job  without waiting for it
        %ranks           what each rank does now
        %ranks stop      end the ranks      %ranks restart    fresh ranks
        %ranks locals 2  after an error: the variables of the lines where rank 2 failed
        %ranks debug 2   after an error: a debugger (pdb) where rank 2 failed; `%ranks debug 2 p x` asks once
        %ranks trace step.json       what the last cell did, as a trace of all ranks (`labkit.trace`)
        """
        what, _, detail = line.strip().partition(" ")
        if cell is None and what == "debug":
            rank, space, command = detail.strip().partition(" ")
            debug(self.session, _filled_in(self.shell, rank) + space + command)
            return
        line = _filled_in(self.shell, line)
        options = _parsed(self.ranks, "%ranks" if cell is None else "%%ranks", line)
        if cell is None:
            if given := _for_a_cell(options):
                raise UsageError(f"%ranks {line}: {', '.join(given)} would be for %%ranks, which runs a cell")
            self._manage(options.what or "status", options.file)
        elif _RANK_OR_NUMBER.search(line):
            told = "ranks have commas between them, as --rank 0,2, and how many there are comes before --rank"
            raise UsageError(f"%%ranks {line}: {told}")
        elif options.file is not None:
            raise UsageError(
                f"%%ranks {line}: expected one number of ranks, found {options.file!r} behind it"
            )
        else:
            with _in_a_line("%%ranks"):
                session = self._session(_count(options.what), options)
            self._run(cell, session, options)

    def _manage(self, what: str, detail: str | None) -> None:
        fits = {
            "status": detail is None,
            "stop": detail is None,
            "restart": detail is None,
            "trace": detail is not None,
            "locals": detail is None or detail.isdecimal(),
        }
        if not fits.get(what):
            asked = " ".join(filter(None, (what, detail)))
            told = "expected status, stop, restart, trace FILE, locals RANK, debug RANK (%%ranks runs a cell)"
            raise UsageError(f"%ranks {asked}: {told}")
        if what == "locals":
            print(self._locals(None if detail is None else int(detail)))
        elif self.session is None:
            print("no ranks are running: a cell that starts with %%ranks 4 starts four")
        elif what == "status":
            print("\n".join([repr(self.session), *self.session.status()]))
        elif what == "stop":
            self.session.stop()
            self.session = None
        elif detail is not None:
            print(_trace(self.session, _path(detail)))
        else:
            with _in_a_line("%ranks restart"):
                self.session.restart()

    def _locals(self, rank: int | None) -> str:
        failure = self.session.failure if self.session is not None else None
        if failure is None:
            return "no cell has failed on ranks since the last that did not"
        return locals_text(failure.diagnosis, rank)

    def _run(self, cell: str, session: Session, options: Any) -> None:
        assert self.shell is not None
        wrong = [rank for rank in options.rank or () if not 0 <= rank < session.ranks]
        if wrong:
            raise UsageError(f"%%ranks --rank {wrong[0]}: the session has ranks 0 to {session.ranks - 1}")
        file = current_cell() or f"In[{self.shell.execution_count}]"
        screen = _CellScreen(session)
        wanted: CellOptions = {
            "ranks": options.rank,
            "timeout": options.timeout,
            "push": options.push,
            "names": self.shell.user_ns,
            "file": file,
            "reload": _reloads(self.shell),
        }
        try:
            with _in_a_line("%%ranks"):
                cell = _as_python(self.shell, cell)
                if options.handle is not None:
                    self._start(options.handle, session.run_async(cell, **wanted))
                    return
                result = session.run(cell, watch=screen.watch, **wanted)
        except SyntaxError as error:
            raise CellSyntaxError(error) from None
        except LaunchError as error:
            printed = CellResult(tuple(range(len(error.output))), dict(enumerate(error.output)))
            screen.finish(session.until_failure or printed)
            raise
        screen.finish(result)

    def _start(self, name: str, running: RunningCell) -> None:
        assert self.shell is not None
        self.shell.push({name: running})
        print(f"{name} runs: {name}.result() waits for it, {name}.done tells, {name}.interrupt() stops it")

    def _session(self, ranks: int | None, options: Any) -> Session:
        """The session that fits what is asked for: the one that there is, where nothing else is asked for."""
        there = self.session
        if (
            there is None
            or ranks not in (None, there.ranks)
            or options.nodes not in (None, there.nodes)
            or options.seed not in (None, there.seed)
        ):
            self.session = there = _new_session(ranks, options, there)
            for note in there.notes:
                print(note)
        elif options.fresh:
            there.restart()
        return there

    @magic_arguments()
    @argument("--nproc-per-node", "--nproc_per_node", type=_rank_count, default=2, help="how many ranks")
    @argument("--timeout", type=_seconds, default=120.0, help="seconds until it is ended")
    @argument("--script", type=_path, default=Path("torchrun_cell.py"), help="where the cell is written")
    @cell_magic
    def torchrun(self, line: str, cell: str) -> None:
        """Write the cell to a script and run it with torch's own torchrun command, which is shown."""
        options = _parsed(self.torchrun, "%%torchrun", line)
        another = "--script FILE names another file"
        try:
            write_script(options.script, cell)
        except OSError as error:
            told = f"%%torchrun: the cell cannot be written to {options.script}: {error.strerror}"
            raise UsageError(f"{told}; {another}") from None
        except ValueError as error:
            raise UsageError(f"%%torchrun: {error}; {another}") from None
        run_script(options.script, options.nproc_per_node, options.timeout, sys.stdout.write)


class CellSyntaxError(Exception):
    """A cell that is not Python. IPython would show a SyntaxError that a magic raises with our frames."""

    def _render_traceback_(self) -> list[str]:
        return "".join(traceback.format_exception_only(self.args[0])).splitlines()


class _CellScreen:
    """Shows a cell's result as it grows: as tabs in a notebook, as text elsewhere when it is complete."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = Screen()

    def watch(self, result: CellResult) -> None:
        """The cell is running."""
        if shell() is None:
            return
        html = progress_html(self._session.progress()) + result._repr_html_()
        if html:
            self._screen.draw(html, repr(result))

    def finish(self, result: CellResult) -> None:
        """The cell is done."""
        text = repr(result)
        if shell() is None:
            print(text, end="\n" if text else "")
            return
        html = result._repr_html_()
        if html or self._screen.used:
            self._screen.draw(html, text, final=True)


def _filled_in(shell: InteractiveShell | None, line: str) -> str:
    """With the notebook's values of `{expressions}` and `$names`, as IPython has them in a magic's line."""
    assert shell is not None
    try:
        return DollarFormatter().vformat(line, [], shell.user_ns)
    except Exception:  # they are no names of the notebook's: the line is as it stands
        return line


def _as_python(shell: InteractiveShell, cell: str) -> str:
    """The cell with what is IPython's own spelt out, on the lines where it was: below the magic's own."""
    body = cell.lstrip("\n")
    return "\n" * (1 + len(cell) - len(body)) + shell.transform_cell(body)


def _reloads(shell: InteractiveShell) -> bool:
    """Whether the notebook imports edited modules again by itself (`%autoreload`)."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    return bool(getattr(getattr(magics, "_reloader", None), "enabled", False))


def _for_a_cell(options: Any) -> list[str]:
    """The options that somebody has given and that say how a cell is run."""
    names = {"handle": "async"}
    defaults = vars(parse_argstring(RanksMagics.ranks, ""))
    unlike = [name for name, value in vars(options).items() if value != defaults[name]]
    return [f"--{names.get(name, name)}" for name in unlike if name not in ("what", "file")]


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return _rank_count(text)
    except ArgumentTypeError:
        raise UsageError(f"%%ranks {text}: expected how many ranks, such as %%ranks 4") from None


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Called by `%load_ext labkit`. Starts the engine, which imports torch while the notebook goes on."""
    ipython.register_magics(RanksMagics(ipython))
    tracebacks.install(ipython)
    client.engine()


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """Called by `%unload_ext labkit`, and by `%reload_ext`: ends the engine and every rank."""
    tracebacks.uninstall(ipython)
    manager = ipython.magics_manager
    magics = manager.registry.pop(RanksMagics.__name__, None)
    if isinstance(magics, RanksMagics) and magics.session is not None:
        magics.session.stop()
        print(f"labkit has ended the {magics.session.ranks} ranks of %%ranks: their variables are gone")
    for known in manager.magics.values():
        for name in ("ranks", "torchrun"):
            known.pop(name, None)
    client.shut_down()
