"""Ways to find out who calls a function, or whether somebody counts what it calls: the stack as a text, where
a warning comes from, what a method is by its name. Who is told does the work only where it is looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from autograder.grade.watched_names import FRAMES, READ_OUT

# Of calls, by keyword: what each must be for nothing to be told.
_SAYS_NOTHING = {"stack_info": False, "stacklevel": 1, "skip_file_prefixes": (), "with_stack": False}
_AT_A_LEVEL = {
    "stacklevel",
    "skip_file_prefixes",
}  # a place instead of the stack's texts, as warnings give it
_STACK = {"findCaller", "_srcfile", "detect_anomaly", "set_detect_anomaly"}  # anomaly mode keeps stacks
_OF_A_WARNING = {"showwarning", "formatwarning"}
_LOOKED_AT = READ_OUT | {"wait", "is_completed", "synchronize"}
_LOOKS = {
    "repr",
    "str",
    "ascii",
    "format",
    "print",
    "type",
    "id",
    "hash",
    "callable",
    "isinstance",
    "hasattr",
}
_NAMES = {"__name__", "__qualname__", "__module__", "__doc__", "__class__"}


def asks_who_calls(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, what is done) for each such way in a statement's nodes."""
    for node in nodes:
        for why in (*_of_the_stack(node), *_of_a_method(node)):
            yield getattr(node, "lineno", 1), why


def _of_the_stack(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.keyword(arg=str(name), value=value) if name in _SAYS_NOTHING:
            if not (isinstance(value, ast.Constant) and value.value == _SAYS_NOTHING[name]):
                yield _told(name)
        case ast.keyword(arg="record", value=ast.Constant(value=True)):
            yield "looks at where a warning comes from, by record"
        case ast.Call(func=ast.Attribute(attr="warn") | ast.Name(id="warn"), args=[_, _, level, *_]):
            if not (isinstance(level, ast.Constant) and level.value == 1):
                yield _told("stacklevel")
        case ast.Attribute(attr=name) | ast.alias(name=name) if name in _STACK:
            yield _told(name)
        case ast.Attribute(attr=name) | ast.alias(name=name) if name in _OF_A_WARNING:
            yield f"looks at where a warning comes from, by {name}"
        case ast.Constant(value=str(name)) if name in {*_SAYS_NOTHING, *_STACK}:
            yield _told(name)


def _told(name: str) -> str:
    """A level gives a place; all else the whole stack, and with it the check's own text."""
    how = "looks at who calls it" if name in _AT_A_LEVEL else f"reads who calls it ({FRAMES})"
    return f"{how}, by {name}"


def _of_a_method(node: ast.AST) -> Iterator[str]:
    """What is asked of a method that is not called: whether it is torch's own, that is."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=asked) if name in _LOOKS:
            looked_at = [*asked]
        case ast.FormattedValue(value=value):
            looked_at = [value]
        case ast.Attribute(attr=name, value=value) if name in _NAMES:
            looked_at = [value]
        case ast.Compare(left=left, comparators=others):
            looked_at = [left, *others]
        case _:
            return
    named = (each.attr for each in looked_at if isinstance(each, ast.Attribute))
    yield from (f"looks at what {name} is, instead of calling it" for name in named if name in _LOOKED_AT)
