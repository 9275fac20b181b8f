"""Reads a student's source for what no exercise needs: reaching for frames, the recorder, or torch's own
functions.

A finding is a flag for a person, with the line. It takes no points by itself: a flag is a suspicion, a
failed property is evidence. The exception is an exercise's `forbids`, which is also enforced when the code
runs.

A cell is parsed where it is read, within limits; what is found there are clues, in words. Which of them are
flags for an exercise is decided from the words alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

import labkit
from autograder.grade.detours import ASKED_OF, detours, handed_on, is_module, looks_up_a_class
from autograder.grade.watched_names import (
    ATTRIBUTES,
    BY_ANY_NAME,
    BY_NAME,
    CALLS,
    CLASSES,
    GRADING_WORDS,
    HARMLESS,
    HAS_ALL_NAMES,
    INTERPRETER,
    MODULES,
    NEEDED,
    OF_LABKIT,
    PLAIN,
    PRIVATE_BUT_USUAL,
    PUBLIC,
    TEXTS_OF_NUMBERS,
    UNCOUNTED,
    UNPICKLE_BY_PLACE,
)
from labkit.checks.source.submission import Submission
from labkit.checks.source.syntax import parse
from labkit.checks.source.text import python_lines


@dataclass(frozen=True)
class Flag:
    """Something a person should look at. `line` is the student's own text."""

    why: str
    cell: str = ""
    line_number: int = 0
    line: str = ""
    holds: bool = False  # with this a record can be forged: what rests on one waits for a person
    holds_all: bool = False  # with this the checks can be had to answer for themselves: all points wait

    def __str__(self) -> str:
        where = f"{self.cell}, line {self.line_number}: {self.line}" if self.cell else ""
        return f"{self.why}" + (f" ({where})" if where else "")


class Clue(msgspec.Struct, frozen=True):
    """What one place in a statement shows. why: what it is whatever else there is; or else chain: a dotted
    name as it is written ("dist.all_reduce"), and how it is used.
    """

    line: int
    why: str = ""
    chain: str = ""
    # given: by an import, under its full name; made: by a name that is only known when it runs; handed: as a
    # value, which may get another name; modules: an attribute of that name, which sys has too, is read (no
    # chain where that could be the one of sys whatever the names before it are); looked_up: by a name that
    # comes from elsewhere; spelled: a text is made of numbers; unnamed: called with more than two
    # arguments by their places
    use: Literal[
        "",
        "given",
        "read",
        "set",
        "patched",
        "made",
        "base",
        "handed",
        "modules",
        "looked_up",
        "spelled",
        "unnamed",
    ] = ""


class Clues(msgspec.Struct):
    """A statement's clues; the full names of what it imports, by the names it gives them; what it assigns
    to names as it is; and the names that it binds anywhere in other ways than by an import.
    """

    found: list[Clue]
    imported: dict[str, list[str]]
    renamed: dict[str, list[str]]
    bound: list[str]


PARTLY = {name.partition(".")[0] for name in PLAIN}  # modules of which it matters what is used
MOST_MEANINGS = 20  # that one name has in a submission
IN_NUMBERS = "looks something up by a name, beside texts that are made of numbers"
LAYERS = "torch.nn.modules"  # torch's own package of them, as in `nn.modules.batchnorm._BatchNorm`
_LABKIT = Path(labkit.__file__).parent
Names = Mapping[str, Sequence[str]]  # what each name may stand for
CellClues = Mapping[int, Clues]  # by which statement of the cell it is


def clues_of(source: str) -> dict[int, Clues]:
    """The clues in each statement of a cell that can be read."""
    return {
        index: Clues(list(_clues(statement)), _aliases(statement), _renamed(statement), _bound(statement))
        for index, statement in enumerate(parse(source).body)
    }


def scan(
    submission: Submission, forbids: Sequence[str] = (), known: Mapping[str, CellClues] | None = None
) -> list[Flag]:
    """Flags for the student's statements an exercise would run.

    forbids: dotted names that solve it outright. known: clues by cell, where they have been found already.
    """
    cells = dict(known or {})
    cells |= {label: clues_of(text) for label, text in submission.sources.items() if label not in cells}
    clues = {s: cells[s.cell][s.index] for s in (*submission.statements, *submission.additions)}
    renamed = _merged(each.renamed for each in clues.values())
    meant = _merged(each.imported for each in clues.values())
    crowded = [name for name, full in meant.items() if len(full) > MOST_MEANINGS]
    imported = _with_modules({name: full[:MOST_MEANINGS] for name, full in meant.items()}, renamed)
    bound = {name for each in clues.values() for name in each.bound}
    never_else = {} if "*" in imported else {n: full for n, full in imported.items() if n not in bound}
    flags = [Flag(f"imports more than {MOST_MEANINGS} things as {name}", holds=True) for name in crowded]
    uses = {clue.use for found in clues.values() for clue in found.found}
    in_numbers = {"looked_up", "spelled"} <= uses
    for statement, found in clues.items():
        lines = python_lines(submission.sources[statement.cell])
        for clue in found.found:
            reasons = _reasons(clue, imported, never_else, renamed, forbids)
            if clue.use in ("looked_up", "spelled"):
                reasons = iter([IN_NUMBERS] if in_numbers else [])
            for why in reasons:
                text = lines[clue.line - 1].strip()[:200] if 0 < clue.line <= len(lines) else ""
                flags.append(Flag(why, statement.cell, clue.line, text, _can_forge(why), _finds_checks(why)))
    return list(dict.fromkeys(flags))


def _with_modules(imported: Names, renamed: Names) -> Names:
    """With the names that modules were assigned to: `m = torch.nn.functional` is as an import of it."""
    while True:
        fulls = {
            name: [f for chain in chains for f in _full(chain, imported)] for name, chains in renamed.items()
        }
        more = _merged([imported, {n: [f for f in found if is_module(f)] for n, found in fulls.items()}])
        if more == imported:
            return imported
        imported = more


def _reasons(
    clue: Clue, imported: Names, never_else: Names, renamed: Names, forbids: Sequence[str]
) -> Iterator[str]:
    """Why a clue is a flag, with what these names stand for. never_else: those that nothing but imports
    binds, in any statement.
    """
    if clue.why:
        yield clue.why
        return
    if clue.use == "modules":
        if set(_full(clue.chain, never_else)) != {LAYERS}:
            yield "reaches for modules"
        return
    if clue.chain in HAS_ALL_NAMES:
        modules = PARTLY.intersection(full for names in imported.values() for full in names)
        yield from (
            f"reaches for {clue.chain}, which has {name} ({MODULES[name]})" for name in sorted(modules)
        )
    for dotted in [clue.chain] if clue.use == "given" else _full(clue.chain, imported):
        yield from _about(dotted, clue.use, forbids)
    first, dot, rest = clue.chain.partition(".")
    for dotted in (full for chain in renamed.get(first, []) for full in _full(chain, imported)):
        if clue.use == "unnamed":
            yield from _about(dotted + dot + rest, clue.use, forbids)
        if dotted in CLASSES and clue.use in ("base", "set", "patched"):
            yield from _about(dotted + dot + rest, clue.use, forbids)


def _about(dotted: str, use: str, forbids: Sequence[str]) -> Iterator[str]:
    """Why the use of a full name is a flag."""
    if use == "handed":
        if is_module(dotted) or dotted in UNPICKLE_BY_PLACE:
            yield f"hands on {dotted}, which gets another name"
        return
    if use == "unnamed":
        if dotted in UNPICKLE_BY_PLACE:
            yield "runs code from data: reads what was pickled"
        return
    if use != "given" and (watched := _of_a_module_used_in_part(dotted)):
        yield watched
    if dotted in forbids and use not in ("patched", "made"):
        yield f"uses {dotted}, forbidden here"
    if use != "given" and (way := _on_the_way(dotted)):
        yield way
    elif _is_private(dotted):
        yield f"reaches for {dotted}, which torch keeps to itself"
    if beneath := next((name for name in forbids if _is_beneath(dotted, name)), ""):
        yield f"uses {dotted}, which is beneath {beneath}, forbidden here"
    if use == "made" or dotted.endswith(".__dict__"):
        yield f"reaches into {dotted.removesuffix('.__dict__')} by a name that is made"
    if use == "base" and dotted in ("torch.Tensor", "torch.nn.Parameter"):
        yield f"makes a kind of {dotted} of its own"
    if use == "set":
        yield f"replaces {dotted}"
    if use == "patched":
        yield f"replaces something in {dotted}"


def _clues(statement: ast.stmt) -> Iterator[Clue]:
    yield from (Clue(line, why) for line, why in dict.fromkeys(detours(statement)))
    yield from (Clue(line, chain=name, use="handed") for name, line in handed_on(statement).items())
    nodes = [*ast.walk(statement)]
    yield from (Clue(node.lineno, chain=_chain(node), use="handed") for node in _handed_chains(nodes))
    methods = {node.func for node in nodes if isinstance(node, ast.Call)}
    read_from = {node.value: node.attr for node in nodes if isinstance(node, ast.Attribute)}
    dtypes = {node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "dtype"}
    for node in nodes:
        line = getattr(node, "lineno", statement.lineno)
        if isinstance(node, ast.Call) and _goes_by_places(node) and (chain := _chain(node.func)):
            yield Clue(line, chain=chain, use="unnamed")
        if not _reads_modules(node):
            yield from (Clue(line, why) for why in dict.fromkeys(_suspicions(node)))
        elif node not in methods:  # called it is a model's own method, as sys.modules cannot be called
            as_sys_has = node not in read_from or read_from[node] in dir(dict)  # or as a value, to go on with
            yield Clue(line, chain="" if as_sys_has else _chain(node), use="modules")
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                yield from (Clue(line, chain=f"{module}.{alias.name}", use="given") for alias in names)
            case ast.Name(id=name) if name in HAS_ALL_NAMES or (name in PARTLY and node not in read_from):
                yield Clue(line, chain=name, use="read")
            case ast.Attribute(ctx=context) if chain := _chain(node):
                yield Clue(line, chain=chain, use="read" if isinstance(context, ast.Load) else "set")
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]) if chain := _chain(
                target
            ):
                yield Clue(line, chain=chain, use="patched")
            case ast.Call(func=ast.Name(id="getattr"), args=[target, name, *_]) if chain := _chain(target):
                if not isinstance(name, ast.Constant) and chain != "torch":
                    yield Clue(line, use="looked_up")
                match name:
                    case ast.Constant(value=str(written)):
                        yield Clue(line, chain=f"{chain}.{written}", use="read")
                    case _ if node in dtypes and chain == "torch":
                        pass  # `dtype=getattr(torch, kept)` is how a dtype's name is turned back
                    case _:
                        yield Clue(line, chain=chain, use="made")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in TEXTS_OF_NUMBERS:
                yield Clue(line, use="spelled")
            case ast.ClassDef(bases=bases):
                yield from (Clue(line, chain=chain, use="base") for base in bases if (chain := _chain(base)))


def _handed_chains(nodes: Sequence[ast.AST]) -> Iterator[ast.Attribute]:
    """Dotted names that are used as values, each of which may be a module: `[torch.nn][0]`. One that a name
    of a function's or of the cell's is given to is passed over, as that stands for it from then on.
    """
    passed: set[ast.AST] = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    passed |= {node.func for node in nodes if isinstance(node, ast.Call)}
    of_classes = {each for node in nodes if isinstance(node, ast.ClassDef) for each in node.body}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name()], value=value) if node not in of_classes:
                passed.add(value)
            case ast.Call(func=ast.Name(id=name), args=asked) if name in ASKED_OF:
                passed |= {*asked}
    chains = (node for node in nodes if isinstance(node, ast.Attribute) and _chain(node))
    yield from (node for node in chains if isinstance(node.ctx, ast.Load) and node not in passed)


def _goes_by_places(call: ast.Call) -> bool:
    """Whether it has a third argument without a name, or may have one that is unpacked."""
    return len(call.args) > 2 or any(isinstance(each, ast.Starred) for each in call.args)


def _reads_modules(node: ast.AST) -> bool:
    """`model.modules`, `nn.modules` or `sys.modules`, which is not put in its place."""
    return isinstance(node, ast.Attribute) and node.attr == "modules" and isinstance(node.ctx, ast.Load)


def _suspicions(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name in BY_ANY_NAME:
            yield f"mentions {name}" if name == "get_ipython" else f"calls {name}"
        case ast.MatchClass(kwd_attrs=names):
            yield from (f"reaches for {name}" for name in names if name in ATTRIBUTES)
        case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, name, *_]) if _is_put_together(name):
            yield "reaches for something by a name that is put together"
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]) if looks_up_a_class(target):
            yield "replaces something in a class that it looks up"
        case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()) if looks_up_a_class(value):
            yield "replaces something in a class that it looks up"
        case ast.Import(names=names):
            told = (alias for alias in names if alias.asname or alias.name not in PARTLY)
            yield from (why for alias in told if (why := _module(alias.name)))
        case ast.ImportFrom(module=str(module), names=names):
            if why := _module(module):
                yield why
            yield from (why for alias in names if (why := _module(f"{module}.{alias.name}")))
            inner = (alias.name for alias in names if alias.name in ATTRIBUTES | UNCOUNTED)
            yield from (f"reaches for {name}" for name in inner)
            inner = (alias.name for alias in names if alias.name.lstrip("_") in INTERPRETER)
            yield from (f"reaches for {name}" for name in inner)
        case ast.Attribute(attr=name) if name in ATTRIBUTES:
            yield f"reaches for {name}"
        case ast.Attribute(attr=name) if name in UNCOUNTED:
            yield f"keeps data where no check counts it, by {name}"
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield f"calls {name}"
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in ATTRIBUTES:
            yield f"defines {name}"
        case ast.Constant(value=str(text)) if any(
            word in text for word in (*GRADING_WORDS, *ATTRIBUTES - {"entries", "modules", "_C"})
        ):
            yield f"mentions {text[:60]!r}"


def _is_put_together(name: ast.expr) -> bool:
    """Whether a name is computed of texts alone, which could have been written as one."""
    looked_up = any(isinstance(each, ast.Name) for each in ast.walk(name))
    return not isinstance(name, ast.Constant | ast.Attribute) and not looked_up


def _on_the_way(dotted: str) -> str:
    """What a full name leads through that no exercise needs: `torch.sys.path`, `labkit.record.current`."""
    parts = dotted.split(".")
    for length in range(2, len(parts) + 1):
        name = ".".join(parts[:length])
        plain = parts[length - 1].lstrip("_")  # `collections._sys` is sys as well
        inner = MODULES.get(plain) if plain in INTERPRETER else None
        if name != PUBLIC and (why := MODULES.get(name) or inner):
            return f"reaches for {name} ({why})"
        if _is_inner(name):
            return f"reaches for {name}, which no exercise needs"
    return ""


def _is_beneath(dotted: str, forbidden: str) -> bool:
    """Whether a name is of what a forbidden function is made of: its module's own, or torch's operators."""
    module, _, name = forbidden.rpartition(".")
    operator = dotted.startswith("torch.ops.") and name.removesuffix("_attention") in dotted
    return operator or dotted.startswith(f"{module}._")


def _of_a_module_used_in_part(dotted: str) -> str:
    """What is told of a module whose import alone is not: that it is used as a whole, or in another part."""
    module, *parts = dotted.split(".")
    if module not in PARTLY or ".".join([module, *parts[:1]]) in PLAIN:
        return ""
    return f"reaches for {dotted} ({MODULES[module]})"


def _can_forge(why: str) -> bool:
    """Whether what was found can lead to the recorder, or to what is replaced to fool it."""
    return not any(harmless in why for harmless in HARMLESS)


def _finds_checks(why: str) -> bool:
    """Whether what was found is, or can lead to, the checks with their own answers."""
    return why == IN_NUMBERS or f"({BY_NAME})" in why or "(the checks)" in why


def _module(name: str) -> str:
    parts = name.split(".")
    known = next((m for m in (".".join(parts[:n]) for n in range(1, len(parts) + 1)) if m in MODULES), None)
    if known:
        return f"imports {name} ({MODULES[known]})"
    unneeded = (parts[0] not in NEEDED and _is_installed(parts[0])) or _is_inner(name)
    return f"imports {name}, which no exercise needs" if unneeded else ""


@cache
def _is_installed(package: str) -> bool:
    """Whether there is such a package or module at all: trying for one that is not leads nowhere."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # __main__, say
        return True


def _is_inner(name: str) -> bool:
    """Whether it is a module of labkit that is behind what exercises use."""
    if not name.startswith("labkit.") or name in OF_LABKIT or name.startswith(OF_LABKIT[:2]):
        return False
    path = _LABKIT.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def _is_private(name: str) -> bool:
    """Whether a full name leads through what torch keeps to itself."""
    first, *parts = name.split(".")
    return first == "torch" and any(p.startswith("_") and not PRIVATE_BUT_USUAL.fullmatch(p) for p in parts)


def _aliases(statement: ast.stmt) -> dict[str, list[str]]:
    """What each imported name stands for: dist -> torch.distributed. All that it ever does: a name that is
    imported twice must not hide what it stands for elsewhere.
    """
    found: dict[str, list[str]] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                found.setdefault(alias.asname or first, []).append(alias.name if alias.asname else first)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, []).append(f"{node.module}.{alias.name}")
    return found


def _renamed(statement: ast.stmt) -> dict[str, list[str]]:
    """What is assigned to a name as it is: Base -> torch.Tensor."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(statement):
        match node:
            case ast.Assign(targets=targets, value=value) if chain := _chain(value):
                for name in (target.id for target in targets if isinstance(target, ast.Name)):
                    found.setdefault(name, []).append(chain)
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if chain := _chain(value):
                found.setdefault(name, []).append(chain)
    return found


def _bound(statement: ast.stmt) -> list[str]:
    """Names that are bound anywhere in it, in whatever way, but for imports that say a full name."""
    found = []
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.append(name)
            case ast.ImportFrom(level=int(level), names=names) if level:
                found += [alias.asname or alias.name for alias in names]
            case ast.keyword() | ast.alias():
                pass
            case _:  # a function, a class, an argument, an error that is caught, a part of a pattern
                named = (getattr(node, field, None) for field in ("name", "arg", "rest"))
                found += [name for name in named if isinstance(name, str)]
    return list(dict.fromkeys(found))


def _chain(node: ast.AST) -> str:
    """A plain dotted name as it is written; empty for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if base := _chain(value):
            return f"{base}.{attr}"
    return ""


def _full(chain: str, imported: Names) -> list[str]:
    """The full names that a chain such as dist.ProcessGroup may stand for; none when its first is no
    import.
    """
    first, dot, rest = chain.partition(".")
    return [full + dot + rest for full in imported.get(first, ["builtins"] if first == "builtins" else [])]


def _merged(tables: Iterable[Names]) -> Names:
    """All that each name stands for, in any of the tables."""
    found: dict[str, list[str]] = {}
    for name, full in (item for table in tables for item in table.items()):
        found[name] = list(dict.fromkeys([*found.get(name, []), *full]))
    return found
