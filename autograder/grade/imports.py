"""Follows imports through source files, without running any of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

HOMES = "_HOMES"  # where a package of ours says which of its modules a name is imported from, when used


class Tree:
    """The packages below a folder. stops: modules that are neither followed nor counted, with all below."""

    def __init__(self, root: Path, stops: Sequence[str] = ()) -> None:
        self.root, self.stops = root, tuple(stops)
        self._behind: dict[Path, set[Path]] = {}
        self._homes: dict[str, dict[str, str]] = {}

    def behind(self, path: Path) -> set[Path]:
        """The file, and every file of the tree that is imported with it: at its head, inside functions, by
        lazy names, and the packages they stand in.
        """
        found, todo = set[Path](), [path]
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += self._next(one)
        return found

    def behind_source(self, source: str) -> set[Path]:
        """The same for a piece of code that is in no file of its own. Nothing for what is not Python."""
        try:
            names = _imported(source.encode(), "")
        except SyntaxError:
            return set()
        return {path for name in names for one in self._files(name) for path in self.behind(one)}

    def file_of(self, module: str) -> Path:
        """The file of a module of the tree; LookupError when it has none."""
        path = self.root.joinpath(*module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
        raise LookupError(f"no module {module} below {self.root}")

    def _next(self, path: Path) -> set[Path]:
        if path not in self._behind:
            package = ".".join(path.parent.relative_to(self.root).parts)
            names = _imported(path.read_bytes(), package)
            own = self._files(f"{package}.{path.stem}") if package else []
            self._behind[path] = {*own, *(file for name in names for file in self._files(name))}
        return self._behind[path]

    def _files(self, dotted: str) -> list[Path]:
        """The files that importing a dotted name runs: of its packages, of its module, of its home."""
        if any(dotted == stop or dotted.startswith(f"{stop}.") for stop in self.stops):
            return []
        parts, found = dotted.split("."), []
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            try:
                found.append(self.file_of(name))
            except LookupError:
                return [*found, *self._home(".".join(parts[: length - 1]), parts[length - 1])]
        return found

    def _home(self, package: str, name: str) -> list[Path]:
        """The files of the module that a package takes a name from when it is first used."""
        if package and package not in self._homes:
            self._homes[package] = _homes_in(self.file_of(package).read_bytes())
        home = self._homes.get(package, {}).get(name)
        if home is None:
            return []
        return self._files(home if home.startswith(f"{package}.") else f"{package}.{home}")


@lru_cache(maxsize=2000)  # lessons share most of what they import: a text is parsed once, whichever asks
def _imported(source: bytes, package: str) -> frozenset[str]:
    """Dotted names that a file imports, or reaches through a package it has imported."""
    parsed = ast.parse(source)
    bound, names = dict[str, str](), set[str]()
    for node in _running(parsed):
        for name, dotted in _bindings(node, package):
            bound[name] = dotted
            names.add(dotted)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    for node in _running(parsed):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node, bound)):
            names.add(dotted)
    return frozenset(names)


def _running(parsed: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    todo: list[ast.AST] = [parsed]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)


def _bindings(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Names that an import statement binds, and the dotted names they stand for."""
    match node:
        case ast.Import(names=names):
            yield from (
                (a.asname or a.name.split(".")[0], a.name if a.asname else a.name.split(".")[0])
                for a in names
            )
        case ast.ImportFrom(module=module, names=names, level=level):
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            origin = ".".join([*above, *([module] if module else [])])
            yield from ((a.asname or a.name, f"{origin}.{a.name}") for a in names)


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return bound.get(name, "")
        case ast.Attribute(value=value, attr=attr) if base := _dotted(value, bound):
            return f"{base}.{attr}"
    return ""


@lru_cache(maxsize=100)
def _homes_in(source: bytes) -> dict[str, str]:
    """The literal table of lazy names in a package's `__init__`; empty where it has none."""
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as table) if name == HOMES:
                return dict(ast.literal_eval(table))
    return {}
