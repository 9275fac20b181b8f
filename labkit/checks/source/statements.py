"""A cell as a list of its definitions, and which definitions a name needs.

Executing a whole notebook to grade one class would run its training loops on every rank. So a cell is read
as a list of top-level statements; definitions are kept (imports, `def`, `class`, and assignments that call
nothing but classes and a few functions that build a value), and from those the ones an exercise's names
depend on, however far down the notebook they stand. They are executed in the notebook's order, so that each
finds what it would find there: a name means what it meant at that place, and in a function what it means in
the end.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from labkit.checks.source.definitions import (
    changed_names,
    defined_names,
    is_definition,
    names_in_annotations,
)
from labkit.checks.source.ipython_lines import as_python
from labkit.checks.source.names import looked_up
from labkit.checks.source.syntax import parse

LARGEST_CELL = 200_000  # characters; a cell a person wrote is far below
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IN_THE_NOTEBOOK = ("%%time", "%%capture", "%%prun")  # of a cell that is executed as it would be without them


@dataclass(frozen=True)
class Statement:
    """One top-level definition, what it depends on, and where it stands.

    needs: names it looks up while it is executed. uses: those that its functions look up when called.
    methods: functions in the body of a class. changes: names of what it changes (`Made.method = f`,
    `TABLE["a"] = 1`). imports: it is an import.
    """

    cell: str
    index: int  # which statement of the cell it is
    first_line: int
    last_line: int
    defines: tuple[str, ...]
    needs: tuple[str, ...]
    uses: tuple[str, ...]
    methods: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    imports: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return dict(self.__dict__)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Statement:
        """The statement that `to_json` wrote."""
        lists = {name: tuple(data[name]) for name in ("defines", "needs", "uses", "methods", "changes")}
        return cls(**{**data, **lists})


@dataclass
class ParsedCell:
    """A cell's definitions; the names that other code sets, or what they stand for changes, and where; why it
    could not be read, if it could not.
    """

    source: str = ""
    statements: list[Statement] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    left_changes: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return {**self.__dict__, "statements": [statement.to_json() for statement in self.statements]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ParsedCell:
        """The cell that `to_json` wrote."""
        return cls(**{**data, "statements": [Statement.from_json(each) for each in data["statements"]]})


def parse_cell(label: str, source: str) -> ParsedCell:
    """Read one cell as data; nothing is executed. Whatever keeps it from being read is its `problem`."""
    try:
        return _parsed(label, source)
    except Exception as error:  # a cell can be hostile in more ways than the parser has exceptions
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        told = getattr(error, "msg", None) or str(error)
        return ParsedCell(problem=f"{label}{line}: {type(error).__name__}: {told[:300]}")


def _parsed(label: str, source: str) -> ParsedCell:
    if len(source) > LARGEST_CELL:
        raise ValueError(f"it has {len(source)} characters; the most that is read is {LARGEST_CELL}")
    if source.lstrip().startswith("%%") and source.split()[0] not in _IN_THE_NOTEBOOK:
        return ParsedCell()  # what runs on ranks or in a shell is not part of the notebook's own definitions
    source, tree = as_python(source)
    result = ParsedCell(source)
    for index, (node, code) in enumerate(zip(tree.body, _compiled(tree.body, label), strict=True)):
        if is_definition(node):
            result.statements.append(_statement(label, index, node, code))
        else:
            where = f"{label}, line {node.lineno}"
            result.left_out.update(dict.fromkeys(defined_names(node), where))
            inside = (each for each in ast.walk(node) if isinstance(each, ast.stmt))
            result.left_changes.update((name, where) for each in inside for name in changed_names(each))
    return result


def _compiled(body: Sequence[ast.stmt], label: str) -> list[CodeType]:
    """Code for each statement of a cell, as IPython would compile it."""
    features = [name for node in body if isinstance(node, ast.ImportFrom) for name in _features(node)]
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for name in features:
        flags |= getattr(__future__, name).compiler_flag
    modules = (ast.Module(body=[_in_a_notebook(node)], type_ignores=[]) for node in body)
    return [compile(module, label, "exec", flags=flags, dont_inherit=True) for module in modules]


def _in_a_notebook(node: ast.stmt) -> ast.stmt:
    """`if __name__ == "__main__":` holds in a notebook; what is collected of it has another name."""
    if _is_main_guard(node):
        assert isinstance(node, ast.If)
        return ast.copy_location(
            ast.If(ast.copy_location(ast.Constant(True), node.test), node.body, node.orelse), node
        )
    return node


def _is_main_guard(node: ast.stmt) -> bool:
    match node:
        case ast.If(
            test=ast.Compare(
                left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
            )
        ):
            return True
    return False


def _features(node: ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names] if node.module == "__future__" else []
    return [name for name in names if name in __future__.all_feature_names]


def needed_for(names: Iterable[str], statements: Sequence[Statement]) -> list[Statement]:
    """The statements that `names` depend on, in notebook order.

    What a statement needs at once is the last definition above it; what it uses later, and each of `names`,
    is the last definition of all. A function that is needed at once may also be called at once: then it finds
    what is defined above that place.
    """
    end = len(statements)
    definitions = _definitions(statements)
    everything = definitions.get("*", [])
    asked = [(name, 1 << end) for name in names]
    asked += [(name, 1 << place) for place in everything for name in statements[place].needs]
    # by its place, the moments at which it is looked up, a bit each
    found = dict.fromkeys(everything, 1 << end)
    new: dict[int, int] = {}  # those of which its own names have not been looked up yet

    def look_up(name: str, moments: int) -> None:
        for place, after in _at(moments, definitions.get(name, [])):
            if more := after & ~found.get(place, 0):
                found[place] = found.get(place, 0) | more
                new[place] = new.get(place, 0) | more

    for name, moments in asked:
        look_up(name, moments)
    while new:
        place = next(iter(new))
        moments = new.pop(place)
        first = found[place] == moments
        for name in statements[place].needs if first else ():
            look_up(name, 1 << place)
        for name in statements[place].uses:
            look_up(name, moments | 1 << end)
    return [statements[place] for place in sorted(found)]


def _at(moments: int, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of moments, a bit each, those at which each of these places is the last one before them."""
    for place in reversed(places):
        after = moments >> (place + 1) << (place + 1)
        if after:
            yield place, after
            moments ^= after
        if not moments:
            return


def _definitions(statements: Sequence[Statement]) -> dict[str, list[int]]:
    """Where each name is defined. A statement that changes what a name stands for defines it anew, except
    where that is imported: what a notebook does to a library for itself is not done on ranks.
    """
    found: dict[str, list[int]] = {}
    for position, statement in enumerate(statements):
        for name in statement.changes:
            if name in found and not statements[found[name][-1]].imports:
                found[name].append(position)
        for name in statement.defines:
            found.setdefault(name, []).append(position)
    return found


def compile_statements(label: str, source: str, statements: Iterable[Statement]) -> list[CodeType]:
    """Code for some of a cell's statements, in order; tracebacks name the cell and the line within it."""
    code = _compiled(parse(source).body, label)
    return [code[statement.index] for statement in statements]


def methods_of(source: str, statement: Statement, wanted: Iterable[str]) -> list[ast.stmt]:
    """The functions of these names in a class's body."""
    node = parse(source).body[statement.index]
    assert isinstance(node, ast.ClassDef), f"{statement} is not a class"
    return [each for each in node.body if isinstance(each, _FUNCTIONS) and each.name in set(wanted)]


def _statement(label: str, index: int, node: ast.stmt, code: CodeType) -> Statement:
    now, later = looked_up(code)
    body = node.body if isinstance(node, ast.ClassDef) else []
    return Statement(
        cell=label,
        index=index,
        first_line=min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]),
        last_line=node.end_lineno or node.lineno,
        defines=tuple(dict.fromkeys(defined_names(node))),
        needs=tuple(sorted(now)),
        uses=tuple(sorted(later | names_in_annotations(node))),
        methods=tuple(each.name for each in body if isinstance(each, _FUNCTIONS)),
        changes=tuple(dict.fromkeys(changed_names(node))),
        imports=isinstance(node, ast.Import | ast.ImportFrom),
    )
