"""Every single edit of a piece of Python that is likely to break it: one place, one operator.

Written on `ast` because cosmic-ray's operators delete no statement, call, keyword or group, exchange no
arguments, and put each of eleven operators in the place of every other. An edit replaces a stretch of the
source, so that everything else keeps its lines and comments.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

WRAPPERS = ("deepcopy", "copy", "list", "tuple", "sorted", "reversed", "abs")
LARGE = 100
SILENT = ("strict", "device")  # keywords
IN_GROUP = {"rank": "0", "world_size": "2", "num_ranks": "2", "size": "2", "group": "None"}
SWAPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "//"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


@dataclass(frozen=True)
class Edit:
    """One change of a source. operator: what kind. was, becomes: the lines it stands in, before and after,
    in one line each. source: the whole text after it.
    """

    operator: str
    was: str
    becomes: str
    source: str


class Code:
    """A source with its syntax tree. first, last: the lines in which nodes may be changed, from 1."""

    def __init__(self, source: str, first: int = 1, last: int | None = None) -> None:
        self.bytes = source.encode()
        self.tree = ast.parse(source)
        lines = self.bytes.split(b"\n")
        self.first, self.last = first, len(lines) if last is None else last
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
        self.bound = Counter(_bound_names(self.tree))
        self.called = {n.func for n in ast.walk(self.tree) if isinstance(n, ast.Call)}
        self.read = {n.id for n in ast.walk(self.tree) if _is_read(n) and isinstance(n, ast.Name)}

    def start(self, node: ast.AST) -> int:
        """Where a node begins, in bytes."""
        return self._starts[_place(node, "lineno") - 1] + _place(node, "col_offset")

    def end(self, node: ast.AST) -> int:
        """Where a node ends, in bytes."""
        return self._starts[_place(node, "end_lineno") - 1] + _place(node, "end_col_offset")

    def text(self, node: ast.AST) -> str:
        """A node as it is written, in parentheses where it could fall apart elsewhere."""
        text = self.bytes[self.start(node) : self.end(node)].decode()
        whole = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.keyword, ast.Starred)
        return text if isinstance(node, (*whole, ast.List, ast.Tuple, ast.Dict)) else f"({text})"

    def between(self, left: ast.AST, right: ast.AST) -> tuple[int, int]:
        """The stretch from the end of one node to the start of another: where their operator stands."""
        return self.end(left), self.start(right)

    def holds(self, node: ast.AST) -> bool:
        """Whether all of a node stands in the lines that may be changed."""
        return hasattr(node, "lineno") and (
            self.first <= _place(node, "lineno") and _place(node, "end_lineno") <= self.last
        )

    def edited(self, operator: str, start: int, end: int, new: str) -> Edit:
        """The source with one stretch replaced."""
        after = self.bytes[:start] + new.encode() + self.bytes[end:]
        begin = self.bytes.rfind(b"\n", 0, start) + 1
        tail = (self.bytes + b"\n").find(b"\n", end)
        was, becomes = self.bytes[begin:tail], after[begin : tail + len(after) - len(self.bytes)]
        return Edit(operator, _one_line(was), _one_line(becomes), after.decode())


Found = Iterator[tuple[int, int, str]]  # start, end, and what comes in between


def edits(source: str, first: int = 1, last: int | None = None) -> list[Edit]:
    """Every edit of the lines `first` to `last` of a source that is still Python, each result once."""
    code = Code(source, first, last)
    same = ast.dump(code.tree)
    found: dict[str, Edit] = {}
    for node in _nodes(code.tree):
        if not code.holds(node) and not _holds_body(code, node):
            continue
        for operator, places in OPERATORS.items():
            for start, end, new in places(code, node):
                edit = code.edited(operator, start, end, new)
                tree = _parsed(edit.source)
                if tree is not None and ast.dump(tree) != same:
                    found.setdefault(edit.source, edit)
    return list(found.values())


def _delete_statement(code: Code, node: ast.AST) -> Found:
    """Not a definition, nor what binds a name that is read and bound nowhere else: that is a NameError."""
    if not isinstance(node, ast.stmt) or not code.holds(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)):
        return
    bound = set(_bound_names(node)) if isinstance(node, (ast.Assign, ast.AnnAssign)) else set()
    if any(code.bound[name] == 1 and name in code.read for name in bound):
        return
    yield code.start(node), code.end(node), "pass"


def _drop_wrapper(code: Code, node: ast.AST) -> Found:
    """x.clone() -> x, deepcopy(x) -> x, Function.apply(x, ...) -> x."""
    match node:
        case ast.Call(func=ast.Attribute(attr="apply"), args=[inner, *_]):
            yield code.start(node), code.end(node), code.text(inner)
        case ast.Call(func=ast.Attribute(value=inner), args=[], keywords=[]):
            yield code.start(node), code.end(node), code.text(inner)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[inner]) if name in WRAPPERS:
            yield code.start(node), code.end(node), code.text(inner)


def _drop_keyword(code: Code, node: ast.AST) -> Found:
    """Not `strict`, which right code never needs, nor `device`, which no host without a GPU can tell."""
    if isinstance(node, ast.Call):
        for dropped in [keyword for keyword in node.keywords if keyword.arg not in SILENT]:
            kept = [code.text(each) for each in [*node.args, *node.keywords] if each is not dropped]
            yield code.start(node), code.end(node), f"{code.text(node.func)}({', '.join(kept)})"


def _swap_arguments(code: Code, node: ast.AST) -> Found:
    if isinstance(node, ast.Call):
        for left, right in itertools.pairwise(node.args):
            between = code.bytes[slice(*code.between(left, right))].decode()
            yield code.start(left), code.end(right), f"{code.text(right)}{between}{code.text(left)}"


def _operator(code: Code, node: ast.AST) -> Found:
    match node:
        case ast.BinOp(left=left, right=right, op=op) if type(op) in SWAPPED:
            yield _exchanged(code, left, right, SWAPPED[type(op)])
        case ast.AugAssign(target=left, value=right, op=op) if type(op) in SWAPPED:
            yield _exchanged(code, left, right, SWAPPED[type(op)])
            yield _exchanged(code, left, right, (f"{SWAPPED[type(op)][0]}=", "="))
        case ast.BoolOp(values=values, op=op):
            for left, right in itertools.pairwise(values):
                yield _exchanged(code, left, right, SWAPPED[type(op)])
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield code.start(node), code.end(node), code.text(operand)


def _comparison(code: Code, node: ast.AST) -> Found:
    if isinstance(node, ast.Compare):
        sides = itertools.pairwise([node.left, *node.comparators])
        for (left, right), op in zip(sides, node.ops, strict=True):
            yield _exchanged(code, left, right, COMPARED[type(op)])


def _constant(code: Code, node: ast.AST) -> Found:
    """One more, one less and none; twice as much where one is too little to matter."""
    match node:
        case ast.Constant(value=bool() as value):
            yield code.start(node), code.end(node), repr(not value)
        case ast.Constant(value=int() | float() as value):
            near = [value + 1, value - 1] if abs(value) < LARGE else [2 * value]
            for other in dict.fromkeys([*near, type(value)(0)]):
                yield code.start(node), code.end(node), repr(other)


def _branch(code: Code, node: ast.AST) -> Found:
    match node:
        case ast.If(test=test):
            yield code.start(test), code.end(test), "True"
            yield code.start(test), code.end(test), "False"
        case ast.IfExp(body=body, orelse=orelse):
            yield code.start(node), code.end(node), code.text(body)
            yield code.start(node), code.end(node), code.text(orelse)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield code.start(test), code.end(test), "True"


def _place_in_group(code: Code, node: ast.AST) -> Found:
    """A rank becomes 0, a size 2, and a group the whole world."""
    if isinstance(node, ast.Call):
        instead = {"get_rank": "0", "get_world_size": "2"}.get(_last_name(node.func))
    else:
        instead = IN_GROUP.get(_last_name(node)) if _is_read(node) and node not in code.called else None
    if instead is not None:
        yield code.start(node), code.end(node), instead


def _gradient_mode(code: Code, node: ast.AST) -> Found:
    """no_grad becomes enable_grad and back; a forward pass keeps no graph."""
    match node:
        case ast.Call(func=ast.Attribute(attr="no_grad")):
            yield code.start(node), code.end(node), "torch.enable_grad()"
        case ast.Call(func=ast.Attribute(attr="enable_grad")):
            yield code.start(node), code.end(node), "torch.no_grad()"
        case ast.FunctionDef(name="forward" | "__call__", decorator_list=[]):
            indent = " " * node.col_offset
            yield code.start(node), code.start(node), f"@torch.no_grad()\n{indent}"


OPERATORS: dict[str, Callable[[Code, ast.AST], Found]] = {
    "statement deleted": _delete_statement,
    "wrapper dropped": _drop_wrapper,
    "keyword dropped": _drop_keyword,
    "arguments exchanged": _swap_arguments,
    "operator": _operator,
    "comparison": _comparison,
    "constant": _constant,
    "one branch": _branch,
    "rank, size or group": _place_in_group,
    "gradient mode": _gradient_mode,
}


def _exchanged(code: Code, left: ast.AST, right: ast.AST, swap: tuple[str, str]) -> tuple[int, int, str]:
    start, end = code.between(left, right)
    return start, end, code.bytes[start:end].decode().replace(*swap, 1)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that a run of the code meets: no annotations, docstrings, or words of an error."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns") or isinstance(tree, (ast.Raise, ast.JoinedStr)):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not _is_silent(node):
                yield node
                yield from _nodes(node)


def _is_silent(node: ast.AST) -> bool:
    """A docstring, or a keyword that changes nothing."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or (isinstance(node, ast.keyword) and node.arg in SILENT)


def _holds_body(code: Code, node: ast.AST) -> bool:
    """A function whose body may be changed although its signature may not, or a `for ... if` in one line."""
    if isinstance(node, ast.comprehension):
        return code.holds(node.target)
    return isinstance(node, ast.FunctionDef) and any(code.holds(statement) for statement in node.body)


def _bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _is_read(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _place(node: ast.AST, name: str) -> int:
    return int(getattr(node, name))


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


def _one_line(text: bytes) -> str:
    return " ".join(text.decode().split())
