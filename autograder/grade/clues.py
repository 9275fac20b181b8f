"""Reads a statement for what no exercise needs: clues, in words. `autograder.grade.scan` decides which of
them are flags. This is done where a cell is parsed, within limits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from autograder.grade.annotations import names_in_annotations
from autograder.grade.calls import Calls, arguments_of, classes_named, plain_patterns
from autograder.grade.detours import ASKED_OF, detours, handed_on, looks_up_a_class
from autograder.grade.names import (
    TOO_LONG,
    bound_by,
    bound_names,
    chain_of,
    class_names,
    imported_names,
    is_followed,
    is_one_too_long,
    of_an_import,
    renamed_names,
)
from autograder.grade.reading_of_tensors import WORDS, of_files, of_reading, replaces
from autograder.grade.taken_out import taken_out
from autograder.grade.watched_names import (
    ATTRIBUTES,
    BY_ANY_NAME,
    CALLS,
    FIELD,
    FIELDS,
    GRADING_WORDS,
    HAS_ALL_NAMES,
    OF_A_MODULE,
    OF_OBJECTS,
    OFTEN_DEFINED,
    ONLY_ASKED,
    PARTLY,
    READ_BY,
    TEXTS_OF_NUMBERS,
    UNCOUNTED,
    USUAL,
)
from autograder.grade.who_calls import asks_who_calls
from labkit.checks.source.lookups import ASKED_OF_FUNCTIONS
from labkit.checks.source.syntax import parse


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
    # comes from elsewhere; spelled: a text is made of numbers; called: with these `arguments`, which
    # `autograder.grade.calls` puts into words; sends: a collective of objects that some ranks may call alone;
    # dispatched: as a class for which a function is registered (no chain where it may be something else);
    # taken_out: of what it belongs to, to be called by another name; kept_as: what it gives is kept under a
    # name of READ_BY, which is in `arguments`
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
        "called",
        "sends",
        "dispatched",
        "taken_out",
        "kept_as",
        # One half of what is a flag with another half, wherever that is (`autograder.grade.scan.PAIRS`): an
        # attribute of a field is set, a pattern takes attributes by their places, something is registered as
        # a kind of a class, a class says what a new one of it is.
        "renames",
        "by_place",
        "registered",
        "made_anew",
    ] = ""
    arguments: tuple[str, ...] = ()


class Clues(msgspec.Struct):
    """A statement's clues; the full names of what it imports, by the names it gives them; what it assigns
    to names as it is; the names that it binds anywhere in other ways than by an import; and those of these
    that it binds to a class and to nothing else.
    """

    found: list[Clue]
    imported: dict[str, list[str]]
    renamed: dict[str, list[str]]
    bound: list[str]
    classes: list[str] = []


# What a function is called where `_about` in `scan` tells of how it is called.
_TOLD_BY_CALLS = {name.rpartition(".")[2] for name in (*USUAL, FIELDS, FIELD)}
_DATA = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)
CellClues = Mapping[int, Clues]  # by which statement of the cell it is


def clues_of(source: str) -> dict[int, Clues]:
    """The clues in each statement of a cell that can be read."""
    return {index: _clues_of(statement) for index, statement in enumerate(parse(source).body)}


def _clues_of(statement: ast.stmt) -> Clues:
    bound, classes = bound_names(statement), class_names(statement)
    return Clues(
        [*_clues(statement)],
        imported_names(statement),
        renamed_names(statement),
        [*dict.fromkeys([*bound, *classes])],
        [*dict.fromkeys(name for name in classes if name not in bound)],
    )


@dataclass(frozen=True)
class _Around:
    """What a statement's nodes are to one another. methods: what is called; read_from: by what an attribute
    is read from, its name; given: what an attribute is given, where it stands alone; dtypes: values of
    `dtype=`; calls: what is known of its calls; imports: whether it imports something within itself.
    """

    methods: set[ast.expr]
    read_from: dict[ast.expr, str]
    given: dict[ast.AST, ast.expr]
    dtypes: set[ast.expr]
    calls: Calls
    imports: bool

    @classmethod
    def of(cls, statement: ast.stmt, nodes: Sequence[ast.AST]) -> _Around:
        imports = any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
        return cls(
            {node.func for node in nodes if isinstance(node, ast.Call)},
            {node.value: node.attr for node in nodes if isinstance(node, ast.Attribute)},
            {n.targets[0]: n.value for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1},
            {node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "dtype"},
            Calls.of(statement, nodes),
            imports and not isinstance(statement, ast.Import),
        )


def _clues(statement: ast.stmt) -> Iterator[Clue]:
    yield from (Clue(line, why) for line, why in dict.fromkeys(detours(statement)))
    yield from (Clue(line, chain=name, use="handed") for name, line in handed_on(statement).items())
    nodes = [*ast.walk(statement)]
    yield from (Clue(line, why) for line, why in dict.fromkeys(asks_who_calls(nodes)))
    asked = {each for node in nodes for each in _only_asked(node)}
    nodes = [node for node in nodes if node not in asked]
    yield from (Clue(node.lineno, chain=chain_of(node), use="handed") for node in _handed_chains(nodes))
    apart = ((node, chain_of(node)) for node in taken_out(nodes))
    yield from (Clue(node.lineno, chain=chain, use="taken_out") for node, chain in apart if "." in chain)
    around = _Around.of(statement, nodes)
    for node in nodes:
        line = getattr(node, "lineno", statement.lineno)
        yield from _by_itself(node, line, around)
        yield from _by_chain(node, line, around)


def _only_asked(node: ast.AST) -> Iterator[ast.expr]:
    """The names of a call that leads nowhere, though what it is read from, or what it names, would."""
    match node:
        case ast.Call(func=ast.Attribute(value=home) as function, args=[], keywords=[]):
            if chain_of(function) in ONLY_ASKED:
                yield from (function, home)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(text)) as name, _]):
            if text in ASKED_OF_FUNCTIONS and not node.keywords:
                yield name  # what it gives is the default, wherever the submission runs
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=str(text)) as name]):
            if text in ASKED_OF_FUNCTIONS:
                yield name


def _by_itself(node: ast.AST, line: int, around: _Around) -> Iterator[Clue]:
    """Clues that need no full name to be told, or are about all of a module's names."""
    yield from _of_a_call(node, line, around.calls)
    yield from _halves(node, line, around.calls)
    if is_one_too_long(node):
        yield Clue(line, TOO_LONG)
    yield from _replaces_reading(node, line, around.given.get(node))
    if not _reads_modules(node):
        found = (*_suspicions(node), *of_reading(node), *of_files(node))
        yield from (Clue(line, why) for why in dict.fromkeys(found))
    elif node not in around.methods:  # called it is a model's own method, as sys.modules cannot be called
        read = around.read_from.get(cast(ast.expr, node))
        as_sys_has = read is None or read in dir(dict)  # or as a value, to go on with
        yield Clue(line, chain="" if as_sys_has else chain_of(node), use="modules")
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if around.imports and name in HAS_ALL_NAMES:
            yield Clue(line, f"reaches for {name}, beside what is imported there")


def _by_chain(node: ast.AST, line: int, around: _Around) -> Iterator[Clue]:
    """Dotted names, and how they are used."""
    match node:
        case ast.ImportFrom(module=str(module), names=names) if is_followed(module):
            yield from (Clue(line, chain=f"{module}.{alias.name}", use="given") for alias in names)
        case ast.Name(id=name) if name in HAS_ALL_NAMES or (name in PARTLY and node not in around.read_from):
            yield Clue(line, chain=name, use="read")
        case ast.Attribute(ctx=context) if chain := chain_of(node):
            yield Clue(line, chain=chain, use="read" if isinstance(context, ast.Load) else "set")
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]) if chain := chain_of(owner):
            yield Clue(line, chain=chain, use="patched")
        case ast.Call(func=ast.Name(id="getattr"), args=[target, name, *_]) if chain := chain_of(target):
            yield from _by_a_name(chain, name, line, as_dtype=node in around.dtypes)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in TEXTS_OF_NUMBERS:
            yield Clue(line, use="spelled")
        case ast.ClassDef(bases=bases):
            yield from (Clue(line, chain=chain, use="base") for base in bases if (chain := chain_of(base)))


def _by_a_name(chain: str, name: ast.expr, line: int, as_dtype: bool) -> Iterator[Clue]:
    """What `getattr(chain, name)` shows."""
    if not isinstance(name, ast.Constant) and chain != "torch":
        yield Clue(line, use="looked_up")
    match name:
        case ast.Constant(value=str(written)):
            yield Clue(line, chain=f"{chain}.{written}", use="read")
            yield Clue(line, chain=f"{chain}.{written}", use="taken_out")
            if written.rpartition(".")[2] in _TOLD_BY_CALLS:
                yield Clue(line, chain=f"{chain}.{written}", use="handed")
        case _ if as_dtype and chain == "torch":
            pass  # `dtype=getattr(torch, kept)` is how a dtype's name is turned back
        case _:
            yield Clue(line, chain=chain, use="made")


def _handed_chains(nodes: Sequence[ast.AST]) -> Iterator[ast.Attribute]:
    """Dotted names that are used as values, each of which may be a module: `[torch.nn][0]`. One that a name
    of a function's or of the cell's is given to is passed over, as that stands for it from then on.
    """
    passed: set[ast.AST] = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    passed |= {node.func for node in nodes if isinstance(node, ast.Call)}
    passed |= {each for node in nodes for each in getattr(node, "decorator_list", ())}
    passed |= {*names_in_annotations(nodes)}
    of_classes = {each for node in nodes if isinstance(node, ast.ClassDef) for each in node.body}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name()], value=value) if node not in of_classes:
                passed.add(value)
            case ast.Call(func=ast.Name(id=name), args=asked) if name in ASKED_OF:
                passed |= {*asked}
            case ast.Call(args=[function, *_], keywords=named) if any(_unpickles_weights(k) for k in named):
                passed.add(function)
    chains = (node for node in nodes if isinstance(node, ast.Attribute) and chain_of(node))
    yield from (node for node in chains if isinstance(node.ctx, ast.Load) and node not in passed)


def _unpickles_weights(given: ast.keyword) -> bool:
    """`weights_only=True`, as in `partial(torch.load, weights_only=True)`."""
    return given.arg == "weights_only" and isinstance(given.value, ast.Constant) and given.value.value is True


def _of_a_call(node: ast.AST, line: int, calls: Calls) -> Iterator[Clue]:
    """How a function is called, where that can matter: a name without a dot may stand for any."""
    if isinstance(node, ast.Call) and (chain := chain_of(node.func)):
        _, dot, name = chain.rpartition(".")
        if not dot or name in _TOLD_BY_CALLS:
            yield Clue(line, chain=chain, use="called", arguments=(*arguments_of(node), *calls.about(node)))
        if OF_OBJECTS.fullmatch(name) and node in calls.of_some_ranks:
            yield Clue(line, chain=chain, use="sends")
    for named in _registered_for(node, calls):
        yield from (Clue(line, chain=chain_of(each), use="dispatched") for each in classes_named(named))


def _registered_for(node: ast.AST, calls: Calls) -> list[ast.expr]:
    """What says for which class a function is registered: `f.register(this)`, or above it and its annotations
    do.
    """
    if isinstance(node, ast.Call) and node in calls.registering:
        return [*node.args[:1], *(each.value for each in node.keywords)]
    if isinstance(node, ast.FunctionDef) and calls.registering.intersection(node.decorator_list):
        arguments = [each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        return [*filter(None, [*arguments, node.returns])]
    return []


def _halves(node: ast.AST, line: int, calls: Calls) -> Iterator[Clue]:
    """One half of what two places do together."""
    match node:
        case ast.Attribute(attr="name" | "type", ctx=ast.Store()):
            yield Clue(line, use="renames")
        case ast.Call(func=ast.Name(id="setattr"), args=[_, name, *_]) if not (
            isinstance(name, ast.Constant) and name.value not in ("name", "type")
        ):
            yield Clue(line, use="renames")
        case ast.MatchClass(patterns=[_, *_]) if not plain_patterns(node):
            yield Clue(line, use="by_place")
        case ast.Attribute(attr="register") if node not in calls.registering:
            yield Clue(line, use="registered")  # not called, or not above a function: also of a class
            yield Clue(line, use="dispatched")
        case ast.Call(func=ast.Attribute(attr="register")) | ast.Name(id="runtime_checkable"):
            yield Clue(line, use="registered")
        case ast.Attribute(attr="runtime_checkable") | ast.FunctionDef(name="__subclasshook__"):
            yield Clue(line, use="registered")
        case ast.Name(id="__subclasshook__", ctx=ast.Store()):
            yield Clue(line, use="registered")
        case ast.FunctionDef(name="__new__") | ast.Name(id="__new__", ctx=ast.Store()):
            yield Clue(line, use="made_anew")


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
        case ast.Import() | ast.ImportFrom():
            yield from of_an_import(node)
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=[])) if node.attr in OFTEN_DEFINED:
            pass
        case ast.Attribute(attr=name) if name in ATTRIBUTES:
            yield f"reaches for {name}"
        case ast.Attribute(attr="__module__", ctx=ast.Store()):
            yield "defines __module__"
        case _ if (name := bound_by(node)) in OF_A_MODULE:
            yield f"defines {name}"
        case ast.keyword(arg=str(name)) if name in ATTRIBUTES:
            yield f"reaches for {name}"
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="__module__"), *_]):
            yield "defines __module__"
        case ast.Attribute(attr=name) if name in UNCOUNTED:
            yield f"keeps data where no check counts it, by {name}"
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield f"calls {name}"
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in ATTRIBUTES - OFTEN_DEFINED:
            yield f"defines {name}"
        case ast.Name(id=name, ctx=ast.Store()) if name in ATTRIBUTES and name.startswith("__"):
            yield f"defines {name}"  # in a class this is as good as a method of that name
        case ast.Constant(value=str(text)) if text in ATTRIBUTES - WORDS:
            yield f"reaches for {text}, by its name as a text"
        case ast.Constant(value=str(text)) if any(
            word in text for word in (*GRADING_WORDS, *ATTRIBUTES - WORDS)
        ):
            yield f"mentions {text[:60]!r}"


def _replaces_reading(node: ast.AST, line: int, value: ast.expr | None) -> Iterator[Clue]:
    """An attribute gets the name of what tensors are read by, and a value that might be called: of what a
    function gives its name tells more.
    """
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store()) if name in READ_BY and not isinstance(value, _DATA):
            chain = chain_of(value.func) if isinstance(value, ast.Call) else ""
            told = Clue(line, chain=chain, use="kept_as", arguments=(name,))
            yield told if chain else Clue(line, replaces(name))


def _is_put_together(name: ast.expr) -> bool:
    """Whether a name is computed of texts alone, which could have been written as one."""
    looked_up = any(isinstance(each, ast.Name) for each in ast.walk(name))
    return not isinstance(name, ast.Constant | ast.Attribute) and not looked_up
