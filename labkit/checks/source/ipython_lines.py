"""What IPython takes and Python does not: magics, commands for the shell, lines copied with their prompts."""

from __future__ import annotations

import ast
import re

from labkit.checks.source.syntax import parse
from labkit.checks.source.text import python_lines

_ASSIGNS_MAGIC = re.compile(r"[\w, ]+=\s*[%!]")  # files = !ls
_TIMED = re.compile(r"(?P<indent>\s*)%time\s+(?:--?[a-z-]+\s+)*(?P<code>.*\n?)")  # %time K = 6, which sets K
_PROMPT = re.compile(r"(?:>>>|\.\.\.|In \[\d+\]:|\s*\.\.\.+:)(?: |$)")  # of what was copied with its prompts
_MOST_LOOKS = 100  # times that a cell is parsed to tell its magics from its code


def as_python(source: str) -> tuple[str, ast.Module]:
    """The cell, with lines that are IPython's own taken out if it is no Python with them."""
    try:
        return source, parse(source)
    except SyntaxError:
        without = without_magics(_without_prompts(source))
        if without == source:
            raise
        return without, parse(without)


def without_magics(source: str) -> str:
    """The cell with IPython's own lines made to do nothing, so that line numbers stay.

    What looks like one may be Python: a line of a text, or of an expression in brackets. So a line is taken
    out where the parser stumbles over it; all that look so, where it stumbles over something else.
    """
    lines = python_lines(source)
    for _ in range(_MOST_LOOKS):
        try:
            parse("".join(lines))
            return "".join(lines)
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            if not (0 <= at < len(lines) and _is_magic(lines[at])):
                break
            _take_out(lines, at)
    return "".join(_without_magic(line) for line in lines)


def _take_out(lines: list[str], at: int) -> None:
    """Have a magic do nothing, with the lines on which it goes on."""
    goes_on = lines[at].rstrip("\r\n").endswith("\\")
    lines[at] = _without_magic(lines[at])
    while goes_on and at + 1 < len(lines):
        at += 1
        goes_on, lines[at] = lines[at].rstrip("\r\n").endswith("\\"), "\n"


def _is_magic(line: str) -> bool:
    """Whether a line looks like a magic, a command for the shell, or asks for help."""
    code = line.strip()
    asks = code.startswith("?") or (code.endswith("?") and "#" not in code)
    return asks or code.startswith(("%", "!")) or _ASSIGNS_MAGIC.match(code) is not None


def _without_magic(line: str) -> str:
    """`line`, or `pass` in place of a magic; what %time times is executed."""
    if not _is_magic(line):
        return line
    if timed := _TIMED.fullmatch(line):
        return timed["indent"] + timed["code"]
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass\n"


def _without_prompts(source: str) -> str:
    """The cell without prompts before its lines and without their common indentation, as IPython takes it."""
    lines = python_lines(source)
    first = next((line for line in lines if line.strip()), "")
    if _PROMPT.match(first):
        return "".join(_PROMPT.sub("", line, count=1) for line in lines)
    indent = first[: len(first) - len(first.lstrip())]
    return "".join(line.removeprefix(indent) for line in lines)
