"""What takes a class apart, changes how tensors are read, or is written into files: told from one node."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from autograder.grade.detours import looks_up_a_class
from autograder.grade.watched_names import FILE_METHODS, KEPT_IN_FILES, READ_BY

WORDS = {
    *("entries", "modules", "rendezvous", "_C", "mro"),  # of ATTRIBUTES: in a text these are plain words
    *("cpu", "clone", "contiguous"),  # of READ_BY
}
_TO_READ = ("r", "rb", "rt")
OF_A_CLASS = "looks through the entries of a class that it looks up"


def of_reading(node: ast.AST) -> Iterator[str]:
    """What a class is taken apart by, and what changes how tensors are read: beside all else that it is."""
    match node:
        case ast.Attribute(value=value, attr="__dict__") if looks_up_a_class(value):
            yield OF_A_CLASS
        case ast.Call(func=ast.Name(id="vars"), args=[value]) if looks_up_a_class(value):
            yield OF_A_CLASS
        case ast.Call(func=ast.Attribute(attr="update") | ast.Name(id="dict"), keywords=given):
            named = [each.arg for each in given if each.arg in READ_BY - WORDS]
            yield from (f"names {name}, by which tensors are read" for name in named)
        case ast.Constant(value=str(name)) if name in READ_BY - WORDS:
            yield f"names {name}, by which tensors are read"


def replaces(name: str) -> str:
    """What it is to give an attribute a name of READ_BY."""
    return f"replaces {name}, by which tensors are read"


def of_files(node: ast.AST) -> Iterator[str]:
    """What is written into files, whatever the object is."""
    match node:
        case ast.Attribute(attr=name) if name in FILE_METHODS:
            yield f"{KEPT_IN_FILES} {name}"
        case ast.Call(func=ast.Name(id="open"), args=[_, *mode], keywords=named) if not _reads(mode, named):
            yield f"{KEPT_IN_FILES} open"
        case ast.Call(func=ast.Attribute(attr="open"), args=mode, keywords=named) if not _reads(mode, named):
            yield f"{KEPT_IN_FILES} open"


def _reads(given: Sequence[ast.expr], named: Sequence[ast.keyword]) -> bool:
    """Whether a file is opened to be read, by the mode that comes first among these or by its name."""
    modes = [*given[:1], *(each.value for each in named if each.arg in ("mode", None))]
    return all(isinstance(each, ast.Constant) and each.value in _TO_READ for each in modes)
