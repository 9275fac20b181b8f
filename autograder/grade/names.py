"""The names that a statement imports, binds and reads, and which imports no exercise needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import labkit
from autograder.grade.needed_modules import IN_PART, NEEDED, OF_LABKIT
from autograder.grade.watched_names import ATTRIBUTES, BY_NAME, INTERPRETER, MODULES, PARTLY, UNCOUNTED

_LABKIT = Path(labkit.__file__).parent
MOST_PARTS = 30  # of a dotted name that is followed; a person writes five or six
LONGEST = 100  # characters of each of them: it is told again wherever it is used
TOO_LONG = (
    f"goes through more than {MOST_PARTS} names in a row, or one of more than {LONGEST} characters, which "
    "are not followed"
)


def import_told(name: str) -> str:
    """Why the import of a module is told; empty for one that exercises need, or that is told by its use."""
    parts = name.split(".", MOST_PARTS)[:MOST_PARTS]
    known = next((m for m in (".".join(parts[:n]) for n in range(len(parts), 0, -1)) if m in MODULES), None)
    if known:
        return f"imports {name} ({MODULES[known]})"
    unneeded = (parts[0] not in NEEDED and _is_installed(parts[0])) or is_inner(name)
    return f"imports {name}, which no exercise needs" if unneeded else ""


@cache
def _is_installed(package: str) -> bool:
    """Whether there is such a package or module at all: trying for one that is not leads nowhere."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # __main__, say
        return True


def is_inner(name: str) -> bool:
    """Whether it is a module of labkit, torch, numpy or matplotlib that is behind what exercises use."""
    top, dot, _ = name.partition(".")
    if top in IN_PART:
        return bool(dot) and _is_beside(top, name)
    if not name.startswith("labkit.") or name in OF_LABKIT or name.startswith(OF_LABKIT[:2]):
        return False
    path = _LABKIT.joinpath(*name.split(".")[1:])
    try:
        return path.is_dir() or path.with_suffix(".py").is_file()
    except OSError:  # a longer name than a file can have
        return False


@lru_cache(maxsize=10_000)
def _is_beside(top: str, name: str) -> bool:
    """Whether it is a module of a library of which exercises need others. What is private is told anyway."""
    used = IN_PART[top]
    if name in used or name.startswith(tuple(each for each in used if each.endswith("."))):
        return False
    if any(part.startswith("_") for part in name.split(".")):
        return False
    home = _folder_of(top).joinpath(*name.split(".")[1:])
    try:
        return home.is_dir() or home.with_suffix(".py").is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


@cache
def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"{package} is needed to grade"
    assert spec.origin is not None, f"{package} has no file"
    return Path(spec.origin).parent


def of_an_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Why it is flagged, if it is: by what it imports, and from where."""
    match node:
        case ast.Import(names=names):
            yield from (TOO_LONG for alias in names if not is_followed(alias.name))
            told = (alias for alias in names if alias.asname or alias.name not in PARTLY)
            yield from (why for alias in told if (why := import_told(alias.name)))
        case ast.ImportFrom(level=int(level), module=module) if level:
            yield f"imports {'.' * level}{module or ''}, from where it says that it stands ({BY_NAME})"
        case ast.ImportFrom(module=str(module)) if not is_followed(module):
            yield TOO_LONG
        case ast.ImportFrom(module=str(module), names=names):
            if why := import_told(module):
                yield why
            yield from (why for alias in names if (why := import_told(f"{module}.{alias.name}")))
            inner = (alias.name for alias in names if alias.name in ATTRIBUTES | UNCOUNTED)
            yield from (f"reaches for {name}" for name in inner)
            inner = (alias.name for alias in names if alias.name.lstrip("_") in INTERPRETER)
            yield from (f"reaches for {name}" for name in inner)


def imported_names(statement: ast.stmt) -> dict[str, list[str]]:
    """What each imported name stands for: dist -> torch.distributed. All that it ever does: a name that is
    imported twice must not hide what it stands for elsewhere.
    """
    found: dict[str, list[str]] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in filter(lambda alias: is_followed(alias.name), node.names):
                first = alias.name.split(".")[0]
                found.setdefault(alias.asname or first, []).append(alias.name if alias.asname else first)
        elif isinstance(node, ast.ImportFrom) and node.module and is_followed(node.module):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, []).append(f"{node.module}.{alias.name}")
    return found


def renamed_names(statement: ast.stmt) -> dict[str, list[str]]:
    """What is assigned to a name as it is: Base -> torch.Tensor."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(statement):
        match node:
            case ast.Assign(targets=targets, value=value) if chain := chain_of(value):
                for name in (target.id for target in targets if isinstance(target, ast.Name)):
                    found.setdefault(name, []).append(chain)
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if chain := chain_of(value):
                found.setdefault(name, []).append(chain)
    return found


def bound_names(statement: ast.stmt) -> list[str]:
    """Names that are bound anywhere in it, in whatever way, but for classes and imports with a full name."""
    found = []
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.append(name)
            case ast.ImportFrom(level=int(level), names=names) if level:
                found += [alias.asname or alias.name for alias in names]
            case ast.keyword() | ast.alias() | ast.ClassDef():
                pass
            case _:  # a function, an argument, an error that is caught, a part of a pattern
                named = (getattr(node, field, None) for field in ("name", "arg", "rest"))
                found += [name for name in named if isinstance(name, str)]
    return list(dict.fromkeys(found))


def class_names(statement: ast.stmt) -> list[str]:
    """Of the classes that are defined anywhere in it."""
    return [node.name for node in ast.walk(statement) if isinstance(node, ast.ClassDef)]


def is_followed(dotted: str) -> bool:
    """Whether a dotted name has no more than MOST_PARTS names, none of them longer than LONGEST."""
    return dotted.count(".") < MOST_PARTS and max(map(len, dotted.split("."))) <= LONGEST


def is_one_too_long(node: ast.AST) -> bool:
    """Whether it is a name too long to be followed, or where a row of attributes becomes so."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if len(name) > LONGEST:
            return True
        case ast.Attribute():
            inner: ast.expr = node
        case _:
            return False
    for _ in range(MOST_PARTS):
        if not isinstance(inner, ast.Attribute):
            return False
        inner = inner.value
    return not isinstance(inner, ast.Attribute)


def chain_of(node: ast.AST) -> str:
    """A plain dotted name as it is written; empty for any other expression, and for one too long."""
    names: list[str] = []
    while isinstance(node, ast.Attribute) and len(names) < MOST_PARTS - 1:
        names.append(node.attr)
        node = node.value
    chain = ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""
    return chain if is_followed(chain) else ""


def bound_by(node: ast.AST) -> str:
    """The name that this gives a value to; "" where it gives none."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.alias(asname=str(name)):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return name
    return ""
