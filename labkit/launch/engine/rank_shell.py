"""What a notebook's cell finds in IPython, for cells on ranks: `display`, `!commands`, some magics, `await`.

Ranks do without IPython, which takes half a second to import and is not on every cluster. The notebook has
turned `!ls` and `%time f()` into calls of `get_ipython()` before the cell comes here.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import html
import inspect
import linecache
import os
import re
import shlex
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from labkit.launch.engine.rich import forget_figures, open_figures, rich

LONGEST_TEXT = 20000  # characters of a cell's last expression
LARGEST_SHOWN = 4 << 20  # characters of everything that a cell shows

_FIELD = re.compile(r"\{([^{}]+)\}|\$(\w+)")
_PROGRAMS = ("ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "man")  # which IPython has as magics


class RankShell:
    """Runs cells in a namespace that stays."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._shown: list[tuple[str, str]] = []  # text, and HTML where there is some
        self._loop: asyncio.AbstractEventLoop | None = None
        builtins.get_ipython = lambda: self  # type: ignore[attr-defined]
        builtins.display = self.display  # type: ignore[attr-defined]
        builtins.input = _no_input
        sys.breakpointhook = _no_debugger
        if os.environ.get("MPLBACKEND", "inline").endswith("inline"):
            os.environ["MPLBACKEND"] = "module://labkit.launch.engine.figures"

    def run(self, source: str, file: str) -> dict[str, str]:
        """Run a cell: its last expression as text ("value"), what it showed as text and HTML."""
        self._shown.clear()
        value = self._execute(source, file)
        self.display(*open_figures())
        if value is None:
            return self._taken("", "")
        self.namespace["_"] = value
        text = repr(value)[:LONGEST_TEXT]
        return {**self._taken(text, rich(value)), "value": text}

    def until_failure(self) -> dict[str, str]:
        """The same of a cell that has failed. Its open figures are gone: to draw them may take seconds."""
        with suppress(Exception):  # what somebody has pyplot do then: the error to be told is the cell's
            forget_figures()
        return self._taken("", "")

    def _taken(self, text: str, form: str) -> dict[str, str]:
        """What the cell showed, which is then nobody's; text, form: of its last expression."""
        shown = "".join(f"{text}\n" for text, _ in self._shown)
        taken = {"displayed": shown, "html": self._html(text, form)}
        self._shown.clear()
        return taken

    def display(self, *values: Any, **_: Any) -> None:
        """Show values in the rank's tab, below what the cell prints."""
        for value in values:
            if value is not None:
                self._shown.append((repr(value)[:LONGEST_TEXT], rich(value)))

    def _html(self, text: str, form: str) -> str:
        """Everything that is shown, in order; "" where nothing of it is more than text."""
        pieces = [*self._shown, *([(text, form)] if text else [])]
        if not self._shown and not form:
            return ""
        parts = [form or f"<pre>{html.escape(text)}</pre>" for text, form in pieces]
        whole = "".join(parts)
        if len(whole) <= LARGEST_SHOWN:
            return whole
        size = f"{len(whole) / 2**20:.0f} MiB, more than {LARGEST_SHOWN >> 20}"
        return f"<pre>(not shown: {size}. Show fewer or smaller figures in a cell.)</pre>"

    # -- execution

    def _execute(self, source: str, file: str) -> Any:
        """The value of the last expression; None when the cell ends otherwise or in a semicolon."""
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = ast.parse(source, file)
        last: ast.Expression | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            expression = tree.body.pop()
            assert isinstance(expression, ast.Expr)
            last = ast.Expression(expression.value)
        self._evaluate(tree, file, "exec")
        value = self._evaluate(last, file, "eval") if last is not None else None
        return None if source.rstrip().endswith(";") else value

    def _evaluate(self, tree: ast.Module | ast.Expression, file: str, mode: str) -> Any:
        code = compile(tree, file, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(code, self.namespace)
        return self._finish(value) if code.co_flags & inspect.CO_COROUTINE else value

    def _finish(self, coroutine: Any) -> Any:
        """Run a cell that awaits to its end, in the loop that all cells share."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    # -- what `!` and `%` have become

    def system(self, command: str) -> None:
        """`!command`"""
        done = subprocess.run(self._filled_in(command), shell=True, check=False)
        self.namespace["_exit_code"] = done.returncode

    def getoutput(self, command: str) -> list[str]:
        """`lines = !command`"""
        run = subprocess.run(
            self._filled_in(command),
            shell=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.namespace["_exit_code"] = run.returncode
        return run.stdout.decode(errors="replace").splitlines()

    def run_line_magic(self, name: str, line: str) -> Any:
        """`%name line`. UsageError of a magic that ranks do not have."""
        magics: dict[str, Callable[[str], Any]] = {
            "time": self._time,
            "timeit": self._timeit,
            "cd": self._cd,
            "pwd": lambda _: os.getcwd(),
            "matplotlib": lambda _: None,
        }
        if name in _PROGRAMS:
            return self.system(f"{name} {line}")
        if name not in magics:
            raise NoSuchMagic(f"%{name}")
        return magics[name](line)

    def run_cell_magic(self, name: str, line: str, cell: str) -> Any:
        """`%%name line` below the first line of a cell."""
        if name == "time":
            return self._time(cell)
        if name in ("bash", "sh"):
            return self._script(f"{name} {line}", cell)
        if name == "script":
            return self._script(line, cell)
        raise NoSuchMagic(f"%%{name}")

    def _script(self, command: str, cell: str) -> None:
        """A cell for another program, which has it as it stands: `$x` and `{x}` are that program's own."""
        words = shlex.split(command)
        if not words:
            raise ValueError("%%script: expected the program that runs the cell, such as %%script python3")
        self.namespace["_exit_code"] = subprocess.run(words, input=cell.encode(), check=False).returncode

    def _filled_in(self, command: str) -> str:
        """With the values of `{expressions}` and `$names`, where they have one."""

        def value(found: re.Match[str]) -> str:
            with suppress(Exception):
                return str(eval(found[1] or found[2], self.namespace))
            return found[0]

        return _FIELD.sub(value, command)

    def _time(self, source: str) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        try:
            return self._execute(source, "<timed>")
        finally:
            wall = time.perf_counter() - began
            print(f"CPU time: {_seconds(time.process_time() - cpu)}, wall time: {_seconds(wall)}")

    def _timeit(self, source: str) -> None:
        timer = timeit.Timer(source, globals=self.namespace)
        loops, _ = timer.autorange()
        best = min(timer.repeat(5, loops)) / loops
        print(f"{_seconds(best)} per loop (best of 5 times {loops} loops)")

    def _cd(self, line: str) -> None:
        os.chdir(os.path.expanduser(self._filled_in(line.strip()) or "~"))
        print(os.getcwd())


class NoSuchMagic(RuntimeError):
    """A magic that ranks do not have."""

    def __init__(self, magic: str) -> None:
        super().__init__(
            f"{magic} does not run on ranks, which have %time, %timeit, %cd, %pwd, %%time, %%bash, %%sh, "
            "%%script and !commands: run it in a cell of the notebook"
        )


def _no_input(prompt: object = "") -> NoReturn:
    raise RuntimeError(
        "input() cannot ask anybody on a rank: ask in a cell of the notebook, whose variables come along"
    )


def _no_debugger(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("breakpoint() has no keyboard on a rank: print, or use `%ranks debug` after an error")


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
