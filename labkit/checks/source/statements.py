"""Which statements of a cell are definitions, and which definitions a name needs.

Executing a whole notebook to grade one class would run its training loops on every rank. So a cell is read
as a list of top-level statements; definitions are kept (imports, `def`, `class`, and assignments that call
nothing but a few pure constructors), and from those the ones an exercise's names depend on, however far
down the notebook they stand.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from labkit.checks.source.syntax import parse

# Calls that build a value and do nothing else, by the last part of their name.
PURE_CALLS = {
    *(
        "partial",
        "namedtuple",
        "TypeVar",
        "NewType",
        "dataclass",
        "field",
        "float",
        "int",
        "str",
        "frozenset",
        "sqrt",
    ),
    *("dict", "list", "set", "tuple", "range", "Path", "getLogger", "compile", "Enum", "IntEnum", "auto"),
}
LARGEST_CELL = 200_000  # characters; a cell a person wrote is far below


@dataclass(frozen=True)
class Statement:
    """One top-level definition: the names it defines, the names it mentions, and where it stands."""

    cell: str
    index: int  # which statement of the cell it is
    first_line: int
    last_line: int
    defines: tuple[str, ...]
    uses: tuple[str, ...]
    self_reference: bool  # an assignment whose value needs the name's earlier definition

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Statement:
        return cls(**{**data, "defines": tuple(data["defines"]), "uses": tuple(data["uses"])})


@dataclass
class ParsedCell:
    """A cell's definitions; the names set by other code and where; why it could not be read, if it could
    not.
    """

    source: str = ""
    statements: list[Statement] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def parse_cell(label: str, source: str) -> ParsedCell:
    """Read one cell as data. Lines of IPython's own (%magic, !command) are taken out; nothing is executed."""
    if len(source) > LARGEST_CELL:
        return ParsedCell(
            problem=f"{label} has {len(source)} characters; the most that is read is {LARGEST_CELL}"
        )
    if source.lstrip().startswith("%%"):
        return ParsedCell()  # what runs on ranks or in a shell is not part of the notebook's own definitions
    source = without_magics(source)
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return ParsedCell(
            problem=f"{label}{line}: {type(error).__name__}: {getattr(error, 'msg', None) or error}"
        )
    result = ParsedCell(source)
    for index, node in enumerate(tree.body):
        if is_definition(node):
            result.statements.append(_statement(label, source, index, node))
        else:
            where = f"{label}, line {node.lineno}"
            result.left_out.update(dict.fromkeys(defined_names(node), where))
    return result


def needed_for(names: Iterable[str], statements: Sequence[Statement]) -> list[Statement]:
    """The statements that `names` depend on, in notebook order. The last definition of a name is the one
    that counts.
    """
    definitions: dict[str, list[int]] = {}
    for position, statement in enumerate(statements):
        for name in statement.defines:
            definitions.setdefault(name, []).append(position)
    kept = {i for i, s in enumerate(statements) if "*" in s.defines}
    pending = [(name, len(statements)) for name in names]
    while pending:
        name, before = pending.pop()
        earlier = [i for i in definitions.get(name, []) if i < before]
        if not earlier or earlier[-1] in kept:
            continue
        kept.add(earlier[-1])
        statement = statements[earlier[-1]]
        # A call will find the last definition; what is looked up at once (annotations) needs one before it.
        pending += [(used, len(statements)) for used in statement.uses]
        pending += [(used, earlier[-1]) for used in statement.uses if used not in statement.defines]
        if statement.self_reference:
            pending.append((name, earlier[-1]))
    return [statements[i] for i in sorted(kept)]


def compile_statements(label: str, source: str, statements: Iterable[Statement]) -> list[CodeType]:
    """Code for some of a cell's statements, in order; tracebacks name the cell and the line within it."""
    body = parse(source).body
    nodes = [body[s.index] for s in statements]
    return [compile(ast.Module(body=[n], type_ignores=[]), label, "exec", dont_inherit=True) for n in nodes]


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
            return all(is_definition(n) for n in body + other)
        case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=final):
            inside = body + other + final + [n for h in handlers for n in h.body]
            return all(is_definition(n) or isinstance(n, ast.Pass) for n in inside)
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


def without_magics(source: str) -> str:
    """The cell with IPython's own lines blanked, so that line numbers stay."""
    lines = source.splitlines()
    return (
        "\n".join("" if _is_magic(line) else line for line in lines) if any(map(_is_magic, lines)) else source
    )


def _is_magic(line: str) -> bool:
    return line.startswith(("%", "!", "?")) or (
        line.rstrip().endswith("?") and not line.lstrip().startswith("#")
    )


def _statement(label: str, source: str, index: int, node: ast.stmt) -> Statement:
    defines = tuple(dict.fromkeys(defined_names(node)))
    first_line = min([node.lineno, *(n.lineno for n in getattr(node, "decorator_list", []))])
    last_line = node.end_lineno or node.lineno
    used = _global_names("\n".join(source.splitlines()[first_line - 1 : last_line]), label)
    assigns = isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.If, ast.Try))
    bases = {n.id for b in getattr(node, "bases", []) for n in ast.walk(b) if isinstance(n, ast.Name)}
    rebinds = isinstance(node, ast.AugAssign) or bool(set(defines) & (used if assigns else bases))
    return Statement(
        cell=label,
        index=index,
        first_line=first_line,
        last_line=last_line,
        defines=defines,
        uses=tuple(sorted(used | _names_in_strings(node))),
        self_reference=rebinds,
    )


def _global_names(text: str, label: str) -> set[str]:
    """Names that code looks up outside itself: not its parameters, not its local variables."""
    pending, found = [symtable.symtable(text, label, "exec")], set()
    while pending:
        table = pending.pop()
        pending += table.get_children()
        outermost = table.get_type() == "module"
        found |= {
            s.get_name() for s in table.get_symbols() if s.is_global() or (outermost and s.is_referenced())
        }
    return found


def _names_in_strings(node: ast.AST) -> set[str]:
    """Identifiers written as strings: forward references in annotations."""
    strings = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {s for s in strings if s.isidentifier()}


def _is_simple(value: ast.expr) -> bool:
    """Whether computing the value calls nothing but PURE_CALLS. What a lambda would do later does not
    count.
    """
    match value:
        case ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            if name not in PURE_CALLS:
                return False
        case ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom():
            return False
    return all(_is_simple(child) for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr))
