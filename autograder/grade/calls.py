"""How functions are called, as far as it matters: those that do more than they are known for when they get
arguments that nobody gives them, or when their value goes elsewhere than usual.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autograder.grade.watched_names import OF_OBJECTS

# In the words for a call's arguments: one by its place, one by its place that is written out, several that
# are unpacked; all others are by their names, those that are a number or a text left out.
PLACE, WRITTEN, UNPACKED = "", "=", "*"
# And about where the call stands: what `with` enters; its attributes are read in a loop, and nothing else is
# done with them; it says in a class what an annotated name is.
ENTERED, LOOKED_THROUGH, IN_A_CLASS = "@with", "@loop", "@class"
_BUILT_IN = {"bool", "bytearray", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
_IN_PART = (ast.If, ast.IfExp, ast.While, ast.BoolOp, ast.Match, ast.Try, ast.comprehension, ast.Lambda)


@dataclass(frozen=True)
class Calls:
    """Of a statement: calls that `with` enters; calls whose values are only looked through; those that say
    what an annotated name of a class is; calls that some ranks may make alone; and `f.register`, or a call of
    it, above a function, and calls of it elsewhere.
    """

    entered: set[ast.AST]
    looked_through: set[ast.AST]
    in_a_class: set[ast.AST]
    of_some_ranks: set[ast.AST]
    registering: set[ast.AST]

    @classmethod
    def of(cls, statement: ast.stmt, nodes: Sequence[ast.AST]) -> Calls:
        bodies = [each for node in nodes if isinstance(node, ast.ClassDef) for each in node.body]
        return cls(
            {*_entered(nodes)},
            {*_looked_through(nodes)},
            {each.value for each in bodies if isinstance(each, ast.AnnAssign) and each.value},
            {*_of_some_ranks(statement)},
            {*_registering(nodes)},
        )

    def about(self, call: ast.Call) -> Iterator[str]:
        """Where a call stands, in words."""
        if call in self.entered:
            yield ENTERED
        if call in self.looked_through:
            yield LOOKED_THROUGH
        if call in self.in_a_class:
            yield IN_A_CLASS


def arguments_of(call: ast.Call) -> Iterator[str]:
    """A call's arguments, in words."""
    for each in call.args:
        yield UNPACKED if isinstance(each, ast.Starred) else WRITTEN if _is_written(each) else PLACE
    for named in call.keywords:
        if named.arg is None or not isinstance(named.value, ast.Constant):
            yield named.arg or 2 * UNPACKED


def plain_patterns(pattern: ast.MatchClass) -> bool:
    """Whether it is a pattern such as `int(x)`, which takes the whole and no attribute."""
    return isinstance(pattern.cls, ast.Name) and pattern.cls.id in _BUILT_IN


def classes_named(node: ast.expr) -> Iterator[ast.AST]:
    """The names that an annotation is made of; itself where it may be a text, or be made by a call."""
    match node:
        case ast.Constant(value=str(text)) if "(" in text:
            yield node
        case ast.Constant():
            pass
        case ast.Subscript(value=value, slice=inner):
            yield from (*classes_named(value), *classes_named(inner))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from (*classes_named(left), *classes_named(right))
        case ast.Tuple(elts=inner) | ast.List(elts=inner):
            yield from (name for each in inner for name in classes_named(each))
        case _:
            yield node


def _is_written(node: ast.expr) -> bool:
    """A number or a text, or a list of such, of which each may have more to it: `["x", ("y", int)]`."""
    match node:
        case ast.Constant():
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            heads = (part.elts[0] if isinstance(part, ast.Tuple) and part.elts else part for part in parts)
            return all(isinstance(head, ast.Constant) for head in heads)
    return False


def _entered(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        match node:
            case ast.withitem(context_expr=context):
                yield context
            case ast.Call(func=ast.Attribute(attr="enter_context"), args=[context]):
                yield context


def _looked_through(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """What loops go through, whose variables are nothing but read attributes of."""
    read = {
        node.value for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    names = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    elsewhere = {node.id for node in names if node not in read}
    for node in nodes:
        match node:
            case (
                ast.For(target=ast.Name(id=name), iter=looked_at)
                | ast.comprehension(target=ast.Name(id=name), iter=looked_at)
            ) if name not in elsewhere:
                yield looked_at


def _of_some_ranks(statement: ast.stmt) -> Iterator[ast.AST]:
    """Calls of collectives of objects that stand where not every rank may come: in a branch, or below one
    that leaves.
    """
    left: list[tuple[ast.AST, bool]] = [(statement, False)]
    while left:
        node, apart = left.pop()
        if apart and isinstance(node, ast.Call) and _of_objects(node.func):
            yield node
        inner = apart or isinstance(node, _IN_PART)
        for _, value in ast.iter_fields(node):
            below = inner
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    left.append((each, below))
                    below = below or (isinstance(each, ast.stmt) and _may_leave(each))


def _may_leave(statement: ast.stmt) -> bool:
    """Whether what stands below a statement may be left out because of it."""
    left: list[tuple[ast.AST, bool]] = [(statement, False)]
    while left:
        node, looped = left.pop()
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break | ast.Continue) and not looped):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            looped = looped or isinstance(node, ast.For | ast.While)
            left += [(each, looped) for each in ast.iter_child_nodes(node)]
    return False


def _of_objects(function: ast.expr) -> bool:
    return OF_OBJECTS.fullmatch(_name(function)) is not None


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _registering(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        match node:
            case ast.FunctionDef(decorator_list=above):
                yield from (each for each in above if _registers(each))
            case ast.Call(func=function) if _registers(function):
                yield from (node, function)


def _registers(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "register"
