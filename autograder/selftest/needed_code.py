"""The code that a name of a lesson's checks rests on: statement by statement within the lessons' own files,
file by file beyond them. Sentences that only tell a student about a property count for nothing.

A lesson's exercises share files, and a file of one may take a constant of another's: of these what is
needed counts, and nothing beside it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence, Set
from functools import cache, cached_property
from pathlib import Path

from autograder.grade.deciding import JUDGING, STOPS
from autograder.grade.imports import Tree
from autograder.grade.reference import REPOSITORY, all_cases, bare_code, graded_submission
from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell

CHECKS = "labkit.checks.lesson_"
LISTED = "EXERCISES"
COLLECTING = "labkit.checks.source"  # counts by what it makes of a notebook: `code_put_in`


@cache
def check_code(exercise: str, seed: int) -> tuple[str, ...]:
    """The code of an exercise's check, and its cases as drawn for a seed."""
    of_lesson = registry.exercises(exercise)
    place = next(at for at, each in enumerate(of_lesson) if each.id == exercise)
    cases = (json.dumps(case.to_json(), sort_keys=True) for case in all_cases(of_lesson[place], seed))
    told = {text for each in of_lesson[place].properties for text in (each.says, each.usual_cause)}
    return (*_repository().of_exercise(exercise[:2], place, told), *cases)


def code_put_in(exercise: Exercise, cells: Sequence[Cell]) -> Iterator[str]:
    """The code that is run of a notebook, and of the references of earlier exercises."""
    for submission in graded_submission(cells, exercise):
        texts = {**submission.sources, **submission.reference_sources}
        for each in (*submission.statements, *submission.reference, *submission.additions):
            lines = texts[each.cell].split("\n")[each.first_line - 1 : each.last_line]
            yield _bare("\n".join(lines))


@cache
def _repository() -> NeededCode:
    """Files are read once."""
    return NeededCode(REPOSITORY)


_bare = cache(bare_code)  # most statements of a notebook are the same in all that is tried of it


class Module:
    """A file of a lesson's checks, read and not run."""

    def __init__(self, path: Path) -> None:
        self.body = ast.parse(path.read_bytes()).body

    @cached_property
    def binding(self) -> dict[str, list[ast.stmt]]:
        """Name -> the statements that bind it."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.body:
            for name in _bound(statement):
                found.setdefault(name, []).append(statement)
        return found

    @property
    def acting(self) -> list[ast.stmt]:
        """Statements that bind nothing: they do something when the file is read."""
        return [s for s in self.body if not isinstance(s, (ast.Import, ast.ImportFrom)) and not _bound(s)]

    def listed(self, place: int) -> ast.expr:
        """What stands at a place of the list of exercises."""
        for statement in self.binding[LISTED]:
            value = getattr(statement, "value", None)
            if isinstance(value, ast.List):
                return value.elts[place]
        raise LookupError(f"expected {LISTED} = [...], found none")


class NeededCode:
    """Follows names through the files below `root`, without running any of them."""

    def __init__(self, root: Path) -> None:
        self.tree = Tree(root, (*STOPS, COLLECTING))
        self._modules: dict[Path, Module] = {}
        self._bare: dict[Path, str] = {}

    def of_exercise(self, lesson: str, place: int, told: Set[str]) -> list[str]:
        """The code, without comments and texts about it, that decides what the exercise at `place` in its
        lesson's list asks for, and what takes points from evidence. told: sentences that a student reads of
        its properties, which decide nothing.
        """
        start = self.tree.file_of(f"{CHECKS}{lesson}")
        listed = self._module(start).listed(place)
        kept: dict[Path, dict[int, ast.stmt]] = {}
        for path, statement in self._statements(start, listed):
            kept.setdefault(path, {})[statement.lineno] = statement
        own = [_text(of_file) for _, of_file in sorted(kept.items())]
        files = {file for name in self._judging() for file in self.tree.behind(self.tree.file_of(name))}
        files |= {file for text in own for file in self.tree.behind_source(text)}
        lessons_own = [_untold(text, told) for text in (ast.unparse(listed), *map(bare_code, own))]
        return [*lessons_own, *map(self._bare_file, sorted(files))]

    def _judging(self) -> list[str]:
        return [name for name in JUDGING if not name.startswith(COLLECTING)]

    def _statements(self, start: Path, node: ast.AST) -> Iterator[tuple[Path, ast.stmt]]:
        """Every statement of the lessons' files that a node needs, and its file; some more than once."""
        todo = list(self._names(start, node))
        done = set(todo)
        visited = set[Path]()
        while todo:
            path, name = todo.pop()
            module = self._module(path)
            needed = [*module.binding.get(name, []), *([] if path in visited else module.acting)]
            visited.add(path)
            for statement in needed:
                yield path, statement
                wanted = set(self._names(path, statement)) | set(self._imported(statement, name))
                todo += wanted - done
                done |= wanted

    def _names(self, path: Path, node: ast.AST) -> Iterator[tuple[Path, str]]:
        """Names of the same file that a node reads, and those it reaches through a module of the lesson."""
        module = self._module(path)
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id in module.binding:
                yield path, each.id
            elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                for statement in module.binding.get(each.value.id, []):
                    yield from self._in_module(statement, each.value.id, each.attr)

    def _imported(self, statement: ast.stmt, name: str) -> Iterator[tuple[Path, str]]:
        """What an import takes out of a file of the lessons."""
        for origin, taken in _origins(statement, name):
            if origin.startswith(CHECKS) and self._file(f"{origin}.{taken}") is None:
                yield self.tree.file_of(origin), taken

    def _in_module(self, statement: ast.stmt, name: str, attribute: str) -> Iterator[tuple[Path, str]]:
        for origin, taken in _origins(statement, name):
            file = self._file(f"{origin}.{taken}") if origin.startswith(CHECKS) else None
            if file is not None:
                yield file, attribute

    def _file(self, dotted: str) -> Path | None:
        try:
            return self.tree.file_of(dotted)
        except LookupError:
            return None

    def _module(self, path: Path) -> Module:
        if path not in self._modules:
            self._modules[path] = Module(path)
        return self._modules[path]

    def _bare_file(self, path: Path) -> str:
        if path not in self._bare:
            self._bare[path] = bare_code(path.read_text(encoding="utf-8"))
        return self._bare[path]


def _text(statements: dict[int, ast.stmt]) -> str:
    """Statements of one file in their order, without what they import from the lessons' own files: what is
    taken from there counts by itself.
    """
    kept = [statement for _, statement in sorted(statements.items())]
    return "\n".join(ast.unparse(s) for s in kept if not getattr(s, "module", "").startswith(CHECKS))


def _untold(text: str, told: Set[str]) -> str:
    """Code without the sentences `told`, wherever they are an argument of a call."""
    tree = ast.parse(text)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(_is_text(each, told - {""}) for each in given):
            call.args = [each for each in call.args if not _is_text(each, told | {""})]
            call.keywords = [each for each in call.keywords if not _is_text(each.value, told | {""})]
    return ast.unparse(tree)


def _is_text(node: ast.expr, texts: Set[str]) -> bool:
    return isinstance(node, ast.Constant) and node.value in texts


def _origins(statement: ast.stmt, name: str) -> Iterator[tuple[str, str]]:
    """The module, and the name in it, that `name` stands for after a `from ... import ...`."""
    if isinstance(statement, ast.ImportFrom) and statement.module:
        yield from ((statement.module, a.name) for a in statement.names if (a.asname or a.name) == name)


def _bound(statement: ast.stmt) -> list[str]:
    """Names that a statement binds, or whose attributes or entries it sets."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    names = [n for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)]
    return [each.id for each in names]
