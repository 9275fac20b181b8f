"""Annotations that hand nothing on: what they name can be read back by `__annotations__` and its like alone,
each of which is a flag of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_GENERIC = {"list", "dict", "tuple", "set", "frozenset"}  # whose `[...]` calls nothing of the cell's own
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_in_annotations(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of annotations of what is a function's own, which are never evaluated, and of its arguments
    and result where they are plain: made of dotted names, None, and lists and the like of such.
    """
    for node in nodes:
        if isinstance(node, _Function):
            yield from (inner for told in _never_evaluated(node) for inner in ast.walk(told))
            arguments = [each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg)]
            for told in (*arguments, node.returns):
                if told is not None and _is_plain(told):
                    yield from ast.walk(told)


def _never_evaluated(function: _Function) -> Iterator[ast.expr]:
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop()
        if isinstance(node, ast.AnnAssign):
            yield node.annotation
        if not isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def _is_plain(told: ast.expr) -> bool:
    match told:
        case ast.Name() | ast.Constant(value=None):
            return True
        case ast.Attribute(value=value):
            return _is_plain(value)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _is_plain(left)
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _GENERIC:
            return all(map(_is_plain, inner.elts if isinstance(inner, ast.Tuple) else [inner]))
    return False
