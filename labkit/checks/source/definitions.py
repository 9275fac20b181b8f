"""Which statements only define something, and the names that one binds, changes, or has as texts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

# Calls that build a value and do nothing else, by the last part of their name. So do calls of classes: what
# begins with a capital.
PURE_CALLS = {
    *("partial", "namedtuple", "dataclass", "field", "auto", "object", "getLogger", "compile"),
    *("float", "int", "str", "bool", "complex", "bytes", "bytearray", "frozenset"),
    *("dict", "list", "set", "tuple", "range", "defaultdict", "deque", "fromkeys", "copy"),
    *("len", "min", "max", "abs", "round", "sorted", "sum", "any", "all", "divmod", "pow"),
    *("sqrt", "isqrt", "ceil", "floor", "log", "log2", "exp", "prod", "gcd", "lcm"),
    *("zip", "enumerate", "reversed", "items", "keys", "values", "get", "union"),
    *("split", "join", "format", "replace", "strip", "lower", "upper", "encode"),
    *(
        "count",
        "cycle",
        "repeat",
        "chain",
        "product",
        "accumulate",
        "attrgetter",
        "itemgetter",
        "methodcaller",
    ),
    *("device", "is_available", "hasattr", "finfo", "iinfo", "dtype", "get_default_dtype"),
    *("tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "linspace", "eye", "array"),
}
# Methods that fill what was made above: a table or a list of a notebook's, a function's variants by type.
_FILLS = {
    *("append", "extend", "insert", "appendleft", "add", "update", "setdefault", "remove", "pop", "clear"),
    *("sort", "reverse", "register"),
}
_TELLS = ("print", "warn", "warning", "info")  # calls that only tell a person something


def is_definition(node: ast.stmt) -> bool:
    """Whether a top-level statement only defines: executing it starts no work."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Assign(value=value) | ast.AugAssign(value=value):
            return _is_simple(value)
        case ast.AnnAssign(value=value):
            return value is None or _is_simple(value)
        case ast.If(body=body, orelse=other) if _is_simple(node.test):
            return all(is_definition(n) or _does_nothing(n) for n in body + other)
        case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=final):
            inside = body + other + final + [n for h in handlers for n in h.body]
            return all(is_definition(n) or _does_nothing(n) for n in inside)
        case ast.Expr(value=ast.Call(args=args, keywords=keywords)) if _filled(node):
            return all(map(_is_simple, (*args, *keywords)))
    return isinstance(node, getattr(ast, "TypeAlias", ()))  # of Python 3.12


def _does_nothing(node: ast.stmt) -> bool:
    """Whether a statement beside definitions has no effect but on a person."""
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=told)):
            return name in _TELLS and all(map(_is_simple, told))
    return False


def defined_names(node: ast.AST) -> list[str]:
    """Names a statement binds at top level, in order."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name.split(".")[0] for alias in names]
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return []
    return [name for child in ast.iter_child_nodes(node) for name in defined_names(child)]


def changed_names(node: ast.stmt) -> Iterator[str]:
    """Names of what a statement changes: by assigning to an attribute or entry, by a call that fills it, or
    as a decorator.
    """
    targets: Sequence[ast.expr]
    match node:
        case ast.Expr():
            targets = _filled(node)
        case ast.FunctionDef(decorator_list=found) | ast.ClassDef(decorator_list=found):
            targets = [each.func if isinstance(each, ast.Call) else each for each in found]
        case ast.Assign(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case _:
            return
    for place in targets:
        while isinstance(place, ast.Attribute | ast.Subscript):
            place = place.value
            if isinstance(place, ast.Name):
                yield place.id


def _filled(node: ast.stmt) -> list[ast.expr]:
    """Of a statement that is a call, the place it fills: `TABLE.update(...)`, `setattr(Made, "f", f)`."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) as place)) if name in _FILLS:
            return [place]
        case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"), args=[place, *_])):
            return [ast.Attribute(place, "set")]
    return []


def names_in_annotations(node: ast.AST) -> set[str]:
    """Identifiers written as strings in annotations: forward references. Other strings name nothing."""
    annotations = (part for each in ast.walk(node) if (part := _annotation(each)))
    inside = (n.value for part in annotations for n in ast.walk(part) if isinstance(n, ast.Constant))
    return {text for text in inside if isinstance(text, str) and text.isidentifier()}


def _annotation(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.arg(annotation=part) | ast.AnnAssign(annotation=part):
            return part
        case ast.FunctionDef(returns=part) | ast.AsyncFunctionDef(returns=part):
            return part
    return None


def _is_simple(value: ast.AST) -> bool:
    """Whether computing the value calls nothing but classes and PURE_CALLS. What a lambda would do later does
    not count.
    """
    match value:
        case ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            if name not in PURE_CALLS and not name.lstrip("_")[:1].isupper():
                return False
        case ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom():
            return False
    parts = (ast.expr, ast.comprehension, ast.keyword)
    return all(_is_simple(child) for child in ast.iter_child_nodes(value) if isinstance(child, parts))
