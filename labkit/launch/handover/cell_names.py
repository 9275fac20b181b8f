"""Which global names a cell needs before it runs, by Python's own rules of scope (`symtable`)."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Iterator, Sequence

Known = frozenset[str]  # names that the cell itself has surely assigned by now

_MAYBE_LATER = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.BoolOp,
    ast.IfExp,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def needed_names(source: str, file: str = "<cell>") -> set[str]:
    """The global names that a cell may read before it has assigned them. SyntaxError when it is not Python.

    A function's globals count where it is defined: nobody can tell when it is called.
    """
    reader = _Reader(file)
    tree: ast.Module = _Spelled().visit(ast.parse(source, file))
    reader.block(tree.body, frozenset())
    for code in _timed(tree):
        reader.needed |= needed_names(code, file)
    return reader.needed


def _timed(tree: ast.Module) -> Iterator[str]:
    """The code in what IPython makes of `%time f(x)` and its kin: a call with it as a text."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                ast.Attribute(ast.Call(ast.Name("get_ipython")), "run_line_magic" | "run_cell_magic"),
                [ast.Constant("time" | "timeit"), *_, ast.Constant(str(code))],
            ):
                yield code


class _Spelled(ast.NodeTransformer):
    """Writes `x += y` as `x = x + y`: `symtable` does not say that the first reads x."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)


class _Reader:
    """Goes through statements in the order in which they run."""

    def __init__(self, file: str) -> None:
        self.needed: set[str] = set()
        self._file = file

    def block(self, statements: Iterable[ast.stmt], known: Known) -> Known:
        """Read statements; what is surely assigned after them."""
        for statement in statements:
            known = self._statement(statement, known)
        return known

    def _statement(self, node: ast.stmt, known: Known) -> Known:
        match node:
            case ast.If(test, body, orelse):
                known = self._expression(test, known)
                return self.block(body, known) & self.block(orelse, known)
            case ast.While(test, body, orelse):
                known = self._expression(test, known)
                self.block([*body, *orelse], known)
                return known
            case ast.For(target, iterable, body, orelse) | ast.AsyncFor(target, iterable, body, orelse):
                known = self._expression(iterable, known)
                self.block([*body, *orelse], self._target(target, known))
                return known
            case ast.With(items, body) | ast.AsyncWith(items, body):
                return self.block(body, self._entered(items, known))
            case ast.Try() | ast.TryStar():
                return self._try(node, known)
            case ast.Match(subject, cases):
                return self._match(cases, self._expression(subject, known))
        return self._simple(node, known)

    def _entered(self, items: Sequence[ast.withitem], known: Known) -> Known:
        for item in items:
            known = self._expression(item.context_expr, known)
            if item.optional_vars is not None:
                known = self._target(item.optional_vars, known)
        return known

    def _try(self, node: ast.Try | ast.TryStar, known: Known) -> Known:
        after = self.block(node.orelse, self.block(node.body, known))
        for handler in node.handlers:
            if handler.type is not None:
                self._expression(handler.type, known)
            caught = known | {handler.name} if handler.name else known
            after &= self.block(handler.body, caught)
        return after | self.block(node.finalbody, known)

    def _match(self, cases: Sequence[ast.match_case], known: Known) -> Known:
        for case in cases:
            alone = ast.match_case(case.pattern, case.guard, [ast.Pass()])
            table = self._table(ast.Match(ast.Constant(None), [alone]))
            captured = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
            self.needed |= set(_read(table)) - known - captured
            self.block(case.body, known | captured)
        return known

    def _target(self, target: ast.expr, known: Known) -> Known:
        return self._simple(ast.Assign([target], ast.Constant(None), lineno=1), known)

    def _expression(self, expression: ast.expr, known: Known) -> Known:
        return self._simple(ast.Expr(expression), known)

    def _simple(self, node: ast.stmt, known: Known) -> Known:
        read = set(_read(self._table(node)))
        taken = {target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)}
        if isinstance(node, ast.Delete):
            self.needed |= (read | taken) - known
            return known - taken
        self.needed |= read - known
        return known | set(_assigned(node))

    def _table(self, node: ast.stmt) -> symtable.SymbolTable:
        return symtable.symtable(ast.unparse(node), self._file, "exec")


def _read(table: symtable.SymbolTable) -> Iterator[str]:
    """The global names that a scope and those inside it read; a class may read one before it has its own."""
    anywhere = table.get_type() in ("module", "class")
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or (anywhere and not symbol.is_free())):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _read(inner)


def _assigned(node: ast.AST) -> Iterator[str]:
    """The names that a simple statement surely assigns in its own scope."""
    match node:
        case ast.Import(names) | ast.ImportFrom(names=names):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in names)
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            yield name
        case ast.AnnAssign(value=None):
            return
        case ast.Name(name, ast.Store()):
            yield name
    if not isinstance(node, _MAYBE_LATER):
        for child in ast.iter_child_nodes(node):
            yield from _assigned(child)
