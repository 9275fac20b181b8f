"""Reads a student's source for what no exercise needs: reaching for frames, the recorder, or torch's own
functions.

A finding is a flag for a person, with the line. It takes no points by itself: a flag is a suspicion, a
failed property is evidence. The exception is an exercise's `forbids`, which is also enforced when the code
runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from labkit.checks.source.submission import Submission
from labkit.checks.source.syntax import parse
from labkit.checks.source.text import python_lines

_CONNECTS, _STARTS, _RUNS_DATA = "opens connections", "starts programs or processes", "runs code from data"
_BESIDE, _FRAMES = "runs beside the check", "walks frames"
MODULES = {
    **dict.fromkeys(("socket", "urllib", "http", "requests", "ssl"), _CONNECTS),
    **dict.fromkeys(("subprocess", "multiprocessing", "pty"), _STARTS),
    **dict.fromkeys(("pickle", "marshal", "shelve"), _RUNS_DATA),
    **dict.fromkeys(("threading", "_thread", "asyncio", "concurrent", "atexit", "signal"), _BESIDE),
    **dict.fromkeys(("inspect", "traceback", "dis", "faulthandler"), _FRAMES),
    "ctypes": "calls into C",
    "cffi": "calls into C",
    "mmap": "maps memory",
    "gc": "walks all objects",
    "sys": "the interpreter's own state",
    "builtins": "changes the language",
    "importlib": "imports by name",
    "os": "the operating system",
    "shutil": "works on files",
    "unittest": "patches objects",
    "IPython": "the notebook",
    "nbgrader": "the grader",
    "autograder": "the grader",
    "labkit.checks": "the checks",
    "labkit.launch": "how ranks are run",
    "labkit.record": "the recorder",
    "torch._C": "torch's internals",
}
ATTRIBUTES = {
    *(
        "__del__",
        "__subclasses__",
        "__globals__",
        "__code__",
        "__closure__",
        "__builtins__",
        "__reduce__",
        "__mro__",
    ),
    *(
        "f_back",
        "f_locals",
        "f_globals",
        "tb_frame",
        "gi_frame",
        "cr_frame",
        "_getframe",
        "settrace",
        "setprofile",
    ),
    *(
        "current_recorder",
        "_recorder",
        "use_recorder",
        "entries",
        "add_span",
        "input_transformers_post",
        "_C",
    ),
    *(
        "set_num_threads",
        "addaudithook",
        "modules",
        "get_objects",
        "get_referrers",
        "__setattr__",
        "__bases__",
    ),
}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "globals",
    "vars",
    "open",
    "breakpoint",
    "input",
    "get_ipython",
}
# What leads to no object of labkit's or torch's, as it stands in a finding.
HARMLESS = (
    *(_CONNECTS, _STARTS, _BESIDE, "the operating system", "works on files", "the notebook", "the grader"),
    *("calls open", "calls input", "calls breakpoint", "calls get_ipython", "mentions"),
)
GRADING_WORDS = ("NBGRADER", "autograd" + "er", "gradebook", "hidden_case", "unseen case")


@dataclass(frozen=True)
class Flag:
    """Something a person should look at. `line` is the student's own text."""

    why: str
    cell: str = ""
    line_number: int = 0
    line: str = ""
    holds: bool = False  # with this a record can be forged: what rests on one waits for a person

    def __str__(self) -> str:
        where = f"{self.cell}, line {self.line_number}: {self.line}" if self.cell else ""
        return f"{self.why}" + (f" ({where})" if where else "")


def scan(submission: Submission, forbids: Sequence[str] = ()) -> list[Flag]:
    """Flags for the student's statements an exercise would run. `forbids`: dotted names that solve it
    outright.
    """
    cells = {label: parse(source).body for label, source in submission.sources.items()}
    trees = {s: cells[s.cell][s.index] for s in (*submission.statements, *submission.additions)}
    imported = _aliases(trees.values())
    flags = []
    for statement, tree in trees.items():
        lines = python_lines(submission.sources[statement.cell])
        for node in ast.walk(tree):
            for why in dict.fromkeys(_suspicions(node, imported, forbids)):
                number = getattr(node, "lineno", statement.first_line)
                text = lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""
                flags.append(Flag(why, statement.cell, number, text, _can_forge(why)))
    return list(dict.fromkeys(flags))


def _suspicions(node: ast.AST, imported: dict[str, str], forbids: Sequence[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (why for alias in names if (why := _module(alias.name)))
        case ast.ImportFrom(module=str(module), names=names):
            if why := _module(module):
                yield why
            yield from (
                f"uses {module}.{a.name}, forbidden here" for a in names if f"{module}.{a.name}" in forbids
            )
            yield from (why for alias in names if (why := _module(f"{module}.{alias.name}")))
        case ast.Attribute(attr=name, ctx=context):
            dotted = _dotted(node, imported)
            if name in ATTRIBUTES:
                yield f"reaches for {name}"
            if dotted in forbids:
                yield f"uses {dotted}, forbidden here"
            if not isinstance(context, ast.Load) and _is_library(dotted):
                yield f"replaces {dotted}"
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield f"calls {name}"
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]) if _is_library(
            _dotted(target, imported)
        ):
            yield f"replaces something in {_dotted(target, imported)}"
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in ATTRIBUTES:
            yield f"defines {name}"
        case ast.Constant(value=str(text)) if any(
            word in text for word in (*GRADING_WORDS, *ATTRIBUTES - {"entries", "modules", "_C"})
        ):
            yield f"mentions {text[:60]!r}"


def _can_forge(why: str) -> bool:
    """Whether what was found can lead to the recorder, or to what is replaced to fool it."""
    return not any(harmless in why for harmless in HARMLESS)


def _module(name: str) -> str:
    parts = name.split(".")
    known = next((m for m in (".".join(parts[:n]) for n in range(1, len(parts) + 1)) if m in MODULES), None)
    return f"imports {name} ({MODULES[known]})" if known else ""


def _aliases(trees: Iterable[ast.stmt]) -> dict[str, str]:
    """What each imported name stands for: dist -> torch.distributed."""
    found: dict[str, str] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    return found


def _dotted(node: ast.AST, imported: dict[str, str]) -> str:
    """The full name an expression such as dist.ProcessGroup stands for; empty when it is not a plain name."""
    match node:
        case ast.Name(id=name):
            return imported.get(name, name if name in ("builtins",) else "")
        case ast.Attribute(value=value, attr=attr) if base := _dotted(value, imported):
            return f"{base}.{attr}"
    return ""


def _is_library(dotted: str) -> bool:
    return bool(dotted) and dotted.split(".")[0] in (
        "torch",
        "labkit",
        "builtins",
        "numpy",
        "safetensors",
        "json",
        "os",
        "sys",
    )
