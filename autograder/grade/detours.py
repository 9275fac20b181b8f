"""Roundabout ways to what could have been written: a name as a text put together, a module or a function that
looks up names under another name, a class made of its parts.

Code that goes straight is read by `scan`. These are what would hide it from there, and no exercise needs one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import partial

from autograder.grade.annotations import names_in_annotations
from autograder.grade.watched_names import (
    ATTRIBUTES,
    BY_ANY_NAME,
    INTERPRETER,
    KEPT_IN_FILES,
    LOOKS_UP,
    RENAMED,
    UNPICKLES,
)

_UNKNOWN = "\0"  # in a text that is put together: what is only known when it runs
_WORD = re.compile(r"\w+")
_DOTTED = re.compile(r"\w+(\.\w+)*")
_PIECE = re.compile(r"__[A-Za-z]+(_[A-Za-z]+)*_?|_?([A-Za-z]+_)*[A-Za-z]+__")  # of a name like __this__
_DEEPEST = 20  # expressions inside one another
_ALSO_WORDS = {
    "entries",
    "modules",
    "rendezvous",
    "_C",
}  # of ATTRIBUTES: in a sentence these are words like any others
_LABKITS = {"record", "checks", "launch"}  # what of labkit leads to the check's own objects
ASKED_OF = {*LOOKS_UP, "hasattr", "isinstance", "issubclass", "cast"}  # keep nothing of what they are given
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def detours(statement: ast.stmt) -> Iterator[tuple[int, str]]:
    """(line, what is done) for each such way in a statement that can be told from its text alone."""
    nodes = [*ast.walk(statement)]
    parts = {node.left for node in nodes if isinstance(node, ast.BinOp)}  # read with the sum they are part of
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    looked_up = {name for node in nodes for name in _names_of_a_looked_up_class(node)}
    put_aside = {name: way for node in nodes for name, way in _put_aside(node)}
    for name, line in handed_on(statement).items():
        if name in RENAMED:
            yield line, f"gives {name} another name"
        elif name == "open":
            yield line, f"{KEPT_IN_FILES} {name}"
    for node in nodes:
        line = getattr(node, "lineno", statement.lineno)
        if node not in parts:
            yield from ((line, why) for why in _in_text(node))
        yield from ((line, why) for why in _in_classes(node, looked_up))
        match node:
            case ast.Name(id=name) if name in LOOKS_UP and node not in called:
                yield line, f"gives {name} another name"
            case ast.keyword(arg=str(name), value=value) if name in UNPICKLES:
                if not (isinstance(value, ast.Constant) and value.value is UNPICKLES[name]):
                    yield line, "runs code from data: reads what was pickled"
            case ast.Call(func=ast.Attribute(attr="compile"), keywords=named) if any(
                map(_brings_a_compiler, named)
            ):
                yield line, "runs code from data: a compiler of its own"
            case ast.Assign(targets=targets, value=value) if _outlives(targets) and (
                way := _off_tensors(value, put_aside)
            ):
                yield line, f"keeps data where no check counts it, by {way}"
            case (
                ast.arg(annotation=ast.expr() as told)
                | ast.AnnAssign(annotation=told)
                | ast.FunctionDef(returns=ast.expr() as told)
                | ast.AsyncFunctionDef(returns=ast.expr() as told)
            ) if _calls(told):
                yield line, "runs code from data: an annotation that calls"


def _brings_a_compiler(given: ast.keyword) -> bool:
    """Whether an argument may be a function that writes what `torch.compile` then runs."""
    return given.arg in ("backend", None) and not isinstance(given.value, ast.Constant)


def handed_on(statement: ast.stmt) -> dict[str, int]:
    """Name -> line for each name that is used as a value, which may be a module's: only a look at what it
    was imported as can tell. Names that a function has for its own are passed over.
    """
    found: dict[str, int] = {}
    left: list[tuple[ast.AST, frozenset[str]]] = [
        (statement, frozenset())
    ]  # with the names that are own there
    told = {*names_in_annotations([*ast.walk(statement)])}
    while left:
        node, own = left.pop()
        if node in told:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
            found[node.id] = node.lineno
        if isinstance(node, _SCOPES):
            left += [(each, own) for each in _around(node)]
            inner, own = _body(node), own | _own_names(node)
        else:
            inner, own = _read_next(node, own)
        left += [(each, own) for each in inner]
    return found


def looks_up_a_class(node: ast.AST) -> bool:
    """`type(x)` or `x.__class__`: whose class it is cannot be told from the text."""
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[_]) | ast.Attribute(attr="__class__"):
            return True
    return False


# -- texts


def _in_text(node: ast.AST) -> Iterator[str]:
    """A text that is put together of parts, or stands as bytes, and names what no exercise needs."""
    match node:
        case ast.Constant(value=bytes(data)):
            text = data.decode("latin-1")
        case ast.BinOp() | ast.JoinedStr() | ast.Call() | ast.Subscript():
            text = _put_together(node)
        case ast.Constant(value=str(text)) if _PIECE.fullmatch(text):
            yield f"puts together a name, of {text!r}"
            return
        case ast.Constant(value=str(text)) if text in UNPICKLES or "WEIGHTS_ONLY" in text:
            yield "runs code from data: reads what was pickled"
            return
        case _:
            return
    telling = ATTRIBUTES | BY_ANY_NAME | INTERPRETER | _LABKITS
    words = set(_WORD.findall(text))
    found = words & telling if _DOTTED.fullmatch(text) else words & (ATTRIBUTES - _ALSO_WORDS)
    if found:
        yield f"puts together {min(found)!r}"


def _put_together(node: ast.AST, depth: int = 0) -> str:
    """What an expression of texts alone gives, as far as it can be told without running it."""
    if depth > _DEEPEST:
        return _UNKNOWN
    inner = partial(_put_together, depth=depth + 1)
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(data)):
            return data.decode("latin-1")
        case ast.BinOp(op=ast.Add()):
            return "".join(map(inner, _terms(node)))
        case ast.JoinedStr(values=values):
            return "".join(map(inner, values))
        case ast.FormattedValue(value=value):
            return inner(value)
        case ast.Call(
            func=ast.Attribute(value=between, attr="join"), args=[ast.List() | ast.Tuple() as parts]
        ):
            return inner(between).join(map(inner, parts.elts))
        case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int(number))]) if number < 0x110000:
            return chr(number)
        case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp())):
            return inner(value)[::-1]
    return _UNKNOWN


def _terms(node: ast.expr) -> list[ast.expr]:
    """What a sum adds, from left to right. Not by recursion: a sum may have thousands of terms."""
    found = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        found.append(node.right)
        node = node.left
    return [node, *reversed(found)]


def _calls(annotation: ast.expr) -> bool:
    """Whether an annotation that is a text would call something where it is looked at."""
    return any("(" in _put_together(node) for node in ast.walk(annotation) if not isinstance(node, ast.Call))


# -- classes


def _in_classes(node: ast.AST, looked_up: set[str]) -> Iterator[str]:
    """Classes that are made in ways, or changed under names, that do not say which ones they are.

    looked_up: names of the statement that stand for something's class.
    """
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[_, _, _, *_]):
            yield "makes a class of its parts"
        case ast.ClassDef(bases=bases, body=body):
            if any(looks_up_a_class(base) or _is_one_of(base, looked_up) for base in bases):
                yield "makes a kind of a class that it looks up"
            inside = _within(body, (*_SCOPES, ast.ClassDef))
            if any(isinstance(each, ast.Import | ast.ImportFrom) for each in inside):
                yield "imports something as a part of a class"
        case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()) if _is_one_of(value, looked_up):
            yield "replaces something in a class that it looks up"


def _names_of_a_looked_up_class(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets=targets, value=value) if looks_up_a_class(value):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.NamedExpr(target=ast.Name(id=name), value=value) if looks_up_a_class(value):
            yield name


def _is_one_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


# -- memory


def _put_aside(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Variables that are given data which is no tensor's any more, and how it was taken out."""
    match node:
        case ast.Assign(targets=targets, value=value) if way := _off_tensors(value, {}):
            yield from ((target.id, way) for target in targets if isinstance(target, ast.Name))


def _outlives(targets: list[ast.expr]) -> bool:
    """Whether what is assigned stays when a call has ended: in an object, or in something of one."""
    return any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)


def _off_tensors(value: ast.expr, put_aside: dict[str, str]) -> str:
    """How a value was taken out of a tensor, to where memory is counted by no tensor; empty if it was not."""
    match value:
        case ast.Call(func=ast.Attribute(value=inner, attr="copy" | "astype" | "reshape")):
            value = inner
    match value:
        case ast.Name(id=name):
            return put_aside.get(name, "")
        case ast.Call(func=ast.Attribute(attr="numpy" | "tobytes" | "untyped_storage" as way)):
            return way
        case ast.Call(
            func=ast.Name(id="bytes" | "bytearray" as way), args=[ast.Call() | ast.Attribute(), *_]
        ):
            return way
    return ""


# -- modules as values


def _read_next(node: ast.AST, own: frozenset[str]) -> tuple[list[ast.AST], frozenset[str]]:
    """Of a node, those inside it whose names are used as values, and the names that are own there."""
    match node:
        case ast.Attribute(value=ast.Name()) | ast.Expr(value=ast.Name()):
            return [], own
        case ast.Call(func=func, args=[ast.Name(), *rest]) if _is_one_of(func, ASKED_OF):
            return [*rest, *node.keywords], own
        case ast.Call(func=ast.Name(), args=args, keywords=keywords):
            return [*args, *keywords], own
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            given = {name for each in node.generators for name in _stored(each.target)}
            return [*ast.iter_child_nodes(node)], own | given
    return [*ast.iter_child_nodes(node)], own


def _own_names(function: _Function) -> frozenset[str]:
    """The names that a function's own code gives something to, arguments among them."""
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    return frozenset((arguments | {*_stored(*_body(function))}) - {*_declared_elsewhere(function)})


def _body(function: _Function) -> list[ast.AST]:
    return [function.body] if isinstance(function, ast.Lambda) else [*function.body]


def _around(function: _Function) -> list[ast.AST]:
    """What of a function is read where it stands, not where it is called."""
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    return [*function.args.defaults, *filter(None, function.args.kw_defaults), *decorators]


def _stored(*nodes: ast.AST) -> Iterator[str]:
    """Names that are assigned in these nodes, not counting functions, comprehensions and classes inside."""
    for node in _within(nodes, (*_SCOPES, *_COMPREHENSIONS, ast.ClassDef)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _declared_elsewhere(function: _Function) -> Iterator[str]:
    for node in _within(_body(function), (*_SCOPES, ast.ClassDef)):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names


def _within(nodes: Iterable[ast.AST], closed: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """These nodes and all inside them, without entering those that are `closed`."""
    left = [*nodes]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, closed):
            left += ast.iter_child_nodes(node)
