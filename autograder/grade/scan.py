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
from autograder.grade.detours import ASKED_OF, detours, handed_on, looks_up_a_class
from autograder.grade.identity import exported, full_names, module_of, reached_otherwise, watched_function
from autograder.grade.watched_names import (
    ANYWHERE,
    ATTRIBUTES,
    BY_ANY_NAME,
    CALLS,
    CLASSES,
    GRADING_WORDS,
    HARMLESS,
    HARMLESS_CALLS,
    HAS_ALL_NAMES,
    INTERPRETER,
    LEADS_ANYWHERE,
    MODULES,
    NEEDED,
    OF_LABKIT,
    PLAIN,
    PRIVATE_BUT_USUAL,
    PUBLIC,
    RUN_TEXT,
    RUNS_DATA,
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
MOST_FLAGS = 100  # that a person is shown of one submission; what more there are is counted
IN_NUMBERS = "looks something up by a name, beside texts that are made of numbers"
LAYERS = "torch.nn.modules"  # torch's own package of them, as in `nn.modules.batchnorm._BatchNorm`
_LABKIT = Path(labkit.__file__).parent
_CROWDED = f"has {{}} stand for more than {MOST_MEANINGS} things"
_WORDS = {"entries", "modules", "_C"}  # of ATTRIBUTES: in a text these are words like any others
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
    imported, crowded = _meanings(_merged(each.imported for each in clues.values()), renamed)
    stands_for = _stand_for(renamed, imported)
    bound = {name for each in clues.values() for name in each.bound}
    never_else = {} if "*" in imported else {n: full for n, full in imported.items() if n not in bound}
    flags = [Flag(_CROWDED.format(name[:60]), holds=True, holds_all=True) for name in crowded]
    uses = {clue.use for found in clues.values() for clue in found.found}
    in_numbers = {"looked_up", "spelled"} <= uses
    texts = {label: python_lines(text) for label, text in submission.sources.items()}
    for statement, found in clues.items():
        lines = texts[statement.cell]
        for clue in found.found:
            reasons = _reasons(clue, imported, never_else, stands_for, forbids)
            if clue.use in ("looked_up", "spelled"):
                reasons = iter([IN_NUMBERS] if in_numbers else [])
            for why in reasons:
                text = lines[clue.line - 1].strip()[:200] if 0 < clue.line <= len(lines) else ""
                flags.append(Flag(why, statement.cell, clue.line, text, _can_forge(why), _finds_checks(why)))
    return _at_most(MOST_FLAGS, list(dict.fromkeys(flags)))


def _at_most(most: int, flags: list[Flag]) -> list[Flag]:
    """The first of these flags, one of each kind before others; the last says how many are left out, and
    holds what these hold.
    """
    if len(flags) <= most:
        return flags
    first = {flag.why: flag for flag in reversed(flags)}.values()
    by_worth = sorted(first, key=lambda flag: (not flag.holds_all, not flag.holds))
    shown = {*[*dict.fromkeys([*by_worth, *flags])][: most - 1]}
    left = [flag for flag in flags if flag not in shown]
    told = f"there are {len(left)} more places to look at"
    more = Flag(told, holds=any(f.holds for f in left), holds_all=any(f.holds_all for f in left))
    return [*(flag for flag in flags if flag in shown), more]


def _meanings(imported: Names, renamed: Names) -> tuple[dict[str, list[str]], list[str]]:
    """What each name stands for, with those that modules were assigned to (`m = torch.nn.functional` is as an
    import of it), and those that a module gives all its names to; and which names stand for too much.
    """
    found: dict[str, list[str]] = {}
    crowded: dict[str, None] = {}
    after: dict[str, list[tuple[str, str]]] = {}  # by its first name: a chain's rest, and who is given it
    for name, chains in renamed.items():
        for first, _, rest in (chain.partition(".") for chain in chains):
            after.setdefault(first, []).append((rest, name))
    left = [(name, full) for name, fulls in imported.items() for full in fulls]
    left += [(name, f"{home}.{name}") for home in _given_whole(imported) for name in exported(home)]
    left += [("builtins", "builtins")] if "builtins" not in imported else []
    while left:
        name, full = left.pop()
        known = found.setdefault(name, [])
        if full in known:
            continue
        if len(known) == MOST_MEANINGS and name != "*":
            crowded[name] = None
            continue
        known.append(full)
        for rest, given in after.get(name, []):
            if module := module_of(f"{full}.{rest}" if rest else full):
                left.append((given, module))
    return found, [*crowded]


def _given_whole(imported: Names) -> list[str]:
    """The modules of which all names are imported."""
    return [full.removesuffix(".*") for full in imported.get("*", []) if full.endswith(".*")]


def _stand_for(renamed: Names, imported: Names) -> dict[str, list[str]]:
    """The full names of what is assigned to each name, as far as imports tell."""
    fulls = {
        n: list(dict.fromkeys(f for c in chains for f in _full(c, imported))) for n, chains in renamed.items()
    }
    return {name: found[:MOST_MEANINGS] for name, found in fulls.items()}


def _reasons(
    clue: Clue, imported: Names, never_else: Names, stands_for: Names, forbids: Sequence[str]
) -> Iterator[str]:
    """Why a clue is a flag, with what these names stand for. never_else: those that nothing but imports
    binds, in any statement. stands_for: the full names of what is assigned to names.
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
    for written in [clue.chain] if clue.use == "given" else _full(clue.chain, imported):
        yield from _by_identity(written)
        for dotted in full_names(written):
            yield from _about(dotted, clue.use, forbids)
    first, dot, rest = clue.chain.partition(".")
    for dotted in stands_for.get(first, []):
        if clue.use == "unnamed":
            yield from _about(dotted + dot + rest, clue.use, forbids)
        if dotted in CLASSES and clue.use in ("base", "set", "patched"):
            yield from _about(dotted + dot + rest, clue.use, forbids)


def _by_identity(dotted: str) -> Iterator[str]:
    """What a full name stands for, or leads through, that has another name where it is at home."""
    for own, written in reached_otherwise(dotted):
        if why := _module(own):
            yield f"reaches for {written}: {why.replace('imports', 'it is', 1)}"
    if own := watched_function(dotted):
        home, _, name = own.rpartition(".")
        why = MODULES.get(own) or MODULES.get(home) or MODULES.get(home.partition(".")[0]) or RUNS_DATA
        if name in HARMLESS_CALLS:
            why = "works on files" if name == "open" else "asks a person"
        yield f"reaches for {dotted}: it is {own} ({why})"


def _about(dotted: str, use: str, forbids: Sequence[str]) -> Iterator[str]:
    """Why the use of a full name is a flag."""
    if use == "handed":
        if module_of(dotted) or dotted in UNPICKLE_BY_PLACE:
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
        yield f"reaches for {dotted}, which {dotted.partition('.')[0]} keeps to itself"
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
    within = any(isinstance(n, ast.Import | ast.ImportFrom) for n in nodes) and not isinstance(
        statement, ast.Import
    )
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
        if (
            within
            and isinstance(node, ast.Name)
            and node.id in HAS_ALL_NAMES
            and isinstance(node.ctx, ast.Load)
        ):
            yield Clue(line, f"reaches for {node.id}, beside what is imported there")
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
        case ast.Constant(value=str(text)) if text in ATTRIBUTES - _WORDS:
            yield f"reaches for {text}, by its name as a text"
        case ast.Constant(value=str(text)) if any(
            word in text for word in (*GRADING_WORDS, *ATTRIBUTES - _WORDS)
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
    """Whether what was found is, or can lead to, the checks with their own answers: it runs a text or data,
    walks frames, or reaches any module that is loaded.
    """
    verb, _, name = why.partition(" ")
    if verb == "reaches":
        name = name.removeprefix("for ").partition(",")[0]
    named = (verb in ("reaches", "defines") and name in LEADS_ANYWHERE) or (
        verb == "calls" and name in RUN_TEXT
    )
    return named or why == IN_NUMBERS or any(way in why for way in ANYWHERE)


def _module(name: str) -> str:
    parts = name.split(".")
    known = next((m for m in (".".join(parts[:n]) for n in range(len(parts), 0, -1)) if m in MODULES), None)
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
    """Whether a full name leads through what a library keeps to itself."""
    return any(p.startswith("_") and not PRIVATE_BUT_USUAL.fullmatch(p) for p in name.split(".")[1:])


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
