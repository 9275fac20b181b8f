"""Reads a student's source for what no exercise needs: reaching for frames, the recorder, or torch's own
functions.

A finding is a flag for a person, with the line. It takes no points by itself: a flag is a suspicion, a
failed property is evidence. The exception is an exercise's `forbids`, which is also enforced when the code
runs.

A cell is parsed where it is read, within limits; what is found there are clues (`autograder.grade.clues`).
Which of them are flags for an exercise is decided here, from the words alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autograder.grade.calls import ENTERED, IN_A_CLASS, LOOKED_THROUGH, PLACE, UNPACKED, WRITTEN
from autograder.grade.clues import CellClues, Clue, clues_of
from autograder.grade.identity import exported, full_names, module_of, reached_otherwise, watched_function
from autograder.grade.meanings import (
    MOST_MEANINGS,
    Meanings,
    Names,
    full_names_of,
    given_whole,
    meanings_of,
    merged,
    stand_for,
)
from autograder.grade.names import import_told, is_inner
from autograder.grade.reading_of_tensors import replaces
from autograder.grade.taken_out import is_watched_at_home
from autograder.grade.watched_names import (
    ANYWHERE,
    ATTRIBUTES,
    CLASSES,
    COPIES,
    DISPATCHES,
    FIELD,
    FIELDS,
    FILE_FUNCTIONS,
    HARMLESS,
    HARMLESS_CALLS,
    HAS_ALL_NAMES,
    INTERPRETER,
    KEPT_IN_FILES,
    LEADS_ANYWHERE,
    MODULES,
    NOT_HANDED_ON,
    OF_OBJECTS,
    OF_PYTREE,
    PARTLY,
    PICKLED,
    PICKLED_ELSEWHERE,
    PLAIN,
    PRIVATE_BUT_USUAL,
    PUBLIC,
    RUN_TEXT,
    RUNS_DATA,
    STATES,
    USUAL,
)
from labkit.checks.source.submission import Submission
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


_WORD = re.compile(r"\w+")
MOST_FLAGS = 100  # that a person is shown of one submission; what more there are is counted
MOST_LOOKUPS = 20_000  # of what a submission's names may stand for; those of a reference are 200
TOO_MANY = f"has names stand for more than {MOST_LOOKUPS} things in all, which are not followed"
IN_NUMBERS = "looks something up by a name, beside texts that are made of numbers"
# Two halves of a way to look something up by a text, or to have a text run, wherever each of them stands.
PAIRS = {
    ("looked_up", "spelled"): IN_NUMBERS,
    ("by_place", "registered"): "runs code from data: takes attributes by place, of what is registered",
    ("renames", FIELDS): "runs code from data: sets what a field of a dataclass is called",
    ("made_anew", "copied"): "runs code from data: copies a class that says itself what a copy is",
}
LAYERS = "torch.nn.modules"  # torch's own package of them, as in `nn.modules.batchnorm._BatchNorm`
_CROWDED = f"has {{}} stand for more than {MOST_MEANINGS} things"


def scan(
    submission: Submission,
    forbids: Sequence[str] = (),
    known: Mapping[str, CellClues] | None = None,
    sends_objects: bool = False,
    writes_files: bool = False,
) -> list[Flag]:
    """Flags for the student's statements an exercise would run.

    forbids: dotted names that solve it outright. known: clues by cell, where they have been found already.
    sends_objects: whether it is solved with collectives of objects, which every rank calls. writes_files:
    whether with files.
    """
    cells = dict(known or {})
    cells |= {label: clues_of(text) for label, text in submission.sources.items() if label not in cells}
    clues = {s: cells[s.cell][s.index] for s in (*submission.statements, *submission.additions)}
    renamed = merged(each.renamed for each in clues.values())
    imported, crowded = meanings_of(merged(each.imported for each in clues.values()), renamed)
    stands_for = stand_for(renamed, imported)
    bound = {name for each in clues.values() for name in each.bound}
    never_else = {} if "*" in imported else {n: full for n, full in imported.items() if n not in bound}
    classes = {name for each in clues.values() for name in each.classes}
    classes -= {name for each in clues.values() for name in each.bound if name not in each.classes}
    flags = [Flag(_CROWDED.format(name[:60]), holds=True, holds_all=True) for name in crowded]
    flags += _told_of_all(imported, " ".join(submission.sources.values()))
    everything = [clue for found in clues.values() for clue in found.found]
    meanings = Meanings(imported, stands_for, never_else, bound, classes, sends_objects)
    if sum(meanings.number(clue) for clue in everything) > MOST_LOOKUPS:
        return [*flags, Flag(TOO_MANY, holds=True, holds_all=True)]
    paired = _paired(everything, meanings)
    dispatches = any(not DISPATCHES.isdisjoint(meanings.of(clue)) for clue in everything)
    texts = {label: python_lines(text) for label, text in submission.sources.items()}
    for statement, found in clues.items():
        lines = texts[statement.cell]
        for clue in found.found:
            for why in (*_reasons(clue, meanings, forbids, dispatches), *paired.get(clue.use, ())):
                if writes_files and why.startswith(KEPT_IN_FILES):
                    continue
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


def _told_of_all(imported: Names, text: str) -> Iterator[Flag]:
    """Flags for names that `from module import *` brings and the text has: as if they were imported alone."""
    words = set(_WORD.findall(text))
    for home in given_whole(imported):
        for name in sorted(words.intersection(exported(home))):
            why = import_told(f"{home}.{name}")
            if name in ATTRIBUTES or why:
                why = f"{why or f'reaches for {name}'}, with all of {home}"
                yield Flag(why, holds=_can_forge(why), holds_all=name in LEADS_ANYWHERE or _finds_checks(why))


def _paired(clues: Iterable[Clue], meanings: Meanings) -> dict[str, list[str]]:
    """By how something is used: what that is with its other half, where the submission has both."""
    uses = {clue.use for clue in clues}
    halves: set[str] = {*uses}
    if "made_anew" in uses and any(not COPIES.isdisjoint(meanings.of(c)) for c in clues):
        halves.add("copied")
    if "renames" in uses and any(_has_fields(clue, meanings) for clue in clues):
        halves.add(FIELDS)
    found: dict[str, list[str]] = {}
    for pair, why in PAIRS.items():
        for use in pair if halves.issuperset(pair) else ():
            found.setdefault(use, []).append(why)
    return found


def _has_fields(clue: Clue, meanings: Meanings) -> bool:
    """Whether it has a dataclass's fields, and does more with them than to read what they are."""
    match clue.use:
        case "called" if LOOKED_THROUGH not in clue.arguments and FIELDS in meanings.of(clue):
            return True
        case "called" if IN_A_CLASS not in clue.arguments and FIELD in meanings.of(clue):
            return True
        case "handed":
            return not {FIELDS, FIELD}.isdisjoint(meanings.of(clue))
    return False


def _reasons(clue: Clue, meanings: Meanings, forbids: Sequence[str], dispatches: bool) -> Iterator[str]:
    """Why a clue is a flag, with what these names stand for. dispatches: whether functions are chosen by a
    class, for which the texts of annotations are run.
    """
    imported = meanings.imported
    if clue.why:
        yield clue.why
        return
    if clue.use == "modules":
        if set(full_names_of(clue.chain, meanings.never_else)) != {LAYERS}:
            yield "reaches for modules"
        return
    if clue.use == "kept_as":
        if not STATES.issuperset(full_names_of(clue.chain, meanings.never_else) or [""]):
            yield replaces(*clue.arguments)
        return
    if clue.use == "dispatched":
        if dispatches and not meanings.is_a_class(clue.chain):
            yield "runs code from data: registers a function for what may be no class"
        return
    if clue.chain in HAS_ALL_NAMES:
        modules = PARTLY.intersection(full for names in imported.values() for full in names)
        yield from (
            f"reaches for {clue.chain}, which has {name} ({MODULES[name]})" for name in sorted(modules)
        )
    for written in [clue.chain] if clue.use == "given" else full_names_of(clue.chain, imported):
        yield from _by_identity(written)
        for dotted in full_names(written):
            yield from _about(dotted, clue, forbids, meanings.sends_objects)
    first, dot, rest = clue.chain.partition(".")
    for dotted in meanings.stands_for.get(first, []):
        kind = dotted in CLASSES and clue.use in ("base", "set", "patched")
        if kind or clue.use in ("called", "sends", "taken_out") or (clue.use == "base" and dotted in USUAL):
            yield from _about(dotted + dot + rest, clue, forbids, meanings.sends_objects)


def _by_identity(dotted: str) -> Iterator[str]:
    """What a full name stands for, or leads through, that has another name where it is at home."""
    for own, written in reached_otherwise(dotted):
        if why := import_told(own):
            yield f"reaches for {written}: {why.replace('imports', 'it is', 1)}"
    if own := watched_function(dotted):
        home, _, name = own.rpartition(".")
        usual = USUAL[own].otherwise if own in USUAL else ""
        why = (
            usual or MODULES.get(own) or MODULES.get(home) or MODULES.get(home.partition(".")[0]) or RUNS_DATA
        )
        if name in HARMLESS_CALLS:
            why = "works on files" if name == "open" else "asks a person"
        yield f"reaches for {dotted}: it is {own} ({why})"


def _about(dotted: str, clue: Clue, forbids: Sequence[str], sends_objects: bool) -> Iterator[str]:
    """Why the use of a full name is a flag."""
    use = clue.use
    if use == "taken_out":
        if is_watched_at_home(dotted):
            yield f"takes {dotted} out of its class, past what counts its calls"
        return
    if use == "handed":
        if module_of(dotted) or dotted in NOT_HANDED_ON:
            yield f"hands on {dotted}, which gets another name"
        return
    if use in ("called", "sends"):
        yield from _of_a_call(dotted, clue)
        return
    if _sends_objects(dotted) and (not sends_objects or "send" in dotted or "recv" in dotted):
        yield f"reaches for {dotted} ({PICKLED_ELSEWHERE})"
    if use != "given" and (watched := _of_a_module_used_in_part(dotted)):
        yield watched
    if dotted in FILE_FUNCTIONS or dotted.partition(".")[0] == "tempfile":
        yield f"{KEPT_IN_FILES} {dotted}"
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
    if use == "base" and dotted in USUAL:
        yield f"makes a kind of {dotted} of its own ({USUAL[dotted].otherwise})"
    if use == "set":
        yield f"replaces {dotted}"
    if use == "patched":
        yield f"replaces something in {dotted}"


def _of_a_call(dotted: str, clue: Clue) -> Iterator[str]:
    """Why the call of a function is a flag, by its arguments and by where it stands."""
    if clue.use == "sends":
        if _sends_objects(dotted):
            yield f"reaches for {dotted} on some of the ranks ({PICKLED_ELSEWHERE})"
        return
    if (usual := USUAL.get(dotted)) is None:
        return
    given = clue.arguments
    by_place = [each for each in given if each in (PLACE, WRITTEN, UNPACKED)]
    made = usual.literal and any(each != WRITTEN for each in by_place[1:])
    if (
        len(by_place) > usual.places
        or UNPACKED in by_place
        or not {*usual.without}.isdisjoint(given)
        or made
        or (usual.entered and ENTERED not in given)
    ):
        yield (
            f"runs code from data: {PICKLED}"
            if usual.otherwise == PICKLED
            else f"reaches for {dotted} ({usual.otherwise})"
        )


def _on_the_way(dotted: str) -> str:
    """What a full name leads through that no exercise needs: `torch.sys.path`, `labkit.record.current`."""
    name, *parts = dotted.split(".")
    for part in parts:
        name = f"{name}.{part}"
        plain = part.lstrip("_")  # `collections._sys` is sys as well
        inner = MODULES.get(plain) if plain in INTERPRETER else None
        if name != PUBLIC and (why := MODULES.get(name) or inner):
            return f"reaches for {name} ({why})"
        if is_inner(name):
            return f"reaches for {name}, which no exercise needs"
    return ""


def _sends_objects(dotted: str) -> bool:
    name = dotted.rpartition(".")[2]
    return dotted.startswith("torch.distributed.") and OF_OBJECTS.fullmatch(name) is not None


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


def _is_private(name: str) -> bool:
    """Whether a full name leads through what a library keeps to itself."""
    parts = name.split(".")
    of_pytree = parts[parts.index("_pytree") + 1 :][:1] if "_pytree" in parts[1:] else []
    return any(p.startswith("_") and not PRIVATE_BUT_USUAL.fullmatch(p) for p in parts[1:]) or any(
        not OF_PYTREE.fullmatch(part) for part in of_pytree
    )
